// Attention of the positions of a prompt, which are the vectors of a launch, the last one first. The blocks of a head
// of keys share them out. Each of them keeps all new keys and values itself: so a block reads what it wrote.
#pragma once
#include "phases/sessions/attend.cuh"

// The rows of a prompt that a step reads; vectors from `count` on have none.
struct PromptRows {
  int last, count;  // positions

  ONEKERNEL_DEVICE PromptRows(int first, int length, int step, int vectors) {
    const int begin = first + step * vectors, end = first + length;
    last = (begin + vectors < end ? begin + vectors : end) - 1;
    count = last + 1 - begin;
  }
};

// The vectors of a part are `part`, part + kParts, ...
template <class H, class A, int kNear, int kVectors, int kParts_>
struct PromptMemory {
  static constexpr int kParts = kParts_, kOwn = divide_up(kVectors, kParts);
  alignas(16) float queries[kOwn * H::kShare][H::kHeadDim];
  UnitMemory<H, A, kNear> unit;
};

// What threads gather, in groups of four: the keys and values of all vectors, then the queries of those of a part.
template <class H, int kVectors, int kParts>
struct PromptTask {
  static constexpr int kKept = 2 * kVectors * H::kHeadQuads, kOwn = divide_up(kVectors, kParts);
  static constexpr int kTasks = kKept + kOwn * H::kShare * H::kHeadQuads, kRounds = divide_up(kTasks, kWorkers);
  int number, group, query;  // `query` counts those of the part
  int vector, row;
  bool is_query, is_value;

  ONEKERNEL_DEVICE PromptTask(int number, int kv_head, int part)
      : number(number), group(number % H::kHeadQuads), query((number - kKept) / H::kHeadQuads) {
    const int row_of_kept = number / H::kHeadQuads;
    is_query = number >= kKept;
    is_value = !is_query && row_of_kept % 2 == 1;
    vector = is_query ? part + query / H::kShare * kParts : row_of_kept / 2;
    row = is_query ? kv_head * H::kShare + query % H::kShare : H::kHeads + kv_head + (is_value ? H::kKvHeads : 0);
  }
  ONEKERNEL_DEVICE bool inside(int count) const { return number < kTasks && vector < count; }
  ONEKERNEL_DEVICE int place() const { return (vector * H::kRows + row) * H::kHeadDim + 4 * group; }
};

// Bring queries into shared memory; keys and values into the cache.
template <class H, int kVectors, int kParts, class T>
ONEKERNEL_DEVICE void gather_prompt(float (*queries)[H::kHeadDim], const Exchange& qkv, const HeadOperands<T>& at,
                                    const Cache<H>& cache, int part, int count) {
  using Task = PromptTask<H, kVectors, kParts>;
  const int thread = fresh_thread_index();
  const auto task_of = [&](int i) { return Task(thread + i * kWorkers, cache.kv_head, part); };
  float found[Task::kRounds][4];
  qkv.await_at([&](int i) { return task_of(i).place(); }, [&](int i) { return task_of(i).inside(count); }, found);
#pragma unroll
  for (int i = 0; i < Task::kRounds; ++i) {
    const Task task = task_of(i);
    const bool inside = task.inside(count);
    const Turning<H> turning(task.group, task.is_query ? at.query_norm : at.key_norm,
                             at.rotation - (inside ? task.vector : 0) * H::kHeadDim);
    float turned[4] = {found[i][0], found[i][1], found[i][2], found[i][3]};
    turning.apply(turned, at.query_norm != nullptr, at.epsilon);
    if (!inside) continue;
    if (task.is_query) {
      const float scale = kLog2E * rsqrtf(static_cast<float>(H::kHeadDim));
      store_vector(queries[task.query] + 4 * task.group,
                   Vector<float, 4>{{turned[0] * scale, turned[1] * scale, turned[2] * scale, turned[3] * scale}});
    } else {
      Vector<typename H::Kept, 4> rounded;
#pragma unroll
      for (int k = 0; k < 4; ++k) from_float(task.is_value ? found[i][k] : turned[k], rounded.at[k]);
      store_vector(cache.at(at.position - task.vector) + (task.is_value ? H::kHeadDim : 0) + 4 * task.group, rounded);
    }
  }
}

// Give a group of four of the key and the value of a position to `keep`: (is key, group, quad).
template <class H, class Keep>
ONEKERNEL_DEVICE void load_newest(const Cache<H>& cache, int position, Keep keep) {
  for (int i = threadIdx.x; i < 2 * H::kHeadQuads; i += kWorkers) {
    const bool is_key = i < H::kHeadQuads;
    const int group = i % H::kHeadQuads;
    keep(is_key, group, load_vector<4>(cache.at(position) + (is_key ? 0 : H::kHeadDim) + 4 * group));
  }
}

// What a session does for its new position.
template <class H, class A, int kNear, class To>
ONEKERNEL_DEVICE void see_position(UnitMemory<H, A, kNear>& memory, const float (*asked)[H::kHeadDim],
                                   const Cache<H>& cache, int position, const To& to) {
  using Quad = Vector<typename H::Kept, 4>;
  if (position < kNear) {
    const Before<A, kNear> before(cache, 0, position);
    before.store_values(memory.near.values, position);
    load_newest(cache, position, [&](bool is_key, int group, const Quad& quad) {
      store_vector((is_key ? memory.near.key : memory.near.values[position]) + 4 * group, quad);
    });
    workers_barrier();
    see_near<H>(memory.near, asked, before, 0, position, to);
  } else {
    load_newest(cache, position, [&](bool is_key, int group, const Quad& quad) {
      store_vector(memory.far.seen.newest + (is_key ? 0 : H::kHeadDim) + 4 * group, quad);
    });
    workers_barrier();
    see_far<H>(memory.far, asked, cache, position, to);
  }
}

template <class A, int kVectors, int kTicks, class Memory, class Patience_, class T, class H, class ToOf>
ONEKERNEL_DEVICE void attend_prompt(Memory& memory, Patience_& patience, const Exchange& qkv, const HeadOperands<T>& at,
                                    const Cache<H>& cache, int count, ToOf to_of) {
  const int part = static_cast<int>(blockIdx.x) % Memory::kParts;
  if (cache.kv_head < H::kKvHeads) {
    patience.wait(kTicks);
    gather_prompt<H, kVectors, Memory::kParts>(memory.queries, qkv, at, cache, part, count);
    patience.lap(1);
    workers_barrier();
#pragma unroll 1
    for (int own = 0; own < Memory::kOwn; ++own) {
      const Unit unit{part + own * Memory::kParts, cache.kv_head, 0};
      if (unit.session >= kVectors) break;
      if (unit.session < count)
        see_position(memory.unit, memory.queries + own * H::kShare, cache, at.position - unit.session, to_of(unit));
      else
        skip_unit<A>(unit, to_of(unit));
      workers_barrier();  // another one may follow; or what lands in its place
    }
    patience.lap(2);
  }
  qkv.end_use();
  patience.since = clock_ticks();
}
