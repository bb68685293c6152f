// A vector that multiplies a matrix, split over the warps of a block: each warp has a span of columns and needs no
// other. A lane holds groups of four neighbours.
//
// A float is given to the tensor cores as two parts of the kind of the weights, the nearest and what is left of it:
// products are right to 2^-16 with bfloat16, to 2^-21 with float16 where a number is not below its range. Four columns
// of a matrix take the parts of one vector: those of the first 16 columns of a step of 32, and those of the second.
#pragma once
#include "phases/exchange.cuh"
#include "primitives/tensor_core.cuh"

constexpr int kStep = 32;  // columns that one fragment of weights covers

template <int kWidth>
struct Columns {
  static_assert(kWidth % 4 == 0, "a width in groups of four");
  static constexpr int kSteps = divide_up(divide_up(kWidth, kStep), kWarps);  // of a warp
  static constexpr int kSpan = kSteps * kStep;                                // columns of a warp
  static constexpr int kQuads = divide_up(kSpan, 4 * kWarpLanes);             // of a lane
  static constexpr int kPartsBytes = kSpan / 4 * 16;                          // of a warp, in shared memory

  // Products of a span are added in chains, which do not wait for each other: each has neighbouring steps, if all have
  // as many. Chains take turns in the stream of weights (megakernel/pack.py).
  static constexpr int kMostChains = kSteps < 8 ? 2 : 4, kChains = kSteps < kMostChains ? kSteps : kMostChains;
  static constexpr bool kEqual = kSteps % kChains == 0;

  // The step at a place in that order; it belongs to chain place % kChains.
  ONEKERNEL_DEVICE static constexpr int step_at(int place) {
    return kEqual ? place % kChains * (kSteps / kChains) + place / kChains : place;
  }

  // Every lane has as many groups, and all of them lie in the vector.
  static constexpr bool kWhole = kSpan % (4 * kWarpLanes) == 0 && kWarps * kSpan == kWidth;

  // The first column of a lane's groups; they are 128 apart.
  ONEKERNEL_DEVICE static int first() {
    const int thread = fresh_thread_index();
    return thread / kWarpLanes * kSpan + thread % kWarpLanes * 4;
  }
  // How many groups of a lane lie in the span, and how many of those in the vector.
  ONEKERNEL_DEVICE static int in_span() {
    if (kWhole) return kQuads;
    return divide_up(max_(kSpan - 4 * lane_index(), 0), 4 * kWarpLanes);
  }
  ONEKERNEL_DEVICE static int in_vector() {
    if (kWhole) return kQuads;
    return divide_up(max_(min_(kSpan - 4 * lane_index(), kWidth - first()), 0), 4 * kWarpLanes);
  }

private:
  ONEKERNEL_DEVICE static int max_(int a, int b) { return a > b ? a : b; }
  ONEKERNEL_DEVICE static int min_(int a, int b) { return a < b ? a : b; }
};

// Two numbers of a kind in a word, the first in its lower half; and one of them again. float16 has a largest number,
// and what is larger is left to the second part.
template <class T>
constexpr bool kIsBfloat16 = false;
template <>
inline constexpr bool kIsBfloat16<bfloat16> = true;

template <class T>
constexpr float kLargest = 3.4e38f;
template <>
inline constexpr float kLargest<float16> = 65504.0f;

template <class T>
ONEKERNEL_DEVICE unsigned pair_of(float first, float second) {
  T one, other;
  from_float(fminf(fmaxf(first, -kLargest<T>), kLargest<T>), one);
  from_float(fminf(fmaxf(second, -kLargest<T>), kLargest<T>), other);
  return one.bits | static_cast<unsigned>(other.bits) << 16;
}
template <>
ONEKERNEL_DEVICE unsigned pair_of<bfloat16>(float first, float second) {
  return round_pair(first, second);
}

template <class T>
ONEKERNEL_DEVICE float of_pair(unsigned pair, int which) {
  return to_float(T{static_cast<unsigned short>(which == 0 ? pair : pair >> 16)});
}

// Await the columns of vectors that stand one behind the other in an exchange.
template <int kWidth, int kVectors>
ONEKERNEL_DEVICE void await_columns(const Exchange& exchange, float (&values)[kVectors * Columns<kWidth>::kQuads][4]) {
  using Place = Columns<kWidth>;
  constexpr int kQuads = Place::kQuads;
  const int first = Place::first(), quads = Place::in_vector();
  exchange.await_at([=](int i) { return i / kQuads * kWidth + first + i % kQuads * 4 * kWarpLanes; },
                    [=](int i) { return i % kQuads < quads; }, values);
}

// The nearest number whose lowest bit is 0 among those of a kind.
template <class T>
ONEKERNEL_DEVICE float nearest_even(float value) {
  constexpr unsigned kUnit = kIsBfloat16<T> ? 1u << 17 : 1u << 14;  // of a float's bits
  return bits_float((float_bits(value) + kUnit / 2) & ~(kUnit - 1));
}

