// Attention of many sessions: a head of keys of a session is for one block, which does by itself what the members of
// the head do for a single session, in the same order. H is the heads as members have them, U the same for one block.
#pragma once
#include "phases/attend.cuh"
#include "phases/attend_alone.cuh"
#include "phases/sessions/rows.cuh"

// The parts of a far attention, which members would give to each other.
template <class H>
struct LocalParts {
  alignas(16) float at[H::kMembers * H::kMembers * 4 * Part<H>::kQuads];

  ONEKERNEL_DEVICE void publish(int place, const float (&quad)[4]) {
    store_vector(at + place,
                 Vector<float, 4>{{exchanged(quad[0]), exchanged(quad[1]), exchanged(quad[2]), exchanged(quad[3])}});
  }
  template <int kQuads, class Place, class Wanted>
  ONEKERNEL_DEVICE void await_at(Place place, Wanted wanted, float (&values)[kQuads][4]) const {
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      Vector<float, 4> quad = {};
      if (wanted(i)) quad = load_vector<4>(at + place(i));
#pragma unroll
      for (int k = 0; k < 4; ++k) values[i][k] = quad.at[k];
    }
  }
};

template <class H, class U, int kNear>
struct UnitMemory {
  union {
    NearMemory<U, kNear> near;
    struct {
      AttendMemory<H> seen;
      LocalParts<H> parts;
    } far;
  };
};

// Keys and values of few positions of a unit, as a cache has them.
template <class U, int kPositions>
struct FewOfUnit {
  typename U::Kept* start;

  ONEKERNEL_DEVICE typename U::Kept* at(int place) const { return start + place * 2 * U::kHeadDim; }
};

// Where four neighbours of a head's result go.
template <class H, class V, class T>
struct ToContext {
  const Exchange& exchange;
  int session, kv_head;

  ONEKERNEL_DEVICE void operator()(int head, int quad, const float (&mixed)[4]) const {
    const float values[4] = {exchanged(mixed[0]), exchanged(mixed[1]), exchanged(mixed[2]), exchanged(mixed[3])};
    V::template publish<T>(exchange, session, (kv_head * H::kShare + head) * H::kHeadDim + 4 * quad, values);
  }
};

// Mix the values of all slices, as members would.
template <class H, int kPositions, class Memory, class To>
ONEKERNEL_DEVICE void mix_slices(const Memory& memory, const typename H::Kept* values, int position, const To& to) {
  for (int task = warp_index(); task < H::kMembers * H::kSliceHeads; task += kWarps) {
    const int member = task / H::kSliceHeads, head = H::slice_head(member) + task % H::kSliceHeads;
    const int first = H::slice_quad(member);
    mix_slice<H, kPositions>(memory.scores[head], values + 4 * first, H::kHeadDim, position,
                             [&](int quad, const float (&mixed)[4]) { to(head, first + quad, mixed); });
  }
}

// The first positions of a cache; what it has of them is on its way before the new one is there.
template <class H, class U, int kPositions, class T, class Patience_, class Kept, class To>
ONEKERNEL_DEVICE void attend_unit_near(NearMemory<U, kPositions>& memory, Patience_& patience, const Exchange& qkv,
                                       const HeadOperands<T>& at, const Kept& cache, int kv_head, const To& to) {
  const int position = at.position;
  const Before<U, kPositions> before(cache, 0, position);
  before.store_values(memory.values, position);
  gather_heads<U, U::kShare, U::kHeadQuads, 1>(
      memory.queries, qkv, at, kv_head * U::kShare, 0,
      [&](int, bool is_key, int group, const Vector<typename U::Kept, 4>& quad) {
        store_vector((is_key ? memory.key : memory.values[position]) + 4 * group, quad);
        store_vector(cache.at(position) + (is_key ? 0 : U::kHeadDim) + 4 * group, quad);
      },
      kv_head);
  patience.lap(1);
  workers_barrier();
  float queries[U::kShare][U::kLaneDims];
  load_queries<U, U::kShare>(memory.queries, queries);
#pragma unroll
  for (int i = 0; i < Before<U, kPositions>::kRounds; ++i) {
    const int place = i * U::kAtOnce + U::first_key();
    LanePart<U> key = before.keys[i];
    if (place == position) key.load_from(memory.key);
    keep_scores<U, 1>(memory, queries, key, place, position);
  }
  workers_barrier();
  mix_slices<H, kPositions>(memory, memory.values[0], position, to);
}

// All positions, member by member; then their parts are merged.
template <class H, class U, class Memory, class Patience_, class T, class To>
ONEKERNEL_DEVICE void attend_unit_far(Memory& memory, Patience_& patience, const Exchange& qkv,
                                      const HeadOperands<T>& at, const Cache<H>& cache, int kv_head, const To& to) {
  gather_heads<U, U::kShare, U::kHeadQuads, 1>(
      memory.seen.queries, qkv, at, kv_head * U::kShare, 0,
      [&](int, bool is_key, int group, const Vector<typename U::Kept, 4>& quad) {
        const int place = 4 * group + (is_key ? 0 : U::kHeadDim);
        store_vector(memory.seen.newest + place, quad);
        store_vector(cache.at(at.position) + place, quad);
      },
      kv_head);
  patience.lap(1);
  workers_barrier();
  DirectReader reader;
#pragma unroll 1
  for (int member = 0; member < H::kMembers; ++member) {
    see_positions<H>(memory.seen, reader, cache, at.position, member);
    workers_barrier();
    publish_seen<H>(memory.seen, memory.parts, member, 0);
    workers_barrier();
  }
  for (int task = warp_index(); task < H::kMembers * H::kSliceHeads; task += kWarps) {
    const int member = task / H::kSliceHeads, head = task % H::kSliceHeads;
    merge_head<H>(head, memory.parts, member, 0,
                  [&](int quad, const float (&merged)[4]) { to(H::slice_head(member) + head, quad, merged); });
  }
}

// The result of a unit whose place no session has: it has no cache.
template <class U, class To>
ONEKERNEL_DEVICE void skip_unit(const To& to) {
  const float none[4] = {};
  for (int i = threadIdx.x; i < U::kShare * U::kHeadQuads; i += kWorkers)
    to(i / U::kHeadQuads, i % U::kHeadQuads, none);
}

// Run what a block does for each of its units: a head of keys of a session.
template <class U, int kSessions, int kBlocks, class Attend>
ONEKERNEL_DEVICE void for_units(const Exchange& qkv, Attend attend) {
#pragma unroll 1
  for (int unit = blockIdx.x; unit < kSessions * U::kKvHeads; unit += kBlocks) {
    const int session = unit / U::kKvHeads;
    const Exchange its{qkv.mail, qkv.start + session * U::kRows * U::kHeadDim, qkv.number};
    attend(session, unit % U::kKvHeads, its);
    workers_barrier();
  }
  qkv.end_use();
}
