// The weights of a group times an octet of vectors. Each warp multiplies the columns of its span, as with a single
// session: vectors come from an exchange into registers, weights through the ring, and partial sums meet in shared
// memory.
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
      MatrixD(&its)[2][2] = products[pair];
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
