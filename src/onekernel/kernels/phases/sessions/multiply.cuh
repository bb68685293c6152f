// A matrix times the vectors of many sessions. Each warp multiplies the columns of its span, as with a single session:
// pieces of the vectors come from an exchange into registers, weights through the ring, and partial sums of an octet
// meet in shared memory.
#pragma once
#include "phases/sessions/operand.cuh"

// Fragments of a group, as they lie in a ring: each is read where it is. `open` waits for those below a number, `free`
// frees the slots that have none from a number on.
template <int kSlots>
struct RingWindow {
  static constexpr int kSlotFragments = kSlotBytes / kFragmentBytes, kBytes = kSlots * kSlotBytes;
  Ring<kSlots>& ring;
  Turn<kSlots> opened, freed;
  int ready = 0, done = 0;  // fragments of the group

  ONEKERNEL_DEVICE void begin(const unsigned char*) {}
  ONEKERNEL_DEVICE void skip(long long) {}
  ONEKERNEL_DEVICE void open_group() { ready = done = 0; }
  ONEKERNEL_DEVICE void open(int below) {
    for (; ready < below; ready += kSlotFragments) {
      mbarrier_wait_together(ring.full[opened.slot], opened.parity);
      opened.next();
    }
  }
  ONEKERNEL_DEVICE const unsigned char* at(int number) const {
    const int place = freed.slot * kSlotBytes + (number - done) * kFragmentBytes;
    return ring.slot[0] + (place < kBytes ? place : place - kBytes);
  }
  ONEKERNEL_DEVICE void free(int below, bool last) {
    for (; done + kSlotFragments <= below || (last && done < below); done += kSlotFragments) {
      warp_barrier();
      if (lane_index() == 0) mbarrier_arrive(ring.empty[freed.slot]);
      freed.next();
    }
  }
};

// The same without a ring.
struct DirectWindow {
  const unsigned char* from = nullptr;

  ONEKERNEL_DEVICE void begin(const unsigned char* stream) { from = stream; }
  ONEKERNEL_DEVICE void skip(long long bytes) { from += bytes; }
  ONEKERNEL_DEVICE void open_group() {}
  ONEKERNEL_DEVICE void open(int) {}
  ONEKERNEL_DEVICE const unsigned char* at(int number) const { return from + number * kFragmentBytes; }
  ONEKERNEL_DEVICE void free(int below, bool last) {
    if (last) from += below * kFragmentBytes;
  }
};

// What the phases of a block keep in shared memory; there are two of each, used in turn.
template <int kSessions, int kResults>
struct SessionsMemory {
  alignas(16) float results[2][kResults];  // [warps][sessions of an octet][rows of a group, and some room]
  float factors[2][kSessions];
};
struct Turns {
  int results = 0, factors = 0;
};

// What a warp has of the rows of a group for an octet: lane 4 g + q the rows g of two tiles for sessions 2 q and
// 2 q + 1. Halves of steps are added last.
template <class M, class V>
struct OctetSums {
  static constexpr int kPairs = divide_up(M::kTiles, 2), kStride = M::kGroupRows + 4;
  float at[kPairs][2][4];        // [halves][rows of `MatrixD`]
  MatrixD products[kPairs][2][2];  // of a chain: [halves][first parts, rests]
  int thread = fresh_thread_index();

  template <class Reader>
  ONEKERNEL_DEVICE MatrixA<typename M::Weight> weights(const Reader& reader, int number, int tile,
                                                              unsigned (&other)[4]) const {
    const auto load = [&](int its, unsigned (&words)[4]) {
      if (its >= M::kTiles) return;
      const auto* from = reader.at((number + (its - tile) * V::kPiece) * kWarps + thread / kWarpLanes);
      const auto found = load_vector<4>(reinterpret_cast<const unsigned*>(from) + 4 * (thread % kWarpLanes));
#pragma unroll
      for (int k = 0; k < 4; ++k) words[k] = found.at[k];
    };
    unsigned one[4] = {}, two[4] = {};
    load(tile, one);
    load(tile + 1, two);
    other[0] = one[1], other[1] = two[1], other[2] = one[3], other[3] = two[3];
    return {{one[0], two[0], one[2], two[2]}};
  }

