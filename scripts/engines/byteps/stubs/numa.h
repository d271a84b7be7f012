// The part of libnuma that BytePS calls. It is reached only with several PCIe switches per machine,
// which a local size of 1 excludes; a machine then looks as if it had one node.
#pragma once

struct bitmask;
static bitmask* const numa_all_nodes_ptr = nullptr;
static bitmask* const numa_no_nodes_ptr = nullptr;

inline int numa_max_node() { return 0; }
inline void numa_set_preferred(int) {}
inline void numa_set_interleave_mask(bitmask*) {}
inline bitmask* numa_parse_nodestring(const char*) { return nullptr; }
inline void numa_bind(bitmask*) {}
