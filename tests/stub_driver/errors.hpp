// The statuses that the stub answers, with the driver's own names and words.
#pragma once

namespace stub {

#define STUB_ERRORS(X)                                                                                         \
  X(0, CUDA_SUCCESS, "no error")                                                                               \
  X(1, CUDA_ERROR_INVALID_VALUE, "invalid argument")                                                           \
  X(2, CUDA_ERROR_OUT_OF_MEMORY, "out of memory")                                                              \
  X(3, CUDA_ERROR_NOT_INITIALIZED, "initialization error")                                                     \
  X(100, CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected")                                           \
  X(101, CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal")                                                  \
  X(200, CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid")                                           \
  X(201, CUDA_ERROR_INVALID_CONTEXT, "invalid device context")                                                 \
  X(209, CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device")             \
  X(218, CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed")                                               \
  X(222, CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "the provided PTX was compiled with an unsupported toolchain.")   \
  X(400, CUDA_ERROR_INVALID_HANDLE, "invalid resource handle")                                                 \
  X(401, CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state")                   \
  X(500, CUDA_ERROR_NOT_FOUND, "named symbol not found")                                                       \
  X(600, CUDA_ERROR_NOT_READY, "device not ready")                                                             \
  X(700, CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered")                               \
  X(701, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch")                        \
  X(709, CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed")                                              \
  X(719, CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure")                                               \
  X(720, CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "too many blocks in cooperative launch")                     \
  X(801, CUDA_ERROR_NOT_SUPPORTED, "operation not supported")                                                  \
  X(900, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing")            \
  X(901, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture")     \
  X(902, CUDA_ERROR_STREAM_CAPTURE_MERGE, "operation would result in a merge of separate capture sequences")   \
  X(903, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began")          \
  X(904, CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work")                             \
  X(905, CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "dependency created on uncaptured work in another stream")       \
  X(906, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,                                                                   \
    "operation would make the legacy stream depend on a capturing blocking stream")                            \
  X(907, CUDA_ERROR_CAPTURED_EVENT, "operation not permitted on an event last recorded in a capturing stream") \
  X(908, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,                                                               \
    "attempt to terminate a thread-local capture sequence from another thread")                                \
  X(910, CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,                                                                 \
    "the graph update was not performed because it included changes which violated constraints specific to "   \
    "instantiated graph update")                                                                               \
  X(912, CUDA_ERROR_INVALID_CLUSTER_SIZE, "a kernel launch error has occurred due to cluster misconfiguration")

enum Result : int {
#define STUB_ENUMERATOR(code, name, words) name = code,
  STUB_ERRORS(STUB_ENUMERATOR)
#undef STUB_ENUMERATOR
};

struct Words {
  int code;
  const char* name;
  const char* words;
};

constexpr Words kWords[] = {
#define STUB_ROW(code, name, words) {code, #name, words},
    STUB_ERRORS(STUB_ROW)
#undef STUB_ROW
};

inline Result cuGetErrorName(int code, const char** text) {
  for (const Words& row : kWords)
    if (row.code == code) return *text = row.name, CUDA_SUCCESS;
  return *text = nullptr, CUDA_ERROR_INVALID_VALUE;
}

inline Result cuGetErrorString(int code, const char** text) {
  for (const Words& row : kWords)
    if (row.code == code) return *text = row.words, CUDA_SUCCESS;
  return *text = nullptr, CUDA_ERROR_INVALID_VALUE;
}

}  // namespace stub
