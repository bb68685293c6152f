// Attention of one new position over all before it. Each head of keys has a few blocks, its members, which take
// positions in turn: a key is read by one block, which also wrote it. What a member finds is a part of the result;
// whoever needs the result merges the parts (`Merged`).
//
// Softmax in parts: Milakov and Gimelshein, arXiv:1805.02867; parts over blocks as in Flash-Decoding. Exponentials are
// those of 2: queries are scaled by log2(e), too.
#pragma once
#include "phases/project.cuh"

constexpr float kNever = -1e30f;  // a score that is none; minus infinity would not survive its tag

template <int kHeads_, int kKvHeads_, int kHeadDim_, int kMembers_, int kAhead_>
struct Heads {
  static constexpr int kHeads = kHeads_, kKvHeads = kKvHeads_, kHeadDim = kHeadDim_;
  static constexpr int kAhead = kAhead_;            // keys of a lane that are seen at once, and as many on their way
  static constexpr int kShare = kHeads / kKvHeads;  // heads that share keys
  static constexpr int kMembers = kMembers_;        // blocks that share a head of keys
  static constexpr int kKeyLanes = 16;              // that share a key; a warp looks at several at a time
  static constexpr int kKeys = kWarpLanes / kKeyLanes;  // at a time
  static constexpr int kAtOnce = kKeys * kWarps;        // by all warps
  static constexpr int kLaneDims = kHeadDim / kKeyLanes;
  static constexpr int kHeadQuads = kHeadDim / 4;
  static constexpr int kState = kHeadDim + 4;  // maximum, sum, and the values
  static_assert(kHeadDim % kWarpLanes == 0 && kHeadDim <= 4 * kWarpLanes, "32, 64, 96 or 128 dimensions");
  static_assert((kHeadQuads & (kHeadQuads - 1)) == 0, "a power of two");

  // Where a member's part of a head lies in the exchange: maximum, sum, two unused floats, and the values.
  ONEKERNEL_DEVICE static int part(int head, int member) {
    return ((head / kShare * kMembers + member) * kShare + head % kShare) * kState;
  }
};

template <class H>
struct AttendMemory {
  alignas(16) float queries[H::kShare][H::kHeadDim];
  alignas(16) bfloat16 newest[2][H::kHeadDim];  // key and value
  alignas(16) float states[kWarps][H::kShare][H::kState];
};

// What a layer's attention reads: weights of the norms of heads (null: none), cos and sin of this position, the cache
// [kv_heads, capacity, 2, head_dim] of this layer.
template <class H, class T>
struct AttendOperands {
  const T* query_norm;
  const T* key_norm;
  const float* rotation;
  bfloat16* cache;
  long long capacity;
  int position;
  float epsilon;

  // The key (0) or the value (1) of a position.
  ONEKERNEL_DEVICE bfloat16* at(int head, int place, int part) const {
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
    const auto cosines = load_vector<4>(rotation + angle), sines = load_vector<4>(rotation + H::kHeadDim / 2 + angle);
    Vector<T, 4> weights = {};
    if (norm != nullptr) weights = load_vector<4>(norm + 4 * group);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      weight[k] = norm != nullptr ? to_float(weights.at[k]) : 1.0f;
      cos[k] = cosines.at[k];
      sin[k] = upper ? sines.at[k] : -sines.at[k];
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
template <class H, class T>
ONEKERNEL_DEVICE void gather_heads(AttendMemory<H>& memory, const Exchange& qkv, int head, int member,
                                   const AttendOperands<H, T>& at) {
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
    if (query) {
      const float scale = 1.4426950408889634f * rsqrtf(static_cast<float>(H::kHeadDim));
      store_vector(memory.queries[vector] + 4 * group,
                   Vector<float, 4>{{turned[0] * scale, turned[1] * scale, turned[2] * scale, turned[3] * scale}});
    } else if (at.position % H::kMembers == member) {
      Vector<bfloat16, 4> rounded;
#pragma unroll
      for (int k = 0; k < 4; ++k) from_float(key ? turned[k] : quad[k], rounded.at[k]);
      store_vector(memory.newest[key ? 0 : 1] + 4 * group, rounded);
      store_vector(at.at(head, at.position, key ? 0 : 1) + 4 * group, rounded);
    }
  }
}

// A lane's part of a key and its value, two numbers a register.
template <class H>
struct KeyValue {
  static constexpr int kWords = H::kLaneDims / 2;  // bfloat16
  static constexpr int kWide = kWords % 4 == 0 ? 4 : kWords % 2 == 0 ? 2 : 1;
  static constexpr int kLoads = kWords / kWide;
  Vector<unsigned, kWide> key[kLoads], value[kLoads];

  ONEKERNEL_DEVICE void load(const bfloat16* pair) {
    const auto* from = reinterpret_cast<const unsigned*>(pair) + lane_index() % H::kKeyLanes * kWords;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      key[i] = load_vector<kWide>(from + i * kWide);
      value[i] = load_vector<kWide>(from + H::kHeadDim / 2 + i * kWide);
    }
  }
  ONEKERNEL_DEVICE float key_at(int d) const { return of_halves(key[d / 2 / kWide].at[d / 2 % kWide], d % 2); }
  ONEKERNEL_DEVICE float value_at(int d) const { return of_halves(value[d / 2 / kWide].at[d / 2 % kWide], d % 2); }
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

