// A matrix times a vector over all blocks. A block has whole tiles of 8 rows, a warp the columns of its span: partial
// sums meet in shared memory, one barrier, and the first threads finish a row each.
#pragma once
#include "phases/multiply.cuh"
#include "phases/stream.cuh"

constexpr int kMostTiles = 16;   // whose sums are finished together
constexpr int kTilesAtOnce = 6;  // whose text is spelled out

template <int kRows_, int kColumns_, int kBlocks, class Weight_, int kMost = kMostTiles>
struct Matrix {
  using Weight = Weight_;  // bfloat16 or float16
  static constexpr int kRows = kRows_, kColumns = kColumns_;
  static constexpr int kLeastTiles = divide_up(divide_up(kRows, 8), kBlocks);  // of a block
  static constexpr int kGroups = divide_up(kLeastTiles, kMost);
  static constexpr int kTiles = divide_up(kLeastTiles, kGroups);  // of a group
  static constexpr int kGroupRows = 8 * kTiles;
  static constexpr int kSteps = Columns<kColumns>::kSteps;
  static constexpr int kFragments = kTiles * kSteps;  // of a warp and a group
  static constexpr int kChunks = divide_up(kFragments, kChunk);
  static constexpr int kPeriod = kSteps % kChunk == 0 ? kSteps / kChunk : kChunks;  // chunks of a tile, or of all
  static constexpr int kBlockRows = kGroups * kGroupRows;

  // Whether a block has rows; those without neither stream weights nor wait for what others make of theirs.
  ONEKERNEL_DEVICE static bool here() {
    return kBlockRows * (kBlocks - 1) < kRows || static_cast<int>(blockIdx.x) * kBlockRows < kRows;
  }
};

constexpr int kSumStride = kWarps + 4;  // of the partial sums of a row: no two rows of a tile meet in a bank

// What the phases of a block keep in shared memory, rows and parts of all vectors; there are two of the sums, used in
// turn.
template <int kMostRows, int kPartsBytes, int kVectors>
struct ProjectMemory {
  float sums[2][kMostRows * kSumStride];
  float squares[2][kVectors][kWarps];
  alignas(16) unsigned parts[kWarps][kPartsBytes / 4];
};

// Fragments that were taken from the stream before the vector was there: of whole tiles, where those are small.
template <class M>
struct Held {
  static constexpr int kMost = M::kSteps < 8 ? 5 : kArchitecture >= 90 ? 3 : 2;  // more would spill
  static constexpr int kWhole = kMost / M::kPeriod > 0 ? kMost / M::kPeriod * M::kPeriod : kMost;
  static constexpr int kChunks = M::kChunks < kWhole ? M::kChunks : kWhole;
  Fragment at[kChunks][kChunk];
};

template <class M, int kPlace, class Reader>
ONEKERNEL_DEVICE void take_chunk(Reader& reader, Fragment (&fragments)[kChunk]) {
  constexpr int kLeft = M::kFragments - kPlace * kChunk;
  reader.template take<(kLeft < kChunk ? kLeft : kChunk)>(fragments);
}

template <class M, int kPlace = 0, class Reader>
ONEKERNEL_DEVICE void hold_chunks(Reader& reader, Held<M>& held) {
  if constexpr (kPlace < Held<M>::kChunks) {
    take_chunk<M, kPlace>(reader, held.at[kPlace]);
    hold_chunks<M, kPlace + 1>(reader, held);
  }
}

// The parts of a warp's span: in registers where several tiles need them.
template <class M, int kVectors>
struct Operand {
  static constexpr bool kKept = M::kTiles > 1 && M::kSteps <= 8;
  const unsigned* parts;
  using Part = MatrixB<typename M::Weight>;
  Part kept[kKept ? M::kSteps : 1];

  ONEKERNEL_DEVICE explicit Operand(const unsigned* parts) : parts(parts) {
    if constexpr (kKept)
#pragma unroll
      for (int step = 0; step < M::kSteps; ++step)
        kept[step] = load_parts<M::kColumns, kVectors, typename M::Weight>(parts, step);
  }

  ONEKERNEL_DEVICE Part at(int step) const {
    if constexpr (kKept)
      return kept[step];
    else
      return load_parts<M::kColumns, kVectors, typename M::Weight>(parts, step);
  }
};

// This lane's part of a row of a product.
ONEKERNEL_DEVICE float of_row(const MatrixD& d) {
  const bool even = lane_index() % 2 == 0;
  return (even ? d.at[0] : d.at[2]) + (even ? d.at[1] : d.at[3]);
}

