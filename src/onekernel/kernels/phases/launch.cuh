// A phase as a launch of its own. What blocks of a persistent kernel keep from phase to phase lies in global memory
// here: every block takes up what it needs, and one puts down what it made of it, where no block of its launch reads.
//
// Comes before the other phases, which have no tags then. A launch may begin while those before it run
// (programmatic dependent launch): before `wait` it loads weights, and what launches before its predecessor made.
#pragma once
#define ONEKERNEL_LAUNCHES
#include "phases/attend.cuh"
#include "phases/attend_alone.cuh"
#include "phases/choose.cuh"
#include "phases/sample.cuh"

// What changes from step to step: a launch begins it before the first of some steps, the last one of each counts on.
struct Step {
  int number, position, prompt_length, text_rows, chosen;

  ONEKERNEL_DEVICE void begin(int first, int prompted, int rows) {
    number = 0;
    position = first;
    prompt_length = prompted;
    text_rows = rows;
  }

  // By one thread, when nobody reads it any more.
  ONEKERNEL_DEVICE void advance() {
    ++number;
    ++position;
  }
};

// The launch before this one. Its successor may begin at once; or, if kSettles, not before all blocks stand behind the
// wait: then it finds all that launches before this one made.
template <bool kSettles>
struct Predecessor {
  static constexpr bool kOverlaps = kArchitecture >= 90;
  unsigned since = 0;

  ONEKERNEL_DEVICE Predecessor() {
    if constexpr (kOverlaps && !kSettles) start_successor();
  }
  ONEKERNEL_DEVICE void wait(unsigned = 0) {
    if constexpr (kOverlaps) await_predecessor();
    if constexpr (kOverlaps && kSettles) start_successor();
  }
  ONEKERNEL_DEVICE void lap(int) {}
};

// Take up the first kTaken vectors of a residual stream.
template <int kTaken, int kWidth, int kVectors>
ONEKERNEL_DEVICE void take_up(Residual<kWidth, kVectors>& stream, const float* from, bool owed) {
  using Place = Columns<kWidth>;
  const auto* words = reinterpret_cast<const unsigned*>(from) + Place::first();
  const int quads = Place::in_vector();
#pragma unroll
  for (int i = 0; i < kTaken * Place::kQuads; ++i) {
    const int vector = i / Place::kQuads, its = i % Place::kQuads;
    Vector<unsigned, 4> quad = {};
    if (its < quads) quad = load_relaxed<4>(words + vector * kWidth + 4 * kWarpLanes * its);
#pragma unroll
    for (int k = 0; k < 4; ++k) stream.at[i][k] = bits_float(quad.at[k]);
  }
  stream.owed = owed;
}

// Put them down, by the first block.
template <int kTaken, int kWidth, int kVectors>
ONEKERNEL_DEVICE void put_down(const Residual<kWidth, kVectors>& stream, float* to) {
  using Place = Columns<kWidth>;
  if (blockIdx.x != 0) return;
  const int quads = Place::in_vector();
#pragma unroll
  for (int i = 0; i < kTaken * Place::kQuads; ++i) {
    const int vector = i / Place::kQuads, its = i % Place::kQuads;
    if (its >= quads) continue;
    const float (&quad)[4] = stream.at[i];
    store_vector(to + vector * kWidth + Place::first() + 4 * kWarpLanes * its,
                 Vector<float, 4>{{quad[0], quad[1], quad[2], quad[3]}});
  }
}

// The keys and values of few positions, of a block.
template <class H, int kLayers, int kPositions>
struct FewKept {
  alignas(16) typename H::Kept keys[kLayers][kPositions][H::kHeadDim];
  alignas(16) typename AloneMemory<H, kPositions, 1>::Slice values[kLayers][kPositions];
};

// A number that may be read before the wait.
template <class T>
ONEKERNEL_DEVICE T early(const T* from) {
  return load_early<1>(from).at[0];
}

// What a request remembers, as SampleMemory::store has left it; this may come before the wait.
template <int kMostVocab>
ONEKERNEL_DEVICE void recall(SampleMemory<kMostVocab>& memory, const int* request, const float* asked) {
  const int i = threadIdx.x, *codes = request + kRequestHead, *seen = codes + 16;
  if (i < 2) memory.seed[i] = early(request + i);
  if (i < 8) memory.options[i / 4][i % 4] = early(asked + i);
  if (i < 16) memory.codes[i] = early(codes + i);
  for (int word = i; word < divide_up(kMostVocab, 32); word += kWorkers) memory.seen[word] = early(seen + word);
}

// What is multiplied, with what must be done behind the wait before it is awaited, and after.
template <class Input, class Before, class After>
struct Around {
  static constexpr bool kNormed = Input::kNormed;
  Input input;
  Before before;
  After after;

  ONEKERNEL_DEVICE void pass() {}  // a launch has no blocks without rows
  ONEKERNEL_DEVICE void prefetch() { input.prefetch(); }
  template <int kQuads>
  ONEKERNEL_DEVICE void await(float (&values)[kQuads][4], float (&squares)[kQuads]) {
    before();
    input.await(values, squares);
    after();
  }
  ONEKERNEL_DEVICE float factor(const float* squares) const { return input.factor(squares); }
};
template <class Input, class Before, class After>
ONEKERNEL_DEVICE Around<Input, Before, After> around(Input input, Before before, After after) {
  return {input, before, after};
}
