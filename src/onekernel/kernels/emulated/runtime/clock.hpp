// Which accesses are ordered: vector clocks (Lamport 1978, Mattern 1989; their use for races: FastTrack, Flanagan and
// Freund 2009). A thread's clock holds, for each thread of its block, the time until which it knows what that one did.
// Barriers and pairs of release and acquire pass knowledge on; shuffles, votes and relaxed atomic operations do not.
#pragma once
#include <algorithm>
#include <unordered_map>

#include "state.hpp"

namespace machine {
namespace {

void join(std::uint32_t* knows, const std::uint32_t* also, std::size_t threads) {
  for (std::size_t i = 0; i < threads; ++i) knows[i] = std::max(knows[i], also[i]);
}

// Give what a thread knows to others; what it does from now on they do not know.
void release_to(Clock& clock, const Fibre& fibre) {
  clock.resize(fibre.home->threads);
  join(clock.data(), fibre.clock(), fibre.home->threads);
  ++fibre.clock()[fibre.linear];
}

void acquire_from(const Clock& clock, const Fibre& fibre) { join(fibre.clock(), clock.data(), clock.size()); }

void gather_clock(Barrier& barrier, Fibre& fibre) {
  if (barrier.gathered.size() <= fibre.home->rank) barrier.gathered.resize(fibre.home->rank + 1);
  release_to(barrier.gathered[fibre.home->rank], fibre);
  barrier.present_fibres.push_back(&fibre);
}

void spread_clocks(Barrier& barrier) {
  for (const Fibre* fibre : barrier.present_fibres) acquire_from(barrier.gathered[fibre->home->rank], *fibre);
  barrier.gathered.clear();
  barrier.present_fibres.clear();
}

// What was released through a word, for each block whose threads did so.
struct Released {
  const Block* last = nullptr;
  std::unordered_map<const Block*, Clock> clocks;
};
std::unordered_map<const void*, Released> words;

void release_word(const void* address, const Fibre& fibre, bool replaces) {
  Released& word = words[address];
  if (replaces) word.clocks.clear();
  word.last = fibre.home;
  release_to(word.clocks[fibre.home], fibre);
}

// Through another block, threads may know of any thread of their own block: then all is taken for ordered, because what
// blocks know of each other is not recorded.
void acquire_word(const void* address, Fibre& fibre) {
  const auto found = words.find(address);
  if (found == words.end()) return;
  fibre.acquired = true;
  const auto own = found->second.clocks.find(fibre.home);
  if (own != found->second.clocks.end()) acquire_from(own->second, fibre);
  const std::size_t threads = fibre.home->threads;
  if (found->second.last != fibre.home)
    for (std::size_t i = 0; i < threads; ++i)
      if (i != fibre.linear) fibre.clock()[i] = std::max(fibre.clock()[i], fibre.home->clocks[i * (threads + 1)]);
}

}  // namespace
}  // namespace machine
