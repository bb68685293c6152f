// Vectors of many sessions that a matrix multiplies. Who makes a value splits it into parts (phases/columns.cuh) for
// all blocks, and puts those where readers want them: what a block reads it copies into shared memory as it is.
//
// A chunk has the same steps of all vectors. The warps of a block are sets, each with neighbouring spans of columns; a
// span is what one warp has when there is but one session, so that sums keep their order. The words of an exchange:
// chunks, then for each session the sums of the squares of eight neighbours.
#pragma once
#include "phases/project.cuh"

template <int kColumns_, int kSessions_>
struct Operands {
  using Place = Columns<kColumns_>;
  static constexpr int kColumns = kColumns_, kSessions = kSessions_, kPairs = kSessions / 2;
  static constexpr int kSteps = Place::kSteps;  // of a span
  static_assert(kColumns == kWarps * kSteps * kStep, "whole spans");
  static_assert(kSessions % 2 == 0 && kSessions <= 32, "pairs of sessions");

  static constexpr int kSets = kSessions >= 16 ? 1 : 16 / kSessions;
  static constexpr int kRounds = kWarps / kSets;                // spans of a set
  static constexpr int kMostSteps = 256 / (kSessions * kSets);  // of a set in a chunk: 32 KB for all vectors
  static constexpr int kChain = Place::kEqual ? kSteps / Place::kChains : kSteps;
  static_assert(kChain <= kMostSteps, "a chain lies in one chunk");
  static constexpr int largest(int most, int of) {  // divisor
    while (of % most != 0) --most;
    return most;
  }
  static constexpr int least(int a, int b) { return a < b ? a : b; }
  static constexpr int kPart = kChain * largest(least(kMostSteps / kChain, kSteps / kChain), kSteps / kChain);
  static constexpr int kParts = kSteps / kPart;                                                            // of a span
  static constexpr int kTogether = kParts > 1 ? 1 : largest(least(kMostSteps / kPart, kRounds), kRounds);  // rounds
  static constexpr int kChunkSteps = kTogether * kSets * kPart;
  static constexpr int kChunks = kRounds / kTogether * kParts;
  static constexpr int kChunkWords = kSessions * kChunkSteps * kStep;
  static constexpr int kQuads = divide_up(kChunkWords / 4, kWorkers);  // of a thread
  static constexpr int kTiles = kColumns / 8;                          // of eight neighbours

  // Where the first of four neighbouring columns of a session lies.
  ONEKERNEL_DEVICE static int place(int session, int column) {
    const int step = column / kStep, span = step / kSteps, its = step % kSteps, round = span % kRounds;
    const int chunk = round / kTogether * kParts + its / kPart;
    const int in_chunk = (round % kTogether * kSets + span / kRounds) * kPart + its % kPart;
    const int row = (session / 2 * kChunkSteps + in_chunk) * 2 + session % 2;
    return chunk * kChunkWords + row * kStep + column % kStep;
  }

  // Publish four neighbouring columns, as they come out of other exchanges. Two words of eight bytes, each with the
  // parity of the use in its second half: who reads sees all of it or nothing (the LL protocol of NCCL).
  template <class T>
  ONEKERNEL_DEVICE static void publish(const Exchange& exchange, int session, int column, const float (&values)[4]) {
    const auto parts = parts_of<T>(values);
    const unsigned parity = exchange.parity();
    store_relaxed<4>(exchange.words() + place(session, column),
                     {{parts.at[0], parts.at[2] | parity, parts.at[1], parts.at[3] | parity}});
  }

  // Eight neighbours of a stream under the weights of the norm that comes next, and the sum of their squares.
  template <class T>
  ONEKERNEL_DEVICE static void publish_normed(const Exchange& exchange, int session, int column,
                                              const float (&values)[8], const float* weight) {
    float squares = 0.0f;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float* v = values + 4 * half;
      const auto scale = load_vector<4>(weight + column + 4 * half);
      float scaled[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) scaled[k] = rounded_product(v[k], scale.at[k]);
      publish<T>(exchange, session, column + 4 * half, scaled);
      squares += squares_of(v[0], v[1], v[2], v[3]);
    }
    exchange.publish(kSessions * kColumns + session * kTiles + column / 8, squares);
  }
};

