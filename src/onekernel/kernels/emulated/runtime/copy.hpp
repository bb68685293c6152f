// Asynchronous copies. Ascending threads see a copy land as late as it may, descending ones at once, random ones at a
// random moment; so a missing wait shows, and so does a buffer that is filled while others still read it.
#pragma once
#include "wait.hpp"
#include "watch.hpp"

namespace machine {
namespace {

struct Mbarrier {
  const Block* home;
  int arrivals;
  Clock clock;
  int arrived = 0;
  long long bytes = 0;  // announced and not yet there
  unsigned phase = 0;
};

std::unordered_map<const void*, Mbarrier> mbarriers;

bool lands_at_once() {
  return state.launch.order == kDescending || (state.launch.order == kRandom && next_random() % 2 == 0);
}

// Check both ends of a copy as accesses of the thread that starts it.
void check_copy(const void* shared, const void* global, std::size_t bytes, std::size_t alignment) {
  const Fibre& fibre = self();
  if (!fibre.may_access) fail("memory access before await_predecessor");
  for (const void* end : {shared, global})
    if (reinterpret_cast<std::uintptr_t>(end) % alignment != 0)
      fail(format("a copy of %zu bytes that is not aligned to %zu (", bytes, alignment) + memory(end) + ")");
  const auto* to = static_cast<const char*>(shared);
  if (to < fibre.home->shared || to + bytes > fibre.home->shared + shared_bytes())
    fail("a copy to what is not the block's shared memory (" + memory(shared) + ")");
  if (!state.launch.sanitize) return;
  watch(global, bytes, false, false);
  watch(shared, bytes, true, false);
}

void land(Flight& flight) {
  if (!flight.landed) std::memcpy(flight.to, flight.from, flight.bytes);
  flight.landed = true;
}

void end_phase(Mbarrier& barrier) {
  if (barrier.arrived < barrier.arrivals || barrier.bytes != 0) return;
  barrier.arrived = 0;
  ++barrier.phase;
}

// A bulk copy has brought its bytes: everybody who waits for the barrier may use them.
void report_bytes(const Flight& flight) {
  Mbarrier& barrier = mbarriers.at(flight.barrier);
  barrier.bytes -= static_cast<long long>(flight.bytes);
  end_phase(barrier);
}

Mbarrier& find_mbarrier(const void* address) {
  const auto found = mbarriers.find(address);
  if (found == mbarriers.end() || found->second.home != self().home)
    fail("an mbarrier that was not initialised (" + memory(address) + ")");
  return found->second;
}

// Does the running thread wait for this copy, when it leaves so many of its groups on their way?
bool is_due(const Flight& flight, unsigned groups) {
  const bool own = flight.owner == current && flight.barrier == nullptr;
  return own && flight.group != 0 && flight.group + groups <= self().groups;
}

// Let the oldest bulk copy land; say whether there was one.
bool land_next() {
  for (auto flight = flights.begin(); flight != flights.end(); ++flight) {
    if (flight->barrier == nullptr) continue;
    land(*flight);
    const Flight done = *flight;
    flights.erase(flight);
    report_bytes(done);
    return true;
  }
  return false;
}

}  // namespace

void copy_async(void* shared, const void* global, std::size_t bytes, bool at_once) {
  ONEKERNEL_HERE();
  check_copy(shared, global, bytes, bytes);
  Flight flight{static_cast<char*>(shared), static_cast<const char*>(global), bytes, current, nullptr, self().place};
  if (at_once || lands_at_once()) land(flight);
  if (!at_once) flights.push_back(flight);  // landed or not, it is known to have only after the wait
}

void copy_commit() {
  ONEKERNEL_HERE();
  const unsigned group = ++self().groups;
  for (Flight& flight : flights)
    if (flight.owner == current && flight.barrier == nullptr && flight.group == 0) flight.group = group;
}

void copy_wait(unsigned groups) {
  ONEKERNEL_HERE();
  std::vector<Flight> left;
  for (Flight& flight : flights) {
    if (!is_due(flight, groups)) {
      left.push_back(flight);
      continue;
    }
    land(flight);
    if (state.launch.sanitize) record_landing(flight);
  }
  flights = std::move(left);
}

void mbarrier_init(const void* barrier, int arrivals) {
  ONEKERNEL_HERE();
  if (arrivals <= 0) fail(format("an mbarrier for %d arrivals", arrivals));
  if (state.launch.sanitize) watch(barrier, 8, true, false);
  mbarriers.insert_or_assign(barrier, Mbarrier{self().home, arrivals, {}});
}

void mbarrier_arrive(const void* address, int bytes) {
  ONEKERNEL_HERE();
  Mbarrier& barrier = find_mbarrier(address);
  if (state.launch.sanitize) {
    watch(address, 8, true, true);
    release_to(barrier.clock, self());
  }
  if (bytes < 0) fail(format("%d bytes announced at an mbarrier", bytes));
  barrier.bytes += bytes;
  ++barrier.arrived;
  end_phase(barrier);
}

void mbarrier_wait(const void* address, int parity) {
  ONEKERNEL_HERE();
  Mbarrier& barrier = find_mbarrier(address);
  if (state.launch.sanitize) watch(address, 8, false, true);
  Fibre& fibre = self();
  while (barrier.phase % 2 == static_cast<unsigned>(parity & 1)) {
    fibre.waits_for_phase = format("mbarrier (%d of %d have arrived, %lld bytes are to come)", barrier.arrived,
                                   barrier.arrivals, barrier.bytes);
    spin_once("an mbarrier");
  }
  fibre.waits_for_phase.clear();
  end_spin();
  if (state.launch.sanitize) acquire_from(barrier.clock, fibre);
}

void copy_bulk(void* shared, const void* global, int bytes, const void* barrier) {
  ONEKERNEL_HERE();
  Mbarrier& reports_to = find_mbarrier(barrier);
  if (bytes <= 0 || bytes % 16 != 0) fail(format("a bulk copy of %d bytes, not a multiple of 16,", bytes));
  check_copy(shared, global, static_cast<std::size_t>(bytes), 16);
  if (state.launch.sanitize) release_to(reports_to.clock, self());  // who waits for it may use what the copy wrote
  flights.push_back({static_cast<char*>(shared), static_cast<const char*>(global), static_cast<std::size_t>(bytes),
                     current, barrier, self().place});
  if (lands_at_once()) {
    land(flights.back());
    const Flight done = flights.back();
    flights.pop_back();
    report_bytes(done);
  }
}

}  // namespace machine
