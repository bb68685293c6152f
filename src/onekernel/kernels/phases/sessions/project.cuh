// A matrix times the vectors of many sessions, over all blocks: octet by octet, and eight lanes finish a tile.
#pragma once
#include "phases/sessions/multiply.cuh"

// A row of a session that a thread finishes; eight neighbours have those of a tile.
template <int kTiles, int kSessions>
struct RowTask {
  static constexpr int kTasks = 8 * kTiles * kSessions, kRounds = divide_up(kTasks, kWorkers);
  int session, tile, of_tile;
  bool inside;

  ONEKERNEL_DEVICE explicit RowTask(int task)
      : session(task / 8 % kSessions), tile(task / 8 / kSessions), of_tile(task % 8), inside(task < kTasks) {}
};

// Run `work` for all tasks, by whole warps; several rounds without a branch between them, so that they overlap.
template <class Task, class Work>
ONEKERNEL_DEVICE void for_rows(Work work) {
  const int thread = fresh_thread_index();
#pragma unroll
  for (int round = 0; round < Task::kRounds; ++round) {
    const int task = thread + round * kWorkers;
    if (Task::kRounds > 1 || task - thread % kWarpLanes < Task::kTasks) work(Task(task), round);
  }
}

// How many pieces of vectors are on their way: all of them, or as registers allow; how many of them are awaited before
// the first is multiplied; and whether they are too much to be asked for in vain.
template <class M, class V>
struct Buffers {
  static constexpr int kPairs = divide_up(M::kTiles, 2), kAllQuads = V::kPieces * V::kQuads;  // of a lane
  static constexpr int kMost = kPairs > 2 ? 8 : V::kOctets > 1 ? (kPairs > 1 ? 8 : 16) : kPairs > 1 ? 16 : 24;
  static constexpr bool kAll = kAllQuads <= kMost;
  static constexpr int kRoom = (12 - 2 * (kPairs - 1)) / V::kQuads;
  static constexpr int kCount = kAll || V::kPieces < kRoom ? V::kPieces : kRoom > 0 ? kRoom : 1;
  static constexpr int kQuads = kCount * V::kQuads;
  static constexpr int kFirst = kAll && kQuads > 16 ? kCount / 2 : kCount, kBehind = kCount - kFirst;
  static constexpr bool kMany = kQuads * V::kOctet > 48;
};

// An octet of vectors times a group of a matrix. The factors of a norm, if needed, are found on the way.
template <class M, class V, class Reader>
struct OctetProduct {
  using Its = Buffers<M, V>;
  static constexpr int kWindow = M::kTiles * V::kPiece;                              // fragments of a piece, of a warp
  static constexpr bool kHeld = Its::kAll && V::kPieces * kWindow <= Reader::kMost;  // all of a group is there at once
  Reader& reader;
  Arriving<V, Its::kCount> pieces;
  Squares<V> squares;
  bool needs_factors;
  float epsilon;
  float* factors;

  // Ask for the first octet. Weights have been there for long.
  template <int kTicks, class Patience_>
  ONEKERNEL_DEVICE void begin(Patience_& patience, const Exchange& from) {
    reader.open_group();
    reader.open(kHeld ? V::kPieces * kWindow : kWindow);
    patience.wait(kTicks);
    patience.lap(0);
    if (Its::kMany) pieces.await_some();
    patience.lap(1);
    if (needs_factors) squares.look(from, 0);
#pragma unroll
    for (int i = 0; i < Its::kCount; ++i) pieces.look(0, i, i);
    pieces.template settle<Its::kFirst>(0, 0, 0, [&] { return !needs_factors || squares.complete(from, 0); });
    patience.lap(2);
  }

  // With all weights and all pieces: one text with few waits in it. The next octet is asked for piece by piece.
  ONEKERNEL_DEVICE void multiply_held(OctetSums<M, V>& sums, const Exchange& from, int octet, bool last) {
    if (octet > 0) pieces.template settle<Its::kFirst>(octet, 0, 0);
    find_factors(from, octet);
#pragma unroll
    for (int piece = 0; piece < V::kPieces; ++piece) {
      if (piece == Its::kFirst) pieces.template settle<(Its::kBehind > 0 ? Its::kBehind : 1)>(octet, piece, piece);
      sums.multiply(reader, pieces, piece, piece);
      if (!last) pieces.look(octet + 1, piece, piece);
    }
    if (last) reader.free(V::kPieces * kWindow, true);
  }

  // With some of them at a time.
  ONEKERNEL_DEVICE void multiply_by_pieces(OctetSums<M, V>& sums, const Exchange& from, int octet, bool last) {
#pragma unroll(V::kPieces <= 4 ? 4 : 1)
    for (int first = 0; first < V::kPieces; first += Its::kCount)
#pragma unroll
      for (int i = 0; i < Its::kCount; ++i) {
        const int piece = first + i;
        if (V::kPieces % Its::kCount != 0 && piece >= V::kPieces) break;
        pieces.template settle<1>(octet, piece, i);
        if (piece == 0) find_factors(from, octet);
        reader.open((piece + 1) * kWindow);
        sums.multiply(reader, pieces, piece, i);
        if (piece + Its::kCount < V::kPieces)
          pieces.look(octet, piece + Its::kCount, i);
        else if (!last)
          pieces.look(octet + 1, i, i);
        if (last) reader.free((piece + 1) * kWindow, piece + 1 == V::kPieces);
      }
  }

