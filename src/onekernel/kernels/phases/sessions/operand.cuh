// Vectors of many sessions that a matrix multiplies. Who makes a value splits it into parts (phases/columns.cuh) for
// all blocks, and puts those where a lane of the tensor cores wants them: readers take them into registers as they are.
//
// A warp has the span of columns that it has with a single session. Sessions go through the tensor cores eight at a
// time, an octet; steps go chain by chain, a few of them at a time, a piece. The words of an exchange: octets, steps,
// halves of a step, sessions, groups of four columns; then for each session the sums of the squares of eight
// neighbours.
#pragma once
#include "phases/project.cuh"

template <int kColumns_, int kSessions_>
struct Operands {
  using Place = Columns<kColumns_>;
  static constexpr int kColumns = kColumns_, kSessions = kSessions_;
  static constexpr int kOctet = kSessions < 8 ? kSessions : 8, kOctets = kSessions / kOctet;
  static constexpr int kSteps = Place::kSteps;  // of a span
  static_assert(kColumns == kWarps * kSteps * kStep, "whole spans");
  static_assert(kSessions % kOctet == 0, "whole octets");

  // Steps of a piece: of one chain, at most three, which are 24 registers.
  static constexpr int kChain = Place::kEqual ? kSteps / Place::kChains : 1;
  static constexpr int kPiece = kChain % 3 == 0 ? 3 : kChain % 2 == 0 ? 2 : 1, kPieces = kSteps / kPiece;
  static constexpr int kQuads = 2 * kPiece;    // of a lane
  static constexpr int kTiles = kColumns / 8;  // of eight neighbours

  // The step at a place in the order of chains, and whether a chain begins there; the first chain begins the sum.
  ONEKERNEL_DEVICE static constexpr int step_at(int place) {
    if (Place::kEqual) return place;
    int chain = 0;
    for (; place >= divide_up(kSteps - chain, Place::kChains); ++chain)
      place -= divide_up(kSteps - chain, Place::kChains);
    return chain + place * Place::kChains;
  }
  ONEKERNEL_DEVICE static constexpr bool begins(int place) {
    return Place::kEqual ? place % kChain == 0 : step_at(place) < Place::kChains;
  }
  ONEKERNEL_DEVICE static constexpr bool ends(int place) { return place + 1 == kSteps || begins(place + 1); }
  ONEKERNEL_DEVICE static constexpr bool in_first_chain(int place) {
    return Place::kEqual ? place < kChain : step_at(place) % Place::kChains == 0;
  }

  // Where the first of four neighbouring columns of a session lies.
  ONEKERNEL_DEVICE static int place(int session, int column) {
    const int half = (session / kOctet * (kColumns / kStep) + column / kStep) * 2 + column % kStep / 16;
    return (half * kOctet + session % kOctet) * 16 + column % 16;
  }

  // Publish two or four neighbouring columns, as they come out of other exchanges. Words of eight bytes, each with the
  // parity of the use in its second half: who reads sees all of it or nothing (the LL protocol of NCCL).
  template <class T>
  ONEKERNEL_DEVICE static void publish(const Exchange& exchange, int session, int column, float one, float other) {
    const unsigned pair = pair_of<T>(one, other);
    store_relaxed<2>(exchange.words() + place(session, column),
                     {{pair, rest_of<T>(pair, one, other) | exchange.parity()}});
  }
  template <class T>
  ONEKERNEL_DEVICE static void publish(const Exchange& exchange, int session, int column, const float (&values)[4]) {
    const auto parts = parts_of<T>(values);
    const unsigned parity = exchange.parity();
    store_relaxed<4>(exchange.words() + place(session, column),
                     {{parts.at[0], parts.at[2] | parity, parts.at[1], parts.at[3] | parity}});
  }

