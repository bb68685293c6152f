// What every part of the stub stands on: handles that can be checked, options, the state of the process.
#pragma once
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <string>

#include "errors.hpp"

namespace stub {

// Objects behind handles. A slot is never used twice, so a handle that was destroyed stays invalid for ever, and a
// lookup is a range check: no lock, and no read of memory that a wrong handle names.
template <class T>
class Pool {
public:
  template <class... Arguments>
  T* make(Arguments&&... arguments) {
    const std::size_t index = used_.fetch_add(1);
    if (index >= kSlots) std::abort();
    T* object = new (slots() + index) T{std::forward<Arguments>(arguments)...};
    live()[index].store(true, std::memory_order_release);
    return object;
  }

  T* find(const void* handle) {
    const auto offset = reinterpret_cast<std::uintptr_t>(handle) - reinterpret_cast<std::uintptr_t>(slots());
    const std::size_t index = offset / sizeof(T);
    if (index >= kSlots || offset % sizeof(T) != 0 || !live()[index].load(std::memory_order_acquire)) return nullptr;
    return slots() + index;
  }

  void drop(T* object) {
    live()[object - slots()].store(false);
    object->~T();
  }

  template <class Visit>
  void each(Visit visit) {
    for (std::size_t index = 0; index < used_.load(); ++index)
      if (live()[index].load()) visit(slots()[index]);
  }

private:
  static constexpr std::size_t kSlots = 1 << 20;
  static void* reserve(std::size_t bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    return memory;
  }
  static T* slots() {
    static T* const memory = static_cast<T*>(reserve(kSlots * sizeof(T)));
    return memory;
  }
  static std::atomic<bool>* live() {
    static auto* const memory = static_cast<std::atomic<bool>*>(reserve(kSlots));
    return memory;
  }

  std::atomic<std::size_t> used_{0};
};

struct Three {
  unsigned x = 1, y = 1, z = 1;
  std::uint64_t count() const { return std::uint64_t{x} * y * z; }
};

inline long option(const char* name, long otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == '\0' ? otherwise : std::strtol(text, nullptr, 10);
}

inline std::string option(const char* name, const char* otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == '\0' ? otherwise : text;
}

// True between cuInit and a fork's child.
inline std::atomic<bool> usable{false};
inline std::atomic<bool> forked{false};
// Held wherever objects are made, linked or destroyed, and while an emulated kernel runs (its runtime is one machine).
inline std::recursive_mutex structure;
using Hold = std::lock_guard<std::recursive_mutex>;

// How often something happened; a test reads it by name.
using Count = std::atomic<std::uint64_t>;
inline Count launches{0}, loads{0}, switches{0};
inline void count(Count& counter) { counter.fetch_add(1, std::memory_order_relaxed); }

// A driver function as it is given out: counted, and refused before cuInit and in a forked child.
template <auto kFunction>
struct Entry;
template <class... Arguments, Result (*kFunction)(Arguments...)>
struct Entry<kFunction> {
  static inline Count calls{0};
  static Result call(Arguments... arguments) {
    count(calls);
    if (!usable.load(std::memory_order_relaxed)) return CUDA_ERROR_NOT_INITIALIZED;
    return kFunction(arguments...);
  }
  static Result call_always(Arguments... arguments) {
    count(calls);
    return kFunction(arguments...);
  }
};

}  // namespace stub
