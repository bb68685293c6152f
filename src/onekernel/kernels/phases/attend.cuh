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
  static constexpr int kShare = kHeads / kKvHeads;      // heads that share keys
  static constexpr int kMembers = kBlocks / kKvHeads;   // blocks that share a head of keys
  static constexpr int kKeyLanes = 16;                  // that share a key; a warp looks at several at a time
  static constexpr int kKeys = kWarpLanes / kKeyLanes;  // at a time
  static constexpr int kLaneDims = kHeadDim / kKeyLanes;
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
template <class H, class T, class Cache>
struct AttendOperands {
  const T* query_norm;
  const T* key_norm;
  const float* rotation;
  Cache* cache;
  long long capacity;
  int position;
  float epsilon;

  // The key (0) or the value (1) of a position.
  ONEKERNEL_DEVICE Cache* at(int head, int place, int part) const {
    return cache + ((head * capacity + place) * 2 + part) * H::kHeadDim;
  }
};

// How a group of four of a query or key is normed and rotated; the lanes of a head hold its groups in order.
template <class H>
struct Turning {
  float weight[4], cos[4], sin[4];

  template <class T>
  ONEKERNEL_DEVICE Turning(int group, const T* norm, const float* rotation) {
    const int angle = 4 * (group % (H::kHeadQuads / 2));
    const bool upper = group >= H::kHeadQuads / 2;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      weight[k] = norm != nullptr ? to_float(norm[4 * group + k]) : 1.0f;
      cos[k] = rotation[angle + k];
      sin[k] = upper ? rotation[H::kHeadDim / 2 + angle + k] : -rotation[H::kHeadDim / 2 + angle + k];
    }
  }

  ONEKERNEL_DEVICE void apply(float (&quad)[4], bool normed, float epsilon) const {
    float factor = 1.0f;
    if (normed) {
      float squares = quad[0] * quad[0] + quad[1] * quad[1] + quad[2] * quad[2] + quad[3] * quad[3];
#pragma unroll
      for (int distance = H::kHeadQuads / 2; distance > 0; distance /= 2) squares += shuffle_xor(squares, distance);
      factor = rsqrtf(squares / H::kHeadDim + epsilon);
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      quad[k] *= factor * weight[k];
      quad[k] = quad[k] * cos[k] + shuffle_xor(quad[k], H::kHeadQuads / 2) * sin[k];
    }
  }
};

// Bring the queries of a block's heads, and the new key and value, into shared memory; the owner keeps those two.
template <class H, class T, class Cache>
ONEKERNEL_DEVICE void gather_heads(AttendMemory<H>& memory, const Exchange& qkv, int head, int member,
                                   const AttendOperands<H, T, Cache>& at) {
  constexpr int kQuads = (H::kShare + 2) * H::kHeadQuads;
  for (int first = 0; first < kQuads; first += kWorkers) {
    const int place = first + threadIdx.x, vector = place / H::kHeadQuads, group = place % H::kHeadQuads;
    if (place - lane_index() >= kQuads) break;
    const bool inside = place < kQuads, query = vector < H::kShare, key = vector == H::kShare;
    const Turning<H> turning(group, query ? at.query_norm : at.key_norm, at.rotation);
    const int row = query ? head * H::kShare + vector : H::kHeads + head + (key ? 0 : H::kKvHeads);
    float found[1][4];
    qkv.await(row * H::kHeadDim + 4 * group, 0, inside ? 1 : 0, found);
    float (&quad)[4] = found[0];
    float turned[4] = {quad[0], quad[1], quad[2], quad[3]};
    turning.apply(turned, at.query_norm != nullptr, at.epsilon);
    if (!inside) continue;
    const float scale = query ? rsqrtf(static_cast<float>(H::kHeadDim)) : 1.0f;
    float* to = (query ? memory.queries[vector] : memory.newest[key ? 0 : 1]) + 4 * group;
    Vector<Cache, 4> rounded;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      from_float(key ? turned[k] : quad[k], rounded.at[k]);
      to[k] = query ? turned[k] * scale : to_float(rounded.at[k]);
    }
    if (!query && at.position % H::kMembers == member)
      store_vector(at.at(head, at.position, key ? 0 : 1) + 4 * group, rounded);
  }
}

// A lane's part of a key and its value.
template <class H, class Cache>
struct KeyValue {
  static constexpr int kWide = H::kLaneDims % 8 == 0 ? 8 : H::kLaneDims % 4 == 0 ? 4 : 2;
  static constexpr int kLoads = H::kLaneDims / kWide;
  Vector<Cache, kWide> key[kLoads], value[kLoads];

  ONEKERNEL_DEVICE void load(const Cache* pair) {
    const Cache* from = pair + lane_index() % H::kKeyLanes * H::kLaneDims;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      key[i] = load_vector<kWide>(from + i * kWide);
      value[i] = load_vector<kWide>(from + H::kHeadDim + i * kWide);
    }
  }
  ONEKERNEL_DEVICE float key_at(int d) const { return to_float(key[d / kWide].at[d % kWide]); }
  ONEKERNEL_DEVICE float value_at(int d) const { return to_float(value[d / kWide].at[d % kWide]); }
};

// The same of the new position, in shared memory.
template <class H>
struct Newest {
  const float (*pair)[H::kHeadDim];

  ONEKERNEL_DEVICE float key_at(int d) const { return pair[0][lane_index() % H::kKeyLanes * H::kLaneDims + d]; }
  ONEKERNEL_DEVICE float value_at(int d) const { return pair[1][lane_index() % H::kKeyLanes * H::kLaneDims + d]; }
};

