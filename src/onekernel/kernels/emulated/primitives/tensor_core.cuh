// The emulated twin of cuda/primitives/tensor_core.cuh. A sum is rounded once, at its end; a GPU rounds in between, in
// a way that is not published.
#pragma once
#include "primitives/copy.cuh"

template <class T>
struct MatrixA {
  unsigned at[4];
};
template <class T>
struct MatrixB {
  unsigned at[2];
};
struct MatrixD {
  float at[4];
};

namespace machine {

template <class T>
constexpr bool kIsFloat16 = false;
template <>
inline constexpr bool kIsFloat16<float16> = true;

template <class T>
inline float element_of(unsigned word, int half) {
  return to_float(T{static_cast<unsigned short>(word >> 16 * half)});
}

// Row `row` of a times column `column` of b; lane l holds rows l / 4 (+ 8) and columns l / 4.
template <class T>
inline double product(const Fragments& all, int row, int column) {
  double sum = 0.0;
  for (int k = 0; k < 16; ++k) {
    const int pair = k % 8 / 2, late = k / 8;
    const unsigned a = all.lane[row % 8 * 4 + pair].a[row / 8 + 2 * late], b = all.lane[column * 4 + pair].b[late];
    sum += static_cast<double>(element_of<T>(a, k % 2)) * element_of<T>(b, k % 2);
  }
  return sum;
}

}  // namespace machine

template <class T, int kArch = kArchitecture>
ONEKERNEL_PRIMITIVE void multiply_add(MatrixD& d, const MatrixA<T>& a, const MatrixB<T>& b) {
  static_assert(kArch >= 80 || machine::kIsFloat16<T>, "bfloat16 matrices need sm_80; use float16");
  machine::Fragments all;
  machine::gather_fragments(all, a.at, b.at);
  const int group = machine::lane_index() / 4, pair = machine::lane_index() % 4 * 2;
  for (int v = 0; v < 4; ++v)
    d.at[v] = static_cast<float>(d.at[v] + machine::product<T>(all, group + 8 * (v / 2), pair + v % 2));
}

template <int kMatrices, bool kTransposed = false>
ONEKERNEL_PRIMITIVE void load_matrices(unsigned (&result)[kMatrices], const void* row) {
  static_assert(kMatrices == 1 || kMatrices == 2 || kMatrices == 4, "1, 2 or 4 matrices");
  machine::load_matrices(result, kMatrices, kTransposed, row);
}
