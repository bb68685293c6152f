// A matrix times the vectors of many sessions. Each warp multiplies the columns of its span, as with a single session:
// pieces of the vectors come from an exchange into registers, weights through the ring, and partial sums of an octet
// meet in shared memory.
#pragma once
#include "phases/sessions/operand.cuh"

// Fragments of a group, as they lie in a ring, counted by rows of one for each warp: each is read where it is. `open`
// waits for the rows below a number, `free` frees the slots that have none from a number on.
template <int kSlots>
struct RingWindow {
  static constexpr int kMost = kSlots * kChunk;  // rows that are there together
  Ring<kSlots>& ring;
  Turn<kSlots> opened, freed;
  int ready = 0, done = 0;  // rows of the group

  ONEKERNEL_DEVICE void begin(const unsigned char*) {}
  ONEKERNEL_DEVICE void skip(long long) {}
  ONEKERNEL_DEVICE void open_group() { ready = done = 0; }
  ONEKERNEL_DEVICE void open(int below) {
    for (; ready < below; ready += kChunk) {
      mbarrier_wait_together(ring.full[opened.slot], opened.parity);
      opened.next();
    }
  }
  ONEKERNEL_DEVICE const unsigned char* at(int number) const {
    const int slot = freed.slot + (number - done) / kChunk;
    return ring.slot[slot < kSlots ? slot : slot - kSlots] + number % kChunk * kFragmentBytes * kWarps;
  }
  ONEKERNEL_DEVICE void free(int below, bool last) {
    for (; done + kChunk <= below || (last && done < below); done += kChunk) {
      warp_barrier();
      if (lane_index() == 0) mbarrier_arrive(ring.empty[freed.slot]);
      freed.next();
    }
  }
};

// The same without a ring.
struct DirectWindow {
  static constexpr int kMost = 1 << 20;
  const unsigned char* from = nullptr;

