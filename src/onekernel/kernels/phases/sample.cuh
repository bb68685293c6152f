// A code drawn from logits that all blocks know: penalty, suppression, temperature, top-k, a race of exponentials.
// Every block draws for itself, and all draw the same.
//
// The winner of the race is the entry of the largest log(p) - log(q), q exponential. Instead of sorting for the k-th
// largest logit, the winner of all entries is asked whether fewer than k are larger than it; if not, none that is no
// larger can be in the top k either, and the others race again.
#pragma once
#include "phases/exchange.cuh"

constexpr float kOut = -3.0e38f;  // below every logit
constexpr float kLog2 = 0.6931471805599453f;
constexpr int kRequestHead = 16;  // ints of a request before its codes (megakernel/layout.py)

// Philox4x32-10 (Salmon et al., SC 2011): four words for a counter of four and a key of two.
struct Philox {
  unsigned words[4];

  ONEKERNEL_DEVICE Philox(unsigned c0, unsigned c1, unsigned c2, unsigned c3, unsigned k0, unsigned k1) {
#pragma unroll
    for (int round = 0; round < 10; ++round) {
      const unsigned long long first = 0xd2511f53ull * c0, second = 0xcd9e8d57ull * c2;
      const unsigned one = static_cast<unsigned>(second >> 32) ^ c1 ^ k0,
                     two = static_cast<unsigned>(first >> 32) ^ c3 ^ k1;
      c0 = one;
      c1 = static_cast<unsigned>(second);
      c2 = two;
      c3 = static_cast<unsigned>(first);
      k0 += 0x9e3779b9u;
      k1 += 0xbb67ae85u;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
  }

  // -log((w + 1/2) / 2^32): from the other end where that is near 1, and very near by its series.
  ONEKERNEL_DEVICE float exponential(int i) const {
    const unsigned w = words[i];
    const bool upper = w >> 31;
    const float x = (static_cast<float>(upper ? ~w : w) + 0.5f) * 2.3283064365386963e-10f;
    float series = 1.0f / 7.0f;
#pragma unroll
    for (int n = 6; n > 0; --n) series = series * x + 1.0f / n;
    return upper && x < 0.125f ? series * x : -kLog2 * fast_log2(upper ? 1.0f - x : x);
  }
};

// How a code is drawn; `draws` false: the likeliest is taken. top_k 0: of all.
struct Draw {
  unsigned seed_low, seed_high;
  int frame, codebook;
  bool draws;
  float sharpness;  // 1 / temperature
  int top_k;
};

// What may be said as the first code of a frame, and what was said before.
struct FirstRules {
  int codes, end;  // entries that are codes; the entry that ends speech
  bool may_end;
  float penalty, bonus;  // one over the other
};
struct NoRules {};

// A number whose order is that of a float, and the float of it.
ONEKERNEL_DEVICE unsigned ordered(float value) {
  const unsigned bits = float_bits(value);
  return bits >> 31 ? ~bits : bits | 1u << 31;
}
ONEKERNEL_DEVICE float of_ordered(unsigned order) { return bits_float(order >> 31 ? order & ~(1u << 31) : ~order); }

// An entry in the race, key and logit as ordered numbers. Of equal keys the first token wins.
struct Runner {
  unsigned key, logit, token;

  // The winner of a warp.
  ONEKERNEL_DEVICE Runner best_of_warp() const {
    const unsigned best = warp_largest(key), first = warp_smallest(key == best ? token : ~0u);
    return {best, warp_largest(key == best && token == first ? logit : 0), first};
  }
};

// What warps tell each other: their runners, and how many of their entries are larger than the last winner.
struct Tally {
  Runner best[kWarps];
  unsigned larger[kWarps];
};

template <int kMostVocab>
struct SampleMemory {
  Tally tally[2];
  unsigned seen[divide_up(kMostVocab, 32)];
  int codes[16];        // of the last frame
  int seed[2];          // low, high
  float options[2][4];  // of first codes, of the others: draws, temperature, top_k, penalty

  // What a request remembers from launch to launch: seed, its last codes, what was said; and what it asks for.
  ONEKERNEL_DEVICE void load(const int* request, const float* asked) {
    if (threadIdx.x < 2) seed[threadIdx.x] = request[threadIdx.x];
    if (threadIdx.x < 8) options[threadIdx.x / 4][threadIdx.x % 4] = asked[threadIdx.x];
    for (int i = threadIdx.x; i < 16; i += kWorkers) codes[i] = request[kRequestHead + i];
    for (int i = threadIdx.x; i < divide_up(kMostVocab, 32); i += kWorkers) seen[i] = request[kRequestHead + 16 + i];
  }
  ONEKERNEL_DEVICE void store(int* request) const {
    for (int i = threadIdx.x; i < 16; i += kWorkers) request[kRequestHead + i] = codes[i];
    for (int i = threadIdx.x; i < divide_up(kMostVocab, 32); i += kWorkers) request[kRequestHead + 16 + i] = seen[i];
  }

