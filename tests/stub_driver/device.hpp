// Devices and contexts. A context belongs to one device; which one is current belongs to the thread.
#pragma once
#include <cstdio>
#include <map>
#include <vector>

#include "core.hpp"

namespace stub {

// The limits of a compute capability (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability").
struct Part {
  int arch, threads, blocks, shared_optin;  // per multiprocessor, per multiprocessor, bytes a block may opt in to
};
constexpr Part kParts[] = {{75, 1024, 16, 65536},   {80, 2048, 32, 166912},  {86, 1536, 16, 101376},
                           {87, 1536, 16, 166912},  {89, 1536, 24, 101376},  {90, 2048, 32, 232448},
                           {100, 2048, 32, 232448}, {103, 2048, 32, 232448}, {110, 1536, 24, 232448},
                           {120, 1536, 24, 101376}, {121, 1536, 24, 101376}};
constexpr int kSharedReserve = 1024;  // bytes of shared memory that the system takes of each block, sm_80 on
constexpr unsigned kSharedDefault = 48 * 1024;
constexpr std::uintptr_t kDeviceBytes = std::uintptr_t{1} << 36;  // of addresses

struct Context;
struct Stream;

struct Device {
  int ordinal = 0;
  Part part{};
  int multiprocessors = 0;
  int share = 0;  // of them, which the process may use, as MPS gives; 0: there are no shares
  std::string name;
  std::uintptr_t base = 0, next = 0;             // its addresses, and the first that was never given out
  std::map<std::uintptr_t, std::size_t> memory;  // live allocations: address -> bytes
  std::size_t used = 0;
  Context* primary = nullptr;
  int retained = 0;

