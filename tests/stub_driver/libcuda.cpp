// A libcuda.so.1 for tests: the driver's rules without a GPU. Emulated kernels run, real binaries are checked and do
// nothing. Options are environment variables: STUB_GPUS, STUB_ARCH, STUB_DRIVER_VERSION, STUB_NAME,
// STUB_MULTIPROCESSORS, STUB_SHARE (of them, as MPS gives), STUB_RESIDENT (blocks on one of them at most).
#include "graph.hpp"

namespace stub {
namespace {

struct Row {
  const char* name;
  void* function;
  Count* calls;
};

#define STUB_ROW_OF(name) {#name, reinterpret_cast<void*>(&Entry<&name>::call), &Entry<&name>::calls}
#define STUB_ALWAYS(name) {#name, reinterpret_cast<void*>(&Entry<&name>::call_always), &Entry<&name>::calls}

const Row kTable[] = {
    STUB_ALWAYS(cuInit),
    STUB_ALWAYS(cuDriverGetVersion),
    STUB_ALWAYS(cuGetErrorName),
    STUB_ALWAYS(cuGetErrorString),
    STUB_ROW_OF(cuDeviceGetCount),
    STUB_ROW_OF(cuDeviceGet),
    STUB_ROW_OF(cuDeviceGetName),
    STUB_ROW_OF(cuDeviceGetUuid),
    STUB_ROW_OF(cuDeviceTotalMem),
    STUB_ROW_OF(cuDeviceGetAttribute),
    STUB_ROW_OF(cuDevicePrimaryCtxRetain),
    STUB_ROW_OF(cuDevicePrimaryCtxRelease),
    STUB_ROW_OF(cuDevicePrimaryCtxGetState),
    STUB_ROW_OF(cuCtxGetCurrent),
    STUB_ROW_OF(cuCtxPushCurrent),
    STUB_ROW_OF(cuCtxPopCurrent),
    STUB_ROW_OF(cuCtxSetCurrent),
    STUB_ROW_OF(cuCtxGetDevice),
    STUB_ROW_OF(cuCtxGetExecAffinity),
    STUB_ROW_OF(cuCtxSynchronize),
    STUB_ROW_OF(cuMemAlloc),
    STUB_ROW_OF(cuMemFree),
    STUB_ROW_OF(cuMemGetInfo),
    STUB_ROW_OF(cuMemcpyHtoD),
    STUB_ROW_OF(cuMemcpyDtoH),
    STUB_ROW_OF(cuMemsetD32Async),
    STUB_ROW_OF(cuStreamCreate),
    STUB_ROW_OF(cuStreamDestroy),
    STUB_ROW_OF(cuStreamSynchronize),
    STUB_ROW_OF(cuStreamIsCapturing),
    STUB_ROW_OF(cuStreamBeginCapture),
    STUB_ROW_OF(cuStreamEndCapture),
    STUB_ROW_OF(cuThreadExchangeStreamCaptureMode),
    STUB_ROW_OF(cuEventCreate),
    STUB_ROW_OF(cuEventRecord),
    STUB_ROW_OF(cuEventQuery),
    STUB_ROW_OF(cuEventSynchronize),
    STUB_ROW_OF(cuEventElapsedTime),
    STUB_ROW_OF(cuEventDestroy),
    STUB_ROW_OF(cuLibraryLoadData),
    STUB_ROW_OF(cuLibraryUnload),
    STUB_ROW_OF(cuLibraryGetKernel),
    STUB_ROW_OF(cuKernelGetFunction),
    STUB_ROW_OF(cuFuncLoad),
    STUB_ROW_OF(cuFuncSetAttribute),
    STUB_ROW_OF(cuLaunchKernel),
    STUB_ROW_OF(cuLaunchKernelEx),
    STUB_ROW_OF(cuOccupancyMaxActiveBlocksPerMultiprocessor),
    STUB_ROW_OF(cuOccupancyMaxActiveClusters),
    STUB_ROW_OF(cuGraphCreate),
    STUB_ROW_OF(cuGraphDestroy),
    STUB_ROW_OF(cuGraphAddKernelNode),
    STUB_ROW_OF(cuGraphAddDependencies),
    STUB_ROW_OF(cuGraphKernelNodeSetAttribute),
    STUB_ROW_OF(cuGraphKernelNodeSetParams),
    STUB_ROW_OF(cuGraphInstantiate),
    {"cuGraphInstantiateWithFlags", reinterpret_cast<void*>(&Entry<&cuGraphInstantiate>::call),
     &Entry<&cuGraphInstantiate>::calls},
    STUB_ROW_OF(cuGraphExecKernelNodeSetParams),
    STUB_ROW_OF(cuGraphLaunch),
    STUB_ROW_OF(cuGraphExecDestroy),
};

Result not_supported() { return CUDA_ERROR_NOT_SUPPORTED; }

}  // namespace
}  // namespace stub

using namespace stub;

#pragma GCC visibility push(default)
extern "C" {

int cuGetProcAddress_v2(const char* name, void** function, int, std::uint64_t, int* found) {
  *function = reinterpret_cast<void*>(&not_supported);
  for (const Row& row : kTable)
    if (std::strcmp(row.name, name) == 0) *function = row.function;
  if (found != nullptr) *found = 0;
  return CUDA_SUCCESS;
}
int cuGetProcAddress(const char* name, void** function, int version, std::uint64_t flags) {
  return cuGetProcAddress_v2(name, function, version, flags, nullptr);
}
// NVRTC asks for a private table and does without.
int cuGetExportTable(const void** table, const void*) { return *table = nullptr, CUDA_ERROR_NOT_FOUND; }

// How often a driver function was called, or all of them together (nullptr).
std::uint64_t stub_calls(const char* name) {
  std::uint64_t total = 0;
  for (const Row& row : kTable)
    if (name == nullptr || std::strcmp(row.name, name) == 0) total += *row.calls;
  return total;
}
}
#pragma GCC visibility pop
