// Attention where positions are few: a block looks at all keys of its heads, and makes its slice of the result alone.
// Other members look at the same keys; that is faster than to tell each other what they found.
#pragma once
#include "phases/heads.cuh"

// What a block needs of the positions at hand, in shared memory.
template <class H, int kPositions_, int kVectors_>
struct AloneMemory {
  static constexpr int kPositions = kPositions_, kVectors = kVectors_;
  using Slice = typename H::Kept[4 * H::kSliceQuads];  // of a value
  alignas(16) float queries[kVectors * H::kSliceHeads][H::kHeadDim];
  float scores[kVectors * H::kSliceHeads][kPositions];
};

// Give each lane's part of a key to the heads of all vectors, and keep the scores of positions that they see.
template <class H, int kVectors, class Memory>
ONEKERNEL_DEVICE void keep_scores(Memory& memory, const float (&queries)[kVectors * H::kSliceHeads][H::kLaneDims],
                                  const LanePart<H>& key, int place, int position) {
#pragma unroll
  for (int head = 0; head < kVectors * H::kSliceHeads; ++head) {
    const int vector = head / H::kSliceHeads;
    const float score = score_of<H>(queries[head], key);
    if (lane_index() % H::kKeyLanes == 0 && place <= position - vector) memory.scores[head][place] = score;
  }
}

// The slice of a head, by a warp: a lane has a group of four, and every so many positions, whose values stand `apart`
// numbers from each other. Gives groups to `to`.
template <class H, int kPositions, class To>
ONEKERNEL_DEVICE void mix_slice(const float* its, const typename H::Kept* values, int apart, int position, To to) {
  constexpr int kApart = kWarpLanes / H::kSliceQuads, kMine = divide_up(kPositions, kApart);
  const int quad = lane_index() % H::kSliceQuads, first = lane_index() / H::kSliceQuads;
  float scores[kMine], largest = kNever, sum = 0.0f, mixed[4] = {};
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int place = first + i * kApart;
    scores[i] = place <= position ? its[place] : kNever;
    largest = fmaxf(largest, scores[i]);
  }
#pragma unroll
  for (int distance = H::kSliceQuads; distance < kWarpLanes; distance *= 2)
    largest = fmaxf(largest, shuffle_xor(largest, distance));
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int place = first + i * kApart;
    const float weight = fast_exp2(scores[i] - largest);
    Packed<typename H::Kept, 4> value = {};
    if (place <= position) value.load(values + place * apart + 4 * quad);
    sum += weight;
#pragma unroll
    for (int k = 0; k < 4; ++k) mixed[k] += weight * value.at(k);
  }
#pragma unroll
  for (int distance = H::kSliceQuads; distance < kWarpLanes; distance *= 2) {
    sum += shuffle_xor(sum, distance);
#pragma unroll
    for (int k = 0; k < 4; ++k) mixed[k] += shuffle_xor(mixed[k], distance);
  }
  if (first > 0) return;
  const float whole = fast_reciprocal(sum);
#pragma unroll
  for (int k = 0; k < 4; ++k) mixed[k] *= whole;
  to(quad, mixed);
}

template <class H, int kVectors, class Memory>
ONEKERNEL_DEVICE void mix_heads(const Memory& memory, const typename Memory::Slice* values, int position,
                                const Exchange& context) {
  const int member = H::member(), slice = H::slice_quad(member), own = H::kv_head() * H::kShare + H::slice_head(member);
  for (int head = warp_index(); head < kVectors * H::kSliceHeads; head += kWarps) {
    const int vector = head / H::kSliceHeads, row = vector * H::kHeads + own + head % H::kSliceHeads;
    mix_slice<H, Memory::kPositions>(
        memory.scores[head], values[0], 4 * H::kSliceQuads, position - vector,
        [&](int quad, const float (&mixed)[4]) { context.publish(row * H::kHeadDim + 4 * (slice + quad), mixed); });
  }
}

// ---- positions that begin anew again and again: a block keeps its keys and values itself. A second vector is of the
// position before.

template <class H, int kLayers, int kPositions, int kVectors>
struct FewMemory : AloneMemory<H, kPositions, kVectors> {
  alignas(16) typename H::Kept keys[kLayers][kPositions][H::kHeadDim];
  alignas(16) typename AloneMemory<H, kPositions, kVectors>::Slice values[kLayers][kPositions];
};

