// Launches: checked as the driver checks them, then run at once on the emulated machine, or recorded.
#pragma once
#include "module.hpp"
#include "runtime/state.hpp"  // machine::Launch

namespace stub {

struct Shape {
  Three grid, block;
  unsigned shared = 0, cluster = 1;
  bool cooperative = false, overlap = false;
};

// A launch with values of its own, as a graph keeps it.
struct Node {
  Graph* graph;
  Kernel* kernel;
  Shape shape;
  std::vector<std::vector<char>> values;
  std::vector<Node*> after;
};

inline int resident_blocks(const Device& device, const Shape& shape) {
  const int by_threads = device.part.threads / static_cast<int>(std::max<std::uint64_t>(shape.block.count(), 1));
  const int by_memory = (device.part.shared_optin + kSharedReserve) / static_cast<int>(shape.shared + kSharedReserve);
  return std::min({device.part.blocks, by_threads, by_memory});
}

inline Result check_shape(const Device& device, const Kernel& kernel, const Shape& shape) {
  const auto [x, y, z] = shape.block;
  const auto [gx, gy, gz] = shape.grid;
  if (shape.grid.count() == 0 || shape.block.count() == 0 || shape.block.count() > 1024 || z > 64 || gy > 65535 ||
      gz > 65535 || gx > 0x7fffffff || x > 1024 || y > 1024)
    return CUDA_ERROR_INVALID_VALUE;
  if (shape.shared > std::max(kernel.shared, kSharedDefault)) return CUDA_ERROR_INVALID_VALUE;
  if (shape.cluster != 1 && (device.part.arch < 90 || shape.cluster - 1 >= 8 || gx % shape.cluster != 0))
    return CUDA_ERROR_INVALID_CLUSTER_SIZE;
  const auto most = static_cast<std::uint64_t>(resident_blocks(device, shape)) * device.available();
  return shape.cooperative && shape.grid.count() > most ? CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE : CUDA_SUCCESS;
}

// Say whether an argument is an address of memory that was freed, or that another GPU has.
inline bool names_lost_memory(const Context& context, const Kernel& kernel, void** arguments) {
  for (unsigned i = 0; kernel.sizes[i] != 0; ++i) {
    std::uintptr_t value = 0;
    if (kernel.sizes[i] != sizeof(value)) continue;
    std::memcpy(&value, arguments[i], sizeof(value));
    for (const Device& device : devices)
      if (value >= device.base && value < device.base + kDeviceBytes && holder(value, 0) != context.device) return true;
  }
  return false;
}

// A fault is told by the next call that waits, as on a GPU.
inline void run(Context* context, const Kernel& kernel, const Shape& shape, void** arguments) {
  if (kernel.run == nullptr) return;
  const Hold hold(structure);  // the machine runs one launch at a time
  if (names_lost_memory(*context, kernel, arguments)) {
    std::fprintf(stderr, "stub driver: %s: an argument is freed memory, or another GPU's\n", kernel.name.c_str());
    context->lost = CUDA_ERROR_ILLEGAL_ADDRESS;
    return;
  }
  using Emulate = const char* (*)(const machine::Launch*);
  static const auto emulate = reinterpret_cast<Emulate>(dlsym(RTLD_DEFAULT, "onekernel_emulate"));
  if (emulate == nullptr) std::fputs("stub driver: no emulated machine in this process\n", stderr), std::abort();
  machine::Launch launch{};
  launch.kernel = kernel.run;
  launch.arguments = arguments;
  const Three *grid = &shape.grid, *block = &shape.block;
  const unsigned sizes[] = {grid->x, grid->y, grid->z, block->x, block->y, block->z};
  std::memcpy(launch.grid, sizes, sizeof(launch.grid) + sizeof(launch.block));
  launch.cluster = shape.cluster;
  launch.overlap = shape.overlap;
  launch.cooperative = shape.cooperative;
  launch.shared = shape.shared;
  launch.shared_limit = static_cast<unsigned>(context->device->part.shared_optin);
  if (const char* fault = emulate(&launch)) {
    std::fprintf(stderr, "stub driver: %s\n", fault);
    context->lost = CUDA_ERROR_LAUNCH_FAILED;
  }
}

Result record(Stream& stream, Kernel* kernel, const Shape& shape, void** arguments);  // graph.hpp

// A handle is a function, which has a context, or a kernel, which takes the stream's.
inline Result launch(void* handle, const Shape& shape, Stream* where, void** arguments) {
  Function* function = functions.find(handle);
  Kernel* kernel = function != nullptr ? function->kernel : kernels.find(handle);
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Stream* stream;
  if (const Result refused = stream_of(where, &stream); refused != CUDA_SUCCESS) return refused;
  if (function != nullptr && function->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
  if (const Result lost = stream->context->lost; lost != CUDA_SUCCESS) return lost;
  const Result refused = check_shape(*stream->context->device, *kernel, shape);
  if (refused != CUDA_SUCCESS) return refused;
  count(launches);
  if (stream->status == kInvalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (stream->status == kActive) return record(*stream, kernel, shape, arguments);
  return run(stream->context, *kernel, shape, arguments), CUDA_SUCCESS;
}

inline Result cuLaunchKernel(void* handle, unsigned gx, unsigned gy, unsigned gz, unsigned x, unsigned y, unsigned z,
                             unsigned shared, Stream* stream, void** arguments, void**) {
  return launch(handle, Shape{{gx, gy, gz}, {x, y, z}, shared}, stream, arguments);
}

struct Attribute {
  int kind, padding;
  union {
    int flag;
    unsigned size[3];
    char bytes[64];
  };
};
struct Config {
  unsigned gx, gy, gz, x, y, z, shared;
  Stream* stream;
  const Attribute* attributes;
  unsigned count;
};

inline Result apply(Shape& shape, int kind, const unsigned* value) {
  switch (kind) {
    case 2:
      return shape.cooperative = *value != 0, CUDA_SUCCESS;
    case 4:
      return shape.cluster = value[0] * value[1] * value[2], CUDA_SUCCESS;
    case 6:
      return shape.overlap = *value != 0, CUDA_SUCCESS;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

inline Result cuLaunchKernelEx(const Config* config, void* handle, void** arguments, void**) {
  Shape shape{{config->gx, config->gy, config->gz}, {config->x, config->y, config->z}, config->shared};
  for (unsigned i = 0; i < config->count; ++i) {
    const Attribute& item = config->attributes[i];
    if (const Result refused = apply(shape, item.kind, item.size); refused != CUDA_SUCCESS) return refused;
  }
  return launch(handle, shape, config->stream, arguments);
}

inline Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Function* function, int threads,
                                                          std::size_t shared) {
  if (functions.find(function) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const Shape shape{{}, {static_cast<unsigned>(threads), 1, 1}, static_cast<unsigned>(shared)};
  return *blocks = resident_blocks(*function->context->device, shape), CUDA_SUCCESS;
}

inline Result cuOccupancyMaxActiveClusters(int* clusters, Function* function, const Config* config) {
  if (functions.find(function) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Shape shape{{}, {config->x, config->y, config->z}, config->shared};
  for (unsigned i = 0; i < config->count; ++i) apply(shape, config->attributes[i].kind, config->attributes[i].size);
  const Device& device = *function->context->device;
  const int blocks = resident_blocks(device, shape) * device.available();
  return *clusters = blocks / static_cast<int>(shape.cluster), CUDA_SUCCESS;
}

}  // namespace stub