  // See keys, those below `count`; the others must be zero. All lanes call it; lanes of one key agree on its place.
  ONEKERNEL_DEVICE void see(const float (&query)[H::kShare][H::kLaneDims], const KeyValue<H> (&pairs)[H::kAhead],
                            int place, int count) {
#pragma unroll
    for (int h = 0; h < H::kShare; ++h) {
      float score[H::kAhead], now = largest[h];
#pragma unroll
      for (int i = 0; i < H::kAhead; ++i) {
        score[i] = 0.0f;
#pragma unroll
        for (int d = 0; d < H::kLaneDims; ++d) score[i] += query[h][d] * pairs[i].key_at(d);
      }
#pragma unroll
      for (int i = 0; i < H::kAhead; ++i) {
#pragma unroll
        for (int distance = H::kKeyLanes / 2; distance > 0; distance /= 2) score[i] += shuffle_xor(score[i], distance);
        if (place + i * H::kAtOnce < count) now = fmaxf(now, score[i]);
      }
      const float before = exp2f(largest[h] - now);
      largest[h] = now;
      sum[h] *= before;
#pragma unroll
      for (int d = 0; d < H::kLaneDims; ++d) values[h][d] *= before;
#pragma unroll
      for (int i = 0; i < H::kAhead; ++i) {
        const float weight = place + i * H::kAtOnce < count ? exp2f(score[i] - now) : 0.0f;
        sum[h] += weight;
#pragma unroll
        for (int d = 0; d < H::kLaneDims; ++d) values[h][d] += weight * pairs[i].value_at(d);
      }
    }
  }

  // Merge with the lanes of another key.
  ONEKERNEL_DEVICE void merge(int distance) {
#pragma unroll
    for (int h = 0; h < H::kShare; ++h) {
      const float now = fmaxf(largest[h], shuffle_xor(largest[h], distance)), factor = exp2f(largest[h] - now);
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
      if (lane_index() == 0) store_vector(states[h], Vector<float, 4>{{largest[h], sum[h], 0.0f, 0.0f}});
#pragma unroll
      for (int d = 0; d < H::kLaneDims; ++d) states[h][4 + lane_index() * H::kLaneDims + d] = values[h][d];
    }
  }
};

// The positions of a member in their order, the new one the last of its owner. They are shared out first over the
// warps, then over the keys that a warp looks at together.
template <class H, class T>
struct Positions {
  const AttendOperands<H, T>& at;
  int head, member, before, count;

  ONEKERNEL_DEVICE Positions(const AttendOperands<H, T>& at, int head, int member)
      : at(at), head(head), member(member) {
    before = at.position > member ? divide_up(at.position - member, H::kMembers) : 0;
    count = before + (at.position % H::kMembers == member ? 1 : 0);
  }
  ONEKERNEL_DEVICE int first() const { return lane_index() / H::kKeyLanes * kWarps + warp_index(); }
  ONEKERNEL_DEVICE bool is_new(int place) const { return place == before && place < count; }

  // Load as many as are seen at once, of those before the new one: they may be loaded while that is waited for. What is
  // not there is zero.
  ONEKERNEL_DEVICE void load(int first, KeyValue<H> (&pairs)[H::kAhead]) const {
#pragma unroll
    for (int i = 0; i < H::kAhead; ++i) {
      const int place = first + i * H::kAtOnce;
      pairs[i] = {};
      if (place < before) pairs[i].load(at.at(head, member + place * H::kMembers, 0));
    }
  }
};

// Let each warp see its share of the member's positions.
template <class H, class T>
ONEKERNEL_DEVICE void see_positions(AttendMemory<H>& memory, const Positions<H, T>& positions,
                                    KeyValue<H> (&pairs)[H::kAhead]) {
  float query[H::kShare][H::kLaneDims];
#pragma unroll
  for (int h = 0; h < H::kShare; ++h)
#pragma unroll
    for (int d = 0; d < H::kLaneDims; ++d)
      query[h][d] = memory.queries[h][lane_index() % H::kKeyLanes * H::kLaneDims + d];
  Seen<H> seen;
#pragma unroll 1
  for (int place = positions.first(); place - positions.first() < positions.count; place += H::kAhead * H::kAtOnce) {
    KeyValue<H> now[H::kAhead];
#pragma unroll
    for (int i = 0; i < H::kAhead; ++i) {
      if (positions.is_new(place + i * H::kAtOnce)) pairs[i].load(memory.newest[0]);
      now[i] = pairs[i];
    }
    positions.load(place + H::kAhead * H::kAtOnce, pairs);
    seen.see(query, now, place, positions.count);
  }
  if (positions.count > kWarps) {
#pragma unroll
    for (int distance = H::kKeyLanes; distance < kWarpLanes; distance *= 2) seen.merge(distance);
  }
  seen.store(memory.states[warp_index()]);
}