  // A value of a stream under the weight of the norm that comes next. Eight lanes have eight neighbours; the first of
  // them publishes the sum of their squares. Whole warps call it; those that are not `inside` have nothing to say.
  template <class T>
  ONEKERNEL_DEVICE static void publish_normed(const Exchange& exchange, int session, int column, float value,
                                              float weight, bool inside) {
    const float scaled = rounded_product(value, weight), next = shuffle_xor(scaled, 1);
    if (inside && lane_index() % 2 == 0) publish<T>(exchange, session, column, scaled, next);
    float squares = rounded_product(value, value);
#pragma unroll
    for (int distance = 1; distance < 8; distance *= 2) squares += shuffle_xor(squares, distance);
    if (inside && lane_index() % 8 == 0)
      exchange.publish(kSessions * kColumns + session * kTiles + column / 8, squares);
  }
};

// Pieces of vectors on their way from an exchange, several at a time. Lane 4 n + q has group q of session n.
template <class V, int kBuffers>
struct Arriving {
  const Exchange& exchange;
  int thread = fresh_thread_index();
  Vector<unsigned, 4> found[kBuffers][V::kQuads] = {};

  ONEKERNEL_DEVICE explicit Arriving(const Exchange& exchange) : exchange(exchange) {}

  ONEKERNEL_DEVICE bool mine() const { return V::kOctet == 8 || thread % kWarpLanes < 4 * V::kOctet; }

  ONEKERNEL_DEVICE int place(int octet, int piece) const {
    const int step = (octet * kWarps + thread / kWarpLanes) * V::kSteps;
    return (2 * step + 2 * V::step_at(piece * V::kPiece)) * V::kOctet * 16 + 4 * (thread % kWarpLanes);
  }

  ONEKERNEL_DEVICE void look(int octet, int piece, int buffer) {
    if (!mine()) return;
    const unsigned* words = exchange.words() + place(octet, piece);
#pragma unroll
    for (int i = 0; i < V::kQuads; ++i) found[buffer][i] = load_relaxed<4>(words + i * V::kOctet * 16);
  }

  // Wait for a few numbers of each warp, of all its steps: to ask for all of them in vain would take the time of
  // others.
  ONEKERNEL_DEVICE void await_some() const {
    const int session = thread % kWarpLanes / 4, step = thread / kWarpLanes * V::kSteps + session % V::kSteps;
    const int place = ((2 * step + session / V::kSteps % 2) * V::kOctet + session) * 16 + 4 * (thread % 4);
    const auto complete = [&] {
      if (!mine()) return true;
      const auto quad = load_relaxed<4>(exchange.words() + place);
      return (quad.at[1] & 1u) == exchange.parity() && (quad.at[3] & 1u) == exchange.parity();
    };
    const auto give_up = [&] { exchange.lose(place); };
    spin_together(complete, "some numbers of other blocks", exchange.mail.lost > 0 ? 0 : kMostLooks, give_up);
  }

  // Behind `look`: wait until so many pieces, from one on, are all there, and what else is asked for.
  template <int kCount, class Else>
  ONEKERNEL_DEVICE void settle(int octet, int piece, int buffer, Else others) {
    const auto complete = [&] {
      unsigned any = 0, all = 1;
#pragma unroll
      for (int i = 0; i < kCount * V::kQuads; ++i) {
        const auto& quad = found[buffer + i / V::kQuads][i % V::kQuads];
        include_both(any, all, quad.at[1], quad.at[3]);
      }
      const bool there = !mine() || ((exchange.parity() ? ~all : any) & 1u) == 0;
      if (!there)
#pragma unroll
        for (int i = 0; i < kCount; ++i) look(octet, piece + i, buffer + i);
      return others() && there;
    };
    const auto give_up = [&] { exchange.lose(place(octet, piece)); };
    spin_together(complete, "vectors of other blocks", exchange.mail.lost > 0 ? 0 : kMostLooks, give_up);
  }
  template <int kCount>
  ONEKERNEL_DEVICE void settle(int octet, int piece, int buffer) {
    settle<kCount>(octet, piece, buffer, [] { return true; });
  }

  // The parts of a half of a step: those that come first, and the rests.
  template <class T>
  ONEKERNEL_DEVICE MatrixB<T> firsts(int buffer, int i) const {
    const auto& quad = found[buffer][i];
    return {{quad.at[0], quad.at[2]}};
  }
  template <class T>
  ONEKERNEL_DEVICE MatrixB<T> rests(int buffer, int i) const {
    const auto& quad = found[buffer][i];
    return {{quad.at[1] & ~1u, quad.at[3] & ~1u}};
  }
};

