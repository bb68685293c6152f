// Tensor cores: d += a * b for matrices spread over the 32 lanes of a warp. All lanes must call; T is float16 or
// bfloat16.
//
// Layouts (PTX ISA, "Matrix Fragments for mma.m16n8k16"), with group = lane / 4 and pair = 2 * (lane % 4); a register
// of a or b holds two neighbours, the first in its low half:
//   a [16 x 16]  register r, half h: row group + 8 * (r % 2),        column pair + h + 8 * (r / 2)
//   b [16 x 8]   register r, half h: row pair + h + 8 * r,           column group
//   d [16 x 8]   value v:            row group + 8 * (v / 2),        column pair + v % 2
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

namespace detail {

template <class T>
constexpr bool kIsFloat16 = false;
template <>
inline constexpr bool kIsFloat16<float16> = true;

// Half of the depth, which is what sm_75 has.
ONEKERNEL_DEVICE void multiply_add_8(MatrixD& d, unsigned a0, unsigned a1, unsigned b) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(d.at[0]), "+f"(d.at[1]), "+f"(d.at[2]), "+f"(d.at[3])
      : "r"(a0), "r"(a1), "r"(b));
}

}  // namespace detail

// float16 on sm_75 and later, bfloat16 on sm_80 and later. Sums are float.
template <class T, int kArch = kArchitecture>
ONEKERNEL_DEVICE void multiply_add(MatrixD& d, const MatrixA<T>& a, const MatrixB<T>& b) {
  static_assert(kArch >= 80 || detail::kIsFloat16<T>, "bfloat16 matrices need sm_80; use float16");
  if constexpr (kArch < 80) {
    detail::multiply_add_8(d, a.at[0], a.at[1], b.at[0]);
    detail::multiply_add_8(d, a.at[2], a.at[3], b.at[1]);
  } else if constexpr (detail::kIsFloat16<T>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d.at[0]), "+f"(d.at[1]), "+f"(d.at[2]), "+f"(d.at[3])
        : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "r"(b.at[0]), "r"(b.at[1]));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d.at[0]), "+f"(d.at[1]), "+f"(d.at[2]), "+f"(d.at[3])
        : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "r"(b.at[0]), "r"(b.at[1]));
  }
}

// Load kMatrices (1, 2 or 4) matrices of 8 x 8 elements of 16 bits from shared memory (ldmatrix). Lane 8 * m + i gives
// the address of row i of matrix m, 16 bytes aligned to 16. Lane l gets elements pair and pair + 1 of row group of
// each; transposed, rows pair and pair + 1 of column group.
template <int kMatrices, bool kTransposed = false>
ONEKERNEL_DEVICE void load_matrices(unsigned (&result)[kMatrices], const void* row) {
  static_assert(kMatrices == 1 || kMatrices == 2 || kMatrices == 4, "1, 2 or 4 matrices");
  const unsigned address = detail::shared_address(row);
  if constexpr (kMatrices == 1 && !kTransposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(result[0]) : "r"(address) : "memory");
  else if constexpr (kMatrices == 1)
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
                 : "=r"(result[0])
                 : "r"(address)
                 : "memory");
  else if constexpr (kMatrices == 2 && !kTransposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(result[0]), "=r"(result[1])
                 : "r"(address)
                 : "memory");
  else if constexpr (kMatrices == 2)
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(result[0]), "=r"(result[1])
                 : "r"(address)
                 : "memory");
  else if constexpr (!kTransposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(result[0]), "=r"(result[1]), "=r"(result[2]), "=r"(result[3])
                 : "r"(address)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(result[0]), "=r"(result[1]), "=r"(result[2]), "=r"(result[3])
                 : "r"(address)
                 : "memory");
}
