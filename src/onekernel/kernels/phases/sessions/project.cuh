// A matrix times the vectors of many sessions, over all blocks: octet by octet, and eight lanes finish a tile.
#pragma once
#include "phases/sessions/product.cuh"

// A row of a session that a thread finishes; eight neighbours have those of a tile.
template <int kTiles, int kSessions>
struct RowTask {
  static constexpr int kTasks = 8 * kTiles * kSessions, kRounds = divide_up(kTasks, kWorkers);
  int session, tile, of_tile;
  bool inside;

  ONEKERNEL_DEVICE explicit RowTask(int task)
      : session(task / 8 % kSessions), tile(task / 8 / kSessions), of_tile(task % 8), inside(task < kTasks) {}
};

// Run `work` for all tasks, by whole warps; several rounds without a branch between them, so that they overlap.
template <class Task, class Work>
ONEKERNEL_DEVICE void for_rows(Work work) {
  const int thread = fresh_thread_index();
#pragma unroll
  for (int round = 0; round < Task::kRounds; ++round) {
    const int task = thread + round * kWorkers;
    if (Task::kRounds > 1 || task - thread % kWarpLanes < Task::kTasks) work(Task(task), round);
  }
}

// Finish the rows of a group for an octet; `factors` is null if there is no norm.
template <class M, class V, class Finish>
ONEKERNEL_DEVICE void finish_octet(const float* results, const float* factors, int group, int octet, Finish& finish) {
  using Task = RowTask<M::kTiles, V::kOctet>;
  const int start = (blockIdx.x * M::kGroups + group) * M::kGroupRows;
  float values[Task::kRounds];
  for_rows<Task>([&](const Task& task, int round) {
    const int of_group = 8 * task.tile + task.of_tile;
    const bool inside = task.inside && start + of_group < M::kRows;
    values[round] = inside ? OctetSums<M, V>::sum(results, task.session, of_group) : 0.0f;
    if (factors != nullptr) values[round] = rounded_product(values[round], factors[octet * V::kOctet + task.session]);
  });
  for_rows<Task>([&](const Task&, int round) { values[round] = finish.prepared(values[round]); });
  for_rows<Task>([&](const Task& task, int round) {
    const int row = start + 8 * task.tile + task.of_tile;
    finish(octet * V::kOctet + task.session, row, values[round], task.inside && row < M::kRows);
  });
}

// What a thread needs for its first row of a group, before that is there.
template <class M, class V, class Finish>
ONEKERNEL_DEVICE void prefetch_row(Finish& finish, int group) {
  const RowTask<M::kTiles, V::kOctet> first(fresh_thread_index());
  const int row = (blockIdx.x * M::kGroups + group) * M::kGroupRows + 8 * first.tile + first.of_tile;
  finish.prefetch(row, first.inside && row < M::kRows);
}

// Multiply the vectors of all sessions; under a norm if kNormed, whose factors blocks without rows need too if
// kEverywhere. `ends`: nobody reads the vectors after this.
template <int kTicks, class M, class V, bool kNormed, bool kEverywhere, class Memory, class Landed, class Patience_,
          class Reader, class Finish>
ONEKERNEL_DEVICE void project_sessions(Memory& memory, Landed& landed, Turns& turns, Patience_& patience,
                                       Reader& reader, const Exchange& from, bool ends, float epsilon, Finish finish) {
  static_assert(M::kRows % 8 == 0, "whole tiles");
  static_assert(4 * kWarps * V::kOctet * OctetSums<M, V>::kStride <= sizeof(memory.results[0]), "room for a group");
  const int turn = turns.factors;
  if (kNormed && (M::here() || kEverywhere)) turns.factors ^= 1;
  if (!M::here()) {
    patience.wait(kTicks);
    if (kNormed && kEverywhere) {  // another stream may begin with what the matrix multiplies, under its norm
      AllSquares<V> squares;
      squares.look(from);
      squares.store_factors(from, epsilon, memory.factors[turn]);
      workers_barrier();
    }
    reader.skip(M::kGroups * stream_bytes(M::kFragments));
    if (ends) from.end_use();
    return;
  }
  Product<M, V, Reader, Landed> product{reader, from, landed, epsilon, kNormed ? memory.factors[turn] : nullptr};
#pragma unroll 1
  for (int group = 0; group < M::kGroups; ++group) {
    prefetch_row<M, V>(finish, group);
    product.template begin<kTicks>(patience, group);
#pragma unroll 1
    for (int octet = 0; octet < V::kOctets; ++octet) {
      OctetSums<M, V> sums;
      product.multiply(sums, octet, group);
      float* results = memory.results[turns.results];
      turns.results ^= 1;
      sums.store(results);
      workers_barrier();
      patience.lap(4);
      if (ends && octet + 1 == V::kOctets && group + 1 == M::kGroups) from.end_use();
      finish_octet<M, V>(results, kNormed ? memory.factors[turn] : nullptr, group, octet, finish);
      patience.lap(5);
    }
  }
  patience.since = clock_ticks();
}