// What is left of two numbers. The lowest bit of the pair is 0: among many vectors it tells that they are there
// (phases/operand.cuh).
template <class T>
ONEKERNEL_DEVICE unsigned rest_of(unsigned pair, float first, float second) {
  return pair_of<T>(nearest_even<T>(first - of_pair<T>(pair, 0)), second - of_pair<T>(pair, 1)) & ~1u;
}

// Four numbers as parts: the first parts of two, of the other two, and the rests of those.
template <class T>
ONEKERNEL_DEVICE Vector<unsigned, 4> parts_of(const float (&v)[4]) {
  const unsigned one = pair_of<T>(v[0], v[1]), two = pair_of<T>(v[2], v[3]);
  return {{one, two, rest_of<T>(one, v[0], v[1]), rest_of<T>(two, v[2], v[3])}};
}

// Write a lane's groups as parts into its warp's memory.
template <int kWidth, class T>
ONEKERNEL_DEVICE void store_parts(unsigned* parts, const float (*values)[4]) {
  const int quads = Columns<kWidth>::in_span();
#pragma unroll
  for (int i = 0; i < Columns<kWidth>::kQuads; ++i) {
    if (i >= quads) continue;
    store_vector(parts + 4 * (lane_index() + kWarpLanes * i), parts_of<T>(values[i]));
  }
}

// The operand of a step: lane 4 n + q has group q of the half that column n takes, as the part that it takes. The last
// four columns take the other vector, if there are two.
template <int kWidth, int kVectors, class T>
ONEKERNEL_DEVICE MatrixB<T> load_parts(const unsigned* parts, int step) {
  const int column = lane_index() / 4, group = lane_index() % 4;
  if (kVectors > 1) parts += column / 4 * (Columns<kWidth>::kPartsBytes / 4);
  const auto pair = load_vector<2>(parts + 4 * (8 * step + 4 * (column / 2 % 2) + group) + 2 * (column % 2));
  return {{pair.at[0], pair.at[1]}};
}

// The sum of the squares of four numbers.
ONEKERNEL_DEVICE float squares_of(float a, float b, float c, float d) {
  return (rounded_product(a, a) + rounded_product(b, b)) + (rounded_product(c, c) + rounded_product(d, d));
}

// A row of a table, whose address is computed when it is needed: else it goes through a loop, and takes registers.
template <int kWidth, class T>
ONEKERNEL_DEVICE const T* row_of(const T* rows, int row) {
  forget(row);
  return rows + 1ll * row * kWidth;
}

// Residual streams of a decoder, of one vector or two: every block has all of them, and each lane keeps its own
// columns.
template <int kWidth, int kVectors = 1>
struct Residual {
  using Place = Columns<kWidth>;
  static constexpr int kQuads = Place::kQuads;
  float at[kVectors * kQuads][4];
  bool owed = false;  // what the last phase of a layer made is still to be added

  // Begin a vector with a row of a table.
  template <class T>
  ONEKERNEL_DEVICE void load(const T* row, int vector = 0) {
    clear(vector);
    add_row(row, vector);
  }

  // Begin with nothing, or add a row to what is there.
  ONEKERNEL_DEVICE void clear(int vector = 0) {
#pragma unroll
    for (int i = 0; i < kQuads; ++i)
#pragma unroll
      for (int k = 0; k < 4; ++k) at[vector * kQuads + i][k] = 0.0f;
    owed = false;
  }
  template <class T>
  ONEKERNEL_DEVICE void add_row(const T* row, int vector = 0) {
    const int quads = Place::in_vector();
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      if (i >= quads) continue;
      const auto quad = load_vector<4>(row + Place::first() + 4 * kWarpLanes * i);
#pragma unroll
      for (int k = 0; k < 4; ++k) at[vector * kQuads + i][k] += to_float(quad.at[k]);
    }
  }

  // Add a row for each of some codes. Four at a time: their loads are all the registers of a worker.
  template <int kCodes, class RowOf>
  ONEKERNEL_DEVICE void add_rows(RowOf row_of) {
#pragma unroll 4
    for (int code = 0; code < kCodes; ++code) add_row(row_of(code));
  }

  // Add an exchange to the first kAdded vectors; or one vector to another one.
  template <int kAdded = 1>
  ONEKERNEL_DEVICE void add(const Exchange& exchange, int vector = 0) {
    float more[kAdded * kQuads][4];
    await_columns<kWidth, kAdded>(exchange, more);
    exchange.end_use();
#pragma unroll
    for (int i = 0; i < kAdded * kQuads; ++i)
#pragma unroll
      for (int k = 0; k < 4; ++k) at[vector * kQuads + i][k] += more[i][k];
  }
};
