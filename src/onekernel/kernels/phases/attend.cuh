// Attention of one new position over all before it. The blocks are shared out among the heads of keys; the blocks of a
// head take positions in turn, so that each key is read by one block, which also wrote it. What they find meets in one
// more exchange, in which each block combines a few dimensions.
//
// Softmax in parts: Milakov and Gimelshein, arXiv:1805.02867; parts over blocks as in Flash-Decoding.
#pragma once
#include "phases/project.cuh"

constexpr float kNever = -1e30f;  // a score that is none; minus infinity would not survive its tag

template <int kHeads_, int kKvHeads_, int kHeadDim_, int kBlocks>
struct Heads {
  static constexpr int kHeads = kHeads_, kKvHeads = kKvHeads_, kHeadDim = kHeadDim_;
  static constexpr int kShare = kHeads / kKvHeads;     // heads that share keys
  static constexpr int kMembers = kBlocks / kKvHeads;  // blocks that share a head of keys
  static constexpr int kLaneDims = kHeadDim / kWarpLanes;
  static constexpr int kHeadQuads = kHeadDim / 4;
  static constexpr int kQuads = kShare * kHeadQuads;                       // of the heads that share keys
  static constexpr int kMemberQuads = divide_up(kQuads, kMembers);         // that a block combines
  static constexpr int kState = kHeadDim + 4;                              // maximum, sum, and the values
  static constexpr int kPartials = kKvHeads * kMembers * kShare * kState;  // floats that are exchanged
  static_assert(kHeadDim % kWarpLanes == 0 && kHeadDim <= 4 * kWarpLanes, "32, 64, 96 or 128 dimensions");
  static_assert((kHeadQuads & (kHeadQuads - 1)) == 0, "a power of two");
  static_assert(kMembers >= 1, "a block for each head of keys");
};

template <class H>
struct AttendMemory {
  alignas(16) float queries[H::kShare][H::kHeadDim];
  alignas(16) float newest[2][H::kHeadDim];  // key and value
  alignas(16) float states[kWarps][H::kShare][H::kState];
};

// What a layer's attention reads: weights of the norms of heads (null: none), cos and sin of this position, the cache
// [kv_heads, capacity, 2, head_dim] of this layer.
template <class T, class Cache>
struct AttendOperands {
  const T* query_norm;
  const T* key_norm;
  const float* rotation;
  Cache* cache;
  long long capacity;
  int position;
  float epsilon;
};

// Norm and rotate a group of four of a query or key; the lanes of a head hold its groups in order.
template <class H, class T>
ONEKERNEL_DEVICE void norm_and_rotate(float (&quad)[4], int group, const T* weight, const float* rotation,
                                      float epsilon) {
  if (weight != nullptr) {
    float squares = quad[0] * quad[0] + quad[1] * quad[1] + quad[2] * quad[2] + quad[3] * quad[3];
#pragma unroll
    for (int distance = H::kHeadQuads / 2; distance > 0; distance /= 2) squares += shuffle_xor(squares, distance);
    const float factor = rsqrtf(squares / H::kHeadDim + epsilon);
#pragma unroll
    for (int k = 0; k < 4; ++k) quad[k] *= factor * to_float(weight[4 * group + k]);
  }
  const bool upper = group >= H::kHeadQuads / 2;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float other = shuffle_xor(quad[k], H::kHeadQuads / 2);
    const int angle = 4 * (group % (H::kHeadQuads / 2)) + k;
    const float cos = rotation[angle], sin = rotation[H::kHeadDim / 2 + angle];
    quad[k] = upper ? quad[k] * cos + other * sin : quad[k] * cos - other * sin;
  }
}

// Bring the queries of a block's heads, and the new key and value, into shared memory; the owner keeps those two.
template <class H, class T, class Cache>
ONEKERNEL_DEVICE void gather_heads(AttendMemory<H>& memory, const Exchange& qkv, int head, int member,
                                   const AttendOperands<T, Cache>& at) {
  constexpr int kQuads = (H::kShare + 2) * H::kHeadQuads;
  for (int first = 0; first < kQuads; first += kWorkers) {
    const int place = first + threadIdx.x, vector = place / H::kHeadQuads, group = place % H::kHeadQuads;
    if (place - lane_index() >= kQuads) break;
    const bool inside = place < kQuads, query = vector < H::kShare, key = vector == H::kShare;
    const int row = query ? head * H::kShare + vector : H::kHeads + head + (key ? 0 : H::kKvHeads);
    float found[1][4];
    qkv.await(row * H::kHeadDim + 4 * group, 0, inside ? 1 : 0, found);
    float (&quad)[4] = found[0];
    float turned[4] = {quad[0], quad[1], quad[2], quad[3]};
    norm_and_rotate<H>(turned, group, query ? at.query_norm : at.key_norm, at.rotation, at.epsilon);
    if (!inside) continue;
    const float scale = query ? rsqrtf(static_cast<float>(H::kHeadDim)) : 1.0f;
    float* to = query ? memory.queries[vector] : memory.newest[key ? 0 : 1];
    Cache* kept = at.cache + ((head * at.capacity + at.position) * 2 + (key ? 0 : 1)) * H::kHeadDim + 4 * group;
    const bool owner = !query && at.position % H::kMembers == member;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      Cache rounded;
      from_float(query || key ? turned[k] : quad[k], rounded);
      if (owner) kept[k] = rounded;
      to[4 * group + k] = query ? turned[k] * scale : to_float(rounded);
    }
  }
}

// What a warp has seen: for each head the largest score, the sum of exponentials, and the values under them.
template <class H>
struct Seen {
  float largest[H::kShare], sum[H::kShare], values[H::kShare][H::kLaneDims];