  ONEKERNEL_DEVICE Draw draw(int frame, int place) const {
    const float (&its)[4] = options[place == 0 ? 0 : 1];
    const auto low = static_cast<unsigned>(seed[0]), high = static_cast<unsigned>(seed[1]);
    return {low, high, frame, place, its[0] != 0.0f, fast_reciprocal(its[1]), static_cast<int>(its[2])};
  }
  ONEKERNEL_DEVICE FirstRules rules(int codes, int end, bool may_end) const {
    const float penalty = options[0][3];
    return {codes, end, may_end, penalty, fast_reciprocal(penalty)};
  }
};

ONEKERNEL_DEVICE float ruled(float logit, int, const unsigned*, const NoRules&) { return logit; }
ONEKERNEL_DEVICE float ruled(float logit, int token, const unsigned* seen, const FirstRules& rules) {
  if (token == rules.end ? !rules.may_end : token >= rules.codes) return kOut;
  if ((seen[token / 32] >> token % 32 & 1u) == 0) return logit;
  return logit < 0.0f ? logit * rules.penalty : logit * rules.bonus;
}

// The best of all threads of a block; `larger` becomes the sum of what they have. `turn` chooses memory that nobody
// still reads.
template <class Memory>
ONEKERNEL_DEVICE Runner race(Memory& memory, int turn, const Runner& best, unsigned& larger) {
  Tally& tally = memory.tally[turn];
  const Runner its = best.best_of_warp();
  const unsigned count = warp_total(larger);
  if (lane_index() == 0) {
    tally.best[warp_index()] = its;
    tally.larger[warp_index()] = count;
  }
  workers_barrier();
  const int warp = lane_index() % kWarps;
  larger = warp_total(lane_index() < kWarps ? tally.larger[warp] : 0);
  return tally.best[warp].best_of_warp();
}

// A thread's entries, in groups of four: logits under the rules, over the temperature, and their places in the race.
template <int kVocab>
struct Entries {
  static constexpr int kQuads = divide_up(kVocab, 4 * kWorkers);
  static_assert(kVocab % 4 == 0, "a vocabulary in groups of four");
  float logits[kQuads][4], keys[kQuads][4];
  int thread = threadIdx.x;

  ONEKERNEL_DEVICE int token(int i, int k) const { return 4 * (thread + i * kWorkers) + k; }

  // Draw the exponentials, which wait for nothing.
  ONEKERNEL_DEVICE explicit Entries(const Draw& draw) {
    forget(thread);  // else what belongs to each entry is computed before all loops, and kept in registers
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const Philox random(thread + i * kWorkers, draw.codebook, draw.frame, 0, draw.seed_low, draw.seed_high);
#pragma unroll
      for (int k = 0; k < 4; ++k) keys[i][k] = draw.draws ? kLog2 * fast_log2(random.exponential(k)) : 0.0f;
    }
  }

  template <class Rules>
  ONEKERNEL_DEVICE void await(const Exchange& exchange, const unsigned* seen, const Draw& draw, const Rules& rules) {
    const int mine = divide_up(kVocab / 4 - thread, kWorkers);
    exchange.await(4 * thread, 4 * kWorkers, mine > 0 ? mine : 0, logits);
    exchange.end_use();
#pragma unroll
    for (int i = 0; i < kQuads; ++i)
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float logit = i < mine ? ruled(logits[i][k], token(i, k), seen, rules) : kOut;
        logits[i][k] = logit == kOut ? kOut : draw.draws ? logit * draw.sharpness : logit;
        keys[i][k] = logit == kOut ? kOut : logits[i][k] - keys[i][k];
      }
  }

  // The winner of the race of those above a floor.
  ONEKERNEL_DEVICE Runner best(float floor) const {
    float key = kOut, logit = kOut;
    int its = kVocab;
#pragma unroll
    for (int i = 0; i < kQuads; ++i)
#pragma unroll
      for (int k = 0; k < 4; ++k)
        if (logits[i][k] > floor && keys[i][k] > key) {
          key = keys[i][k];
          logit = logits[i][k];
          its = token(i, k);
        }
    return {ordered(key), ordered(logit), static_cast<unsigned>(its)};
  }

  ONEKERNEL_DEVICE unsigned larger(float logit) const {
    unsigned count = 0;
#pragma unroll
    for (int i = 0; i < kQuads; ++i)
#pragma unroll
      for (int k = 0; k < 4; ++k) count += logits[i][k] > logit ? 1 : 0;
    return count;
  }
};

// Draw one of the first kVocab entries, whose exponentials were drawn before; 0 if no logit is a number. Who asks how
// many are larger than a winner also lets those race that would be left: that takes one barrier instead of two.
template <int kVocab, class Memory, class Patience_, class Rules>
ONEKERNEL_DEVICE int sample(Memory& memory, Patience_& patience, const Exchange& exchange, Entries<kVocab>& entries,
                            const Draw& draw, const Rules& rules) {
  patience.wait();
  entries.await(exchange, memory.seen, draw, rules);
  patience.lap(1);
  const unsigned top = draw.draws && draw.top_k > 0 ? draw.top_k : kVocab;
  unsigned larger = 0;
  Runner winner = race(memory, 0, entries.best(kOut), larger);
  for (int turn = 1; top < kVocab; turn ^= 1) {
    const float floor = of_ordered(winner.logit);  // entries that are no larger are out
    larger = entries.larger(floor);
    const Runner next = race(memory, turn, entries.best(floor), larger);
    if (larger < top) break;
    winner = next;
  }
  patience.lap(2);
  return winner.token < kVocab ? winner.token : 0;
}

// Remember that a token was said. Behind it a barrier must come before the next draw.
template <class Memory>
ONEKERNEL_DEVICE void remember(Memory& memory, int token) {
  if (threadIdx.x == 0) memory.seen[token / 32] |= 1u << token % 32;
}