// A chunk on its way from an exchange into shared memory.
template <class Operands_>
struct Arriving {
  static constexpr int kQuads = Operands_::kQuads, kWords = Operands_::kChunkWords;
  Vector<unsigned, 4> found[kQuads];

  ONEKERNEL_DEVICE static int place(int i) { return 4 * (static_cast<int>(threadIdx.x) + i * kWorkers); }
  ONEKERNEL_DEVICE static bool mine(int i) { return kWords % (4 * kWorkers) == 0 || place(i) < kWords; }

  ONEKERNEL_DEVICE void look(const Exchange& exchange, int chunk) {
    const unsigned* words = exchange.words() + chunk * kWords;
#pragma unroll
    for (int i = 0; i < kQuads; ++i)
      if (mine(i)) found[i] = load_relaxed<4>(words + place(i));
  }

  ONEKERNEL_DEVICE bool there(unsigned parity) const {
    unsigned any = 0, all = 1;
#pragma unroll
    for (int i = 0; i < kQuads; ++i)
      if (mine(i)) include_both(any, all, found[i].at[1], found[i].at[3]);
    return ((parity ? ~all : any) & 1u) == 0;
  }

  // Behind `look`: wait until all of it is there.
  ONEKERNEL_DEVICE void settle(const Exchange& exchange, int chunk) {
    const auto complete = [&] {
      const bool all = there(exchange.parity());
      if (!all) look(exchange, chunk);
      return all;
    };
    const auto give_up = [&] { exchange.lose(chunk * kWords); };
    spin_together(complete, "vectors of other blocks", exchange.mail.lost > 0 ? 0 : kMostLooks, give_up);
  }

  ONEKERNEL_DEVICE void store(unsigned* to) const {
#pragma unroll
    for (int i = 0; i < kQuads; ++i)
      if (mine(i))
        store_vector(to + place(i),
                     Vector<unsigned, 4>{{found[i].at[0], found[i].at[2], found[i].at[1] & ~1u, found[i].at[3] & ~1u}});
  }
};

// The factors of the norm of all sessions, by the first threads of a block: eight of them for each session, one for
// what is a warp's when there is but one session.
template <class Operands_>
ONEKERNEL_DEVICE void find_factors(const Exchange& exchange, float epsilon, float (&factors)[Operands_::kSessions]) {
  constexpr int kSpanTiles = Operands_::kSteps * 4, kQuads = kSpanTiles / 4, kAtOnce = kWarpLanes / 2;
  const int thread = threadIdx.x, session = thread / kWarps, span = thread % kWarps;
  if (warp_index() >= divide_up(Operands_::kSessions * kWarps, kWarpLanes)) return;
  const int start = Operands_::kSessions * Operands_::kColumns + session * Operands_::kTiles + span * kSpanTiles;
  float found[kQuads][4], sums[kAtOnce] = {};
  exchange.await(start, 4, session < Operands_::kSessions ? kQuads : 0, found);
#pragma unroll
  for (int i = 0; i < kQuads; ++i)
#pragma unroll
    for (int k = 0; k < 4; ++k) sums[(4 * i + k) % kAtOnce] += found[i][k];
#pragma unroll
  for (int half = kAtOnce / 2; half > 0; half /= 2)
#pragma unroll
    for (int at = 0; at < kAtOnce / 2; ++at)
      if (at < half) sums[at] += sums[at + half];
  float sum = sums[0];
#pragma unroll
  for (int distance = 1; distance < kWarps; distance *= 2) sum += shuffle_xor(sum, distance);
  if (span == 0 && session < Operands_::kSessions) factors[session] = rsqrtf(sum / Operands_::kColumns + epsilon);
}
