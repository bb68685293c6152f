// Atomic operations on words in global or shared memory, and the words by which threads hand data to each other.
//
// The atomic_ operations are relaxed: they order nothing but themselves. Who writes data and then says so uses
// store_release or add_release; who waits for it uses load_acquire; then the data is visible too. A scope says between
// whom: threads of one block, or of the whole GPU.
#pragma once
#include "primitives.cuh"

enum class Scope { block, gpu };

// Each returns what the word held before.
template <class T>
ONEKERNEL_DEVICE T atomic_add(T* address, T value) {
  return atomicAdd(address, value);
}
template <class T>
ONEKERNEL_DEVICE T atomic_min(T* address, T value) {
  return atomicMin(address, value);
}
template <class T>
ONEKERNEL_DEVICE T atomic_max(T* address, T value) {
  return atomicMax(address, value);
}
template <class T>
ONEKERNEL_DEVICE T atomic_exchange(T* address, T value) {
  return atomicExch(address, value);
}
// Writes `desired` when the word holds `expected`.
template <class T>
ONEKERNEL_DEVICE T atomic_compare_exchange(T* address, T expected, T desired) {
  return atomicCAS(address, expected, desired);
}

template <Scope kScope = Scope::gpu, class T>
ONEKERNEL_DEVICE T load_acquire(const T* address) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "32 or 64 bits");
  if constexpr (sizeof(T) == 4) {
    unsigned word;
    if constexpr (kScope == Scope::gpu)
      asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(word) : "l"(address) : "memory");
    else
      asm volatile("ld.acquire.cta.u32 %0, [%1];" : "=r"(word) : "l"(address) : "memory");
    return static_cast<T>(word);
  } else {
    unsigned long long word;
    if constexpr (kScope == Scope::gpu)
      asm volatile("ld.acquire.gpu.u64 %0, [%1];" : "=l"(word) : "l"(address) : "memory");
    else
      asm volatile("ld.acquire.cta.u64 %0, [%1];" : "=l"(word) : "l"(address) : "memory");
    return static_cast<T>(word);
  }
}

template <Scope kScope = Scope::gpu, class T>
ONEKERNEL_DEVICE void store_release(T* address, T value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "32 or 64 bits");
  if constexpr (sizeof(T) == 4) {
    const auto word = static_cast<unsigned>(value);
    if constexpr (kScope == Scope::gpu)
      asm volatile("st.release.gpu.u32 [%0], %1;" ::"l"(address), "r"(word) : "memory");
    else
      asm volatile("st.release.cta.u32 [%0], %1;" ::"l"(address), "r"(word) : "memory");
  } else {
    const auto word = static_cast<unsigned long long>(value);
    if constexpr (kScope == Scope::gpu)
      asm volatile("st.release.gpu.u64 [%0], %1;" ::"l"(address), "l"(word) : "memory");
    else
      asm volatile("st.release.cta.u64 [%0], %1;" ::"l"(address), "l"(word) : "memory");
  }
}

// Returns what the word held before.
template <Scope kScope = Scope::gpu, class T>
ONEKERNEL_DEVICE T add_release(T* address, T value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "32 or 64 bits");
  if constexpr (sizeof(T) == 4) {
    unsigned word = static_cast<unsigned>(value);
    if constexpr (kScope == Scope::gpu)
      asm volatile("atom.add.release.gpu.u32 %0, [%1], %0;" : "+r"(word) : "l"(address) : "memory");
    else
      asm volatile("atom.add.release.cta.u32 %0, [%1], %0;" : "+r"(word) : "l"(address) : "memory");
    return static_cast<T>(word);
  } else {
    auto word = static_cast<unsigned long long>(value);
    if constexpr (kScope == Scope::gpu)
      asm volatile("atom.add.release.gpu.u64 %0, [%1], %0;" : "+l"(word) : "l"(address) : "memory");
    else
      asm volatile("atom.add.release.cta.u64 %0, [%1], %0;" : "+l"(word) : "l"(address) : "memory");
    return static_cast<T>(word);
  }
}

// ---- words in global memory that carry their own proof: relaxed, ordered with nothing, and each whole by itself.
// `address` must be aligned to all N words.
template <int N>
ONEKERNEL_DEVICE Vector<unsigned, N> load_relaxed(const unsigned* address) {
  static_assert(N == 1 || N == 2 || N == 4, "1, 2 or 4 words");
  Vector<unsigned, N> words;
  if constexpr (N == 1)
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(words.at[0]) : "l"(address) : "memory");
  else if constexpr (N == 2)
    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];"
                 : "=r"(words.at[0]), "=r"(words.at[1])
                 : "l"(address)
                 : "memory");
  else
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.at[0]), "=r"(words.at[1]), "=r"(words.at[2]), "=r"(words.at[3])
                 : "l"(address)
                 : "memory");
  return words;
}

template <int N>
ONEKERNEL_DEVICE void store_relaxed(unsigned* address, const Vector<unsigned, N>& words) {
  static_assert(N == 1 || N == 2 || N == 4, "1, 2 or 4 words");
  if constexpr (N == 1)
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(address), "r"(words.at[0]) : "memory");
  else if constexpr (N == 2)
    asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(address), "r"(words.at[0]), "r"(words.at[1])
                 : "memory");
  else
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(words.at[0]),
                 "r"(words.at[1]), "r"(words.at[2]), "r"(words.at[3])
                 : "memory");
}

// What this thread wrote before, and knows to be written, is seen by whoever sees what it writes behind the fence; what
// it reads behind it is no older than what it saw before.
ONEKERNEL_DEVICE void fence() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
