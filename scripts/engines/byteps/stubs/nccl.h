// The part of NCCL that BytePS calls, for one worker process per machine (BYTEPS_LOCAL_SIZE=1).
// BytePS then starts no collective; a larger local size is refused when its ring is set up.
#pragma once

#include <cstddef>

#include "cuda_runtime.h"

typedef struct { char internal[128]; } ncclUniqueId;
typedef void* ncclComm_t;
typedef enum { ncclSuccess = 0, ncclInvalidUsage = 5 } ncclResult_t;
typedef enum { ncclSum = 0 } ncclRedOp_t;
typedef enum {
  ncclInt8, ncclChar = ncclInt8, ncclUint8, ncclInt32, ncclInt = ncclInt32, ncclUint32, ncclInt64,
  ncclUint64, ncclFloat16, ncclHalf = ncclFloat16, ncclFloat32, ncclFloat = ncclFloat32,
  ncclFloat64, ncclDouble = ncclFloat64
} ncclDataType_t;

inline const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclSuccess ? "no error" : "built without NCCL: set BYTEPS_LOCAL_SIZE=1";
}
inline ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  *id = ncclUniqueId();
  return ncclSuccess;
}
inline ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId, int) {
  *comm = nullptr;
  return size == 1 ? ncclSuccess : ncclInvalidUsage;
}
inline ncclResult_t ncclGroupStart() { return ncclSuccess; }
inline ncclResult_t ncclGroupEnd() { return ncclSuccess; }
inline ncclResult_t ncclReduceScatter(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t,
                                      ncclComm_t, cudaStream_t) {
  return ncclInvalidUsage;
}
inline ncclResult_t ncclReduce(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, int,
                               ncclComm_t, cudaStream_t) {
  return ncclInvalidUsage;
}
inline ncclResult_t ncclAllGather(const void*, void*, size_t, ncclDataType_t, ncclComm_t,
                                  cudaStream_t) {
  return ncclInvalidUsage;
}
inline ncclResult_t ncclBroadcast(const void*, void*, size_t, ncclDataType_t, int, ncclComm_t,
                                  cudaStream_t) {
  return ncclInvalidUsage;
}