// Merge what the warps have seen, and publish it. Warps beyond `warps` have seen nothing.
template <class H>
ONEKERNEL_DEVICE void publish_seen(const AttendMemory<H>& memory, const Exchange& parts, int head, int member,
                                   int warps) {
  constexpr int kGroups = H::kState / 4;
  for (int place = threadIdx.x; place < H::kShare * kGroups; place += kWorkers) {
    const int h = place / kGroups, group = place % kGroups;
    float largest = kNever, quad[4] = {};
    for (int warp = 0; warp < warps; ++warp) largest = fmaxf(largest, memory.states[warp][h][0]);
    for (int warp = 0; warp < warps; ++warp) {
      const float factor = exp2f(memory.states[warp][h][0] - largest);
      const auto state = load_vector<4>(memory.states[warp][h] + 4 * group);
#pragma unroll
      for (int k = 0; k < 4; ++k) quad[k] += factor * state.at[k];
    }
    if (group == 0) quad[0] = largest;
    parts.publish(H::part(head * H::kShare + h, member) + 4 * group, quad);
  }
}

template <class H, int kTicks, class Patience_, class T>
ONEKERNEL_DEVICE void attend(AttendMemory<H>& memory, Patience_& patience, const Exchange& qkv, const Exchange& parts,
                             const AttendOperands<H, T>& at) {
  const int head = blockIdx.x / H::kMembers, member = blockIdx.x % H::kMembers;
  if (head < H::kKvHeads) {
    const Positions<H, T> positions(at, head, member);
    KeyValue<H> pairs[H::kAhead];
    positions.load(positions.first(), pairs);
    patience.lap(0);
    let_pass(patience.since, kTicks);
    gather_heads(memory, qkv, head, member, at);
    patience.lap(1);
    workers_barrier();
    patience.lap(2);
    see_positions(memory, positions, pairs);
    patience.lap(3);
    workers_barrier();
    publish_seen(memory, parts, head, member, positions.count < kWarps ? positions.count : kWarps);
    patience.lap(4);
  }
  qkv.end_use();
  patience.since = clock_ticks();
}

// ---- what is multiplied: the parts of all heads, merged
template <class H>
struct Merged {
  static constexpr int kWidth = H::kHeads * H::kHeadDim;
  using Place = Columns<kWidth>;
  static constexpr int kSpanHeads = Place::kSpan / H::kHeadDim + 2;  // that a warp's columns may touch
  static constexpr int kQuads = Place::kQuads * H::kMembers;
  static_assert(kSpanHeads * H::kMembers <= kWarpLanes, "a lane for each part of a warp's heads");
  const Exchange& parts;

  ONEKERNEL_DEVICE void pass() { parts.end_use(); }
  ONEKERNEL_DEVICE void prefetch() {}

  // Lane by lane: the values of its groups, and the maximum and sum of one part, which it tells the others.
  ONEKERNEL_DEVICE float await(float (&values)[Place::kQuads][4]) {
    const int groups = Place::in_vector(), head = warp_index() * Place::kSpan / H::kHeadDim;
    const int own_head = head + lane_index() / H::kMembers;
    const bool tells = lane_index() < kSpanHeads * H::kMembers && own_head < H::kHeads;
    const auto column = [](int group) { return Place::first() + 4 * kWarpLanes * group; };
    const auto place = [&](int i) {
      if (i == 0) return H::part(own_head, lane_index() % H::kMembers);
      const int at = column((i - 1) / H::kMembers);
      return H::part(at / H::kHeadDim, (i - 1) % H::kMembers) + 4 + at % H::kHeadDim;
    };
    float found[1 + kQuads][4];
    parts.await_at(place, [&](int i) { return i == 0 ? tells : (i - 1) / H::kMembers < groups; }, found);
    parts.end_use();
#pragma unroll
    for (int group = 0; group < Place::kQuads; ++group) {
      const int first = group < groups ? (column(group) / H::kHeadDim - head) * H::kMembers : 0;
      merge(found, first, 1 + group * H::kMembers, group < groups, values[group]);
    }
    return 0.0f;
  }

  // Merge the members' parts of one group of columns; `lane` tells of the first, `quad` holds its values.
  ONEKERNEL_DEVICE static void merge(const float (&found)[1 + kQuads][4], int lane, int quad, bool inside,
                                     float (&values)[4]) {
    float largest = kNever, sum = 0.0f, factor[H::kMembers];
#pragma unroll
    for (int i = 0; i < H::kMembers; ++i) {
      factor[i] = shuffle_index(found[0][0], lane + i);
      largest = fmaxf(largest, factor[i]);
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) values[k] = 0.0f;
#pragma unroll
    for (int i = 0; i < H::kMembers; ++i) {
      factor[i] = exp2f(factor[i] - largest);
      sum += factor[i] * shuffle_index(found[0][1], lane + i);
#pragma unroll
      for (int k = 0; k < 4; ++k) values[k] += factor[i] * found[quad + i][k];
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) values[k] = inside ? values[k] / sum : 0.0f;
  }

  ONEKERNEL_DEVICE float factor(const float*) const { return 1.0f; }
};
