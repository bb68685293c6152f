// Memory, streams, events and stream capture. Work is done at once. Only memsets are said to take a time, of the whole
// GPU: events that come after them are reached when it is over, and who waits for the GPU waits for that.
#pragma once
#include <algorithm>
#include <chrono>
#include <thread>

#include "device.hpp"

namespace stub {

struct Graph;
enum Mode : int { kGlobal, kThreadLocal, kRelaxed };
enum Status : int { kNone, kActive, kInvalidated };

struct Stream {
  Context* context;
  unsigned flags;  // 1: does not wait for the legacy stream
  Status status = kNone;
  Mode mode = kGlobal;
  std::thread::id thread;
  Graph* graph = nullptr;
};
struct Event {
  Context* context;
  bool timed;
  std::atomic<std::int64_t> when{0};  // the GPU comes to it; 0 when it was never recorded
};

inline Pool<Stream> streams;
inline Pool<Event> events;
inline thread_local Mode thread_mode = kGlobal;
inline std::atomic<int> captures{0};  // begun and not ended

inline bool blocking(const Stream& stream) { return (stream.flags & 1) == 0; }

// Spoil the captures that `met` chooses; say whether there were any.
template <class Met>
bool spoil(Met met) {
  bool any = false;
  if (captures == 0) return any;
  const Hold hold(structure);
  streams.each([&](Stream& stream) {
    if (stream.status == kActive && met(stream)) stream.status = kInvalidated, any = true;
  });
  return any;
}

// The legacy stream waits for blocking streams: while one is captured it cannot be used, and the try spoils that.
inline Result use_legacy(Context* context) {
  if (context->blocking_captures == 0) return CUDA_SUCCESS;
  spoil([&](const Stream& stream) { return stream.context == context && blocking(stream); });
  return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

inline Stream* legacy_of(Context* context) {
  if (context->legacy == nullptr) {
    const Hold hold(structure);
    if (context->legacy == nullptr) context->legacy = streams.make(context, 0u);
  }
  return context->legacy;
}

// The stream behind a handle, in *found; 0, 1 and 2 are the current context's own (the legacy one, here).
inline Result stream_of(Stream* handle, Stream** found) {
  const auto number = reinterpret_cast<std::uintptr_t>(handle);
  if (number > 2) return (*found = streams.find(handle)) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
  if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return *found = legacy_of(current()), use_legacy(current());
}

// Refuse what a capture must not meet (allocations, waits), by the rules of cuThreadExchangeStreamCaptureMode.
inline Result unsafe() {
  const bool met = thread_mode != kRelaxed && spoil([](const Stream& stream) {
                     const bool mine = stream.thread == std::this_thread::get_id();
                     return (stream.mode == kGlobal && thread_mode == kGlobal) || (mine && stream.mode != kRelaxed);
                   });
  return met ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

#define STUB_NEEDS_CONTEXT \
  if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT
#define STUB_UNSAFE \
  if (const Result refused = unsafe(); refused != CUDA_SUCCESS) return refused

// ---- time, in nanoseconds of the host's clock

using Clock = std::chrono::steady_clock;
constexpr std::size_t kMemsetBytes = 1;  // per nanosecond; the host writes faster, so it can run ahead

inline std::int64_t now() { return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count(); }
inline std::int64_t idle_from(const Context& context) { return std::max(now(), context.busy_until.load()); }
inline void wait_until(std::int64_t when) {
  std::this_thread::sleep_for(std::chrono::nanoseconds(std::max<std::int64_t>(when - now(), 0)));
}
inline void wait_for(const Context& context) { wait_until(context.busy_until); }

// ---- memory: pages of the device's addresses, made accessible while they are allocated and never given out twice

inline Device* holder(std::uintptr_t address, std::size_t bytes) {
  for (Device& device : devices) {
    auto next = device.memory.upper_bound(address);
    if (next == device.memory.begin()) continue;
    const auto& [start, size] = *std::prev(next);
    if (address + bytes <= start + size) return &device;
  }
  return nullptr;
}

inline Result cuMemAlloc(std::uintptr_t* address, std::size_t bytes) {
  const Hold hold(structure);
  STUB_NEEDS_CONTEXT;
  STUB_UNSAFE;
  Device& device = *current()->device;
  const std::size_t pages = (bytes + 4095) / 4096 * 4096;
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (device.next + pages + 4096 > device.base + kDeviceBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  mprotect(reinterpret_cast<void*>(device.next), pages, PROT_READ | PROT_WRITE);
  std::memset(reinterpret_cast<void*>(device.next), 0xff, pages);  // reads as NaN
  *address = device.next;
  device.memory[device.next] = bytes;
  device.used += pages;
  return device.next += pages + 4096, CUDA_SUCCESS;
}

inline Result cuMemFree(std::uintptr_t address) {
  const Hold hold(structure);
  STUB_UNSAFE;
  if (address == 0) return CUDA_SUCCESS;
  Device* device = holder(address, 0);
  if (device == nullptr || device->memory.count(address) == 0) return CUDA_ERROR_INVALID_VALUE;
  const std::size_t pages = (device->memory[address] + 4095) / 4096 * 4096;
  mprotect(reinterpret_cast<void*>(address), pages, PROT_NONE);
  device->used -= pages;
  return device->memory.erase(address), CUDA_SUCCESS;
}

inline Result cuMemGetInfo(std::size_t* free_bytes, std::size_t* total) {
  STUB_NEEDS_CONTEXT;
  return *total = kDeviceBytes, *free_bytes = kDeviceBytes - current()->device->used, CUDA_SUCCESS;
}

inline Result copied(void* to, const void* from, std::size_t bytes, std::uintptr_t device_address) {
  STUB_NEEDS_CONTEXT;
  wait_for(*current());
  const Hold hold(structure);
  if (const Result refused = use_legacy(current()); refused != CUDA_SUCCESS) return refused;
  if (current()->lost != CUDA_SUCCESS) return current()->lost;
  if (holder(device_address, bytes) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return std::memcpy(to, from, bytes), CUDA_SUCCESS;
}
inline Result cuMemcpyHtoD(std::uintptr_t to, const void* from, std::size_t bytes) {
  return copied(reinterpret_cast<void*>(to), from, bytes, to);
}
inline Result cuMemcpyDtoH(void* to, std::uintptr_t from, std::size_t bytes) {
  return copied(to, reinterpret_cast<const void*>(from), bytes, from);
}
inline Result cuMemsetD32Async(std::uintptr_t to, unsigned value, std::size_t count_, Stream* handle) {
  const Hold hold(structure);
  STUB_NEEDS_CONTEXT;
  Stream* stream;
  if (const Result refused = stream_of(handle, &stream); refused != CUDA_SUCCESS) return refused;
  Context& context = *stream->context;
  if (context.lost != CUDA_SUCCESS) return context.lost;
  if (stream->status != kNone) return CUDA_ERROR_NOT_SUPPORTED;
  if (count_ == 0) return CUDA_SUCCESS;
  if (to % 4 != 0 || holder(to, 4 * count_) != context.device) return CUDA_ERROR_INVALID_VALUE;
  std::fill_n(reinterpret_cast<unsigned*>(to), count_, value);
  context.busy_until = idle_from(context) + static_cast<std::int64_t>(4 * count_ / kMemsetBytes);
  return CUDA_SUCCESS;
}

// ---- streams and events

inline void end_capture(Stream& stream) {
  stream.status = kNone;
  --captures;
  if (blocking(stream)) --stream.context->blocking_captures;
}

inline Result cuStreamCreate(Stream** stream, unsigned flags) {
  const Hold hold(structure);
  STUB_NEEDS_CONTEXT;
  return *stream = streams.make(current(), flags), CUDA_SUCCESS;
}
inline Result cuStreamDestroy(Stream* stream) {
  const Hold hold(structure);
  if (streams.find(stream) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->status != kNone) end_capture(*stream);
  return streams.drop(stream), CUDA_SUCCESS;
}
inline Result cuStreamSynchronize(Stream* handle) {
  Stream* stream;
  if (const Result refused = stream_of(handle, &stream); refused != CUDA_SUCCESS) return refused;
  if (stream->status != kNone) return stream->status = kInvalidated, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  STUB_UNSAFE;
  return wait_for(*stream->context), stream->context->lost;
}
inline Result cuCtxSynchronize() {
  STUB_NEEDS_CONTEXT;
  if (spoil([](const Stream& stream) { return stream.context == current(); }))  // whatever the modes
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  return wait_for(*current()), current()->lost;
}
inline Result cuEventCreate(Event** event, unsigned flags) {
  const Hold hold(structure);
  STUB_NEEDS_CONTEXT;
  return *event = events.make(current(), (flags & 2) == 0), CUDA_SUCCESS;
}
inline Result cuEventRecord(Event* event, Stream* handle) {
  Stream* stream;
  if (events.find(event) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (const Result refused = stream_of(handle, &stream); refused != CUDA_SUCCESS) return refused;
  return event->when = idle_from(*stream->context), CUDA_SUCCESS;
}
inline Result cuEventQuery(Event* event) {
  STUB_UNSAFE;
  if (events.find(event) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return event->when > now() ? CUDA_ERROR_NOT_READY : event->context->lost;
}
inline Result cuEventSynchronize(Event* event) {
  STUB_UNSAFE;
  if (events.find(event) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return wait_until(event->when), CUDA_SUCCESS;
}
inline Result cuEventElapsedTime(float* milliseconds, Event* first, Event* last) {
  if (events.find(first) == nullptr || events.find(last) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!first->timed || !last->timed || first->when == 0 || last->when == 0) return CUDA_ERROR_INVALID_HANDLE;
  if (std::max(first->when.load(), last->when.load()) > now()) return CUDA_ERROR_NOT_READY;
  return *milliseconds = static_cast<float>(last->when - first->when) * 1e-6f, CUDA_SUCCESS;
}
inline Result cuEventDestroy(Event* event) {
  const Hold hold(structure);
  if (events.find(event) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return events.drop(event), CUDA_SUCCESS;
}

// ---- capture

inline Result cuThreadExchangeStreamCaptureMode(Mode* mode) { return std::swap(*mode, thread_mode), CUDA_SUCCESS; }

inline Result cuStreamIsCapturing(Stream* handle, Status* status) {
  if (reinterpret_cast<std::uintptr_t>(handle) <= 2) {  // a question spoils nothing
    STUB_NEEDS_CONTEXT;
    return *status = kNone, current()->blocking_captures > 0 ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
  }
  if (streams.find(handle) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return *status = handle->status, CUDA_SUCCESS;
}

}  // namespace stub
