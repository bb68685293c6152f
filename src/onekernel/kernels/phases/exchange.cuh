// Values that all blocks give to each other: a vector in global memory whose floats say themselves whether they are
// there. The lowest bit of each is the parity of its use, so one store hands over value and flag, and nothing else need
// be ordered (the LL protocol of NCCL and the Lamport all-reduce of TensorRT-LLM, inside one GPU).
//
// Memory begins as 0xff bytes: parity 1, while the first use has parity 0. A writer must know that the readers of the
// use before have read; the checker of a program proves it (megakernel/check.py).
//
// Nobody waits for ever: a block that has looked for seconds says which value is not there, and from then on waits for
// nothing. So all blocks come to the end, with values of no meaning, and whoever launched them finds out
// (megakernel/mailbox.py).
//
// Where every phase is a launch of its own (phases/launch.cuh), what is awaited is there, and floats have no parity;
// their lowest bit is cleared all the same, so that both builds of a program compute with the same numbers.
#pragma once
#include "phases/workers.cuh"
#include "primitives/atomic.cuh"

#ifdef ONEKERNEL_LAUNCHES
constexpr bool kTagged = false;
#else
constexpr bool kTagged = true;
#endif

constexpr unsigned kMostLooks = 1u << 22;  // each takes 300 ns at least
constexpr unsigned kNothingLost = ~0u;     // as memory begins

// The memory of all exchanges, and for each the parity of the use that is on, a bit by its number.
struct Mail {
  unsigned* words;  // in front of all exchanges: parities, the place of a value that was lost, the block that lost it
  unsigned parities;
  unsigned lost = 0;  // the place of a value that a lane waited for in vain; 1: another lane of the warp did

  // By all threads at the end: the first one is told.
  ONEKERNEL_DEVICE void report() const {
    if (lost > 1 && atomic_compare_exchange(words + 1, kNothingLost, lost) == kNothingLost) words[2] = blockIdx.x;
  }
};

// A value as it comes out of an exchange.
ONEKERNEL_DEVICE float exchanged(float value) { return bits_float(float_bits(value) & ~1u); }

// One exchange: its place and its number are constants wherever it is used, so that it takes no registers.
struct Exchange {
  Mail& mail;
  int start, number;

  ONEKERNEL_DEVICE unsigned* words() const { return mail.words + start; }
  ONEKERNEL_DEVICE unsigned parity() const { return kTagged ? mail.parities >> number & 1u : 0u; }
  ONEKERNEL_DEVICE void end_use() const { mail.parities ^= 1u << number; }

  // Remember that a value at a place was awaited in vain.
  ONEKERNEL_DEVICE void lose(int place) const {
    if (mail.lost == 0) mail.lost = start + place;
  }

  ONEKERNEL_DEVICE unsigned tagged(float value) const { return (float_bits(value) & ~1u) | parity(); }

  ONEKERNEL_DEVICE void publish(int place, float value) const { store_relaxed<1>(words() + place, {{tagged(value)}}); }

  ONEKERNEL_DEVICE void publish(int place, const float (&quad)[4]) const {
    store_relaxed<4>(words() + place, {{tagged(quad[0]), tagged(quad[1]), tagged(quad[2]), tagged(quad[3])}});
  }

  // Wait for four floats at place(i), for each i below kQuads that is `wanted(i)`; the others become 0. All are asked
  // for at once, again and again. All lanes of a warp call it, each for its own.
  template <int kQuads, class Place, class Wanted>
  ONEKERNEL_DEVICE void await_at(Place place, Wanted wanted, float (&values)[kQuads][4]) const {
    const unsigned expected = parity();
    Vector<unsigned, 4> found[kQuads];
#pragma unroll
    for (int i = 0; i < kQuads; ++i) found[i] = {{expected, expected, expected, expected}};
    const auto look = [&] {
#pragma unroll
      for (int i = 0; i < kQuads; ++i)
        if (wanted(i)) found[i] = load_relaxed<4>(words() + place(i));
    };
    const auto there = [&] {
      unsigned any = 0, all = 1;
      look();
#pragma unroll
      for (int i = 0; i < divide_up(kQuads, 2); ++i)
#pragma unroll
        for (int word = 0; word < 4; ++word) include_both(any, all, found[i].at[word], found[kQuads - 1 - i].at[word]);
      return ((expected ? ~all : any) & 1u) == 0;
    };
    if constexpr (kTagged) {
      const auto give_up = [&] {
        if (mail.lost > 0) return;
        mail.lost = 1;
#pragma unroll
        for (int i = 0; i < kQuads; ++i) {
          const unsigned all = found[i].at[0] & found[i].at[1] & found[i].at[2] & found[i].at[3];
          const unsigned any = found[i].at[0] | found[i].at[1] | found[i].at[2] | found[i].at[3];
          if (((expected ? ~all : any) & 1u) != 0) mail.lost = start + place(i);
        }
      };
      spin_together(there, "values of other blocks", mail.lost > 0 ? 0 : kMostLooks, give_up);
    } else {
      look();
    }
#pragma unroll
    for (int i = 0; i < kQuads; ++i)
#pragma unroll
      for (int word = 0; word < 4; ++word) values[i][word] = wanted(i) ? bits_float(found[i].at[word] & ~1u) : 0.0f;
  }

  // The same for the first `quads` at place, place + stride, ...
  template <int kQuads>
  ONEKERNEL_DEVICE void await(int place, int stride, int quads, float (&values)[kQuads][4]) const {
    await_at([=](int i) { return place + i * stride; }, [=](int i) { return i < quads; }, values);
  }
};
