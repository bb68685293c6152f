// Barriers, operations of a warp, and spins.
#pragma once
#include "clock.hpp"
#include "report.hpp"

namespace machine {
namespace {

enum class Orders { nothing, memory };  // shuffles and votes do not order memory, barriers do

// Count a thread at a barrier; true when it was the last one.
bool arrive(Barrier& barrier) {
  if (barrier.arrived == 0) barrier.place = self().place;
  if (++barrier.arrived < barrier.size) return false;
  barrier.arrived = 0;
  ++barrier.generation;
  return true;
}

void arrive_and_wait(Barrier& barrier, Orders orders = Orders::memory) {
  Fibre& fibre = self();
  const unsigned generation = barrier.generation;
  const bool watched = state.launch.sanitize && orders == Orders::memory;
  if (watched) gather_clock(barrier, fibre);
  if (arrive(barrier)) {
    if (watched) spread_clocks(barrier);
    return;
  }
  fibre.waits_at = &barrier;
  fibre.waits_for = generation;
  yield_to_scheduler();
  fibre.waits_at = nullptr;
}

const char* const kBarrierNames[kNamedBarriers] = {
    "named barrier 0",  "named barrier 1",  "named barrier 2",  "named barrier 3",
    "named barrier 4",  "named barrier 5",  "named barrier 6",  "named barrier 7",
    "named barrier 8",  "named barrier 9",  "named barrier 10", "named barrier 11",
    "named barrier 12", "named barrier 13", "named barrier 14", "named barrier 15",
};

// Find the open meeting of these lanes, or begin one.
Meeting& meeting_of(Warp& warp, const char* operation, unsigned lanes) {
  Meeting* free = nullptr;
  for (const auto& meeting : warp.meetings) {
    if (meeting->arrived == 0 && meeting->unread == 0) free = meeting.get();
    if (meeting->arrived > 0 && meeting->lanes == lanes) return *meeting;
  }
  if (free == nullptr) free = warp.meetings.emplace_back(std::make_unique<Meeting>()).get();
  const unsigned there = warp.size == kWarpLanes ? ~0u : (1u << warp.size) - 1;
  free->name = operation;
  free->lanes = lanes;
  free->present = 0;
  free->unread = free->size = static_cast<unsigned>(__builtin_popcount(lanes & there));
  return *free;
}

// Wait until all lanes of the mask have come to the same operation with their values.
Meeting& gather(const char* operation, unsigned lanes, const void* value, std::size_t bytes,
                Orders orders = Orders::nothing) {
  Fibre& fibre = self();
  const unsigned lane = fibre.lane();
  if ((lanes >> lane & 1u) == 0)
    fail(format("%s by lane %u, which its mask 0x%08x does not name,", operation, lane, lanes));
  Meeting& meeting = meeting_of(fibre.warp(), operation, lanes);
  if (meeting.name != operation && std::strcmp(meeting.name, operation) != 0)
    fail(format("%s here, but %s by other lanes of the warp at ", operation, meeting.name) + code(meeting.place) + ",");
  meeting.present |= 1u << lane;
  if (bytes > 0) std::memcpy(meeting.values[lane].bytes, value, bytes);
  arrive_and_wait(meeting, orders);
  --meeting.unread;
  return meeting;
}

void spin_once(const char* what) {
  Fibre& fibre = self();
  fibre.looked_in_vain = fibre.spins != nullptr;
  fibre.spins = what;
  fibre.round = state.round;
  yield_to_scheduler();
}

}  // namespace

void block_barrier() {
  ONEKERNEL_HERE();
  arrive_and_wait(self().home->barrier);
}

void cluster_barrier() {
  ONEKERNEL_HERE();
  arrive_and_wait(self().home->cluster->barrier);
}

namespace {

// Return a named barrier, and see that all who come to it agree on its size.
Barrier& named_barrier_of(int id, int threads) {
  if (id < 0 || id >= static_cast<int>(kNamedBarriers)) fail(format("no named barrier %d (0 to 15)", id));
  const auto most = static_cast<int>(block_size.x * block_size.y * block_size.z);
  if (threads <= 0 || threads % static_cast<int>(kWarpLanes) != 0 || threads > (most + 31) / 32 * 32)
    fail(format("named barrier %d for %d threads: whole warps of a block of %d are expected", id, threads, most));
  Barrier& barrier = self().home->named[id];
  barrier.name = kBarrierNames[id];
  if (barrier.arrived > 0 && barrier.size != static_cast<unsigned>(threads))
    fail(format("named barrier %d for %d threads, but for %u threads at ", id, threads, barrier.size) +
         code(barrier.place) + ",");
  barrier.size = static_cast<unsigned>(threads);
  return barrier;
}

}  // namespace

void named_barrier(int id, int threads) {
  ONEKERNEL_HERE();
  arrive_and_wait(named_barrier_of(id, threads));
}

void named_barrier_arrive(int id, int threads) {
  ONEKERNEL_HERE();
  Barrier& barrier = named_barrier_of(id, threads);
  const bool watched = state.launch.sanitize;
  if (watched) gather_clock(barrier, self());
  if (watched) barrier.present_fibres.pop_back();  // who does not wait learns nothing
  if (arrive(barrier) && watched) spread_clocks(barrier);
}

int cluster_rank() { return static_cast<int>(self().home->rank); }

int lane_index() { return static_cast<int>(self().lane()); }

unsigned ballot(const char* operation, unsigned lanes, bool predicate) {
  ONEKERNEL_HERE();
  const Meeting& meeting = gather(operation, lanes, &predicate, sizeof(predicate));
  unsigned votes = 0;
  for (unsigned lane = 0; lane < kWarpLanes; ++lane)
    votes |= (meeting.present >> lane & meeting.values[lane].bytes[0] & 1u) << lane;
  return votes;
}

void shuffle(unsigned lanes, void* value, std::size_t bytes, int source) {
  ONEKERNEL_HERE();
  if (source < 0 || source >= static_cast<int>(self().warp().size))
    fail(format("shuffle with lane %d, a lane that the block does not have,", source));
  if ((lanes >> source & 1u) == 0)
    fail(format("shuffle with lane %d, which the mask 0x%08x does not name,", source, lanes));
  std::memcpy(value, gather("shuffle", lanes, value, bytes).values[source].bytes, bytes);
}

void warp_barrier(unsigned lanes) {
  ONEKERNEL_HERE();
  gather("warp barrier", lanes, nullptr, 0, Orders::memory);
}

void poll(const char* what) {
  ONEKERNEL_HERE();
  spin_once(what);
}

void end_spin() {
  Fibre& fibre = self();
  fibre.spins = nullptr;
  fibre.looked_in_vain = false;
}

}  // namespace machine
