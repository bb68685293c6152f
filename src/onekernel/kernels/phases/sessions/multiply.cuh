// A matrix times the vectors of many sessions. Warps of a set share the tiles of a group and the pairs of sessions, and
// keep all sums in registers; chunks of the vectors pass through shared memory, those of the weights through the ring.
#pragma once
#include "phases/sessions/operand.cuh"

constexpr int kMostSums = 12;  // of a warp: tiles times pairs of sessions

// How the warps of a set share tiles and pairs: as few sums for each as can be, then the fewest bytes from shared
// memory.
template <int kTiles, int kPairs, int kWarpsOfSet>
struct Shares {
  static constexpr int sums(int rows) { return divide_up(kTiles, rows) * divide_up(kPairs, kWarpsOfSet / rows); }
  static constexpr int bytes(int rows) { return 2 * kTiles * (kWarpsOfSet / rows) + kPairs * rows; }
  static constexpr int best() {
    int found = 1;
    for (int rows = 2; rows <= kWarpsOfSet; rows *= 2)
      if (sums(rows) < sums(found) || (sums(rows) == sums(found) && bytes(rows) < bytes(found))) found = rows;
    return found;
  }
  static constexpr int kByTiles = best(), kByPairs = kWarpsOfSet / kByTiles;
  static constexpr int kOwnTiles = divide_up(kTiles, kByTiles), kOwnPairs = divide_up(kPairs, kByPairs);
};

// Fragments of a group, as they lie in a ring: each is read where it is. `open` waits for some, from where the last
// ones ended; `close` frees the slots that have nothing behind them.
template <int kSlots>
struct RingWindow {
  static constexpr int kSlotFragments = kSlotBytes / kFragmentBytes, kBytes = kSlots * kSlotBytes;
  Ring<kSlots>& ring;
  Turn<kSlots> opened, freed;
  int start = 0, before = 0, ready = 0, done = 0;  // bytes to the first one; fragments of the group

  ONEKERNEL_DEVICE void begin(const unsigned char*) {}
  ONEKERNEL_DEVICE void skip(long long) {}
  ONEKERNEL_DEVICE void open_group() {
    start = opened.slot * kSlotBytes;
    before = ready = done = 0;
  }
  ONEKERNEL_DEVICE void open(int fragments) {
    for (; ready < before + fragments; ready += kSlotFragments) {
      mbarrier_wait_together(ring.full[opened.slot], opened.parity);
      opened.next();
    }
  }
  ONEKERNEL_DEVICE const unsigned char* at(int number) const {
    const int place = start + number * kFragmentBytes;
    return ring.slot[0] + (place < kBytes ? place : place - kBytes);
  }
  ONEKERNEL_DEVICE void close(int fragments, bool last) {
    before += fragments;
    start += fragments * kFragmentBytes;
    if (start >= kBytes) start -= kBytes;
    for (; done + kSlotFragments <= before || (last && done < before); done += kSlotFragments) {
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
  ONEKERNEL_DEVICE void close(int fragments, bool) { from += fragments * kFragmentBytes; }
};

// What the phases of a block keep in shared memory.
template <int kSessions, int kChunkWords, int kResults, int kLevels>
struct SessionsMemory {
  alignas(16) unsigned chunks[2][kChunkWords];
  alignas(16) float results[kResults];  // [sets][sessions][rows]
  float factors[2][kSessions];
  float waiting[kLevels > 0 ? kLevels * kMostSums * kWorkers / 2 : 1];
};

// The sums of a warp. Spans are added as `sum_of_warps` adds them: two neighbours, then two of those, and so on; what
// waits for its neighbour does so in shared memory, by even lanes, which have the same as those behind them.
template <class M, class V>
struct SessionSums {
  using Own = Shares<M::kTiles, V::kPairs, kWarps / V::kSets>;
  static constexpr int kTiles = Own::kOwnTiles, kPairs = Own::kOwnPairs;
  static_assert(kTiles * kPairs <= kMostSums, "room for them");
  float* waiting;
  float rows[kTiles][kPairs];

  ONEKERNEL_DEVICE static int warp_of_set() { return warp_index() % (kWarps / V::kSets); }
  ONEKERNEL_DEVICE static int set() { return warp_index() / (kWarps / V::kSets); }
  ONEKERNEL_DEVICE static int tile(int i) { return warp_of_set() % Own::kByTiles + i * Own::kByTiles; }
  ONEKERNEL_DEVICE static int pair(int i) { return warp_of_set() / Own::kByTiles + i * Own::kByPairs; }

  // A span is done: the `round`-th one of this set.
  ONEKERNEL_DEVICE void end_span(int round) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int p = 0; p < kPairs; ++p) rows[t][p] += shuffle_xor(rows[t][p], 1);
    if (lane_index() % 2 != 0) return;
#pragma unroll 1
    for (int level = 0; 2 << level <= V::kRounds; ++level) {
      float* its = waiting + level * kMostSums * (kWorkers / 2) + threadIdx.x / 2;
      const bool waits = (round >> level & 1) == 0;
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int p = 0; p < kPairs; ++p) {
          float& other = its[(t * kPairs + p) * (kWorkers / 2)];
          if (waits)
            other = rows[t][p];
          else
            rows[t][p] = other + rows[t][p];
        }
      if (waits) return;
    }
  }

  // Behind the last one: [sets][sessions][rows of the group].
  ONEKERNEL_DEVICE void store(float* results) const {
    if (lane_index() % 2 != 0) return;
    const int row = lane_index() / 4, vector = lane_index() % 4 / 2;
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int p = 0; p < kPairs; ++p)
        if (tile(t) < M::kTiles && pair(p) < V::kPairs)
          results[(set() * V::kSessions + 2 * pair(p) + vector) * M::kGroupRows + 8 * tile(t) + row] = rows[t][p];
  }
};