// The products of a tile, a sum for each chain.
template <int kChains>
struct TileSum {
  MatrixD at[kChains];

  // This lane's part of a row: rows 0 to 7 are multiplied by the first half of each step, rows 8 to 15 are the same
  // times the second half. Lanes 0 and 1 of four have those of the first vector, the others those of the second.
  ONEKERNEL_DEVICE float row() const {
    float sum = of_row(at[0]);
#pragma unroll
    for (int i = 1; i < kChains; ++i) sum += of_row(at[i]);
    return sum;
  }
};

// Multiply the chunks from kPlace on, and give each tile's part of a row to `done`.
template <class M, int kVectors, int kPlace, int kEnd, class Reader, class Sum, class Done>
ONEKERNEL_DEVICE void multiply_chunks(Reader& reader, Held<M>& held, const Operand<M, kVectors>& operand, Sum& sum,
                                      Done done) {
  if constexpr (kPlace < kEnd) {
    Fragment fresh[kChunk];
    if constexpr (kPlace >= Held<M>::kChunks) take_chunk<M, kPlace>(reader, fresh);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const int number = kPlace * kChunk + i, place = number % M::kSteps, step = Columns<M::kColumns>::step_at(place);
      if (number >= M::kFragments) break;
      const Fragment* fragment = &fresh[i];
      if constexpr (kPlace < Held<M>::kChunks) fragment = &held.at[kPlace][i];
      if (place == 0) sum = {};
      const MatrixA<typename M::Weight> weights{{fragment->at[0], fragment->at[1], fragment->at[2], fragment->at[3]}};
      multiply_fragment(sum.at[place % Columns<M::kColumns>::kChains], weights, operand.at(step));
      if (place == M::kSteps - 1) done(number / M::kSteps, sum.row());
    }
    multiply_chunks<M, kVectors, kPlace + 1, kEnd>(reader, held, operand, sum, done);
  }
}

// Where a lane puts what its warp has of a row of the first tile.
template <class M, int kVectors>
ONEKERNEL_DEVICE float* row_of_lane(float* sums) {
  const int vector = kVectors > 1 ? lane_index() % 4 / 2 : 0;
  return sums + (vector * M::kGroupRows + lane_index() / 4) * kSumStride + warp_index();
}

template <int kVectors>
ONEKERNEL_DEVICE void store_row(float row, float* rows, int tile) {
  row += shuffle_xor(row, 1);
  if (lane_index() % (4 / kVectors) == 0) rows[8 * tile * kSumStride] = row;
}

template <class M, int kVectors, class Reader>
ONEKERNEL_DEVICE void multiply(Reader& reader, Held<M>& held, const Operand<M, kVectors>& operand, float* sums) {
  constexpr int kHeld = Held<M>::kChunks;
  float* own = row_of_lane<M, kVectors>(sums);
  TileSum<Columns<M::kColumns>::kChains> sum;
  if constexpr (M::kTiles <= kTilesAtOnce || kHeld % M::kPeriod != 0 || kHeld == M::kChunks) {
    float rows[M::kTiles];  // nobody waits for a sum before all products are on their way
    multiply_chunks<M, kVectors, 0, M::kChunks>(reader, held, operand, sum,
                                                [&](int tile, float row) { rows[tile] = row; });
#pragma unroll
    for (int tile = 0; tile < M::kTiles; ++tile) store_row<kVectors>(rows[tile], own, tile);
  } else {  // one text for all tiles behind the held ones
    const auto store = [&](int tile, float row) { store_row<kVectors>(row, own, tile); };
    multiply_chunks<M, kVectors, 0, kHeld>(reader, held, operand, sum, store);
#pragma unroll 1
    for (int chunk = kHeld; chunk < M::kChunks; chunk += M::kPeriod, own += 8 * kSumStride)
      multiply_chunks<M, kVectors, kHeld, kHeld + M::kPeriod>(reader, held, operand, sum, store);
  }
}

ONEKERNEL_DEVICE float sum_of_warps(const float* at) {
  const auto a = load_vector<4>(at), b = load_vector<4>(at + 4);
  return ((a.at[0] + a.at[1]) + (a.at[2] + a.at[3])) + ((b.at[0] + b.at[1]) + (b.at[2] + b.at[3]));
}

// ---- what is multiplied: `await` gives the columns of a lane, and its share of the sums of squares, if they matter

// Vectors as other blocks made them.
template <int kWidth, int kVectors>
struct Plain {
  static constexpr bool kNormed = false;
  const Exchange& exchange;

