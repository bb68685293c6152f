// Runs one launch on fibres, cluster after cluster, in a given order, and stops it with a message when a rule of
// the machine is broken: threads that wait for threads which ended or wait elsewhere, too much shared memory,
// a shared address outside the block. Built once; every emulated kernel links against it.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "fibre.hpp"
#include "machine.hpp"

namespace machine {
namespace {

constexpr unsigned kWarpLanes = 32;
constexpr std::size_t kSharedBytes = 48 * 1024;  // what every supported GPU gives a block without opting in

// Waiting place for `size` threads: the last one to arrive opens it.
struct Barrier {
  const char* name;
  unsigned size, arrived = 0, generation = 0;
};

struct Warp {
  Barrier gather, release;
  float lanes[kWarpLanes];
};

struct Block {
  Index index;
  int rank;
  unsigned running;
  Barrier barrier;
  std::vector<Warp> warps;
  std::unique_ptr<char[]> shared;
};

struct Fibre : Thread {
  Block* home;
  unsigned linear;
  Context context;
  char* stack;
  const Barrier* waits_at = nullptr;
  unsigned waits_for = 0;  // generation that it saw on arrival
  bool finished = false;

  bool ready() const { return !finished && (waits_at == nullptr || waits_at->generation != waits_for); }
};

struct Machine {
  void (*kernel)(void**) = nullptr;
  void** arguments = nullptr;
  std::vector<char*> stacks;
  std::vector<Fibre> fibres;
  std::vector<std::unique_ptr<Block>> blocks;
  Barrier cluster;
  Context scheduler;
  bool overlap = false;
  std::uint64_t random;
  bool failed = false;
  char message[256];
};

Machine state;

Fibre& self() { return *static_cast<Fibre*>(current); }

void yield_to_scheduler() { resume(&self().context, &state.scheduler); }

void arrive_and_wait(Barrier& barrier) {
  Fibre& fibre = self();
  if (++barrier.arrived == barrier.size) {
    barrier.arrived = 0;
    ++barrier.generation;
    return;
  }
  fibre.waits_at = &barrier;
  fibre.waits_for = barrier.generation;
  yield_to_scheduler();
  fibre.waits_at = nullptr;
}

void poison(Block& block) { std::memset(block.shared.get(), 0xff, kSharedBytes); }  // reads as NaN

void run_fibre() {
  state.kernel(state.arguments);
  Fibre& fibre = self();
  fibre.finished = true;
  if (--fibre.home->running == 0) poison(*fibre.home);  // an ended block's shared memory is gone
  yield_to_scheduler();
}

std::uint64_t next_random() {  // xorshift64 (Marsaglia 2003)
  state.random ^= state.random << 13;
  state.random ^= state.random >> 7;
  state.random ^= state.random << 17;
  return state.random;
}

enum Order { kAscending, kDescending, kRandom };

void arrange(std::vector<unsigned>& order, int how) {
  for (unsigned i = 0; i < order.size(); ++i) order[i] = i;
  if (how == kDescending) std::reverse(order.begin(), order.end());
  if (how == kRandom)
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[next_random() % i]);
}

void report_deadlock() {
  std::size_t waiting = 0, finished = 0;
  const char* where = "";
  for (const Fibre& fibre : state.fibres) {
    finished += fibre.finished;
    if (fibre.waits_at != nullptr) ++waiting, where = fibre.waits_at->name;
  }
  std::snprintf(state.message, sizeof(state.message), "deadlock: %zu threads wait (one at a %s), %zu have ended",
                waiting, where, finished);
  state.failed = true;
}

// Run the ready fibres of a warp once, in the given order of lanes; say whether there were any.
bool step_warp(unsigned warp, const std::vector<unsigned>& lanes, std::size_t& left) {
  bool progress = false;
  for (const unsigned lane : lanes) {
    const std::size_t index = static_cast<std::size_t>(warp) * kWarpLanes + lane;
    if (index >= state.fibres.size() || !state.fibres[index].ready()) continue;
    Fibre& fibre = state.fibres[index];
    progress = true;
    current = &fibre;
    resume(&state.scheduler, &fibre.context);
    if (state.failed) return false;
    left -= fibre.finished;
  }
  return progress;
}

// Warp after warp runs as far as it can, so that early warps get far ahead of late ones: the order in which a
// missing barrier shows. The random order also lets warps stop half-way.
void run_cluster(int how) {
  std::vector<unsigned> warps((state.fibres.size() + kWarpLanes - 1) / kWarpLanes), lanes(kWarpLanes);
  for (std::size_t left = state.fibres.size(); left > 0 && !state.failed;) {
    arrange(warps, how);
    bool progress = false;
    for (const unsigned warp : warps) {
      arrange(lanes, how);
      while (step_warp(warp, lanes, left)) {
        progress = true;
        if (how == kRandom && next_random() % 4 == 0) break;
      }
      if (state.failed) return;
    }
    if (!progress) report_deadlock();
  }
}

Block& add_block(Index index, int rank, unsigned threads) {
  auto block = std::make_unique<Block>();
  block->index = index;
  block->rank = rank;
  block->running = threads;
  block->barrier = {"block barrier", threads};
  for (unsigned first = 0; first < threads; first += kWarpLanes) {
    const unsigned lanes = std::min(kWarpLanes, threads - first);
    block->warps.push_back({{"warp shuffle", lanes}, {"warp shuffle", lanes}, {}});
  }
  block->shared.reset(new char[kSharedBytes]);
  poison(*block);
  state.blocks.push_back(std::move(block));
  return *state.blocks.back();
}

void add_fibre(Block& block, unsigned linear) {
  if (state.stacks.size() <= state.fibres.size()) state.stacks.push_back(new_stack());
  Fibre fibre;
  fibre.thread = {linear % block_size.x, linear / block_size.x % block_size.y, linear / block_size.x / block_size.y};
  fibre.block = block.index;
  fibre.may_access = !state.overlap;
  fibre.home = &block;
  fibre.linear = linear;
  fibre.stack = state.stacks[state.fibres.size()];
  if (fibre.stack == nullptr) fault("no memory for the stacks of this many threads");
  state.fibres.push_back(fibre);
}

}  // namespace

