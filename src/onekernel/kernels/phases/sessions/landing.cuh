// Vectors of many sessions that land in shared memory while others are multiplied.
#pragma once
#include "phases/sessions/operand.cuh"
#include "primitives/copy.cuh"

// What is on its way to each lane.
template <int kQuads>
struct LandingMemory {
  alignas(16) unsigned at[kWarps][kQuads][kWarpLanes][4];
};
struct NoLanding {};  // of a single octet, which goes into registers at once

// The pieces of all octets, one behind the other; kTogether of them are taken at once. A lane copies for itself alone,
// so that nobody waits for another; what was not there yet when it was copied is asked for again.
template <class V, int kTogether, int kQuads>
struct Landing : Arriving<V, kTogether> {
  static constexpr int kRoom = kQuads / V::kQuads, kAll = V::kOctets * V::kPieces;
  static constexpr int kDepth = kRoom < kAll ? kRoom : kAll;  // pieces that are on their way
  static_assert(kTogether <= kDepth, "room for what is taken at once");
  LandingMemory<kQuads>& memory;
  int slot = 0;  // of the oldest piece

  ONEKERNEL_DEVICE Landing(const Exchange& exchange, LandingMemory<kQuads>& memory)
      : Arriving<V, kTogether>(exchange), memory(memory) {}

  ONEKERNEL_DEVICE unsigned* at(int quad) const {
    return memory.at[this->thread / kWarpLanes][slot * V::kQuads + quad][this->thread % kWarpLanes];
  }

  // Ask for a piece, or for nothing, in the place of the oldest one.
  ONEKERNEL_DEVICE void copy(bool wanted, int octet, int piece) {
    const unsigned* words = this->exchange.words() + this->place(octet, piece);
    if (wanted)
#pragma unroll
      for (int i = 0; i < V::kQuads; ++i) copy_async<16>(at(i), words + i * V::kOctet * 16);
    copy_commit();
    if (++slot == kDepth) slot = 0;
  }

  // Ask for the first pieces.
  ONEKERNEL_DEVICE void begin() {
#pragma unroll
    for (int i = 0; i < kDepth; ++i) copy(true, i / V::kPieces, i % V::kPieces);
  }

  // Take pieces, and ask for those that come later; the first octet follows the last one if it is needed `again`.
  ONEKERNEL_DEVICE void take(int octet, int first, bool again) {
    copy_wait<kDepth - kTogether>();
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
#pragma unroll
      for (int quad = 0; quad < V::kQuads; ++quad) this->found[i][quad] = load_vector<4>(at(quad));
      const int later = first + i + kDepth, its = octet + later / V::kPieces;
      copy(again || its < V::kOctets, its % V::kOctets, later % V::kPieces);
    }
    this->template settle<kTogether>(octet, first, 0);
  }
};