  ONEKERNEL_DEVICE void pass() { exchange.end_use(); }
  ONEKERNEL_DEVICE void prefetch() {}

  ONEKERNEL_DEVICE void await(float (&values)[kVectors * Columns<kWidth>::kQuads][4],
                              float (&)[kVectors * Columns<kWidth>::kQuads]) {
    await_columns<kWidth, kVectors>(exchange, values);
    exchange.end_use();
  }

  ONEKERNEL_DEVICE float factor(const float*) const { return 1.0f; }
};

// The residual stream under an RMSNorm, whose factor is applied to the product: a row needs it once.
template <int kWidth, class T, int kVectors, int kStreams>
struct Normed {
  static constexpr bool kNormed = true;
  using Place = Columns<kWidth>;
  Residual<kWidth, kStreams>& residual;
  const Exchange& addend;
  const T* weight;
  float epsilon;
  float scale[Place::kQuads][4];

  ONEKERNEL_DEVICE Normed(Residual<kWidth, kStreams>& residual, const Exchange& addend, const T* weight, float epsilon)
      : residual(residual), addend(addend), weight(weight), epsilon(epsilon) {}

  // A block without rows of this matrix still needs its residual stream.
  ONEKERNEL_DEVICE void pass() {
    if (residual.owed) residual.template add<kVectors>(addend);
    residual.owed = false;
  }

  ONEKERNEL_DEVICE void prefetch() {
    const int quads = Place::in_vector();
#pragma unroll
    for (int i = 0; i < Place::kQuads; ++i) {
      Vector<T, 4> quad = {};
      if (i < quads) quad = load_early<4>(weight + Place::first() + 4 * kWarpLanes * i);
#pragma unroll
      for (int k = 0; k < 4; ++k) scale[i][k] = to_float(quad.at[k]);
    }
  }

  ONEKERNEL_DEVICE void await(float (&values)[kVectors * Place::kQuads][4],
                              float (&squares)[kVectors * Place::kQuads]) {
    pass();
#pragma unroll
    for (int i = 0; i < kVectors * Place::kQuads; ++i)
#pragma unroll
      for (int k = 0; k < 4; ++k) values[i][k] = rounded_product(residual.at[i][k], scale[i % Place::kQuads][k]);
#pragma unroll
    for (int i = 0; i < kVectors * Place::kQuads; ++i)
      squares[i] = squares_of(residual.at[i][0], residual.at[i][1], residual.at[i][2], residual.at[i][3]);
  }

  ONEKERNEL_DEVICE float factor(const float* squares) const { return rsqrtf(sum_of_warps(squares) / kWidth + epsilon); }
};

// ---- what becomes of a row's product; called by whole warps, `inside` where there is such a row. Rows of a second
// vector are counted on from those of the first.

struct Publish {
  const Exchange& exchange;

  ONEKERNEL_DEVICE void operator()(bool inside, int row, float value) const {
    if (inside) exchange.publish(row, value);
  }
};

struct PublishBiased {
  const Exchange& exchange;
  const float* bias;

  ONEKERNEL_DEVICE void operator()(bool inside, int row, float value) const {
    if (inside) exchange.publish(row, value + bias[row]);
  }
};

ONEKERNEL_DEVICE float silu(float x) { return x * fast_reciprocal(1.0f + fast_exp2(-kLog2E * x)); }

// Rows 2 i and 2 i + 1 are the gate and the value of output i (SwiGLU, Shazeer, arXiv:2002.05202).
struct PublishGated {
  const Exchange& exchange;

  ONEKERNEL_DEVICE void operator()(bool inside, int row, float value) const {
    const float other = shuffle_down(value, 1);
    if (inside && row % 2 == 0) exchange.publish(row / 2, silu(value) * other);
  }
};

// ---- the phase

// Whose row a thread finishes.
template <class M, int kVectors>
ONEKERNEL_DEVICE int vector_of() {
  const int vector = kVectors > 1 ? static_cast<int>(threadIdx.x) / M::kGroupRows : 0;
  return vector < kVectors ? vector : kVectors - 1;
}