// What the lanes of a key have seen: for each head the largest score, the sum of exponentials, the values under them.
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

  // All lanes call it; those of a key that is not there see nothing.
  template <class Pair>
  ONEKERNEL_DEVICE void see(const float (&query)[H::kShare][H::kLaneDims], const Pair& pair, bool there) {
#pragma unroll
    for (int h = 0; h < H::kShare; ++h) {
      float score = 0.0f;
#pragma unroll
      for (int d = 0; d < H::kLaneDims; ++d) score += there ? query[h][d] * pair.key_at(d) : 0.0f;
#pragma unroll
      for (int distance = H::kKeyLanes / 2; distance > 0; distance /= 2) score += shuffle_xor(score, distance);
      const float now = there ? fmaxf(largest[h], score) : largest[h];
      const float before = expf(largest[h] - now), weight = there ? expf(score - now) : 0.0f;
      largest[h] = now;
      sum[h] = sum[h] * before + weight;
#pragma unroll
      for (int d = 0; d < H::kLaneDims; ++d)
        values[h][d] = values[h][d] * before + (there ? weight * pair.value_at(d) : 0.0f);
    }
  }

  // Merge with the lanes of another key.
  ONEKERNEL_DEVICE void merge(int distance) {
#pragma unroll
    for (int h = 0; h < H::kShare; ++h) {
      const float now = fmaxf(largest[h], shuffle_xor(largest[h], distance)), factor = expf(largest[h] - now);
      largest[h] = now;
      sum[h] *= factor;
      sum[h] += shuffle_xor(sum[h], distance);
#pragma unroll
      for (int d = 0; d < H::kLaneDims; ++d) {
        values[h][d] *= factor;
        values[h][d] += shuffle_xor(values[h][d], distance);
      }
    }
  }

  // By the lanes of the first key.
  ONEKERNEL_DEVICE void store(float (&states)[H::kShare][H::kState]) const {
    if (lane_index() >= H::kKeyLanes) return;
#pragma unroll
    for (int h = 0; h < H::kShare; ++h) {
      if (lane_index() == 0) states[h][0] = largest[h];
      if (lane_index() == 0) states[h][1] = sum[h];
#pragma unroll
      for (int d = 0; d < H::kLaneDims; ++d) states[h][4 + lane_index() * H::kLaneDims + d] = values[h][d];
    }
  }
};

// The positions before the new one that a block keeps, shared out: first over warps, then over the keys of a warp.
template <class H, class T, class Cache>
struct Positions {
  const AttendOperands<H, T, Cache>& at;
  int head, member, count;

  ONEKERNEL_DEVICE Positions(const AttendOperands<H, T, Cache>& at, int head, int member)
      : at(at), head(head), member(member) {
    count = at.position > member ? divide_up(at.position - member, H::kMembers) : 0;
  }
  ONEKERNEL_DEVICE int first() const { return lane_index() / H::kKeyLanes * kWarps + warp_index(); }
  ONEKERNEL_DEVICE bool has(int place) const { return place < count; }
  ONEKERNEL_DEVICE void load(int place, KeyValue<H, Cache>& pair) const {
    if (has(place)) pair.load(at.at(head, member + place * H::kMembers, 0));
  }
};

// Let each warp see its share of the block's positions; the new one comes from shared memory.
template <class H, class T, class Cache>
ONEKERNEL_DEVICE void see_positions(AttendMemory<H>& memory, const Positions<H, T, Cache>& positions,
                                    KeyValue<H, Cache>& pair) {
  float query[H::kShare][H::kLaneDims];
#pragma unroll
  for (int h = 0; h < H::kShare; ++h)
#pragma unroll
    for (int d = 0; d < H::kLaneDims; ++d)
      query[h][d] = memory.queries[h][lane_index() % H::kKeyLanes * H::kLaneDims + d];
  Seen<H> seen;
  constexpr int kAtOnce = H::kKeys * kWarps;
  for (int base = 0; base < positions.count; base += kAtOnce) {
    const int place = base + positions.first();
    const KeyValue<H, Cache> now = pair;
    positions.load(place + kAtOnce, pair);
    seen.see(query, now, positions.has(place));
  }
  const bool owner = positions.at.position % H::kMembers == positions.member;
  if (owner && warp_index() == positions.count % kWarps)
    seen.see(query, Newest<H>{memory.newest}, lane_index() < H::kKeyLanes);
  if (positions.count > kWarps) {
#pragma unroll
    for (int distance = H::kKeyLanes; distance < kWarpLanes; distance *= 2) seen.merge(distance);
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

template <class H, int kTicks, class Patience_, class T, class Cache>
ONEKERNEL_DEVICE void attend(AttendMemory<H>& memory, Patience_& patience, Exchange& qkv, Exchange& partials,
                             const Exchange& mixed, const AttendOperands<H, T, Cache>& at) {
  const int head = blockIdx.x / H::kMembers, member = blockIdx.x % H::kMembers;
  if (head < H::kKvHeads) {
    const Positions<H, T, Cache> positions(at, head, member);
    KeyValue<H, Cache> pair;
    positions.load(positions.first(), pair);  // does not depend on the new position
    patience.lap(0);
    let_pass(patience.since, kTicks);
    gather_heads(memory, qkv, head, member, at);
    patience.lap(1);
    workers_barrier();
    patience.lap(2);
    see_positions(memory, positions, pair);
    patience.lap(3);
    workers_barrier();
    patience.lap(4);
    publish_seen(memory, partials, head, member);
    patience.lap(5);
    let_pass(clock_ticks(), kTicks);
    combine_seen<H>(partials, mixed, head, member);
  }
  workers_barrier();  // who has nothing to combine shall not ask for what others combine, either
  patience.lap(6);
  qkv.end_use();
  partials.end_use();
  patience.since = clock_ticks();
}
