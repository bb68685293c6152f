// Attention of one new position over all before it. The members of a head of keys take positions in turn: keys and
// values of a member come through its ring, as weights do. What a member finds is a part of every member's slice of the
// result (`merge`).
//
// Softmax in parts: Milakov and Gimelshein, arXiv:1805.02867; parts over blocks as in Flash-Decoding.
#pragma once
#include "phases/heads.cuh"

// Where parts of a slice lie in the exchange: for each of its heads maximum, sum, two unused floats, and the values.
template <class H>
struct Part {
  static constexpr int kHeadQuads = 1 + H::kSliceQuads, kQuads = H::kSliceHeads * kHeadQuads;

  ONEKERNEL_DEVICE static int place(int reader, int writer, int kv_head) {
    return ((kv_head * H::kMembers + reader) * H::kMembers + writer) * 4 * kQuads;
  }
};

template <class H>
struct AttendMemory {
  static constexpr int kState = H::kHeadDim + 4;  // maximum, sum, and the values
  alignas(16) float queries[H::kShare][H::kHeadDim];
  alignas(16) typename H::Kept newest[2 * H::kHeadDim];  // key and value
  alignas(16) float states[kWarps][H::kShare][kState];
};

// Keys of a lane that stand `apart` numbers from each other, with their values behind them; those below `count` of
// them.
template <class H, int kSeen>
struct SeenRows {
  LanePart<H> keys[kSeen], values[kSeen];

  ONEKERNEL_DEVICE void load(const typename H::Kept* rows, int apart, int count) {
#pragma unroll
    for (int i = 0; i < kSeen; ++i) {
      keys[i] = values[i] = {};
      if (i >= count) continue;
      keys[i].load_from(rows + i * apart);
      values[i].load_from(rows + i * apart + H::kHeadDim);
    }
  }
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

  // All lanes call it, `rows` is the same for those of one key.
  template <int kSeen>
  ONEKERNEL_DEVICE void see(const float (&queries)[H::kShare][H::kLaneDims], const typename H::Kept* rows, int apart,
                            int count) {
    SeenRows<H, kSeen> its;
    its.load(rows, apart, count);
    see(queries, its, count);
  }
  template <int kSeen>
  ONEKERNEL_DEVICE void see(const float (&queries)[H::kShare][H::kLaneDims], const SeenRows<H, kSeen>& rows,
                            int count) {
#pragma unroll
    for (int h = 0; h < H::kShare; ++h) {
      float score[kSeen], now = largest[h];
#pragma unroll
      for (int i = 0; i < kSeen; ++i) {
        score[i] = score_of<H>(queries[h], rows.keys[i]);
        if (i < count) now = fmaxf(now, score[i]);
      }
      const float before = fast_exp2(largest[h] - now);
      largest[h] = now;
      sum[h] *= before;
#pragma unroll
      for (int d = 0; d < H::kLaneDims; ++d) values[h][d] *= before;
#pragma unroll
      for (int i = 0; i < kSeen; ++i) {
        const float weight = i < count ? fast_exp2(score[i] - now) : 0.0f;
        sum[h] += weight;
#pragma unroll
        for (int d = 0; d < H::kLaneDims; ++d) values[h][d] += weight * rows.values[i].at(d);
      }
    }
  }

  // Merge with the lanes of another key.
  ONEKERNEL_DEVICE void merge(int distance) {
#pragma unroll
    for (int h = 0; h < H::kShare; ++h) {
      const float now = fmaxf(largest[h], shuffle_xor(largest[h], distance)), factor = fast_exp2(largest[h] - now);
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
  ONEKERNEL_DEVICE void store(float (&states)[H::kShare][AttendMemory<H>::kState]) const {
    if (lane_index() >= H::kKeyLanes) return;
#pragma unroll
    for (int h = 0; h < H::kShare; ++h) {
      if (lane_index() == 0) store_vector(states[h], Vector<float, 4>{{largest[h], sum[h], 0.0f, 0.0f}});
#pragma unroll
      for (int d = 0; d < H::kLaneDims; ++d) states[h][4 + lane_index() * H::kLaneDims + d] = values[h][d];
    }
  }
};

// Let each warp see its share of what a member has, and the new position if that is its own.
template <class H, class Reader>
ONEKERNEL_DEVICE void see_positions(AttendMemory<H>& memory, Reader& reader, const Cache<H>& cache, int position,
                                    int member) {
  constexpr int kRow = 2 * H::kHeadDim, kSlotRows = kSlotBytes / Cache<H>::kRowBytes;
  constexpr int kSeen = divide_up(kSlotRows, H::kAtOnce);
  float queries[H::kShare][H::kLaneDims];
  load_queries<H, H::kShare>(memory.queries, queries);
  Seen<H> seen;
  const int rows = Cache<H>::before(position, member), first = H::first_key();
#pragma unroll 1
  for (int slot = 0; slot < rows; slot += kSlotRows) {
    const auto* its = reader.open(cache.at(member) + slot * kRow);
    const int left = rows - slot < kSlotRows ? rows - slot : kSlotRows;
    seen.template see<kSeen>(queries, its + first * kRow, H::kAtOnce * kRow, divide_up(left - first, H::kAtOnce));
    reader.close();
  }
  if (position % H::kMembers == member) seen.template see<1>(queries, memory.newest, 0, first == 0 ? 1 : 0);
#pragma unroll
  for (int distance = H::kKeyLanes; distance < kWarpLanes; distance *= 2) seen.merge(distance);
  seen.store(memory.states[warp_index()]);
}

// Merge what the warps have seen, and publish it to the members by their slices.
template <class H, class Parts>
ONEKERNEL_DEVICE void publish_seen(const AttendMemory<H>& memory, Parts& parts, int member, int kv_head) {
  for (int place = threadIdx.x; place < H::kMembers * Part<H>::kQuads; place += kWorkers) {
    const int reader = place / Part<H>::kQuads, its = place % Part<H>::kQuads, group = its % Part<H>::kHeadQuads;
    const int h = H::slice_head(reader) + its / Part<H>::kHeadQuads;
    const int quad = group == 0 ? 0 : H::slice_quad(reader) + group;  // of a state
    float largest = kNever, own[kWarps], merged[4] = {};
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) largest = fmaxf(largest, own[warp] = memory.states[warp][h][0]);
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      const float factor = fast_exp2(own[warp] - largest);
      const auto state = load_vector<4>(memory.states[warp][h] + 4 * quad);
#pragma unroll
      for (int k = 0; k < 4; ++k) merged[k] += factor * state.at[k];
    }
    if (group == 0) merged[0] = largest;
    parts.publish(Part<H>::place(reader, member, kv_head) + 4 * its, merged);
  }
}

