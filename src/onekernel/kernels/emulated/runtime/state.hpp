// What the machine remembers of a launch: its clusters, blocks, warps and fibres, and the barriers they wait at.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../fibre.hpp"
#include "../machine.hpp"

namespace machine {

// A launch as the caller asks for it; device/emulated.py lays out the same struct.
struct Launch {
  void (*kernel)(void**);
  void** arguments;
  unsigned grid[3], block[3];
  unsigned cluster, overlap, cooperative;
  unsigned order;         // enum Order
  unsigned shared;        // bytes of dynamic shared memory
  unsigned shared_limit;  // bytes of static and dynamic shared memory that a block may have
  std::uint64_t seed;
};

enum Order { kAscending, kDescending, kRandom };

namespace {

constexpr unsigned kWarpLanes = 32, kNamedBarriers = 16;
constexpr std::size_t kStaticBytes = 48 * 1024;  // what every supported GPU gives a block without opting in
constexpr std::size_t kGapBytes = 128;           // around everything that lies in shared memory
constexpr std::size_t kSharedAlignment = 1024;

// Waiting place for `size` threads: the last one to arrive opens it.
struct Barrier {
  const char* name = "";
  unsigned size = 0, arrived = 0, generation = 0;
  unsigned lanes = 0, present = 0;  // of a warp: those that are named, those that have come
  const void* place = nullptr;      // of the first arrival
};

// An operation that lanes of a warp do together.
struct Meeting : Barrier {
  unsigned unread = 0;
  Lane values[kWarpLanes];
};

struct Warp {
  unsigned first, size;  // fibres
  std::vector<std::unique_ptr<Meeting>> meetings;
};

struct Cluster {
  Barrier barrier;
  unsigned first_block, blocks;  // among the resident ones
};

struct Block {
  Index index;
  unsigned rank, running;
  Cluster* cluster;
  Barrier barrier, named[kNamedBarriers];
  std::vector<Warp> warps;
  std::unique_ptr<char[]> memory;
  char* shared;  // static part, then dynamic part
};

struct Fibre : Thread {
  Block* home;
  unsigned linear;
  Context context;
  char* stack;
  const void* place = nullptr;  // where the kernel last called the machine
  void** frame = nullptr;       // the machine's frame of that call
  const Barrier* waits_at = nullptr;
  unsigned waits_for = 0;       // generation that it saw on arrival
  const char* spins = nullptr;  // what for
  bool looked_in_vain = false;  // since the last round, and at the same condition
  const void* word = nullptr;   // the last one that it loaded to synchronise
  std::size_t word_bytes = 0;
  unsigned round = 0;  // of its last look
  bool finished = false;

  unsigned lane() const { return linear % kWarpLanes; }
  Warp& warp() const { return home->warps[linear / kWarpLanes]; }
};

// Where a type's shared storage lies in every block.
struct Storage {
  const void* type;
  std::size_t offset, bytes;
};

struct Machine {
  Launch launch;
  std::vector<char*> stacks;
  std::vector<Fibre> fibres;
  std::vector<std::unique_ptr<Block>> blocks;
  std::vector<std::unique_ptr<Cluster>> clusters;
  std::vector<Storage> storage;
  Context scheduler;
  std::uint64_t random;
  unsigned round = 0, waiting_clusters = 0;  // the latter have not started
  bool failed = false;
  std::string message;
};

Machine state;

Fibre& self() { return *static_cast<Fibre*>(current); }

void yield_to_scheduler() { resume(&self().context, &state.scheduler); }

std::size_t used_static() {
  return state.storage.empty() ? 0 : state.storage.back().offset + state.storage.back().bytes;
}

// Remember where the kernel called; to be used first thing in what a kernel calls.
#define ONEKERNEL_HERE() \
  (self().frame = static_cast<void**>(__builtin_frame_address(0)), self().place = __builtin_return_address(0))

std::uint64_t next_random() {  // xorshift64 (Marsaglia 2003)
  state.random ^= state.random << 13;
  state.random ^= state.random >> 7;
  state.random ^= state.random << 17;
  return state.random;
}

}  // namespace
}  // namespace machine
