// Who runs when: warp after warp runs as far as it can, so that early warps get far ahead of late ones, the order in
// which a missing barrier shows. The random order also lets warps stop half-way. In the lagging order one block runs
// only when no other can go on, so that all get as far ahead of it as they may.
#pragma once
#include <algorithm>

#include "copy.hpp"
#include "memory.hpp"
#include "report.hpp"

namespace machine {
namespace {

void arrange(std::vector<unsigned>& order, unsigned how) {
  for (unsigned i = 0; i < order.size(); ++i) order[i] = i;
  if (how == kDescending) std::reverse(order.begin(), order.end());
  if (how == kRandom)
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[next_random() % i]);
}

void run_fibre() {
  state.launch.kernel(state.launch.arguments);
  Fibre& fibre = self();
  fibre.finished = true;
  if (--fibre.home->running == 0) poison(*fibre.home);  // an ended block's shared memory is gone
  yield_to_scheduler();
}

// A spinning fibre looks once a round.
bool ready(const Fibre& fibre) {
  if (fibre.finished || (fibre.spins != nullptr && fibre.round == state.round)) return false;
  return fibre.waits_at == nullptr || fibre.waits_at->generation != fibre.waits_for;
}

struct Step {
  bool ran = false, progress = false;
};

// Run the ready fibres of a warp once, in the given order of lanes.
Step step_warp(const Warp& warp, const std::vector<unsigned>& lanes, std::size_t& left) {
  Step step;
  for (const unsigned lane : lanes) {
    if (lane >= warp.size || !ready(state.fibres[warp.first + lane])) continue;
    Fibre& fibre = state.fibres[warp.first + lane];
    current = &fibre;
    resume(&state.scheduler, &fibre.context);
    if (state.failed) return {};
    step.ran = true;
    step.progress |= !fibre.looked_in_vain;
    left -= fibre.finished;
  }
  return step;
}

constexpr unsigned kQuietRounds = 4;  // in which nobody moves, and only then nobody ever will

// Run all resident blocks to their end.
void run_resident(unsigned how) {
  std::vector<Warp*> all;
  const std::size_t last = state.launch.seed % state.blocks.size();
  std::vector<bool> lags;
  for (const auto& block : state.blocks)
    for (Warp& warp : block->warps) {
      all.push_back(&warp);
      lags.push_back(how == kLagging && block == state.blocks[last]);
    }
  std::vector<unsigned> warps(all.size()), lanes(kWarpLanes);
  unsigned quiet = 0;
  bool stuck = false;  // all but the block that lags
  for (std::size_t left = state.fibres.size(); left > 0 && !state.failed;) {
    ++state.round;
    arrange(warps, how);
    bool progress = false, spinning = false;
    for (const unsigned warp : warps) {
      if (lags[warp] && !stuck) continue;
      arrange(lanes, how);
      for (Step step; (step = step_warp(*all[warp], lanes, left)).ran;) {
        progress |= step.progress;
        spinning |= !step.progress;
        if (how == kRandom && next_random() % 4 == 0) break;
      }
      if (state.failed) return;
    }
    if (!progress && land_next()) continue;
    const bool all_ran = how != kLagging || stuck;
    stuck = !progress;
    if (!all_ran) continue;
    quiet = progress ? 0 : quiet + 1;
    if (how == kRandom && next_random() % 4 == 0) land_next();
    if (!progress && (!spinning || quiet >= kQuietRounds)) report_hang();
  }
}

}  // namespace
}  // namespace machine
