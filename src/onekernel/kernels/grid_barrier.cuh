// A barrier for all threads of all blocks, for cooperative launches: only then are all blocks there to arrive.
#pragma once
#include "primitives/atomic.cuh"
#include "primitives/wait.cuh"

// `word` is one int in global memory that nothing else uses; zero before its first use, then never reset. Its highest
// bit flips when the last block arrives: block 0 adds what is missing to 2^31 once all others have added 1. (The scheme
// of cooperative groups' grid.sync, here with release and acquire instead of fences.)
ONEKERNEL_DEVICE void grid_barrier(int* word) {
  constexpr unsigned kFlip = 0x80000000u;
  auto* count = reinterpret_cast<unsigned*>(word);
  block_barrier();
  if (threadIdx.x + threadIdx.y + threadIdx.z == 0) {
    const unsigned others = gridDim.x * gridDim.y * gridDim.z - 1;
    const bool first = blockIdx.x + blockIdx.y + blockIdx.z == 0;
    const unsigned before = add_release(count, first ? kFlip - others : 1u);
    spin_until([&] { return ((load_acquire(count) ^ before) & kFlip) != 0; }, "all blocks at the grid barrier");
  }
  block_barrier();
}
