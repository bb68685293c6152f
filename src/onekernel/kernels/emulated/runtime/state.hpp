// What the machine remembers of a launch: its clusters, blocks, warps and fibres, and the barriers they wait at.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "../fibre.hpp"
#include "../machine.hpp"

namespace machine {

// Memory of an operand.
struct Range {
  std::uintptr_t first, end;
  std::uintptr_t writable;
};

// A launch as the caller asks for it; device/emulated.py lays out the same struct.
struct Launch {
  void (*kernel)(void**);
  void** arguments;
  unsigned grid[3], block[3];
  unsigned cluster, overlap, cooperative;
  unsigned order;         // enum Order
  unsigned shared;        // bytes of dynamic shared memory
  unsigned shared_limit;  // bytes of static and dynamic shared memory that a block may have
  unsigned sanitize;
  unsigned ranges;  // how many
  std::uint64_t seed;
  const Range* range;
};

enum Order { kAscending, kDescending, kRandom, kLagging };

namespace {

constexpr unsigned kWarpLanes = 32, kNamedBarriers = 16;
constexpr std::size_t kStaticBytes = 48 * 1024;  // what every supported GPU gives a block without opting in
constexpr std::size_t kGapBytes = 128;           // around everything that lies in shared memory
constexpr std::size_t kSharedAlignment = 1024;

struct Fibre;
using Clock = std::vector<std::uint32_t>;  // a number for each thread of a block

// Waiting place for `size` threads: the last one to arrive opens it.
struct Barrier {
  const char* name = "";
  unsigned size = 0, arrived = 0, generation = 0;
  unsigned lanes = 0, present = 0;  // of a warp: those that are named, those that have come
  const void* place = nullptr;      // of the first arrival
  std::vector<Clock> gathered;      // when sanitizing, for each block of the cluster: what the arrived threads know
  std::vector<Fibre*> present_fibres;
};

// What a lane gives to an operation of its warp.
struct alignas(8) Lane {
  unsigned char bytes[24];
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

// An access to shared memory.
struct Access {
  const void* place;           // nullptr: there was none
  std::uint32_t clock, round;  // of the thread; of the cluster's barrier
  std::uint16_t thread, atomic;
};

// The last accesses to a byte of shared memory; of unordered readers as many as there is room for. An update is atomic.
struct Cell {
  Access write, update, reads[2], remote_read;
};

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

struct Block {
  Index index;
  unsigned rank, running, threads;
  Cluster* cluster;
  Barrier barrier, named[kNamedBarriers];
  std::vector<Warp> warps;
  std::unique_ptr<char[]> memory;
  char* shared;                       // static part, then dynamic part
  Clock clocks;                       // when sanitizing: what each thread knows of each other one, thread after thread
  std::unique_ptr<Cell, Free> cells;  // when sanitizing: the last accesses to each byte
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
  unsigned groups = 0;          // of asynchronous copies, committed
  std::string waits_for_phase;  // of which mbarrier
  bool acquired = false;        // what another block may have released

  std::uint32_t* clock() const { return home->clocks.data() + static_cast<std::size_t>(linear) * home->threads; }
  unsigned lane() const { return linear % kWarpLanes; }
  Warp& warp() const { return home->warps[linear / kWarpLanes]; }
};

// Where a type's shared storage lies in every block.
struct Storage {
  const void* type;
  std::size_t offset, bytes;
};

// A copy on its way to shared memory. A bulk copy reports to an mbarrier, another one to the group of its thread.
struct Flight {
  char* to;
  const char* from;
  std::size_t bytes;
  const Thread* owner;
  const void* barrier;
  const void* place;
  unsigned group = 0;  // 0: not committed
  bool landed = false;
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

constexpr std::size_t kDynamicOffset = kStaticBytes + kGapBytes;

std::size_t shared_bytes() { return kDynamicOffset + state.launch.shared + kGapBytes; }

std::size_t used_static() {
  return state.storage.empty() ? 0 : state.storage.back().offset + state.storage.back().bytes;
}

// Remember where the kernel called; to be used first thing in what a kernel calls.
#define ONEKERNEL_HERE()                                                    \
  (machine::self().frame = static_cast<void**>(__builtin_frame_address(0)), \
   machine::self().place = __builtin_return_address(0))

std::uint64_t next_random() {  // xorshift64 (Marsaglia 2003)
  state.random ^= state.random << 13;
  state.random ^= state.random >> 7;
  state.random ^= state.random << 17;
  return state.random;
}

}  // namespace
}  // namespace machine
