// The next token: the largest logit of all blocks, the first of equal ones.
#pragma once
#include "phases/project.cuh"

struct Candidate {
  float logit = -3.0e38f;
  int token = 0x3fffffff;

  ONEKERNEL_DEVICE void consider(float other, int its) {
    if (other > logit || (other == logit && its < token)) {
      logit = other;
      token = its;
    }
  }

  ONEKERNEL_DEVICE void reduce_warp() {
#pragma unroll
    for (int distance = kWarpLanes / 2; distance > 0; distance /= 2)
      consider(shuffle_xor(logit, distance), shuffle_xor(token, distance));
  }
};

// What becomes of a row's product when rows are tokens.
struct Consider {
  Candidate& best;

  ONEKERNEL_DEVICE void operator()(bool inside, int row, float value) const {
    if (inside) best.consider(value, row);
  }
};

struct ChooseMemory {
  float logit[kWarps];
  int token[kWarps];
  int chosen;
};

// Each warp of a block tells the first one its best candidate; a barrier.
ONEKERNEL_DEVICE void gather_best(ChooseMemory& memory, Candidate& best) {
  best.reduce_warp();
  if (lane_index() == 0) {
    memory.logit[warp_index()] = best.logit;
    memory.token[warp_index()] = best.token;
  }
  workers_barrier();
}

// The first warp publishes the best of the block. A number is sent in the bits of a float, shifted past the tag.
ONEKERNEL_DEVICE void publish_best(ChooseMemory& memory, const Exchange& exchange, Candidate& best) {
  best = {};
  if (lane_index() < kWarps) best.consider(memory.logit[lane_index()], memory.token[lane_index()]);
  best.reduce_warp();
  const float quad[4] = {best.logit, bits_float(static_cast<unsigned>(best.token) << 1)};
  if (lane_index() == 0) exchange.publish(4 * blockIdx.x, quad);
}

// A warp awaits the best of all blocks.
template <int kBlocks>
ONEKERNEL_DEVICE void await_best(const Exchange& exchange, Candidate& best) {
  constexpr int kQuads = divide_up(kBlocks, kWarpLanes);
  float found[kQuads][4];
  const int mine = divide_up(kBlocks - lane_index(), kWarpLanes);
  exchange.await(4 * lane_index(), 4 * kWarpLanes, mine > 0 ? mine : 0, found);
  best = {};
#pragma unroll
  for (int i = 0; i < kQuads; ++i)
    if (i < mine) best.consider(found[i][0], static_cast<int>(float_bits(found[i][1]) >> 1));
  best.reduce_warp();
}

// All threads of all blocks give their best candidate, and get the best of all. Token 0 if no logit is a number.
template <int kBlocks, int kTokens>
ONEKERNEL_DEVICE int choose(ChooseMemory& memory, const Exchange& exchange, Candidate best) {
  gather_best(memory, best);
  if (warp_index() == 0) {
    publish_best(memory, exchange, best);
    await_best<kBlocks>(exchange, best);
    if (lane_index() == 0) memory.chosen = best.token < kTokens ? best.token : 0;
  }
  exchange.end_use();
  workers_barrier();
  return memory.chosen;
}
