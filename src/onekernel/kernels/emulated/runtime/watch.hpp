// Sanitizing: is an access within memory that the thread may use, and is it ordered after what it depends on?
#pragma once
#include <link.h>

#include "clock.hpp"
#include "report.hpp"

namespace machine {
namespace {

std::vector<Flight> flights;  // copies that are on their way, oldest first

// Nobody may touch what a copy will write, before its end is known; the copy itself is recorded as a write of its
// thread.
void watch_flights(const char* address, std::size_t bytes, const char* verb) {
  for (const Flight& flight : flights)
    if (address < flight.to + flight.bytes && flight.to < address + bytes)
      fail(format("%s of ", verb) + memory(address) + ", to which the asynchronous copy at " + code(flight.place) +
           " is on its way: no wait has ended it,");
}

bool ordered(const Access& before, const Fibre& fibre) {
  return before.place == nullptr || before.thread == fibre.linear || fibre.clock()[before.thread] >= before.clock;
}

[[noreturn]] void race(const void* address, const char* earlier, const Access& before, const char* now) {
  fail("race on " + memory(address) + format(": %s by thread %u at ", earlier, before.thread) + code(before.place) +
       format(" and, with no barrier between, %s", now));
}

void watch_write(const char* address, Cell& cell, const Access& now) {
  const Fibre& fibre = self();
  if (!ordered(cell.write, fibre)) race(address, "write", cell.write, "write");
  if (!ordered(cell.update, fibre) && !now.atomic) race(address, "atomic operation", cell.update, "write");
  for (const Access& read : cell.reads)
    if (!ordered(read, fibre) && !(read.atomic && now.atomic)) race(address, "read", read, "write");
  if (cell.remote_read.place != nullptr && cell.remote_read.round == now.round && !fibre.acquired)
    race(address, "read from another block", cell.remote_read, "write");
  if (now.atomic)
    cell.update = now;
  else
    cell = {now, {}, {}, {}};
}

void watch_read(const char* address, Cell& cell, const Access& now) {
  const Fibre& fibre = self();
  if (!ordered(cell.write, fibre)) race(address, "write", cell.write, "read");
  if (!ordered(cell.update, fibre) && !now.atomic) race(address, "atomic operation", cell.update, "read");
  Access* oldest = &cell.reads[0];
  for (Access& read : cell.reads) {
    if (read.place == nullptr || read.thread == now.thread) return void(read = now);
    if (ordered(read, fibre)) oldest = &read;
  }
  *oldest = now;  // who is ordered after this thread is so after those that it knows
}

void watch_remote(const char* address, Cell& cell, const Access& now) {
  if (cell.write.place != nullptr && cell.write.round == now.round && !self().acquired)
    race(address, "write", cell.write, "read from another block");
  cell.remote_read = now;
}

void watch_shared(const char* address, std::size_t bytes, const Block& block, bool write, bool atomic) {
  const Fibre& fibre = self();
  const auto offset = static_cast<std::size_t>(address - block.shared), dynamic = kDynamicOffset;
  bool inside = offset >= dynamic && offset + bytes <= dynamic + state.launch.shared;
  for (const Storage& storage : state.storage)
    inside |= offset >= storage.offset && offset + bytes <= storage.offset + storage.bytes;
  const char* verb = write ? "write" : "read";
  if (!inside) fail(format("%zu-byte %s outside of what the block has: ", bytes, verb) + memory(address));
  if (!flights.empty()) watch_flights(address, bytes, verb);
  const bool own = &block == fibre.home;
  if (block.running == 0) fail(format("%s of the shared memory of a block that has ended", verb));
  if (!own && write) fail("write to another block's " + memory(address));
  const Access now{fibre.place, fibre.clock()[fibre.linear], fibre.home->cluster->barrier.generation,
                   static_cast<std::uint16_t>(fibre.linear), atomic};
  bool written = write;
  for (std::size_t i = 0; i < bytes; ++i) {
    Cell& cell = block.cells.get()[offset + i];
    written |= cell.write.place != nullptr || cell.update.place != nullptr;
    (own ? write ? watch_write : watch_read : watch_remote)(address + i, cell, now);
  }
  if (!written) fail(format("%zu-byte read of what nobody wrote: ", bytes) + memory(address));
}

// From its wait on, a copy is something that its thread wrote.
void record_landing(const Flight& flight) {
  const Fibre& fibre = self();
  const auto offset = static_cast<std::size_t>(flight.to - fibre.home->shared);
  for (std::size_t i = 0; i < flight.bytes; ++i) {
    Access& write = fibre.home->cells.get()[offset + i].write;
    write.clock = fibre.clock()[fibre.linear];
  }
}

// ---- memory of the machine itself that the text of a kernel reads: constants, threadIdx
std::vector<Range> own_memory;

int add_segments(dl_phdr_info* library, std::size_t, void* wanted) {
  const auto address = reinterpret_cast<std::uintptr_t>(wanted);
  std::vector<Range> segments;
  bool found = false;
  for (int i = 0; i < library->dlpi_phnum; ++i) {
    if (library->dlpi_phdr[i].p_type != PT_LOAD) continue;
    const auto first = static_cast<std::uintptr_t>(library->dlpi_addr + library->dlpi_phdr[i].p_vaddr);
    segments.push_back({first, first + library->dlpi_phdr[i].p_memsz, 0});
    found |= address >= first && address < segments.back().end;
  }
  if (found) own_memory.insert(own_memory.end(), segments.begin(), segments.end());
  return found;
}

void find_own_memory(const void* kernel) {
  own_memory.clear();
  dl_iterate_phdr(add_segments, const_cast<void*>(kernel));
  dl_iterate_phdr(add_segments, &state);
}

bool contains(const Range& range, std::uintptr_t first, std::size_t bytes) {
  return first >= range.first && first + bytes <= range.end;
}

bool is_own_memory(std::uintptr_t first, std::size_t bytes) {
  const auto fibres = reinterpret_cast<std::uintptr_t>(state.fibres.data());
  bool own = contains({fibres, fibres + state.fibres.size() * sizeof(Fibre), 0}, first, bytes);
  for (const Range& range : own_memory) own |= contains(range, first, bytes);
  return own;
}

void watch_global(const void* address, std::size_t bytes, bool write) {
  const auto first = reinterpret_cast<std::uintptr_t>(address);
  const Range *range = state.launch.range, *end = range + state.launch.ranges;
  range = std::find_if(range, end, [&](const Range& item) { return contains(item, first, bytes); });
  const char* verb = write ? "write" : "read";
  if (range == end) {
    if (!write && is_own_memory(first, bytes)) return;
    fail(format("%zu-byte %s out of bounds (", bytes, verb) + format("{data:%p})", address));
  }
  if (!self().may_access) fail("memory access before await_predecessor");
  if (write && !range->writable)
    fail(format("%zu-byte write to read-only memory (", bytes) + format("{data:%p})", address));
}

// Check an access of the running thread; its place is already known.
void watch(const void* address, std::size_t bytes, bool write, bool atomic) {
  const auto* byte = static_cast<const char*>(address);
  const Fibre& fibre = self();
  if (byte >= fibre.stack && byte + bytes <= fibre.stack + kStackBytes) return;
  const Cluster& cluster = *fibre.home->cluster;
  for (unsigned rank = 0; rank < cluster.blocks; ++rank) {
    const Block& block = *state.blocks[cluster.first_block + rank];
    if (byte >= block.shared && byte < block.shared + shared_bytes())
      return watch_shared(byte, bytes, block, write, atomic);
  }
  watch_global(address, bytes, write);
}

}  // namespace
}  // namespace machine