  ONEKERNEL_DEVICE void begin(const unsigned char* stream) { from = stream; }
  ONEKERNEL_DEVICE void skip(long long bytes) { from += bytes; }
  ONEKERNEL_DEVICE void open_group() {}
  ONEKERNEL_DEVICE void open(int) {}
  ONEKERNEL_DEVICE const unsigned char* at(int number) const { return from + number * kFragmentBytes * kWarps; }
  ONEKERNEL_DEVICE void free(int below, bool last) {
    if (last) from += below * kFragmentBytes * kWarps;
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
// 2 q + 1. Two tiles are multiplied together, by one half of the steps and by the other; halves are added last. A tile
// without a second one is multiplied as with a single session: rows 8 to 15 are the same for the other half.
template <class M, class V>
struct OctetSums {
  static constexpr int kPairs = divide_up(M::kTiles, 2), kStride = M::kGroupRows + 4;
  using Weights = MatrixA<typename M::Weight>;
  float at[kPairs][2][4];          // [halves][rows of `MatrixD`]
  MatrixD products[kPairs][2][2];  // of a chain: [halves][first parts, rests]
  int thread = fresh_thread_index();

  ONEKERNEL_DEVICE static constexpr bool alone(int pair) { return 2 * pair + 1 == M::kTiles; }

  // Multiply a piece, which is part of one chain.
  template <class Reader, class Pieces>
  ONEKERNEL_DEVICE void multiply(const Reader& reader, const Pieces& pieces, int piece, int buffer) {
    using T = typename M::Weight;
    const int first = piece * V::kPiece;
    const bool begins = V::begins(first), ends = V::ends(first + V::kPiece - 1);
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      MatrixD (&its)[2][2] = products[pair];
      if (begins) its[0][0] = its[0][1] = its[1][0] = its[1][1] = {};
#pragma unroll
      for (int i = 0; i < V::kPiece; ++i) {
        Weights weights[2];
#pragma unroll
        for (int half = 0; half < (alone(pair) ? 1 : 2); ++half) {
          const int number = (piece * M::kTiles + 2 * pair + half) * V::kPiece + i;
          const auto found = load_vector<4>(reinterpret_cast<const unsigned*>(reader.at(number)) + 4 * thread);
          weights[half] = {{found.at[0], found.at[1], found.at[2], found.at[3]}};
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const Weights& own = weights[alone(pair) ? 0 : half];
          multiply_fragment(its[half][0], own, pieces.template firsts<T>(buffer, 2 * i + half));
          multiply_fragment(its[half][1], own, pieces.template rests<T>(buffer, 2 * i + half));
        }
      }
      if (ends) add(pair, V::in_first_chain(first));
    }
  }

  // Add the products of a chain.
  ONEKERNEL_DEVICE void add(int pair, bool is_first) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int k = 0; k < (alone(pair) ? 2 : 4); ++k) {
        const int row = alone(pair) ? k + 2 * half : k;
        const float sum = products[pair][half][0].at[row] + products[pair][half][1].at[row];
        at[pair][half][k] = is_first ? sum : at[pair][half][k] + sum;
      }
  }

  ONEKERNEL_DEVICE void store(float* results) const {
    const int row = thread % kWarpLanes / 4, session = thread % 4 * 2;
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair)
#pragma unroll
      for (int k = 0; k < (alone(pair) ? 2 : 4); ++k) {
        const int tile = 2 * pair + k / 2, its = session + k % 2;
        if (V::kOctet == 8 || its < V::kOctet)
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

// How many pieces of vectors are on their way: as registers allow.
template <class M, class V>
struct Buffers {
  static constexpr int kPairs = divide_up(M::kTiles, 2);
  static constexpr int kPieces = V::kPieces * V::kQuads;  // quads of a lane, of all
  static constexpr bool kAll = kPieces <= (kPairs > 2 ? 8 : V::kOctets > 1 ? (kPairs > 1 ? 8 : 16) : kPairs > 1 ? 16 : 24);
  static constexpr int kRoom = (12 - 2 * (kPairs - 1)) / V::kQuads;
  static constexpr int kCount = kAll || V::kPieces < kRoom ? V::kPieces : kRoom > 0 ? kRoom : 1;
  static constexpr int kQuads = kCount * V::kQuads;
  static constexpr int kFirst = kQuads > 16 ? kCount / 2 : kCount, kBehind = kCount - kFirst;  // that are awaited
  static constexpr bool kMany = kQuads * V::kOctet > 48;  // at once
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
  constexpr int kWindow = M::kTiles * V::kPiece;  // fragments of a piece, of a warp
  float* factors = memory.factors[turns.factors];
  if (kNormed && (M::here() || kEverywhere)) turns.factors ^= 1;
  if (!M::here()) {
    patience.wait(kTicks);
    if (kNormed && kEverywhere) {
#pragma unroll 1
      for (int octet = 0; octet < V::kOctets; ++octet) {
        Squares<V> squares;
        squares.look(from, octet);
        squares.settle(from, octet);
        squares.store_factor(octet, epsilon, factors);
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
    constexpr bool kOpens = Pieces::kAll && V::kPieces * kWindow <= Reader::kMost;
    reader.open_group();
    reader.open(kOpens ? V::kPieces * kWindow : kWindow);
    const bool needs_factors = kNormed && group == 0;
    Arriving<V, Pieces::kCount> pieces(from);
    Squares<V> squares;
    if (group == 0) patience.wait(kTicks);
    patience.lap(0);
    if (Pieces::kMany) pieces.await_some();
    patience.lap(1);
    if (needs_factors) squares.look(from, 0);
#pragma unroll
    for (int i = 0; i < Pieces::kCount; ++i) pieces.look(0, i, i);
    pieces.template settle<Pieces::kFirst>(0, 0, 0, [&] { return !needs_factors || squares.complete(from, 0); });
    patience.lap(2);
#pragma unroll 1
    for (int octet = 0; octet < V::kOctets; ++octet) {
      const bool last = octet + 1 == V::kOctets;
      if (needs_factors && octet > 0) squares.look(from, octet);
      Sums sums;
      if constexpr (kOpens) {  // one text without a wait in it
        if (octet > 0) pieces.template settle<Pieces::kFirst>(octet, 0, 0);
        if (needs_factors && octet > 0) squares.settle(from, octet);
        patience.lap(3);
        if (needs_factors) squares.store_factor(octet, epsilon, factors);
#pragma unroll
        for (int piece = 0; piece < V::kPieces; ++piece) {
          if (piece == Pieces::kFirst)
            pieces.template settle<(Pieces::kBehind > 0 ? Pieces::kBehind : 1)>(octet, piece, piece);
          sums.multiply(reader, pieces, piece, piece);
          if (!last) pieces.look(octet + 1, piece, piece);
        }
        if (last) reader.free(V::kPieces * kWindow, true);
      } else {
#pragma unroll(V::kPieces <= 4 ? 4 : 1)
        for (int first = 0; first < V::kPieces; first += Pieces::kCount)
#pragma unroll
          for (int i = 0; i < Pieces::kCount; ++i) {
            const int piece = first + i;
            if (V::kPieces % Pieces::kCount != 0 && piece >= V::kPieces) break;
            pieces.template settle<1>(octet, piece, i);
            if (needs_factors && piece == 0) {
              if (octet > 0) squares.settle(from, octet);
              squares.store_factor(octet, epsilon, factors);
            }
            reader.open((piece + 1) * kWindow);
            sums.multiply(reader, pieces, piece, i);
            if (piece + Pieces::kCount < V::kPieces)
              pieces.look(octet, piece + Pieces::kCount, i);
            else if (!last)
              pieces.look(octet + 1, i, i);
            if (last) reader.free((piece + 1) * kWindow, piece + 1 == V::kPieces);
          }
      }
      patience.lap(4);
      float* results = memory.results[turns.results];
      turns.results ^= 1;
      sums.store(results);
      workers_barrier();
      patience.lap(5);
      if (ends && last && group + 1 == M::kGroups) from.end_use();
      float values[Task::kRounds];
      for_rows<Task>([&](const Task& task, int round) {
        const bool inside = task.inside && row_of(task) < M::kRows;
        values[round] = inside ? Sums::sum(results, task.session, 8 * task.tile + task.of_tile) : 0.0f;
        if (kNormed) values[round] = rounded_product(values[round], factors[octet * V::kOctet + task.session]);
      });
      for_rows<Task>([&](const Task&, int round) { values[round] = finish.prepared(values[round]); });
      for_rows<Task>([&](const Task& task, int round) {
        const bool inside = task.inside && row_of(task) < M::kRows;
        finish(octet * V::kOctet + task.session, row_of(task), values[round], inside);
      });
      patience.lap(6);
    }
  }
  patience.since = clock_ticks();
}
