// A fragment of weights times the parts of a vector, on tensor cores. sm_75 has none for bfloat16: there the lanes of a
// warp tell each other their numbers, which still takes less time than to read the weights.
#pragma once
#include "phases/columns.cuh"

// The products of two neighbours.
ONEKERNEL_DEVICE float multiply_pairs(unsigned a, unsigned b) {
  return of_pair<bfloat16>(a, 0) * of_pair<bfloat16>(b, 0) + of_pair<bfloat16>(a, 1) * of_pair<bfloat16>(b, 1);
}

// As multiply_add: the lane that has rows `group` of a, and columns `pair` and `pair + 1` of d, asks for the rest.
ONEKERNEL_DEVICE void multiply_add_by_shuffles(MatrixD& d, const MatrixA<bfloat16>& a, const MatrixB<bfloat16>& b) {
  const int row = lane_index() / 4 * 4, column = lane_index() % 4 * 8;  // first lanes of a row of a, of a column of b
#pragma unroll 1                                                        // else a decoder takes minutes to compile
  for (int lane = 0; lane < 4; ++lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const unsigned left = shuffle_index(b.at[half], column + lane);
      const unsigned right = shuffle_index(b.at[half], column + 4 + lane);
#pragma unroll
      for (int lower = 0; lower < 2; ++lower) {
        const unsigned weights = shuffle_index(a.at[2 * half + lower], row + lane);
        d.at[2 * lower] += multiply_pairs(weights, left);
        d.at[2 * lower + 1] += multiply_pairs(weights, right);
      }
    }
  }
}

template <class T>
ONEKERNEL_DEVICE void multiply_fragment(MatrixD& d, const MatrixA<T>& a, const MatrixB<T>& b) {
  multiply_add(d, a, b);
}
template <>
ONEKERNEL_DEVICE void multiply_fragment(MatrixD& d, const MatrixA<bfloat16>& a, const MatrixB<bfloat16>& b) {
  if constexpr (kArchitecture >= 80)
    multiply_add(d, a, b);
  else
    multiply_add_by_shuffles(d, a, b);
}
