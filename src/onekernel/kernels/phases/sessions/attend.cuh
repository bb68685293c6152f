// Attention of many sessions: a head of keys of a session is for a few blocks, its parts, or for one; each does what
// some of the members of the head do for a single session, in the same order. H is the heads as members have them, U as
// parts have them, A as one block has them alone.
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

// What a block attends to: a part of a head of keys of a session.
struct Unit {
  int session, kv_head, part;
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
  Unit unit;

  ONEKERNEL_DEVICE void operator()(int head, int quad, const float (&mixed)[4]) const {
    const float values[4] = {exchanged(mixed[0]), exchanged(mixed[1]), exchanged(mixed[2]), exchanged(mixed[3])};
    V::template publish<T>(exchange, unit.session, (unit.kv_head * H::kShare + head) * H::kHeadDim + 4 * quad, values);
  }
};

// Mix the values of a part, as its members would.
template <class H, class U, int kPositions, class To>
ONEKERNEL_DEVICE void mix_slices(const NearMemory<U, kPositions>& memory, int part, int position, const To& to) {
  constexpr int kMembers = H::kMembers / U::kMembers;
  for (int task = warp_index(); task < kMembers * H::kSliceHeads; task += kWarps) {
    const int member = part * kMembers + task / H::kSliceHeads;
    const int head = H::slice_head(member) + task % H::kSliceHeads, first = H::slice_quad(member);
    mix_slice<H, kPositions>(memory.scores[head - U::slice_head(part)],
                             memory.values[0] + 4 * (first - U::slice_quad(part)), 4 * U::kSliceQuads, position,
                             [&](int quad, const float (&mixed)[4]) { to(head, first + quad, mixed); });
  }
}

// The scores of a part's heads at near positions, and the values under them. The new key and its value are in `memory`,
// with the values before it.
template <class H, class U, int kPositions, class To>
ONEKERNEL_DEVICE void see_near(NearMemory<U, kPositions>& memory, const float (*asked)[U::kHeadDim],
                               const Before<U, kPositions>& before, int part, int position, const To& to) {
  float queries[U::kSliceHeads][U::kLaneDims];
  load_queries<U, U::kSliceHeads>(asked, queries);
#pragma unroll
  for (int i = 0; i < Before<U, kPositions>::kRounds; ++i) {
    const int place = i * U::kAtOnce + U::first_key();
    LanePart<U> key = before.keys[i];
    if (place == position) key.load_from(memory.key);
    keep_scores<U, 1>(memory, queries, key, place, position);
  }
  workers_barrier();
  mix_slices<H>(memory, part, position, to);
}

// The first positions of a cache; what it has of them is on its way before the new one is there. Every part keeps all
// of the new position: so a block reads what it wrote itself.
template <class H, class U, int kPositions, int kTicks, class T, class Patience_, class Kept, class To>
ONEKERNEL_DEVICE void attend_unit_near(NearMemory<U, kPositions>& memory, Patience_& patience, const Exchange& qkv,
                                       const HeadOperands<T>& at, const Kept& cache, const Unit& unit, const To& to) {
  const int position = at.position, first = U::slice_quad(unit.part);
  const Before<U, kPositions> before(cache, first, position);
  before.store_values(memory.values, position);
  patience.wait(kTicks);
  gather_heads<U, U::kSliceHeads, U::kHeadQuads, 1>(
      memory.queries, qkv, at, unit.kv_head * U::kShare + U::slice_head(unit.part), 0,
      [&](int, bool is_key, int group, const Vector<typename U::Kept, 4>& quad) {
        if (is_key)
          store_vector(memory.key + 4 * group, quad);
        else if (group >= first && group < first + U::kSliceQuads)
          store_vector(memory.values[position] + 4 * (group - first), quad);
        store_vector(cache.at(position) + (is_key ? 0 : U::kHeadDim) + 4 * group, quad);
      },
      unit.kv_head);
  patience.lap(1);
  workers_barrier();
  see_near<H>(memory, memory.queries, before, unit.part, position, to);
}

// Rows of a cache that are next to be seen by a warp, member by member, as many at a time as fit into a slot of a ring.
template <class H>
struct ComingRows {
  static constexpr int kRow = 2 * H::kHeadDim, kAtOnce = kSlotBytes / Cache<H>::kRowBytes;
  static constexpr int kSeen = divide_up(kAtOnce, H::kAtOnce);
  const Cache<H>& cache;
  int position;
  SeenRows<H, kSeen> rows;

  ONEKERNEL_DEVICE int count(int member, int from) const {
    const int left = Cache<H>::before(position, member) - from;
    return divide_up((left < kAtOnce ? left : kAtOnce) - H::first_key(), H::kAtOnce);
  }
  ONEKERNEL_DEVICE void load(int member, int from) {
    if (member == H::kMembers) return;
    rows.load(cache.at(member) + (from + H::first_key()) * kRow, H::kAtOnce * kRow, count(member, from));
  }
};