Thread* current = nullptr;
Index block_size, grid_size;

void fault(const char* message) {
  std::snprintf(state.message, sizeof(state.message), "%s (block %u, thread %u)", message, current->block.x,
                self().linear);
  state.failed = true;
  yield_to_scheduler();
  std::abort();  // a failed launch is never resumed
}

void block_barrier() { arrive_and_wait(self().home->barrier); }
void cluster_barrier() { arrive_and_wait(state.cluster); }
int cluster_rank() { return self().home->rank; }

float shuffle_xor(float value, int lane_mask) {
  Fibre& fibre = self();
  Warp& warp = fibre.home->warps[fibre.linear / kWarpLanes];
  const unsigned lane = fibre.linear % kWarpLanes, partner = lane ^ static_cast<unsigned>(lane_mask);
  if (partner >= warp.gather.size) fault("shuffle with a lane that the block does not have");
  warp.lanes[lane] = value;
  arrive_and_wait(warp.gather);
  const float result = warp.lanes[partner];
  arrive_and_wait(warp.release);
  return result;
}

void* shared_memory(std::size_t bytes) {
  if (bytes > kSharedBytes) fault("more shared memory than a block has");
  return self().home->shared.get();
}

const void* remote_shared(const void* address, int rank) {
  const Block& home = *self().home;
  const auto offset = static_cast<const char*>(address) - home.shared.get();
  if (offset < 0 || offset >= static_cast<std::ptrdiff_t>(kSharedBytes)) fault("not a shared memory address");
  if (rank < 0 || rank >= static_cast<int>(state.blocks.size())) fault("no such block in the cluster");
  return state.blocks[static_cast<std::size_t>(rank)]->shared.get() + offset;
}

}  // namespace machine

using namespace machine;

// Launch: `dims` = grid x, y, z, block x, y, z, blocks per cluster, overlap; `order` 0 ascending, 1 descending, 2
// random. Returns nullptr, or the message of the fault that stopped the kernel. Not re-entrant: the caller locks.
extern "C" const char* onekernel_emulate(void (*kernel)(void**), void** arguments, const unsigned* dims, int order,
                                         std::uint64_t seed) {
  state.kernel = kernel;
  state.arguments = arguments;
  state.random = seed * 2654435769u + 1;
  state.failed = false;
  state.overlap = dims[7] != 0;
  grid_size = {dims[0], dims[1], dims[2]};
  block_size = {dims[3], dims[4], dims[5]};
  const unsigned threads = dims[3] * dims[4] * dims[5], cluster = dims[6];
  const unsigned clusters = dims[0] * dims[1] * dims[2] / cluster;
  std::vector<unsigned> sequence(clusters);
  arrange(sequence, order);
  for (const unsigned which : sequence) {
    state.blocks.clear();
    state.fibres.clear();
    state.fibres.reserve(static_cast<std::size_t>(threads) * cluster);
    state.cluster = {"cluster barrier", threads * cluster};
    for (unsigned rank = 0; rank < cluster; ++rank) {
      const unsigned block = which * cluster + rank;
      const Index index = {block % grid_size.x, block / grid_size.x % grid_size.y, block / grid_size.x / grid_size.y};
      Block& home = add_block(index, static_cast<int>(rank), threads);
      for (unsigned linear = 0; linear < threads; ++linear) add_fibre(home, linear);
    }
    for (Fibre& fibre : state.fibres) start(&fibre.context, fibre.stack, run_fibre);
    run_cluster(order);
    if (state.failed) return state.message;
  }
  return nullptr;
}