// The parts of two sessions for a step of a chunk, as `load_parts` has them.
template <class T>
ONEKERNEL_DEVICE MatrixB<T> load_pair(const unsigned* rows) {
  const int column = lane_index() / 4, group = lane_index() % 4;
  const auto pair = load_vector<2>(rows + column / 4 * kStep + 4 * (4 * (column / 2 % 2) + group) + 2 * (column % 2));
  return {{pair.at[0], pair.at[1]}};
}

// Multiply a chain of a span: `count` steps of a window from `first` on, `apart` from one to the next; `offset` is
// where the window begins in the chunk of vectors. It may begin a span.
template <class M, class V, class Reader>
ONEKERNEL_DEVICE void multiply_chain(const Reader& reader, int first, int apart, int count, const unsigned* chunk,
                                     int offset, SessionSums<M, V>& sums, bool begins) {
  using Sums = SessionSums<M, V>;
  using Weight = typename M::Weight;
  MatrixD products[Sums::kTiles][Sums::kPairs] = {};
#pragma unroll
  for (int i = 0; i < V::kChain; ++i) {
    if (i >= count) break;
    const int step = first + i * apart;
    MatrixB<Weight> parts[Sums::kPairs];
#pragma unroll
    for (int p = 0; p < Sums::kPairs; ++p) {
      const int pair = Sums::pair(p) < V::kPairs ? Sums::pair(p) : 0;
      parts[p] = load_pair<Weight>(chunk + (pair * V::kChunkSteps + offset + step) * 2 * kStep);
    }
#pragma unroll
    for (int t = 0; t < Sums::kTiles; ++t) {
      const int tile = Sums::tile(t) < M::kTiles ? Sums::tile(t) : 0;
      const unsigned char* at = reader.at((step * V::kSets + Sums::set()) * M::kTiles + tile);
      const auto words = load_vector<4>(reinterpret_cast<const unsigned*>(at + 16 * lane_index()));
      const MatrixA<Weight> weights{{words.at[0], words.at[1], words.at[2], words.at[3]}};
#pragma unroll
      for (int p = 0; p < Sums::kPairs; ++p) multiply_fragment(products[t][p], weights, parts[p]);
    }
  }
#pragma unroll
  for (int t = 0; t < Sums::kTiles; ++t)
#pragma unroll
    for (int p = 0; p < Sums::kPairs; ++p)
      sums.rows[t][p] = begins ? of_row(products[t][p]) : sums.rows[t][p] + of_row(products[t][p]);
}

