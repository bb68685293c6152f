// Faults and hang reports. Addresses in code and in memory are written as {code:LIBRARY:OFFSET} and {data:ADDRESS};
// device/emulated/places.py turns them into source lines and operands.
#pragma once
#include <dlfcn.h>

#include <cstdarg>
#include <cstdio>
#include <map>
#include <tuple>

#include "state.hpp"

namespace machine {
namespace {

__attribute__((format(printf, 1, 2))) std::string format(const char* words, ...) {
  char text[512];
  va_list values;
  va_start(values, words);
  std::vsnprintf(text, sizeof(text), words, values);
  va_end(values);
  return text;
}

// A return address belongs to the instruction before it.
std::string offset_in(const Dl_info& library, const void* place) {
  const auto offset = static_cast<const char*>(place) - static_cast<const char*>(library.dli_fbase) - 1;
  return format("0x%zx", static_cast<std::size_t>(offset));
}

bool find_library(const void* place, Dl_info& library) {
  return place != nullptr && dladdr(place, &library) != 0 && library.dli_fname != nullptr;
}

std::string code(const void* place) {
  Dl_info library;
  if (!find_library(place, library)) return "an unknown place";
  return "{code:" + std::string(library.dli_fname) + ":" + offset_in(library, place) + "}";
}

// Where a fibre called the machine, and from where the functions around that were called. A frame begins with the
// address of the frame before it and the return address, on x86-64 as on AArch64.
std::string code(const Fibre& fibre) {
  Dl_info kernel, library;
  if (!find_library(fibre.place, kernel)) return "an unknown place";
  std::string text = "{code:" + std::string(kernel.dli_fname) + ":" + offset_in(kernel, fibre.place);
  const char *low = fibre.stack, *high = fibre.stack + kStackBytes - 2 * sizeof(void*);
  for (void** frame = static_cast<void**>(*fibre.frame);; frame = static_cast<void**>(*frame)) {
    const auto* at = reinterpret_cast<const char*>(frame);
    if (at < low || at >= high || !find_library(frame[1], library) || library.dli_fbase != kernel.dli_fbase) break;
    text += "," + offset_in(library, frame[1]);
    low = at + 1;  // frames lie above those that they call
  }
  return text + "}";
}

std::string name_of(const Block& block) {
  if (state.launch.grid[1] * state.launch.grid[2] == 1) return format("block %u", block.index.x);
  return format("block (%u, %u, %u)", block.index.x, block.index.y, block.index.z);
}

std::string name_of(const Fibre& fibre) { return name_of(*fibre.home) + format(", thread %u", fibre.linear); }

// Say where an address lies; what is not in this cluster's shared memory is left to the caller of the launch.
std::string memory(const void* address) {
  const auto* byte = static_cast<const char*>(address);
  for (const auto& block : state.blocks) {
    const auto offset = byte - block->shared;
    if (offset < 0) continue;
    const auto at = static_cast<std::size_t>(offset), dynamic = kDynamicOffset;
    if (at >= dynamic && at < shared_bytes())
      return format("dynamic shared memory + %zu of ", at - dynamic) + name_of(*block);
    if (at < dynamic) return format("shared memory + %zu of ", at) + name_of(*block);
  }
  return format("{data:%p}", address);
}

[[noreturn]] void stop(const std::string& message) {
  state.message = message;
  state.failed = true;
  yield_to_scheduler();
  std::abort();  // a failed launch is never resumed
}

[[noreturn]] void fail(const std::string& what) { stop(what + " at " + code(self()) + " (" + name_of(self()) + ")"); }

std::string value_of(const void* word, std::size_t bytes) {
  std::uint64_t value = 0;
  std::memcpy(&value, word, bytes);
  return format(" holds %#llx", static_cast<unsigned long long>(value));
}

std::string describe(const Barrier& barrier) {
  std::string text = std::string("at a ") + barrier.name;
  if (barrier.lanes == 0) return text + format(" (%u of %u have arrived)", barrier.arrived, barrier.size);
  return text + format(" (lanes 0x%08x are named, 0x%08x have come)", barrier.lanes, barrier.present);
}

std::string describe(const Fibre& fibre) {
  if (fibre.waits_at != nullptr) return describe(*fibre.waits_at);
  if (!fibre.waits_for_phase.empty()) return "at an " + fibre.waits_for_phase;
  std::string text = std::string("for ") + fibre.spins;
  if (fibre.word != nullptr) text += " (" + memory(fibre.word) + value_of(fibre.word, fibre.word_bytes) + ")";
  return text;
}

// The threads that wait for one thing in one place, as "0-31, 64".
struct Group {
  std::string block, what, place, threads;
  unsigned last = 0;
  bool open_range = false;

  void add(unsigned thread) {
    const bool next = !threads.empty() && thread == last + 1;
    if (!next)
      threads += (open_range ? format("-%u", last) : "") + (threads.empty() ? "" : ", ") + format("%u", thread);
    open_range = next;
    last = thread;
  }
  std::string line() const {
    const bool many = open_range || threads.find(',') != std::string::npos;
    return "\n  " + block + (many ? ", threads " : ", thread ") + threads + (open_range ? format("-%u", last) : "") +
           (many ? " wait " : " waits ") + what + " at " + place;
  }
};

constexpr std::size_t kMostGroups = 12;

// Who waits for what, when nobody can make progress.
void report_hang() {
  std::size_t waiting = 0, finished = 0, spinning = 0;
  std::vector<Group> groups;
  std::map<std::tuple<const Block*, const void*, std::string>, std::size_t> index;
  for (const Fibre& fibre : state.fibres) {
    finished += fibre.finished;
    if (fibre.finished) continue;
    ++waiting;
    spinning += fibre.spins != nullptr;
    const auto [found, added] = index.try_emplace({fibre.home, fibre.place, describe(fibre)}, groups.size());
    if (added) groups.push_back({name_of(*fibre.home), describe(fibre), code(fibre), ""});
    groups[found->second].add(fibre.linear);
  }
  state.message = format("deadlock: %zu threads wait, %zu have ended", waiting, finished);
  if (spinning > 0 && state.waiting_clusters > 0)
    state.message += format("; %u blocks start only when these end: the launch is not cooperative",
                            state.waiting_clusters * state.launch.cluster);
  for (std::size_t i = 0; i < groups.size() && i < kMostGroups; ++i) state.message += groups[i].line();
  if (groups.size() > kMostGroups) state.message += format("\n  and %zu more", groups.size() - kMostGroups);
  state.failed = true;
}

}  // namespace

void fault(const char* message) {
  ONEKERNEL_HERE();
  fail(message);
}

void misaligned(const void* address, std::size_t bytes) {
  ONEKERNEL_HERE();
  fail(format("misaligned %zu-byte access (", bytes) + memory(address) + ")");
}

}  // namespace machine
