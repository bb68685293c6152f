// Runs one launch on fibres, cluster after cluster (or, when it is cooperative, all clusters at once) in a given order,
// and stops it with a message when a rule of the machine is broken. Built once; every emulated kernel links against it.
#include "runtime/state.hpp"
#include "runtime/report.hpp"
#include "runtime/clock.hpp"
#include "runtime/watch.hpp"
#include "runtime/wait.hpp"
#include "runtime/memory.hpp"
#include "runtime/copy.hpp"
#include "runtime/matrix.hpp"
#include "runtime/schedule.hpp"
#include "runtime/hooks.hpp"

namespace machine {

Thread* current = nullptr;
Index block_size, grid_size;

namespace {

unsigned threads_of_block() { return block_size.x * block_size.y * block_size.z; }

Block& add_block(Cluster& cluster, unsigned rank, unsigned linear) {
  auto block = std::make_unique<Block>();
  const unsigned threads = threads_of_block(), first = static_cast<unsigned>(state.fibres.size());
  block->index = {linear % grid_size.x, linear / grid_size.x % grid_size.y, linear / grid_size.x / grid_size.y};
  block->rank = rank;
  block->running = block->threads = threads;
  block->cluster = &cluster;
  block->barrier.name = "block barrier";
  block->barrier.size = threads;
  for (unsigned at = 0; at < threads; at += kWarpLanes)
    block->warps.push_back({first + at, std::min(kWarpLanes, threads - at), {}});
  add_shared(*block);
  state.blocks.push_back(std::move(block));
  return *state.blocks.back();
}

bool add_fibre(Block& block, unsigned linear) {
  if (state.stacks.size() <= state.fibres.size()) state.stacks.push_back(new_stack());
  Fibre fibre;
  fibre.thread = {linear % block_size.x, linear / block_size.x % block_size.y, linear / block_size.x / block_size.y};
  fibre.block = block.index;
  fibre.may_access = state.launch.overlap == 0;
  fibre.home = &block;
  fibre.linear = linear;
  fibre.stack = state.stacks[state.fibres.size()];
  state.fibres.push_back(fibre);
  if (fibre.stack != nullptr) return true;
  state.stacks.pop_back();
  return false;
}

bool add_cluster(unsigned which) {
  const unsigned threads = threads_of_block(), blocks = state.launch.cluster;
  auto cluster = std::make_unique<Cluster>();
  cluster->barrier.name = "cluster barrier";
  cluster->barrier.size = threads * blocks;
  cluster->first_block = static_cast<unsigned>(state.blocks.size());
  cluster->blocks = blocks;
  for (unsigned rank = 0; rank < blocks; ++rank) {
    Block& home = add_block(*cluster, rank, which * blocks + rank);
    for (unsigned linear = 0; linear < threads; ++linear)
      if (!add_fibre(home, linear)) return false;
  }
  state.clusters.push_back(std::move(cluster));
  return true;
}

// Make these clusters resident and run them.
bool run_clusters(const unsigned* first, std::size_t count) {
  state.blocks.clear();
  state.fibres.clear();
  state.clusters.clear();
  words.clear();
  mbarriers.clear();
  flights.clear();
  state.fibres.reserve(static_cast<std::size_t>(threads_of_block()) * state.launch.cluster * count);
  for (std::size_t i = 0; i < count; ++i)
    if (!add_cluster(first[i])) {
      state.message = format("no memory for the stacks of %zu threads at once", state.fibres.capacity());
      return false;
    }
  for (Fibre& fibre : state.fibres) start(&fibre.context, fibre.stack, run_fibre);
  run_resident(state.launch.order);
  return !state.failed;
}

}  // namespace
}  // namespace machine

using namespace machine;

// Returns nullptr, or the message of the fault that stopped the kernel. Not re-entrant: the caller locks.
extern "C" const char* onekernel_emulate(const Launch* launch) {
  state.launch = *launch;
  state.random = launch->seed * 2654435769u + 1;
  state.failed = false;
  state.storage.clear();
  if (launch->sanitize) find_own_memory(reinterpret_cast<const void*>(launch->kernel));
  grid_size = {launch->grid[0], launch->grid[1], launch->grid[2]};
  block_size = {launch->block[0], launch->block[1], launch->block[2]};
  std::vector<unsigned> sequence(launch->grid[0] * launch->grid[1] * launch->grid[2] / launch->cluster);
  arrange(sequence, launch->order);
  const std::size_t resident = launch->cooperative ? sequence.size() : 1;
  for (std::size_t done = 0; done < sequence.size(); done += resident) {
    state.waiting_clusters = static_cast<unsigned>(sequence.size() - done - resident);
    if (!run_clusters(sequence.data() + done, resident)) return state.message.c_str();
  }
  return nullptr;
}
