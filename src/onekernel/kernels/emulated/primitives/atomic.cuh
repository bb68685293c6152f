// The emulated twin of cuda/primitives/atomic.cuh. Fibres do not run at the same time, so plain accesses are atomic;
// the machine is told of each, because it knows which order they make between threads.
#pragma once
#include "primitives.cuh"

enum class Scope { block, gpu };

namespace machine {

template <class T, class Function>
ONEKERNEL_PRIMITIVE T update_word(T* address, Function value, Ordering ordering = Ordering::relaxed) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "32 or 64 bits");
  touch_word(address, sizeof(T), Word::update, ordering);
  T before;
  copy_word(&before, address, sizeof(T));
  const T after = value(before);
  copy_word(address, &after, sizeof(T));
  return before;
}

// Integers wrap, as they do on a GPU.
template <class T>
ONEKERNEL_PRIMITIVE T wrapping_sum(T a, T b) {
  if constexpr (static_cast<T>(0.5f) != T{})
    return a + b;
  else
    return static_cast<T>(static_cast<unsigned long long>(a) + static_cast<unsigned long long>(b));
}

}  // namespace machine

template <class T>
ONEKERNEL_PRIMITIVE T atomic_add(T* address, T value) {
  return machine::update_word(address, [&](T before) { return machine::wrapping_sum(before, value); });
}
template <class T>
ONEKERNEL_PRIMITIVE T atomic_min(T* address, T value) {
  return machine::update_word(address, [&](T before) { return value < before ? value : before; });
}
template <class T>
ONEKERNEL_PRIMITIVE T atomic_max(T* address, T value) {
  return machine::update_word(address, [&](T before) { return before < value ? value : before; });
}
template <class T>
ONEKERNEL_PRIMITIVE T atomic_exchange(T* address, T value) {
  return machine::update_word(address, [&](T) { return value; });
}
template <class T>
ONEKERNEL_PRIMITIVE T atomic_compare_exchange(T* address, T expected, T desired) {
  return machine::update_word(address, [&](T before) { return before == expected ? desired : before; });
}

template <Scope kScope = Scope::gpu, class T>
ONEKERNEL_PRIMITIVE T load_acquire(const T* address) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "32 or 64 bits");
  machine::touch_word(address, sizeof(T), machine::Word::load, machine::Ordering::acquire);
  T value;
  machine::copy_word(&value, address, sizeof(T));
  return value;
}

template <Scope kScope = Scope::gpu, class T>
ONEKERNEL_PRIMITIVE void store_release(T* address, T value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "32 or 64 bits");
  machine::touch_word(address, sizeof(T), machine::Word::store, machine::Ordering::release);
  machine::copy_word(address, &value, sizeof(T));
}

template <Scope kScope = Scope::gpu, class T>
ONEKERNEL_PRIMITIVE T add_release(T* address, T value) {
  return machine::update_word(
      address, [&](T before) { return machine::wrapping_sum(before, value); }, machine::Ordering::release);
}

template <int N>
ONEKERNEL_PRIMITIVE Vector<unsigned, N> load_relaxed(const unsigned* address) {
  static_assert(N == 1 || N == 2 || N == 4, "1, 2 or 4 words");
  machine::check_access<unsigned, N>(address);
  Vector<unsigned, N> words;
  for (int i = 0; i < N; ++i) {
    machine::touch_word(address + i, sizeof(unsigned), machine::Word::load, machine::Ordering::relaxed);
    machine::copy_word(&words.at[i], address + i, sizeof(unsigned));
  }
  return words;
}

template <int N>
ONEKERNEL_PRIMITIVE void store_relaxed(unsigned* address, const Vector<unsigned, N>& words) {
  static_assert(N == 1 || N == 2 || N == 4, "1, 2 or 4 words");
  machine::check_access<unsigned, N>(address);
  for (int i = 0; i < N; ++i) {
    machine::touch_word(address + i, sizeof(unsigned), machine::Word::store, machine::Ordering::relaxed);
    machine::copy_word(address + i, &words.at[i], sizeof(unsigned));
  }
}

ONEKERNEL_PRIMITIVE void fence() {}  // memory has one order here
