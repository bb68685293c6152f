// Attention where positions are few, and begin anew again and again: a block keeps all keys of its head, and its slice of
// the values, in shared memory, and makes its slice of the result alone.
#pragma once
#include "phases/heads.cuh"

template <class H, int kLayers_, int kPositions_>
struct FewMemory {
  static constexpr int kLayers = kLayers_, kPositions = kPositions_;
  alignas(16) bfloat16 keys[kLayers][kPositions][H::kHeadDim];
  alignas(16) bfloat16 values[kLayers][kPositions][4 * H::kSliceQuads];
  alignas(16) float queries[H::kSliceHeads][H::kHeadDim];
  float scores[H::kSliceHeads][kPositions];
};

// The scores of the positions up to the new one, under all heads of this block.
template <class H, class Memory>
ONEKERNEL_DEVICE void score_few(Memory& memory, int layer, int position) {
  float queries[H::kSliceHeads][H::kLaneDims];
  load_queries<H>(memory.queries, queries);
#pragma unroll
  for (int first = 0; first < Memory::kPositions; first += H::kAtOnce) {
    const int place = first + H::first_key();
    LanePart<H> key = {};
    if (place <= position) key.load(memory.keys[layer][place]);
#pragma unroll
    for (int head = 0; head < H::kSliceHeads; ++head) {
      const float score = score_of<H>(queries[head], key);
      if (lane_index() % H::kKeyLanes == 0 && place <= position) memory.scores[head][place] = score;
    }
  }
}

// The slice of a head: a lane has a group of four, and every so many positions.
template <class H, class Memory>
ONEKERNEL_DEVICE void mix_few(const Memory& memory, int layer, int position, int head, const Exchange& context) {
  constexpr int kApart = kWarpLanes / H::kSliceQuads;
  const int quad = lane_index() % H::kSliceQuads, first = lane_index() / H::kSliceQuads;
  constexpr int kMine = divide_up(Memory::kPositions, kApart);
  float scores[kMine], largest = kNever, sum = 0.0f, mixed[4] = {};
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    scores[i] = first + i * kApart <= position ? memory.scores[head][first + i * kApart] : kNever;
    largest = fmaxf(largest, scores[i]);
  }
#pragma unroll
  for (int distance = H::kSliceQuads; distance < kWarpLanes; distance *= 2)
    largest = fmaxf(largest, shuffle_xor(largest, distance));
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int place = first + i * kApart;
    const float weight = exp2f(scores[i] - largest);
    Vector<unsigned, 2> value = {};
    if (place <= position)
      value = load_vector<2>(reinterpret_cast<const unsigned*>(memory.values[layer][place]) + 2 * quad);
    sum += weight;
#pragma unroll
    for (int k = 0; k < 4; ++k) mixed[k] += weight * of_halves(value.at[k / 2], k % 2);
  }
#pragma unroll
  for (int distance = H::kSliceQuads; distance < kWarpLanes; distance *= 2) {
    sum += shuffle_xor(sum, distance);
#pragma unroll
    for (int k = 0; k < 4; ++k) mixed[k] += shuffle_xor(mixed[k], distance);
  }
  if (first > 0) return;
  const float whole = 1.0f / sum;
#pragma unroll
  for (int k = 0; k < 4; ++k) mixed[k] *= whole;
  const int row = H::kv_head() * H::kShare + H::slice_head(H::member()) + head;
  context.publish(row * H::kHeadDim + 4 * (H::slice_quad(H::member()) + quad), mixed);
}

template <class H, int kTicks, class Memory, class Patience_, class T>
ONEKERNEL_DEVICE void attend_few(Memory& memory, Patience_& patience, const Exchange& qkv, const Exchange& context,
                                 const HeadOperands<T>& at, int layer) {
  if (H::here()) {
    const int member = H::member(), first = H::slice_quad(member);
    let_pass(patience.since, kTicks);
    gather_heads<H, H::kSliceHeads, H::kSliceQuads>(
        memory.queries, qkv, at, H::kv_head() * H::kShare + H::slice_head(member), first,
        [&](bool is_key, int group, const Vector<bfloat16, 4>& quad) {
          store_vector(is_key ? memory.keys[layer][at.position] + 4 * group
                              : memory.values[layer][at.position] + 4 * (group - first), quad);
        });
    patience.lap(1);
    workers_barrier();
    score_few<H>(memory, layer, at.position);
    patience.lap(2);
    workers_barrier();
    for (int head = warp_index(); head < H::kSliceHeads; head += kWarps)
      mix_few<H>(memory, layer, at.position, head, context);
    patience.lap(3);
  }
  qkv.end_use();
  patience.since = clock_ticks();
}