// The sums of squares of the session whose number in an octet is that of the warp: four lanes have what is a warp's
// when there is but one session.
template <class V>
struct Squares {
  static constexpr int kMine = divide_up(V::kSteps, 4);  // quads of a lane
  int thread = fresh_thread_index();
  Vector<unsigned, 4> found[kMine] = {};

  ONEKERNEL_DEVICE bool mine(int i) const { return thread % 4 + 4 * i < V::kSteps; }
  ONEKERNEL_DEVICE int place(int octet, int i) const {
    const int session = octet * V::kOctet + thread / kWarpLanes;
    const int quad = thread % kWarpLanes / 4 * V::kSteps + thread % 4 + 4 * i;
    return V::kSessions * V::kColumns + session * V::kTiles + 4 * quad;
  }

  ONEKERNEL_DEVICE void look(const Exchange& exchange, int octet) {
    if (thread / kWarpLanes >= V::kOctet) return;
#pragma unroll
    for (int i = 0; i < kMine; ++i)
      if (mine(i)) found[i] = load_relaxed<4>(exchange.words() + place(octet, i));
  }

  ONEKERNEL_DEVICE bool there(unsigned parity) const {
    unsigned any = 0, all = 1;
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      if (!mine(i)) continue;
      include_both(any, all, found[i].at[0], found[i].at[1]);
      include_both(any, all, found[i].at[2], found[i].at[3]);
    }
    return ((parity ? ~all : any) & 1u) == 0;
  }

  // Behind `look`: whether they are there; if not, look again.
  ONEKERNEL_DEVICE bool complete(const Exchange& exchange, int octet) {
    const bool all = thread / kWarpLanes >= V::kOctet || there(exchange.parity());
    if (!all) look(exchange, octet);
    return all;
  }
  ONEKERNEL_DEVICE void settle(const Exchange& exchange, int octet) {
    const auto give_up = [&] { exchange.lose(place(octet, 0)); };
    spin_together([&] { return complete(exchange, octet); }, "squares of other blocks",
                  exchange.mail.lost > 0 ? 0 : kMostLooks, give_up);
  }

  // Then: the factor of the norm of each session, in shared memory behind a barrier.
  ONEKERNEL_DEVICE void store_factor(int octet, float epsilon, float* factors) const {
    if (thread / kWarpLanes >= V::kOctet) return;
    float sums[4] = {};
#pragma unroll
    for (int i = 0; i < kMine; ++i)
#pragma unroll
      for (int k = 0; k < 4; ++k)
        if (mine(i)) sums[k] += bits_float(found[i].at[k] & ~1u);
#pragma unroll
    for (int distance = 2; distance > 0; distance /= 2)
#pragma unroll
      for (int k = 0; k < 4; ++k) sums[k] += shuffle_xor(sums[k], distance);
    float sum = (sums[0] + sums[2]) + (sums[1] + sums[3]);
#pragma unroll
    for (int distance = 4; distance < kWarpLanes; distance *= 2) sum += shuffle_xor(sum, distance);
    if (thread % kWarpLanes == 0)
      factors[octet * V::kOctet + thread / kWarpLanes] = rsqrtf(sum / V::kColumns + epsilon);
  }
};

// The same of all octets: what a lane does for one of them overlaps what it does for others.
template <class V>
struct AllSquares {
  Squares<V> of_octet[V::kOctets];

  ONEKERNEL_DEVICE void look(const Exchange& exchange) {
#pragma unroll
    for (int octet = 0; octet < V::kOctets; ++octet) of_octet[octet].look(exchange, octet);
  }
  ONEKERNEL_DEVICE void store_factors(const Exchange& exchange, float epsilon, float* factors) {
#pragma unroll
    for (int octet = 0; octet < V::kOctets; ++octet) of_octet[octet].settle(exchange, octet);
#pragma unroll
    for (int octet = 0; octet < V::kOctets; ++octet) of_octet[octet].store_factor(octet, epsilon, factors);
  }
};