  ONEKERNEL_DEVICE Seen() {
#pragma unroll
    for (int h = 0; h < H::kShare; ++h) {
      largest[h] = kNever;
      sum[h] = 0.0f;
#pragma unroll
      for (int d = 0; d < H::kLaneDims; ++d) values[h][d] = 0.0f;
    }
  }

  template <class E>
  ONEKERNEL_DEVICE void see(const float (&query)[H::kShare][H::kLaneDims], const E* key, const E* value) {
#pragma unroll
    for (int h = 0; h < H::kShare; ++h) {
      float score = 0.0f;
#pragma unroll
      for (int d = 0; d < H::kLaneDims; ++d) score += query[h][d] * to_float(key[d]);
      score = warp_sum(score);
      const float now = fmaxf(largest[h], score), before = expf(largest[h] - now), weight = expf(score - now);
      largest[h] = now;
      sum[h] = sum[h] * before + weight;
#pragma unroll
      for (int d = 0; d < H::kLaneDims; ++d) values[h][d] = values[h][d] * before + weight * to_float(value[d]);
    }
  }

  ONEKERNEL_DEVICE void store(float (&states)[H::kShare][H::kState]) const {
#pragma unroll
    for (int h = 0; h < H::kShare; ++h) {
      if (lane_index() == 0) states[h][0] = largest[h];
      if (lane_index() == 0) states[h][1] = sum[h];
#pragma unroll
      for (int d = 0; d < H::kLaneDims; ++d) states[h][4 + lane_index() * H::kLaneDims + d] = values[h][d];
    }
  }
};

// Let each warp see its share of the block's positions; the new one comes from shared memory.
template <class H, class T, class Cache>
ONEKERNEL_DEVICE void see_positions(AttendMemory<H>& memory, int head, int member, const AttendOperands<T, Cache>& at) {
  const int before = at.position > member ? divide_up(at.position - member, H::kMembers) : 0;
  const int count = before + (at.position % H::kMembers == member ? 1 : 0);
  const int dim = lane_index() * H::kLaneDims;
  float query[H::kShare][H::kLaneDims];
#pragma unroll
  for (int h = 0; h < H::kShare; ++h)
#pragma unroll
    for (int d = 0; d < H::kLaneDims; ++d) query[h][d] = memory.queries[h][dim + d];
  Seen<H> seen;
  for (int i = warp_index(); i < count; i += kWarps) {
    const Cache* key =
        at.cache + (head * at.capacity + member + static_cast<long long>(i) * H::kMembers) * 2 * H::kHeadDim;
    if (i == before)
      seen.see(query, memory.newest[0] + dim, memory.newest[1] + dim);
    else
      seen.see(query, key + dim, key + H::kHeadDim + dim);
  }
  seen.store(memory.states[warp_index()]);
}

// Merge what the warps have seen, and publish it.
template <class H>
ONEKERNEL_DEVICE void publish_seen(const AttendMemory<H>& memory, const Exchange& partials, int head, int member) {
  constexpr int kGroups = H::kState / 4;
  for (int place = threadIdx.x; place < H::kShare * kGroups; place += kWorkers) {
    const int h = place / kGroups, group = place % kGroups;
    float largest = kNever, quad[4] = {};
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) largest = fmaxf(largest, memory.states[warp][h][0]);
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      const float factor = expf(memory.states[warp][h][0] - largest);
#pragma unroll
      for (int k = 0; k < 4; ++k)
        if (group > 0 || k == 1) quad[k] += factor * memory.states[warp][h][4 * group + k];
    }
    if (group == 0) quad[0] = largest;
    partials.publish(((head * H::kMembers + member) * H::kShare + h) * H::kState + 4 * group, quad);
  }
}

// Combine this block's groups of dimensions over all blocks of the head, and publish them.
template <class H>
ONEKERNEL_DEVICE void combine_seen(const Exchange& partials, const Exchange& mixed, int head, int member) {
  for (int i = warp_index(); i < H::kMemberQuads; i += kWarps) {
    const int place = member * H::kMemberQuads + i;
    if (place >= H::kQuads) break;
    const int h = place / H::kHeadQuads, group = place % H::kHeadQuads;
    float largest = kNever, sum = 0.0f, quad[4] = {};
    for (int first = 0; first < H::kMembers; first += kWarpLanes) {
      const int from = first + lane_index();
      float found[2][4];
      partials.await(((head * H::kMembers + from) * H::kShare + h) * H::kState, 4 + 4 * group,
                     from < H::kMembers ? 2 : 0, found);
      const float there = from < H::kMembers ? found[0][0] : kNever;
      const float now = fmaxf(largest, warp_maximum(there)), before = expf(largest - now), factor = expf(there - now);
      largest = now;
      sum = sum * before + warp_sum(factor * found[0][1]);
#pragma unroll
      for (int k = 0; k < 4; ++k) quad[k] = quad[k] * before + warp_sum(factor * found[1][k]);
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) quad[k] /= sum;
    if (lane_index() == 0) mixed.publish((head * H::kShare + h) * H::kHeadDim + 4 * group, quad);
  }
}

template <class H, class T, class Cache>
ONEKERNEL_DEVICE void attend(AttendMemory<H>& memory, Exchange& qkv, Exchange& partials, const Exchange& mixed,
                             const AttendOperands<T, Cache>& at) {
  const int head = blockIdx.x / H::kMembers, member = blockIdx.x % H::kMembers;
  if (head < H::kKvHeads) {
    gather_heads(memory, qkv, head, member, at);
    workers_barrier();
    see_positions(memory, head, member, at);
    workers_barrier();
    publish_seen(memory, partials, head, member);
    combine_seen<H>(partials, mixed, head, member);
  }
  qkv.end_use();
  partials.end_use();
}
