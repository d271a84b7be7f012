"""An emulated cluster on one machine: network namespaces joined by shaped links."""
