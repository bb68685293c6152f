// Octets of vectors times a group of a matrix, as a warp waits for them.
#pragma once
#include "phases/sessions/landing.cuh"
#include "phases/sessions/multiply.cuh"

// How many pieces of the only octet are in registers: all of them, or as many as there is room for; how many of them
// are awaited before the first is multiplied; and whether they are too much to be asked for in vain.
template <class M, class V>
struct Buffers {
  static constexpr int kPairs = divide_up(M::kTiles, 2), kAllQuads = V::kPieces * V::kQuads;  // of a lane
  static constexpr bool kAll = kAllQuads <= (kPairs > 2 ? 8 : kPairs > 1 ? 16 : 24);
  static constexpr int kRoom = (12 - 2 * (kPairs - 1)) / V::kQuads;
  static constexpr int kCount = kAll || V::kPieces < kRoom ? V::kPieces : kRoom > 0 ? kRoom : 1;
  static constexpr int kQuads = kCount * V::kQuads;
  static constexpr int kFirst = kAll && kQuads > 16 ? kCount / 2 : kCount, kBehind = kCount - kFirst;
  static constexpr bool kMany = kQuads * V::kOctet > 48;
};

template <class M, class V, class Reader, class Landed>
struct Product;

// A single octet.
template <class M, class V, class Reader>
struct Product<M, V, Reader, NoLanding> {
  using Its = Buffers<M, V>;
  static constexpr int kWindow = M::kTiles * V::kPiece;                              // fragments of a piece, of a warp
  static constexpr bool kHeld = Its::kAll && V::kPieces * kWindow <= Reader::kMost;  // all of a group is there at once
  Reader& reader;
  const Exchange& from;
  Arriving<V, Its::kCount> pieces;
  Squares<V> squares;
  float epsilon;
  float* factors;  // of a norm, or none

  ONEKERNEL_DEVICE Product(Reader& reader, const Exchange& from, NoLanding&, float epsilon, float* factors)
      : reader(reader), from(from), pieces(from), epsilon(epsilon), factors(factors) {}

  // Ask for the octet. Weights have been there for long.
  template <int kTicks, class Patience_>
  ONEKERNEL_DEVICE void begin(Patience_& patience, int group) {
    const bool normed = factors != nullptr && group == 0;
    reader.open_group();
    reader.open(kHeld ? V::kPieces * kWindow : kWindow);
    patience.wait(kTicks);
    patience.lap(0);
    if (Its::kMany) pieces.await_some();
    patience.lap(1);
    if (normed) squares.look(from, 0);
#pragma unroll
    for (int i = 0; i < Its::kCount; ++i) pieces.look(0, i, i);
    pieces.template settle<Its::kFirst>(0, 0, 0, [&] { return !normed || squares.complete(from, 0); });
    patience.lap(2);
    if (normed) squares.store_factor(0, epsilon, factors);
  }

  ONEKERNEL_DEVICE void multiply(OctetSums<M, V>& sums, int, int) {
    if constexpr (kHeld)
      multiply_held(sums);
    else
      multiply_by_pieces(sums);
  }

  // With all weights and all pieces: one text with few waits in it.
  ONEKERNEL_DEVICE void multiply_held(OctetSums<M, V>& sums) {
#pragma unroll
    for (int piece = 0; piece < V::kPieces; ++piece) {
      if (piece == Its::kFirst) pieces.template settle<(Its::kBehind > 0 ? Its::kBehind : 1)>(0, piece, piece);
      sums.multiply(reader, pieces, piece, piece);
    }
    reader.free(V::kPieces * kWindow, true);
  }

  // With some of them at a time.
  ONEKERNEL_DEVICE void multiply_by_pieces(OctetSums<M, V>& sums) {
#pragma unroll(V::kPieces <= 4 ? 4 : 1)
    for (int first = 0; first < V::kPieces; first += Its::kCount)
#pragma unroll
      for (int i = 0; i < Its::kCount; ++i) {
        const int piece = first + i;
        if (V::kPieces % Its::kCount != 0 && piece >= V::kPieces) break;
        pieces.template settle<1>(0, piece, i);
        reader.open((piece + 1) * kWindow);
        sums.multiply(reader, pieces, piece, i);
        if (piece + Its::kCount < V::kPieces) pieces.look(0, piece + Its::kCount, i);
        reader.free((piece + 1) * kWindow, piece + 1 == V::kPieces);
      }
  }
};

// Several octets: the weights of a group stay in the ring for all of them, and vectors land ahead of their turn.
template <class M, class V, class Reader, int kQuads>
struct Product<M, V, Reader, LandingMemory<kQuads>> {
  static constexpr int kTogether = V::kQuads <= 4 && V::kPieces % 2 == 0 ? 2 : 1;  // 32 registers at most
  static constexpr int kWindow = M::kTiles * V::kPiece;
  Reader& reader;
  const Exchange& from;
  Landing<V, kTogether, kQuads> pieces;
  float epsilon;
  float* factors;

  ONEKERNEL_DEVICE Product(Reader& reader, const Exchange& from, LandingMemory<kQuads>& memory, float epsilon,
                           float* factors)
      : reader(reader), from(from), pieces(from, memory), epsilon(epsilon), factors(factors) {}

  // Wait for a few numbers, and ask for all; what a second group multiplies is on its way before that begins.
  template <int kTicks, class Patience_>
  ONEKERNEL_DEVICE void begin(Patience_& patience, int group) {
    reader.open_group();
    if (group > 0) return;
    patience.wait(kTicks);
    patience.lap(0);
    pieces.await_some();
    patience.lap(1);
    AllSquares<V> squares;
    if (factors != nullptr) squares.look(from);
    pieces.begin();
    if (factors != nullptr) squares.store_factors(from, epsilon, factors);
    patience.lap(2);
  }

  ONEKERNEL_DEVICE void multiply(OctetSums<M, V>& sums, int octet, int group) {
    const bool last = octet + 1 == V::kOctets;
#pragma unroll(V::kPieces <= 4 ? 4 : 1)
    for (int first = 0; first < V::kPieces; first += kTogether) {
      pieces.take(octet, first, group + 1 < M::kGroups);
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int piece = first + i;
        reader.open((piece + 1) * kWindow);
        sums.multiply(reader, pieces, piece, i);
        if (last) reader.free((piece + 1) * kWindow, piece + 1 == V::kPieces);
      }
    }
  }
};