  // Multiply a piece, which is part of one chain.
  template <class Reader, class Pieces>
  ONEKERNEL_DEVICE void multiply(const Reader& reader, const Pieces& pieces, int piece, int buffer) {
    using T = typename M::Weight;
    const int first = piece * V::kPiece;
    const bool begins = V::begins(first);
    const bool ends = V::ends(first + V::kPiece - 1);
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      MatrixD (&its)[2][2] = products[pair];
      if (begins) its[0][0] = its[0][1] = its[1][0] = its[1][1] = {};
#pragma unroll
      for (int i = 0; i < V::kPiece; ++i) {
        unsigned upper[4];
        const auto lower = weights(reader, (piece * M::kTiles + 2 * pair) * V::kPiece + i, 2 * pair, upper);
        const MatrixA<T> halves[2] = {lower, {{upper[0], upper[1], upper[2], upper[3]}}};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          multiply_fragment(its[half][0], halves[half], pieces.template firsts<T>(buffer, 2 * i + half));
          multiply_fragment(its[half][1], halves[half], pieces.template rests<T>(buffer, 2 * i + half));
        }
      }
      if (!ends) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const float sum = its[half][0].at[k] + its[half][1].at[k];
          at[pair][half][k] = V::in_first_chain(first) ? sum : at[pair][half][k] + sum;
        }
    }
  }

  ONEKERNEL_DEVICE void store(float* results) const {
    const int row = thread % kWarpLanes / 4, session = thread % 4 * 2;
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair)
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int tile = 2 * pair + k / 2, its = session + k % 2;
        if (tile < M::kTiles && (V::kOctet == 8 || its < V::kOctet))
          results[(thread / kWarpLanes * V::kOctet + its) * kStride + 8 * tile + row] = at[pair][0][k] + at[pair][1][k];
      }
  }

  // The row of a session from what all warps have of it, in the order of `sum_of_warps`.
  ONEKERNEL_DEVICE static float sum(const float* results, int session, int row) {
    float its[kWarps];
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) its[warp] = results[(warp * V::kOctet + session) * kStride + row];
#pragma unroll
    for (int apart = 1; apart < kWarps; apart *= 2)
#pragma unroll
      for (int warp = 0; warp < kWarps; warp += 2 * apart) its[warp] += its[warp + apart];
    return its[0];
  }
};

// A row of a session that a thread finishes; eight neighbours have those of a tile.
template <int kTiles, int kSessions>
struct RowTask {
  static constexpr int kTasks = 8 * kTiles * kSessions;
  int session, tile, of_tile;
  bool inside;

  ONEKERNEL_DEVICE explicit RowTask(int task)
      : session(task / 8 % kSessions), tile(task / 8 / kSessions), of_tile(task % 8), inside(task < kTasks) {}
};

// Run `finish` for all tasks, by whole warps.
template <class Task, class Finish>
ONEKERNEL_DEVICE void for_rows(Finish finish) {
  const int thread = fresh_thread_index();
#pragma unroll 1
  for (int first = thread - thread % kWarpLanes; first < Task::kTasks; first += kWorkers)
    finish(Task(first + thread % kWarpLanes));
}

// How many pieces of vectors are on their way: as registers allow; and how many of them are looked for until they are
// there, which shall not be too much to ask for in vain.
template <class M, class V>
struct Buffers {
  static constexpr int kRoom = 16 - 4 * (divide_up(M::kTiles, 2) - 1);  // quads of a lane
  static constexpr int least(int a, int b) { return a < b ? a : b; }
  static constexpr int most(int a, int b) { return a > b ? a : b; }
  static constexpr int kCount = least(V::kPieces, most(1, kRoom / V::kQuads));
  static constexpr int kFirst = least(kCount, most(1, 12 / V::kQuads));
};

// Multiply the vectors of all sessions; under a norm if kNormed, whose factors blocks without rows need too if
// kEverywhere. `ends`: nobody reads the vectors after this.
template <int kTicks, class M, class V, bool kNormed, bool kEverywhere, class Memory, class Patience_, class Reader,
          class Finish>