// What `see_positions` sees of a member; the rows after it are on their way before these are looked at.
template <class H>
ONEKERNEL_DEVICE void see_member(Seen<H>& seen, const float (&queries)[H::kShare][H::kLaneDims], ComingRows<H>& coming,
                                 const typename H::Kept* newest, int member) {
  const int rows = Cache<H>::before(coming.position, member);
  if (rows == 0) coming.load(member + 1, 0);
#pragma unroll 1
  for (int from = 0; from < rows; from += ComingRows<H>::kAtOnce) {
    const auto now = coming.rows;
    const int next = from + ComingRows<H>::kAtOnce;
    coming.load(next < rows ? member : member + 1, next < rows ? next : 0);
    seen.see(queries, now, coming.count(member, from));
  }
  if (coming.position % H::kMembers == member) seen.template see<1>(queries, newest, 0, H::first_key() == 0 ? 1 : 0);
#pragma unroll
  for (int distance = H::kKeyLanes; distance < kWarpLanes; distance *= 2) seen.merge(distance);
}

// All positions, member by member; then what they found is merged. The new position is in `memory`.
template <class H, class Memory, class To>
ONEKERNEL_DEVICE void see_far(Memory& memory, const float (*asked)[H::kHeadDim], const Cache<H>& cache, int position,
                              const To& to) {
  float queries[H::kShare][H::kLaneDims];
  load_queries<H, H::kShare>(asked, queries);
  ComingRows<H> coming{cache, position};
  coming.load(0, 0);
#pragma unroll 1
  for (int member = 0; member < H::kMembers; ++member) {
    Seen<H> seen;
    see_member(seen, queries, coming, memory.seen.newest, member);
    seen.store(memory.seen.states[warp_index()]);
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

// All positions, by the first part.
template <class H, class A, int kTicks, class Memory, class Patience_, class T, class To>
ONEKERNEL_DEVICE void attend_unit_far(Memory& memory, Patience_& patience, const Exchange& qkv,
                                      const HeadOperands<T>& at, const Cache<H>& cache, const Unit& unit,
                                      const To& to) {
  if (unit.part > 0) return;
  patience.wait(kTicks);
  gather_heads<A, A::kShare, A::kHeadQuads, 1>(
      memory.seen.queries, qkv, at, unit.kv_head * A::kShare, 0,
      [&](int, bool is_key, int group, const Vector<typename A::Kept, 4>& quad) {
        const int place = 4 * group + (is_key ? 0 : A::kHeadDim);
        store_vector(memory.seen.newest + place, quad);
        store_vector(cache.at(at.position) + place, quad);
      },
      unit.kv_head);
  patience.lap(1);
  workers_barrier();
  see_far<H>(memory, memory.seen.queries, cache, at.position, to);
}

// The result of a unit whose place no session has: it has no cache.
template <class U, class To>
ONEKERNEL_DEVICE void skip_unit(const Unit& unit, const To& to) {
  const float none[4] = {};
  for (int i = threadIdx.x; i < U::kSliceHeads * U::kSliceQuads; i += kWorkers)
    to(U::slice_head(unit.part) + i / U::kSliceQuads, U::slice_quad(unit.part) + i % U::kSliceQuads, none);
}

// Run what a block does for each of its units.
template <class U, int kSessions, int kBlocks, class Work>
ONEKERNEL_DEVICE void for_units(Work work) {
#pragma unroll 1
  for (int unit = blockIdx.x; unit < kSessions * U::kKvHeads * U::kMembers; unit += kBlocks) {
    const int head = unit / U::kMembers;
    work(Unit{head / U::kKvHeads, head % U::kKvHeads, unit % U::kMembers});
  }
}

template <class U, int kSessions, int kBlocks, class Attend>
ONEKERNEL_DEVICE void attend_units(const Exchange& qkv, Attend attend) {
  for_units<U, kSessions, kBlocks>([&](const Unit& unit) {
    const Exchange its{qkv.mail, qkv.start + unit.session * U::kRows * U::kHeadDim, qkv.number};
    attend(unit, its);
    if (kSessions > 8 || kSessions * U::kKvHeads * U::kMembers > kBlocks)
      workers_barrier();  // another unit may follow; or what lands in its place
  });
  qkv.end_use();
}

// Bring keys and values of near positions into L2.
template <class H>
ONEKERNEL_DEVICE void prefetch_near(const Cache<H>& cache, int position) {
#pragma unroll 1
  for (int member = 0; member < H::kMembers; ++member) {
    const int rows = Cache<H>::before(position, member);
    if (rows > 0) prefetch_bulk(cache.at(member), rows * Cache<H>::kRowBytes);
  }
}