// Finish the rows of a group in the first warps; the others go on when the results are on their way.
template <class M, int kVectors, class Memory, class Finish>
ONEKERNEL_DEVICE void finish_group(const Memory& memory, int turn, int group, float factor, Finish finish) {
  constexpr int kRows = kVectors * M::kGroupRows, kFinishers = divide_up(kRows, kWarpLanes);  // rows, warps
  static_assert(kRows <= kWorkers, "a thread for each row");
  const bool finishes = warp_index() < kFinishers;
  if (finishes) {
    const int thread = fresh_thread_index();
    const int vector = kVectors > 1 ? thread / M::kGroupRows : 0;
    const int row = (blockIdx.x * M::kGroups + group) * M::kGroupRows + thread - vector * M::kGroupRows;
    const bool inside = thread < kRows && row < M::kRows;
    const float value = inside ? rounded_product(sum_of_warps(memory.sums[turn] + thread * kSumStride), factor) : 0.0f;
    finish(inside, vector * M::kRows + row, value);
  }
  if (kFinishers < kWarps && finishes) named_barrier_arrive(2, kWorkers);
  if (kFinishers < kWarps && !finishes) named_barrier(2, kWorkers);
}

// Bring what a warp's lanes have of the vectors into its shared memory.
template <class M, int kVectors, class Memory>
ONEKERNEL_DEVICE void store_vectors(Memory& memory, const float (&values)[kVectors * Columns<M::kColumns>::kQuads][4]) {
  using Place = Columns<M::kColumns>;
#pragma unroll
  for (int vector = 0; vector < kVectors; ++vector)
    store_parts<M::kColumns, typename M::Weight>(memory.parts[warp_index()] + vector * Place::kPartsBytes / 4,
                                                 values + vector * Place::kQuads);
  warp_barrier();
}

// And its sums of squares: first of eight neighbours, then those of a lane. Nobody waits for them before the products
// are there.
template <int kVectors, int kGroups, class Memory>
ONEKERNEL_DEVICE void store_squares(Memory& memory, int turn, const float (&squares)[kGroups]) {
  constexpr int kQuads = kGroups / kVectors;
#pragma unroll
  for (int vector = 0; vector < kVectors; ++vector) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const float its = squares[vector * kQuads + i];
      sum += exchanged(its + shuffle_xor(its, 1));  // as sessions give it to each other
    }
    sum = warp_sum<2>(sum);
    if (lane_index() == 0) memory.squares[turn][vector][warp_index()] = sum;
  }
}

// Multiply vectors by a matrix.
template <int kTicks, class M, int kVectors, class Memory, class Patience_, class Reader, class Input, class Finish>
ONEKERNEL_DEVICE void project(Memory& memory, int& turn, Patience_& patience, Reader& reader, Input input,
                              Finish finish) {
  using Place = Columns<M::kColumns>;
  if (!M::here()) {
    reader.template skip<M>();
    workers_barrier();  // as often as elsewhere
    return input.pass();
  }
  Held<M> held;
  hold_chunks<M>(reader, held);
  input.prefetch();
  patience.lap(0);

  float values[kVectors * Place::kQuads][4], squares[kVectors * Place::kQuads] = {};
  patience.wait(kTicks);
  input.await(values, squares);
  patience.lap(1);

  store_vectors<M, kVectors>(memory, values);
  const Operand<M, kVectors> operand(memory.parts[warp_index()]);
  if constexpr (Input::kNormed) store_squares<kVectors>(memory, turn, squares);
  float factor = 1.0f;
  for (int group = 0; group < M::kGroups; ++group) {
    if (group > 0) hold_chunks<M>(reader, held);
    multiply<M, kVectors>(reader, held, operand, memory.sums[turn]);
    patience.lap(2);
    workers_barrier();
    patience.lap(3);
    if (group == 0) factor = input.factor(memory.squares[turn][vector_of<M, kVectors>()]);
    finish_group<M, kVectors>(memory, turn, group, factor, finish);
    turn ^= 1;
    patience.lap(4);
  }
  patience.since = clock_ticks();
}

// Begin a vector of a stream with another one under its norm, which is done with what it was owed.
template <class Memory, int kWidth, class T, int kTo, int kFrom>
ONEKERNEL_DEVICE void carry(Memory& memory, int& turn, Residual<kWidth, kTo>& to, int vector,
                            Normed<kWidth, T, 1, kFrom> from) {
  constexpr int kQuads = Columns<kWidth>::kQuads;
  from.prefetch();
  float values[kQuads][4], squares[kQuads];
  from.await(values, squares);
  store_squares<1>(memory, turn, squares);
  workers_barrier();
  const float factor = from.factor(memory.squares[turn][0]);
#pragma unroll
  for (int i = 0; i < kQuads; ++i)
#pragma unroll
    for (int k = 0; k < 4; ++k) to.at[vector * kQuads + i][k] = rounded_product(values[i][k], factor);
  to.owed = false;
  turn ^= 1;
}
