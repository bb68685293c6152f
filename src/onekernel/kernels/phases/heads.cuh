// The heads of an attention over blocks: a head of keys has a few blocks, its members. Each of them makes a slice of
// the results of its heads.
#pragma once
#include "phases/project.cuh"
#include "primitives/copy.cuh"

constexpr float kNever = -1e30f;  // a score that is none; minus infinity would not survive its tag

template <int kHeads_, int kKvHeads_, int kHeadDim_, int kMembers_, class Kept_>
struct Heads {
  using Kept = Kept_;  // of keys and values: bfloat16 or float
  static constexpr int kHeads = kHeads_, kKvHeads = kKvHeads_, kHeadDim = kHeadDim_;
  static constexpr int kRows = kHeads + 2 * kKvHeads;  // queries, keys and values of a vector
  static constexpr int kShare = kHeads / kKvHeads;     // heads that share keys
  static constexpr int kMembers = kMembers_;           // blocks that share a head of keys
  static constexpr int kHeadQuads = kHeadDim / 4;
  static constexpr int kKeyLanes = 16;  // that share a key; a warp looks at several at a time
  static constexpr int kKeys = kWarpLanes / kKeyLanes;
  static constexpr int kAtOnce = kKeys * kWarps;  // by all warps
  static constexpr int kLaneDims = kHeadDim / kKeyLanes;
  static_assert(kHeadDim % kWarpLanes == 0 && kHeadDim <= 4 * kWarpLanes, "32, 64, 96 or 128 dimensions");
  static_assert((kHeadQuads & (kHeadQuads - 1)) == 0, "a power of two");

  // The slice of a member: whole heads, or a part of one.
  static constexpr int kSliceHeads = kMembers < kShare ? kShare / kMembers : 1;
  static constexpr int kHeadSlices = kMembers < kShare ? 1 : kMembers / kShare;
  static constexpr int kSliceQuads = kHeadQuads / kHeadSlices;  // of each of its heads
  static_assert(kSliceHeads * kSliceQuads * kMembers == kShare * kHeadQuads, "equal slices");

  ONEKERNEL_DEVICE static bool here() { return static_cast<int>(blockIdx.x) < kKvHeads * kMembers; }
  ONEKERNEL_DEVICE static int kv_head() { return blockIdx.x / kMembers; }
  ONEKERNEL_DEVICE static int member() { return blockIdx.x % kMembers; }
  // Of those that share keys, the first one in a member's slice; and the first group of four of it.
  ONEKERNEL_DEVICE static int slice_head(int member) { return member / kHeadSlices * kSliceHeads; }
  ONEKERNEL_DEVICE static int slice_quad(int member) { return member % kHeadSlices * kSliceQuads; }

  // Where a key that a lane looks at stands: keys are shared out first over the warps.
  ONEKERNEL_DEVICE static int first_key() { return lane_index() / kKeyLanes * kWarps + warp_index(); }
};

// What queries and keys go through: weights of the norms of heads (null: none), cos and sin of this position.
template <class T>
struct HeadOperands {
  const T* query_norm;
  const T* key_norm;
  const float* rotation;
  int position;
  float epsilon;
};

// The keys and values of a layer: [kv_heads, members, rows, 2, head_dim], less than 2^31 of them. Members have
// positions in turn.
template <class H>
struct Cache {
  using Kept = typename H::Kept;
  Kept* start;
  int capacity;  // positions
  int kv_head = H::kv_head();

  ONEKERNEL_DEVICE static long long elements(int capacity) {
    return 2ll * H::kKvHeads * H::kMembers * divide_up(capacity, H::kMembers) * H::kHeadDim;
  }

  // The key of a position, and behind it the value.
  ONEKERNEL_DEVICE Kept* at(int place) const {
    const int member = kv_head * H::kMembers + place % H::kMembers;
    return start + (member * divide_up(capacity, H::kMembers) + place / H::kMembers) * 2 * H::kHeadDim;
  }

  // How many of the positions below one a member has.
  ONEKERNEL_DEVICE static int before(int position, int member) {
    return position > member ? divide_up(position - member, H::kMembers) : 0;
  }

  // What this block has of the positions below one, and how it is copied.
  static constexpr int kRowBytes = 2 * H::kHeadDim * static_cast<int>(sizeof(Kept));
  ONEKERNEL_DEVICE const unsigned char* own() const { return reinterpret_cast<const unsigned char*>(at(H::member())); }
  ONEKERNEL_DEVICE Copy copy(int position) const {
    const int rows = H::here() ? before(position, H::member()) : 0;
    return {rows > 0, 1, rows * kRowBytes};
  }