  int available() const { return share != 0 ? share : multiprocessors; }
};

struct Context {
  Device* device;
  std::atomic<Stream*> legacy{nullptr};
  Result lost = CUDA_SUCCESS;               // a kernel's fault: every later call in this context answers it
  std::atomic<int> blocking_captures{0};    // of streams that the legacy stream waits for
  std::atomic<std::int64_t> busy_until{0};  // by memsets (stream.hpp)
};

inline Pool<Context> contexts;
inline std::vector<Device> devices;
inline thread_local std::vector<Context*> current_stack;

inline Context* current() { return current_stack.empty() ? nullptr : current_stack.back(); }
inline Device* device_at(int ordinal) {
  return ordinal >= 0 && ordinal < static_cast<int>(devices.size()) ? &devices[static_cast<std::size_t>(ordinal)]
                                                                    : nullptr;
}

inline Part part_of(int arch) {
  Part found = kParts[0];
  for (const Part& part : kParts)
    if (part.arch <= arch) found = part;
  found.arch = arch;
  return found;
}

inline void add_device(int ordinal) {
  void* memory = mmap(nullptr, kDeviceBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  Device device;
  device.ordinal = ordinal;
  device.part = part_of(static_cast<int>(option("STUB_ARCH", 90)));
  device.part.blocks = static_cast<int>(option("STUB_RESIDENT", device.part.blocks));
  device.multiprocessors = static_cast<int>(option("STUB_MULTIPROCESSORS", 132));
  device.share = static_cast<int>(option("STUB_SHARE", 0L));
  device.name = option("STUB_NAME", "Stub GPU");
  device.base = device.next = reinterpret_cast<std::uintptr_t>(memory);
  devices.push_back(std::move(device));
}

inline Result cuInit(unsigned flags) {
  const Hold hold(structure);
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (forked) return CUDA_ERROR_NOT_INITIALIZED;
  if (usable) return CUDA_SUCCESS;
  const long count = option("STUB_GPUS", 1);
  if (count <= 0) return CUDA_ERROR_NO_DEVICE;
  for (int ordinal = 0; ordinal < count; ++ordinal) add_device(ordinal);
  pthread_atfork(nullptr, nullptr, [] { usable = false, forked = true; });
  usable = true;
  return CUDA_SUCCESS;
}

inline Result cuDriverGetVersion(int* version) {
  *version = static_cast<int>(option("STUB_DRIVER_VERSION", 13000));
  return CUDA_SUCCESS;
}

inline Result cuDeviceGetCount(int* count) { return *count = static_cast<int>(devices.size()), CUDA_SUCCESS; }

inline Result cuDeviceGet(int* device, int ordinal) {
  if (device_at(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  return *device = ordinal, CUDA_SUCCESS;
}

inline Result cuDeviceGetName(char* name, int length, int device) {
  if (device_at(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (length <= 0) return CUDA_ERROR_INVALID_VALUE;
  std::snprintf(name, static_cast<std::size_t>(length), "%s", device_at(device)->name.c_str());
  return CUDA_SUCCESS;
}

inline Result cuDeviceGetUuid(unsigned char* uuid, int device) {
  if (device_at(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  std::memcpy(uuid, "stub driver gpu", 16);
  uuid[15] = static_cast<unsigned char>(device);
  return CUDA_SUCCESS;
}

inline Result cuDeviceTotalMem(std::size_t* bytes, int device) {
  if (device_at(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  return *bytes = kDeviceBytes, CUDA_SUCCESS;
}

inline int attribute(const Device& device, int kind) {
  const Part& part = device.part;
  switch (kind) {
    case 1:
    case 2:
    case 3:
      return 1024;  // threads per block, block x, y
    case 4:
      return 64;  // block z
    case 5:
      return 0x7fffffff;  // grid x
    case 6:
    case 7:
      return 65535;  // grid y, z
    case 8:
      return kSharedDefault;  // shared memory per block
    case 10:
      return 32;  // warp size
    case 12:
    case 82:
      return 65536;  // registers per block, per multiprocessor
    case 16:
      return device.multiprocessors;
    case 31:
    case 41:
    case 95:
      return 1;  // concurrent kernels, unified addressing, cooperative launch
    case 33:
      return device.ordinal + 1;  // PCI bus
    case 38:
      return 50 << 20;  // L2 bytes
    case 39:
      return part.threads;  // threads per multiprocessor
    case 75:
      return part.arch / 10;
    case 76:
      return part.arch % 10;
    case 81:
      return part.shared_optin + (part.arch >= 80 ? kSharedReserve : 0);  // shared memory per multiprocessor
    case 97:
      return part.shared_optin;
    case 106:
      return part.blocks;  // blocks per multiprocessor
    case 111:
      return part.arch >= 80 ? kSharedReserve : 0;
    case 120:
      return part.arch >= 90;  // cluster launch
    default:
      return 0;
  }
}

inline Result cuDeviceGetAttribute(int* value, int kind, int device) {
  if (device_at(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (kind <= 0) return CUDA_ERROR_INVALID_VALUE;
  return *value = attribute(*device_at(device), kind), CUDA_SUCCESS;
}

inline Result cuDevicePrimaryCtxRetain(Context** context, int ordinal) {
  const Hold hold(structure);
  Device* device = device_at(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (device->primary == nullptr) device->primary = contexts.make(device);
  ++device->retained;
  return *context = device->primary, CUDA_SUCCESS;
}

inline Result cuDevicePrimaryCtxRelease(int ordinal) {
  const Hold hold(structure);
  Device* device = device_at(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (device->retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (--device->retained > 0) return CUDA_SUCCESS;
  contexts.drop(device->primary);
  device->primary = nullptr;
  return CUDA_SUCCESS;
}

inline Result cuDevicePrimaryCtxGetState(int ordinal, unsigned* flags, int* active) {
  Device* device = device_at(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  return *flags = 0, *active = device->primary != nullptr, CUDA_SUCCESS;
}

inline Result cuCtxGetCurrent(Context** context) { return *context = current(), CUDA_SUCCESS; }

inline Result cuCtxPushCurrent(Context* context) {
  count(switches);
  if (contexts.find(context) == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return current_stack.push_back(context), CUDA_SUCCESS;
}

inline Result cuCtxPopCurrent(Context** context) {
  count(switches);
  if (current_stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = current();
  return current_stack.pop_back(), CUDA_SUCCESS;
}

inline Result cuCtxSetCurrent(Context* context) {
  count(switches);
  if (context != nullptr && contexts.find(context) == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (!current_stack.empty()) current_stack.pop_back();
  if (context != nullptr) current_stack.push_back(context);
  return CUDA_SUCCESS;
}

struct Affinity {  // CUexecAffinityParam
  int kind;
  unsigned multiprocessors;
};

inline Result cuCtxGetExecAffinity(Affinity* affinity, int kind) {
  if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const int share = current()->device->share;
  if (kind != 0 || share == 0) return CUDA_ERROR_NOT_SUPPORTED;
  return *affinity = {kind, static_cast<unsigned>(share)}, CUDA_SUCCESS;
}

inline Result cuCtxGetDevice(int* device) {
  if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return *device = current()->device->ordinal, CUDA_SUCCESS;
}

}  // namespace stub