ONEKERNEL_DEVICE void project_sessions(Memory& memory, Turns& turns, Patience_& patience, Reader& reader,
                                       const Exchange& from, bool ends, float epsilon, Finish finish) {
  using Sums = OctetSums<M, V>;
  using Pieces = Buffers<M, V>;
  static_assert(M::kRows % 8 == 0, "whole tiles");
  static_assert(4 * kWarps * V::kOctet * Sums::kStride <= sizeof(memory.results[0]), "room for a group");
  constexpr int kWindow = M::kTiles * V::kPiece * kWarps;  // fragments of a piece
  float* factors = memory.factors[turns.factors];
  if (kNormed && (M::here() || kEverywhere)) turns.factors ^= 1;
  patience.wait(kTicks);
  patience.lap(0);
  if (!M::here()) {
    if (kNormed && kEverywhere) {
#pragma unroll 1
      for (int octet = 0; octet < V::kOctets; ++octet) {
        Squares<V> squares;
        squares.look(from, octet);
        squares.store_factor(from, octet, epsilon, factors);
      }
      workers_barrier();
    }
    reader.skip(M::kGroups * stream_bytes(M::kFragments));
    if (ends) from.end_use();
    return;
  }
  using Task = RowTask<M::kTiles, V::kOctet>;
#pragma unroll 1
  for (int group = 0; group < M::kGroups; ++group) {
    const auto row_of = [&](const Task& task) {
      return (blockIdx.x * M::kGroups + group) * M::kGroupRows + 8 * task.tile + task.of_tile;
    };
    const Task first_task(fresh_thread_index());
    finish.prefetch(row_of(first_task), first_task.inside && row_of(first_task) < M::kRows);
    Arriving<V, Pieces::kCount> pieces(from);
#pragma unroll
    for (int i = 0; i < Pieces::kFirst; ++i) pieces.look(0, i, i);
    pieces.template settle<Pieces::kFirst>(0, 0, 0);
    patience.lap(1);
#pragma unroll
    for (int i = Pieces::kFirst; i < Pieces::kCount; ++i) pieces.look(0, i, i);
    reader.open_group();
#pragma unroll 1
    for (int octet = 0; octet < V::kOctets; ++octet) {
      const bool last = octet + 1 == V::kOctets;
      Squares<V> squares;
      if (kNormed && group == 0) squares.look(from, octet);
      Sums sums;
#pragma unroll(V::kPieces <= 4 ? 4 : 1)
      for (int first = 0; first < V::kPieces; first += Pieces::kCount)
#pragma unroll
        for (int i = 0; i < Pieces::kCount; ++i) {
          const int piece = first + i;
          if (V::kPieces % Pieces::kCount != 0 && piece >= V::kPieces) break;
          pieces.template settle<1>(octet, piece, i);
          patience.lap(2);
          reader.open((piece + 1) * kWindow);
          patience.lap(3);
          sums.multiply(reader, pieces, piece, i);
          if (piece + Pieces::kCount < V::kPieces)
            pieces.look(octet, piece + Pieces::kCount, i);
          else if (!last)
            pieces.look(octet + 1, i, i);
          if (last) reader.free((piece + 1) * kWindow, piece + 1 == V::kPieces);
        }
      patience.lap(4);
      float* results = memory.results[turns.results];
      turns.results ^= 1;
      sums.store(results);
      if (kNormed && group == 0) squares.store_factor(from, octet, epsilon, factors);
      workers_barrier();
      patience.lap(5);
      if (ends && last && group + 1 == M::kGroups) from.end_use();
      for_rows<Task>([&](const Task& task) {
        const int row = row_of(task), session = octet * V::kOctet + task.session;
        const bool inside = task.inside && row < M::kRows;
        float value = inside ? Sums::sum(results, task.session, 8 * task.tile + task.of_tile) : 0.0f;
        if (kNormed) value = rounded_product(value, factors[session]);
        finish(session, row, value, inside);
      });
      patience.lap(6);
    }
  }
  patience.since = clock_ticks();
}
