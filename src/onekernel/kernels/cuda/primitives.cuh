// Every intrinsic and every line of PTX that kernels use, behind plain names.
//
// `emulated/primitives.cuh` offers the same names to g++, so that the text of a kernel is one text. A kernel
// may use threadIdx, blockIdx and what stands here, and nothing else of the machine. What few kernels need stands in
// files of its own, so that the others do not wait for it to compile:
//   primitives/warp.cuh         shuffles, votes, barriers of some lanes
//   primitives/atomic.cuh       atomic operations, words that threads wait for
//   primitives/wait.cuh         spins, named barriers
//   primitives/copy.cuh         asynchronous copies to shared memory
//   primitives/tensor_core.cuh  matrices
#pragma once

#define ONEKERNEL_DEVICE __device__ __forceinline__

constexpr int kWarpLanes = 32;

// The widest access of one thread.
#if __CUDA_ARCH__ >= 1000
constexpr int kAccessBytes = 32;
#else
constexpr int kAccessBytes = 16;
#endif

// ---- storage types; arithmetic is always float
struct float16 {
  unsigned short bits;
};
struct bfloat16 {
  unsigned short bits;
};

ONEKERNEL_DEVICE float to_float(float value) { return value; }
ONEKERNEL_DEVICE float to_float(float16 value) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
}
ONEKERNEL_DEVICE float to_float(bfloat16 value) { return __uint_as_float(static_cast<unsigned>(value.bits) << 16); }

ONEKERNEL_DEVICE unsigned float_bits(float value) { return __float_as_uint(value); }
ONEKERNEL_DEVICE float bits_float(unsigned bits) { return __uint_as_float(bits); }

// Round to nearest even, as every framework does.
ONEKERNEL_DEVICE void from_float(float value, float& result) { result = value; }
ONEKERNEL_DEVICE void from_float(float value, float16& result) {
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
}
ONEKERNEL_DEVICE void from_float(float value, bfloat16& result) {
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
#else  // sm_75 has no bf16 conversion
  const unsigned bits = __float_as_uint(value);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  result.bits = nan ? 0x7fff : static_cast<unsigned short>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#endif
}

// Two bfloat16 in a word, the first in its lower half.
ONEKERNEL_DEVICE unsigned round_pair(float first, float second) {
#if __CUDA_ARCH__ >= 800
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
#else
  bfloat16 one, other;
  from_float(first, one);
  from_float(second, other);
  return one.bits | static_cast<unsigned>(other.bits) << 16;
#endif
}

// Let the compiler know nothing of a value any more: what it computed of it is computed anew, and takes no registers.
ONEKERNEL_DEVICE void forget(int& value) { asm volatile("" : "+r"(value)); }
template <class T>
ONEKERNEL_DEVICE void forget(T*& pointer) {
  asm volatile("" : "+l"(pointer));
}

// The same value, which is at least 0 and less than a bound: then a division by a power of two is a shift.
template <int kBound>
ONEKERNEL_DEVICE int below(int value) {
  __builtin_assume(value >= 0 && value < kBound);
  return value;
}

// Add two words to an "or" and an "and" of all words. Neither can be begun with one of the two alone, which makes loads
// of both wait together: a compiler that is short of registers likes to wait for one, and then load the other.
ONEKERNEL_DEVICE void include_both(unsigned& any, unsigned& all, unsigned one, unsigned other) {
  asm("lop3.b32 %0, %0, %1, %2, 0xfe;" : "+r"(any) : "r"(one), "r"(other));
  asm("lop3.b32 %0, %0, %1, %2, 0x80;" : "+r"(all) : "r"(one), "r"(other));
}

// ---- functions as the hardware has them: right to about 2^-22, of the result or, for a logarithm near 0, of 1
ONEKERNEL_DEVICE float fast_exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
ONEKERNEL_DEVICE float fast_log2(float x) {
  float result;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
ONEKERNEL_DEVICE float fast_reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// A product that is rounded: never a part of a fused multiply-add, so that it has the same bits wherever it is made.
ONEKERNEL_DEVICE float rounded_product(float a, float b) { return __fmul_rn(a, b); }

// ---- memory: one access of N elements; `address` must be aligned to its size
template <class T, int N>
struct alignas(sizeof(T) * N) Vector {
  T at[N];
};

template <int N, class T>
ONEKERNEL_DEVICE Vector<T, N> load_vector(const T* address) {
  return *reinterpret_cast<const Vector<T, N>*>(address);
}

template <int N, class T>
ONEKERNEL_DEVICE void store_vector(T* address, const Vector<T, N>& value) {
  *reinterpret_cast<Vector<T, N>*>(address) = value;
}

// ---- the block's shared memory, one struct per kernel
template <class T>
ONEKERNEL_DEVICE T& shared_storage() {
  __shared__ T storage;
  return storage;
}

// The bytes that the launch asked for beside it; they begin at a multiple of 1024.
template <class T>
ONEKERNEL_DEVICE T* dynamic_storage() {
  extern __shared__ __align__(1024) unsigned char dynamic_bytes[];
  return reinterpret_cast<T*>(dynamic_bytes);
}

// ---- threads
// Exchange with lane (own lane ^ lane_mask). All 32 lanes of the warp must call it.
ONEKERNEL_DEVICE float shuffle_xor(float value, int lane_mask) {
  return __shfl_xor_sync(0xffffffffu, value, lane_mask);
}

ONEKERNEL_DEVICE void block_barrier() { __syncthreads(); }

// ---- overlap with the neighbours in the stream (programmatic dependent launch, sm_90 and later)
// Allow the next kernel to be launched once every block of this one has called it; that kernel then waits below.
ONEKERNEL_DEVICE void start_successor() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// Wait until the previous kernel has ended and its writes are visible. Must come before any access to global memory but
// load_early.
ONEKERNEL_DEVICE void await_predecessor() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Load what neither the predecessor writes nor any launch that may still run: this may come before the wait.
template <int N, class T>
ONEKERNEL_DEVICE Vector<T, N> load_early(const T* address) {
  return load_vector<N>(address);
}

// ---- thread block clusters (sm_90 and later)
ONEKERNEL_DEVICE int cluster_rank() {
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Also orders shared memory between the blocks of the cluster (arrive = release, wait = acquire).
ONEKERNEL_DEVICE void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
}

// Read another block's copy of `*address`, which lies in this block's shared memory.
ONEKERNEL_DEVICE float load_remote(const float* address, int rank) {
  unsigned remote;
  float value;
  const unsigned local = static_cast<unsigned>(__cvta_generic_to_shared(address));
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(local), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(remote) : "memory");
  return value;
}