  // Bring that into L2, where all members read it.
  ONEKERNEL_DEVICE void prefetch(int position) const {
    const Copy its = copy(position);
    if (its.here) prefetch_bulk(own(), its.bytes);
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

// Await queries, one after the other from `query` on, and bring them into shared memory. Await the new key of this
// block, and groups of its value from `value_quad` on, and give them to `keep`, rounded: (vector, is key, group of
// four, quad). A second vector is of the position before.
template <class H, int kQueries, int kValueQuads, int kVectors, class T, class Keep>
ONEKERNEL_DEVICE void gather_heads(float (*queries)[H::kHeadDim], const Exchange& qkv, const HeadOperands<T>& at,
                                   int query, int value_quad, Keep keep, int kv_head = H::kv_head()) {
  constexpr int kKeyQuad = kQueries * H::kHeadQuads, kValueQuad = kKeyQuad + H::kHeadQuads;
  constexpr int kQuads = kValueQuad + kValueQuads, kPadded = divide_up(kQuads, kWarpLanes) * kWarpLanes;
  const int key_row = H::kHeads + kv_head, value_row = key_row + H::kKvHeads;
#pragma unroll
  for (int first = 0; first < kVectors * kPadded; first += kWorkers) {
    const int thread = first + fresh_thread_index();
    const int vector = kVectors > 1 ? thread / kPadded : 0, place = thread - vector * kPadded;
    if (vector >= kVectors || place >= kPadded) break;  // whole warps
    const bool inside = place < kQuads, is_query = place < kKeyQuad, is_value = place >= kValueQuad;
    const int group = is_value ? place - kValueQuad + value_quad : place % H::kHeadQuads;
    const int row = vector * H::kRows + (is_query ? query + place / H::kHeadQuads : is_value ? value_row : key_row);
    const Turning<H> turning(group % H::kHeadQuads, is_query ? at.query_norm : at.key_norm,
                             at.rotation - vector * H::kHeadDim);
    float found[1][4];
    qkv.await(row * H::kHeadDim + 4 * group, 0, inside ? 1 : 0, found);
    float turned[4] = {found[0][0], found[0][1], found[0][2], found[0][3]};
    turning.apply(turned, at.query_norm != nullptr, at.epsilon);
    if (!inside) continue;
    if (is_query) {
      const float scale = kLog2E * rsqrtf(static_cast<float>(H::kHeadDim));
      store_vector(queries[vector * kQueries + place / H::kHeadQuads] + 4 * group,
                   Vector<float, 4>{{turned[0] * scale, turned[1] * scale, turned[2] * scale, turned[3] * scale}});
    } else {
      Vector<typename H::Kept, 4> rounded;
#pragma unroll
      for (int k = 0; k < 4; ++k) from_float(is_value ? found[0][k] : turned[k], rounded.at[k]);
      keep(vector, !is_value, group, rounded);
    }
  }
}

// Neighbours of a key or value in registers, two bfloat16 in one.
template <class T, int kNumbers>
struct Packed {
  static constexpr int kWords = kNumbers * sizeof(T) / 4;
  static constexpr int kWide = kWords % 4 == 0 ? 4 : kWords % 2 == 0 ? 2 : 1;
  static constexpr int kLoads = kWords / kWide;
  Vector<unsigned, kWide> words[kLoads];

  ONEKERNEL_DEVICE void load(const T* from) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) words[i] = load_vector<kWide>(reinterpret_cast<const unsigned*>(from) + i * kWide);
  }
  ONEKERNEL_DEVICE void load_early(const T* from) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i)
      words[i] = ::load_early<kWide>(reinterpret_cast<const unsigned*>(from) + i * kWide);
  }
  ONEKERNEL_DEVICE void store(T* to) const {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) store_vector(reinterpret_cast<unsigned*>(to) + i * kWide, words[i]);
  }
  ONEKERNEL_DEVICE float at(int i) const {
    const int word = i * static_cast<int>(sizeof(T)) / 4;
    const unsigned bits = words[word / kWide].at[word % kWide];
    return sizeof(T) == 4 ? bits_float(bits) : of_pair<bfloat16>(bits, i % 2);
  }
};

// A lane's dimensions of a key or value.
template <class H>
struct LanePart : Packed<typename H::Kept, H::kLaneDims> {
  ONEKERNEL_DEVICE void load_from(const typename H::Kept* row) {
    this->load(row + lane_index() % H::kKeyLanes * H::kLaneDims);
  }
  ONEKERNEL_DEVICE void load_early_from(const typename H::Kept* row) {
    this->load_early(row + lane_index() % H::kKeyLanes * H::kLaneDims);
  }
};

// A lane's dimensions of queries in shared memory.
template <class H, int kQueries>
ONEKERNEL_DEVICE void load_queries(const float (*queries)[H::kHeadDim], float (&parts)[kQueries][H::kLaneDims]) {
#pragma unroll
  for (int h = 0; h < kQueries; ++h)
#pragma unroll
    for (int d = 0; d < H::kLaneDims; ++d) parts[h][d] = queries[h][lane_index() % H::kKeyLanes * H::kLaneDims + d];
}

// The score of a key, for all its lanes.
template <class H>
ONEKERNEL_DEVICE float score_of(const float (&query)[H::kLaneDims], const LanePart<H>& key) {
  float score = 0.0f;
#pragma unroll
  for (int d = 0; d < H::kLaneDims; ++d) score += query[d] * key.at(d);
#pragma unroll
  for (int distance = H::kKeyLanes / 2; distance > 0; distance /= 2) score += shuffle_xor(score, distance);
  return score;
}