  ONEKERNEL_DEVICE void find_factors(const Exchange& from, int octet) {
    if (!needs_factors) return;
    if (octet > 0) squares.settle(from, octet);
    squares.store_factor(octet, epsilon, factors);
  }
};

// Finish the rows of a group for an octet; `factors` is null if there is no norm.
template <class M, class V, class Finish>
ONEKERNEL_DEVICE void finish_octet(const float* results, const float* factors, int group, int octet, Finish& finish) {
  using Task = RowTask<M::kTiles, V::kOctet>;
  const int start = (blockIdx.x * M::kGroups + group) * M::kGroupRows;
  float values[Task::kRounds];
  for_rows<Task>([&](const Task& task, int round) {
    const int of_group = 8 * task.tile + task.of_tile;
    const bool inside = task.inside && start + of_group < M::kRows;
    values[round] = inside ? OctetSums<M, V>::sum(results, task.session, of_group) : 0.0f;
    if (factors != nullptr) values[round] = rounded_product(values[round], factors[octet * V::kOctet + task.session]);
  });
  for_rows<Task>([&](const Task&, int round) { values[round] = finish.prepared(values[round]); });
  for_rows<Task>([&](const Task& task, int round) {
    const int row = start + 8 * task.tile + task.of_tile;
    finish(octet * V::kOctet + task.session, row, values[round], task.inside && row < M::kRows);
  });
}

// What a thread needs for its first row of a group, before that is there.
template <class M, class V, class Finish>
ONEKERNEL_DEVICE void prefetch_row(Finish& finish, int group) {
  const RowTask<M::kTiles, V::kOctet> first(fresh_thread_index());
  const int row = (blockIdx.x * M::kGroups + group) * M::kGroupRows + 8 * first.tile + first.of_tile;
  finish.prefetch(row, first.inside && row < M::kRows);
}

// What a block without rows does: another stream may begin with what the matrix multiplies, under its norm.
template <class V, class Memory>
ONEKERNEL_DEVICE void find_all_factors(Memory& memory, const Exchange& from, float epsilon, int turn) {
#pragma unroll 1
  for (int octet = 0; octet < V::kOctets; ++octet) {
    Squares<V> squares;
    squares.look(from, octet);
    squares.settle(from, octet);
    squares.store_factor(octet, epsilon, memory.factors[turn]);
  }
  workers_barrier();
}

// Multiply the vectors of all sessions; under a norm if kNormed, whose factors blocks without rows need too if
// kEverywhere. `ends`: nobody reads the vectors after this.
template <int kTicks, class M, class V, bool kNormed, bool kEverywhere, class Memory, class Patience_, class Reader,
          class Finish>
ONEKERNEL_DEVICE void project_sessions(Memory& memory, Turns& turns, Patience_& patience, Reader& reader,
                                       const Exchange& from, bool ends, float epsilon, Finish finish) {
  static_assert(M::kRows % 8 == 0, "whole tiles");
  static_assert(4 * kWarps * V::kOctet * OctetSums<M, V>::kStride <= sizeof(memory.results[0]), "room for a group");
  const int turn = turns.factors;
  if (kNormed && (M::here() || kEverywhere)) turns.factors ^= 1;
  if (!M::here()) {
    patience.wait(kTicks);
    if (kNormed && kEverywhere) find_all_factors<V>(memory, from, epsilon, turn);
    reader.skip(M::kGroups * stream_bytes(M::kFragments));
    if (ends) from.end_use();
    return;
  }
#pragma unroll 1
  for (int group = 0; group < M::kGroups; ++group) {
    prefetch_row<M, V>(finish, group);
    using Product = OctetProduct<M, V, Reader>;
    Product product{
        reader, Arriving<V, Product::Its::kCount>(from), {}, kNormed && group == 0, epsilon, memory.factors[turn]};
    product.template begin<kTicks>(patience, from);
#pragma unroll 1
    for (int octet = 0; octet < V::kOctets; ++octet) {
      const bool last = octet + 1 == V::kOctets;
      if (product.needs_factors && octet > 0) product.squares.look(from, octet);
      OctetSums<M, V> sums;
      if constexpr (Product::kHeld)
        product.multiply_held(sums, from, octet, last);
      else
        product.multiply_by_pieces(sums, from, octet, last);
      float* results = memory.results[turns.results];
      turns.results ^= 1;
      sums.store(results);
      workers_barrier();
      patience.lap(4);
      if (ends && last && group + 1 == M::kGroups) from.end_use();
      finish_octet<M, V>(results, kNormed ? memory.factors[turn] : nullptr, group, octet, finish);
      patience.lap(5);
    }
  }
  patience.since = clock_ticks();
}