template <class H, int kTicks, class Patience_, class Reader, class T>
ONEKERNEL_DEVICE void attend(AttendMemory<H>& memory, Patience_& patience, Reader& reader, const Exchange& qkv,
                             const Exchange& parts, const HeadOperands<T>& at, const Cache<H>& cache) {
  if (H::here()) {
    patience.wait(kTicks);
    gather_heads<H, H::kShare, H::kHeadQuads, 1>(
        memory.queries, qkv, at, H::kv_head() * H::kShare, 0,
        [&](int, bool is_key, int group, const Vector<typename H::Kept, 4>& quad) {
          if (at.position % H::kMembers != H::member()) return;
          const int place = 4 * group + (is_key ? 0 : H::kHeadDim);
          store_vector(memory.newest + place, quad);
          store_vector(cache.at(at.position) + place, quad);
        });
    patience.lap(1);
    workers_barrier();
    see_positions<H>(memory, reader, cache, at.position, H::member());
    patience.lap(2);
    workers_barrier();
    publish_seen<H>(memory, parts, H::member(), H::kv_head());
    patience.lap(3);
  }
  qkv.end_use();
  patience.since = clock_ticks();
}

// Merge the parts of a slice, a warp for each of its heads: so many lanes have groups of one part.
template <class H, class Parts, class To>
ONEKERNEL_DEVICE void merge_head(int head, const Parts& parts, int member, int kv_head, To to) {
  constexpr int kWriters = H::kMembers <= 1    ? 1
                           : H::kMembers <= 2  ? 2
                           : H::kMembers <= 4  ? 4
                           : H::kMembers <= 8  ? 8
                           : H::kMembers <= 16 ? 16
                                               : 32;
  static_assert(H::kMembers <= kWarpLanes, "a lane for each part");
  constexpr int kLanes = kWarpLanes / kWriters, kQuads = divide_up(H::kSliceQuads, kLanes);  // of a part, of a lane
  const int writer = lane_index() / kLanes, lane = lane_index() % kLanes;
  const int start = Part<H>::place(member, writer, kv_head) + 4 * head * Part<H>::kHeadQuads;
  const auto mine = [=](int i) { return writer < H::kMembers && lane + i * kLanes < H::kSliceQuads; };
  float found[1 + kQuads][4];
  parts.await_at([=](int i) { return i == 0 ? start : start + 4 * (1 + lane + (i - 1) * kLanes); },
                 [=](int i) { return i == 0 ? writer < H::kMembers : mine(i - 1); }, found);
  float largest = writer < H::kMembers ? found[0][0] : kNever;
  const float own = largest;
#pragma unroll
  for (int distance = kLanes; distance < kWarpLanes; distance *= 2)
    largest = fmaxf(largest, shuffle_xor(largest, distance));
  const float factor = fast_exp2(own - largest);
  float sum = factor * found[0][1];
#pragma unroll
  for (int distance = kLanes; distance < kWarpLanes; distance *= 2) sum += shuffle_xor(sum, distance);
  const float whole = fast_reciprocal(sum);
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    float (&merged)[4] = found[1 + i];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      merged[k] *= factor;
#pragma unroll
      for (int distance = kLanes; distance < kWarpLanes; distance *= 2) merged[k] += shuffle_xor(merged[k], distance);
      merged[k] *= whole;
    }
    if (writer == 0 && mine(i)) to(H::slice_quad(member) + lane + i * kLanes, merged);
  }
}

template <class H, int kTicks, class Patience_>
ONEKERNEL_DEVICE void merge(Patience_& patience, const Exchange& parts, const Exchange& context) {
  if (H::here()) {
    if (warp_index() < H::kSliceHeads) patience.wait(kTicks);
    const int member = H::member(), first = H::kv_head() * H::kShare + H::slice_head(member);
    for (int head = warp_index(); head < H::kSliceHeads; head += kWarps)
      merge_head<H>(head, parts, member, H::kv_head(), [&](int quad, const float (&merged)[4]) {
        context.publish((first + head) * H::kHeadDim + 4 * quad, merged);
      });
    patience.lap(0);
  }
  parts.end_use();
  patience.since = clock_ticks();
}