// Multiply a chunk, span by span of each set. Chains of equal length are opened one by one, all others together.
template <class M, class V, class Reader>
ONEKERNEL_DEVICE void multiply_chunk(Reader& reader, const unsigned* chunk, int number, SessionSums<M, V>& sums) {
  using Place = typename V::Place;
  using Sums = SessionSums<M, V>;
  constexpr bool kEqual = Place::kEqual;
  constexpr int kWindow = (kEqual ? V::kChain : V::kPart) * V::kSets * M::kTiles;  // fragments
  const int part = number % V::kParts, round = number / V::kParts * V::kTogether;
#pragma unroll 1
  for (int i = 0; i < V::kTogether; ++i) {
    const int first = (i * V::kSets + Sums::set()) * V::kPart;
    const bool last = number + 1 == V::kChunks && i + 1 == V::kTogether;
#pragma unroll
    for (int chain = 0; chain < (kEqual ? V::kPart / V::kChain : Place::kChains); ++chain) {
      const bool begins = part == 0 && chain == 0;
      if (kEqual || chain == 0) reader.open(kWindow);
      if (kEqual)
        multiply_chain<M, V>(reader, 0, 1, V::kChain, chunk, first + chain * V::kChain, sums, begins);
      else
        multiply_chain<M, V>(reader, chain, Place::kChains, divide_up(V::kSteps - chain, Place::kChains), chunk, first,
                             sums, begins);
      if (kEqual) reader.close(kWindow, last && chain + 1 == V::kPart / V::kChain);
    }
    if (!kEqual) reader.close(kWindow, last);
    if (part == V::kParts - 1) sums.end_span(round + i);
  }
}

// The row of a session from what sets have of it.
template <class M, class V>
ONEKERNEL_DEVICE float sum_of_sets(const float* results, int session, int row) {
  float sums[V::kSets];
#pragma unroll
  for (int set = 0; set < V::kSets; ++set) sums[set] = results[(set * V::kSessions + session) * M::kGroupRows + row];
#pragma unroll
  for (int apart = 1; apart < V::kSets; apart *= 2)
#pragma unroll
    for (int set = 0; set < V::kSets; set += 2 * apart) sums[set] += sums[set + apart];
  return sums[0];
}

// Finish the rows of a group, eight of a session by each thread.
template <class M, class V, class Memory, class Finish>
ONEKERNEL_DEVICE void finish_rows(const Memory& memory, const float* factors, int group, Finish finish) {
#pragma unroll 1
  for (int task = threadIdx.x; task < M::kTiles * V::kSessions; task += kWorkers) {
    const int session = task % V::kSessions, tile = task / V::kSessions;
    const int row = (blockIdx.x * M::kGroups + group) * M::kGroupRows + 8 * tile;
    if (row >= M::kRows) continue;
    float values[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      values[i] = sum_of_sets<M, V>(memory.results, session, 8 * tile + i);
      if (factors != nullptr) values[i] = rounded_product(values[i], factors[session]);
    }
    finish(session, row, values);
  }
}

// Multiply the vectors of all sessions; under a norm if kNormed, whose factors blocks without rows need too if
// kEverywhere. `ends`: nobody reads the vectors after this.
template <int kTicks, class M, class V, bool kNormed, bool kEverywhere, class Memory, class Patience_, class Reader,
          class Finish>
ONEKERNEL_DEVICE void project_sessions(Memory& memory, int& turn, Patience_& patience, Reader& reader,
                                       const Exchange& from, bool ends, float epsilon, Finish finish) {
  static_assert(M::kRows % 8 == 0, "whole tiles");
  static_assert(4 * V::kChunkWords <= sizeof(memory.chunks[0]), "room for a chunk");
  static_assert(4 * V::kSets * V::kSessions * M::kGroupRows <= sizeof(memory.results), "room for a group");
  const float* factors = kNormed ? memory.factors[turn] : nullptr;
  Arriving<V> arriving;
  patience.wait(kTicks);
  if (M::here()) arriving.look(from, 0);
  if (kNormed && (M::here() || kEverywhere)) {
    find_factors<V>(from, epsilon, memory.factors[turn]);
    turn ^= 1;
  }
  if (!M::here()) {
    reader.skip(M::kGroups * stream_bytes(M::kFragments));
    if (ends) from.end_use();
    return;
  }
#pragma unroll 1
  for (int group = 0; group < M::kGroups; ++group) {
    SessionSums<M, V> sums{memory.waiting};
    if (group > 0) arriving.look(from, 0);
    reader.open_group();
#pragma unroll 1
    for (int chunk = 0; chunk < V::kChunks; ++chunk) {
      arriving.settle(from, chunk);
      arriving.store(memory.chunks[chunk % 2]);
      workers_barrier();
      if (chunk + 1 < V::kChunks) arriving.look(from, chunk + 1);
      multiply_chunk<M, V>(reader, memory.chunks[chunk % 2], chunk, sums);
    }
    sums.store(memory.results);
    workers_barrier();
    if (ends && group + 1 == M::kGroups) from.end_use();
    finish_rows<M, V>(memory, factors, group, finish);
    if (M::kGroups > 1) workers_barrier();
  }
  patience.since = clock_ticks();
}