// `kept`: the memory itself, or what else has keys and values.
template <class H, int kTicks, int kVectors, class Memory, class Kept, class Patience_, class T>
ONEKERNEL_DEVICE void attend_few(Memory& memory, Kept& kept, Patience_& patience, const Exchange& qkv,
                                 const Exchange& context, const HeadOperands<T>& at, int layer) {
  if (H::here()) {
    const int member = H::member(), first = H::slice_quad(member), position = at.position;
    patience.wait(kTicks);
    gather_heads<H, H::kSliceHeads, H::kSliceQuads, kVectors>(
        memory.queries, qkv, at, H::kv_head() * H::kShare + H::slice_head(member), first,
        [&](int vector, bool is_key, int group, const Vector<typename H::Kept, 4>& quad) {
          store_vector(is_key ? kept.keys[layer][position - vector] + 4 * group
                              : kept.values[layer][position - vector] + 4 * (group - first),
                       quad);
        });
    patience.lap(1);
    workers_barrier();
    float queries[kVectors * H::kSliceHeads][H::kLaneDims];
    load_queries<H, kVectors * H::kSliceHeads>(memory.queries, queries);
#pragma unroll
    for (int place = 0; place < Memory::kPositions; place += H::kAtOnce) {
      LanePart<H> key = {};
      if (place + H::first_key() <= position) key.load_from(kept.keys[layer][place + H::first_key()]);
      keep_scores<H, kVectors>(memory, queries, key, place + H::first_key(), position);
    }
    patience.lap(2);
    workers_barrier();
    mix_heads<H, kVectors>(memory, kept.values[layer], position, context);
    patience.lap(3);
  }
  qkv.end_use();
  patience.since = clock_ticks();
}

// ---- the first positions of a cache that all members share

template <class H, int kPositions>
struct NearMemory : AloneMemory<H, kPositions, 1> {
  alignas(16) typename H::Kept key[H::kHeadDim];  // the new one
  alignas(16) typename AloneMemory<H, kPositions, 1>::Slice values[kPositions];
};

// What a thread reads of the cache, all of it before it waits for the new position.
template <class H, int kPositions>
struct Before {
  static constexpr int kRounds = divide_up(kPositions, H::kAtOnce);
  static constexpr int kQuads = divide_up(kPositions * H::kSliceQuads, kWorkers);
  LanePart<H> keys[kRounds];
  Packed<typename H::Kept, 4> values[kQuads];

  // The number of a group of values.
  ONEKERNEL_DEVICE static int number_of(int i) { return fresh_thread_index() + i * kWorkers; }

  template <class Its>
  ONEKERNEL_DEVICE Before(const Its& cache, int first_quad, int position) {
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int place = i * H::kAtOnce + H::first_key();
      keys[i] = {};
      if (place < position) keys[i].load_early_from(cache.at(place));
    }
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const int number = number_of(i), place = number / H::kSliceQuads;
      const int quad = first_quad + number % H::kSliceQuads;
      values[i] = {};
      if (place < position) values[i].load_early(cache.at(place) + H::kHeadDim + 4 * quad);
    }
  }

  ONEKERNEL_DEVICE void store_values(typename AloneMemory<H, kPositions, 1>::Slice* to, int position) const {
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const int number = number_of(i), place = number / H::kSliceQuads;
      if (place < position) values[i].store(to[place] + 4 * (number % H::kSliceQuads));
    }
  }
};

// Members read what others wrote in steps before. All blocks run a `fence` where a step begins: what they say behind it
// vouches for what they wrote in the step before, and has reached every block that has finished a layer. Before it has,
// in the first layer, `fence` also follows this.
template <class H, int kTicks, class Memory, class Patience_, class T>
ONEKERNEL_DEVICE void attend_near(Memory& memory, Patience_& patience, const Exchange& qkv, const Exchange& context,
                                  const HeadOperands<T>& at, const Cache<H>& cache) {
  if (H::here()) {
    const int member = H::member(), first = H::slice_quad(member), position = at.position;
    const Before<H, Memory::kPositions> before(cache, first, position);
    patience.lap(0);
    before.store_values(memory.values, position);
    patience.wait(kTicks);
    gather_heads<H, H::kSliceHeads, H::kSliceQuads, 1>(
        memory.queries, qkv, at, H::kv_head() * H::kShare + H::slice_head(member), first,
        [&](int, bool is_key, int group, const Vector<typename H::Kept, 4>& quad) {
          store_vector(is_key ? memory.key + 4 * group : memory.values[position] + 4 * (group - first), quad);
          if (is_key ? member == 0 : H::slice_head(member) == 0)
            store_vector(cache.at(position) + (is_key ? 0 : H::kHeadDim) + 4 * group, quad);
        });
    patience.lap(1);
    workers_barrier();
    float queries[H::kSliceHeads][H::kLaneDims];
    load_queries<H, H::kSliceHeads>(memory.queries, queries);
#pragma unroll
    for (int i = 0; i < Before<H, Memory::kPositions>::kRounds; ++i) {
      const int place = i * H::kAtOnce + H::first_key();
      LanePart<H> key = before.keys[i];
      if (place == position) key.load_from(memory.key);
      keep_scores<H, 1>(memory, queries, key, place, position);
    }
    patience.lap(2);
    workers_barrier();
    mix_heads<H, 1>(memory, memory.values, position, context);
    patience.lap(3);
  }
  qkv.end_use();
  patience.since = clock_ticks();
}
