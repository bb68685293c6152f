// Elementwise operators: one function of floats each, named as the row of ops.py that it implements.
//
// NaN in any operand gives NaN, as in numpy and torch; fmaxf and fminf would drop it.
//
// `each<op::add>(a, b)` applies one to packs; an operand may also be a single float for the whole pack.
#pragma once
#include "primitives.cuh"

namespace op {

ONEKERNEL_DEVICE float add(float a, float b) { return a + b; }
ONEKERNEL_DEVICE float sub(float a, float b) { return a - b; }
ONEKERNEL_DEVICE float mul(float a, float b) { return a * b; }
ONEKERNEL_DEVICE float div(float a, float b) { return a / b; }
ONEKERNEL_DEVICE float maximum(float a, float b) { return a > b || a != a ? a : b; }
ONEKERNEL_DEVICE float minimum(float a, float b) { return a < b || a != a ? a : b; }
ONEKERNEL_DEVICE float neg(float x) { return -x; }
ONEKERNEL_DEVICE float abs(float x) { return fabsf(x); }
ONEKERNEL_DEVICE float square(float x) { return x * x; }
ONEKERNEL_DEVICE float sqrt(float x) { return sqrtf(x); }
ONEKERNEL_DEVICE float rsqrt(float x) { return rsqrtf(x); }
ONEKERNEL_DEVICE float reciprocal(float x) { return 1.0f / x; }
ONEKERNEL_DEVICE float exp(float x) { return expf(x); }
ONEKERNEL_DEVICE float log(float x) { return logf(x); }
ONEKERNEL_DEVICE float sin(float x) { return sinf(x); }
ONEKERNEL_DEVICE float cos(float x) { return cosf(x); }
ONEKERNEL_DEVICE float tanh(float x) { return tanhf(x); }
ONEKERNEL_DEVICE float erf(float x) { return erff(x); }
ONEKERNEL_DEVICE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
ONEKERNEL_DEVICE float silu(float x) { return x / (1.0f + expf(-x)); }
ONEKERNEL_DEVICE float relu(float x) { return maximum(x, 0.0f); }
ONEKERNEL_DEVICE float leaky_relu(float x, float slope) { return x < 0.0f ? slope * x : x; }
ONEKERNEL_DEVICE float clip(float x, float low, float high) { return minimum(maximum(x, low), high); }
// log(1 + e^x) without overflow
ONEKERNEL_DEVICE float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }
ONEKERNEL_DEVICE float gelu(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }
ONEKERNEL_DEVICE float gelu_tanh(float x) {
  return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
}
ONEKERNEL_DEVICE float cast(float x) { return x; }  // values live in float; the store rounds

}  // namespace op

// N neighbouring elements, in registers.
template <int N>
struct Pack {
  static constexpr int kSize = N;
  float at[N];
};

template <int N>
ONEKERNEL_DEVICE float element(const Pack<N>& pack, int index) {
  return pack.at[index];
}
ONEKERNEL_DEVICE float element(float value, int) { return value; }

// The type of `each`: a pack as soon as one operand is a pack.
ONEKERNEL_DEVICE float widest(float) { return 0.0f; }
template <int N>
ONEKERNEL_DEVICE Pack<N> widest(const Pack<N>& pack) {
  return pack;
}
template <class... Rest>
ONEKERNEL_DEVICE auto widest(float, const Rest&... rest) {
  return widest(rest...);
}
template <int N, class... Rest>
ONEKERNEL_DEVICE Pack<N> widest(const Pack<N>& pack, const Rest&...) {
  return pack;
}

template <auto kOperator, int N, class... Operands>
ONEKERNEL_DEVICE Pack<N> each_of(const Pack<N>&, const Operands&... operands) {
  Pack<N> result;
#pragma unroll
  for (int i = 0; i < N; ++i) result.at[i] = kOperator(element(operands, i)...);
  return result;
}
template <auto kOperator, class... Operands>
ONEKERNEL_DEVICE float each_of(float, const Operands&... operands) {
  return kOperator(operands...);
}

template <auto kOperator, class... Operands>
ONEKERNEL_DEVICE auto each(const Operands&... operands) {
  return each_of<kOperator>(widest(operands...), operands...);
}

// ---- packs and memory: as few accesses as the machine's widest one allows
template <int N, class T>
constexpr int kAccessElements = N * int(sizeof(T)) <= kAccessBytes ? N : kAccessBytes / int(sizeof(T));

template <int N, class T>
ONEKERNEL_DEVICE Pack<N> load_pack(const T* address) {
  constexpr int kWidth = kAccessElements<N, T>;
  Pack<N> result;
#pragma unroll
  for (int first = 0; first < N; first += kWidth) {
    const Vector<T, kWidth> raw = load_vector<kWidth>(address + first);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) result.at[first + i] = to_float(raw.at[i]);
  }
  return result;
}

template <int N, class T>
ONEKERNEL_DEVICE void store_pack(T* address, const Pack<N>& value) {
  constexpr int kWidth = kAccessElements<N, T>;
#pragma unroll
  for (int first = 0; first < N; first += kWidth) {
    Vector<T, kWidth> raw;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) from_float(value.at[first + i], raw.at[i]);
    store_vector(address + first, raw);
  }
}
