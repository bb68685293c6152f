// Shared memory, and what every access of a kernel has to keep to.
#pragma once
#include "clock.hpp"
#include "report.hpp"
#include "watch.hpp"

namespace machine {
namespace {

void poison(Block& block) { std::memset(block.shared, 0xff, shared_bytes()); }  // reads as NaN

void add_shared(Block& block) {
  block.memory.reset(new char[shared_bytes() + kSharedAlignment]);
  const auto address = reinterpret_cast<std::uintptr_t>(block.memory.get());
  block.shared = block.memory.get() + (kSharedAlignment - address % kSharedAlignment) % kSharedAlignment;
  poison(block);
  if (!state.launch.sanitize) return;
  block.cells.reset(static_cast<Cell*>(std::calloc(shared_bytes(), sizeof(Cell))));
  block.clocks.assign(static_cast<std::size_t>(block.threads) * block.threads, 0);
  for (unsigned thread = 0; thread < block.threads; ++thread) block.clocks[thread * (block.threads + 1)] = 1;
}

std::size_t place_storage(const void* type, std::size_t bytes) {
  const std::size_t used = used_static(), offset = (used + kGapBytes - 1) / kGapBytes * kGapBytes;
  if (offset + bytes > kStaticBytes || offset + bytes + state.launch.shared > state.launch.shared_limit)
    fail(format("more shared memory than a block has (%zu bytes and %u dynamic ones; at most %zu, together %u)",
                offset + bytes, state.launch.shared, kStaticBytes, state.launch.shared_limit));
  state.storage.push_back({type, offset, bytes});
  return offset;
}

}  // namespace

void await_predecessor() { allow_access(true); }

void allow_access(bool may) { self().may_access = may; }

bool is_shared(const void* address) {
  const auto* byte = static_cast<const char*>(address);
  const char* shared = self().home->shared;
  return byte >= shared && byte < shared + shared_bytes();
}

void* shared_memory(const void* type, std::size_t bytes) {
  ONEKERNEL_HERE();
  for (const Storage& storage : state.storage)
    if (storage.type == type) return self().home->shared + storage.offset;
  return self().home->shared + place_storage(type, bytes);
}

void* dynamic_memory() {
  ONEKERNEL_HERE();
  if (state.launch.shared == 0) fail("dynamic shared memory, of which the launch asked none,");
  return self().home->shared + kDynamicOffset;
}

const void* remote_shared(const void* address, int rank) {
  ONEKERNEL_HERE();
  const Block& home = *self().home;
  const auto offset = static_cast<const char*>(address) - home.shared;
  if (offset < 0 || offset >= static_cast<std::ptrdiff_t>(shared_bytes())) fail("not a shared memory address");
  if (rank < 0 || rank >= static_cast<int>(home.cluster->blocks)) fail("no such block in the cluster");
  return state.blocks[home.cluster->first_block + static_cast<unsigned>(rank)]->shared + offset;
}

void touch_word(const void* address, std::size_t bytes, Word how, Ordering ordering) {
  ONEKERNEL_HERE();
  Fibre& fibre = self();
  if (!fibre.may_access) fail("memory access before await_predecessor");
  if (reinterpret_cast<std::uintptr_t>(address) % bytes != 0)
    fail(format("misaligned %zu-byte atomic access (", bytes) + memory(address) + ")");
  if (state.launch.sanitize) {
    watch(address, bytes, how != Word::load, true);
    if (ordering == Ordering::acquire) acquire_word(address, fibre);
    if (ordering == Ordering::release) release_word(address, fibre, how == Word::store);
  }
  if (how == Word::store) return;
  fibre.word = address;
  fibre.word_bytes = bytes;
}

void copy_word(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }

}  // namespace machine
