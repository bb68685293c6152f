// The emulated machine as a kernel sees it: threads are fibres of one host thread, and they switch only where a
// real thread could wait (barriers, shuffles). runtime.cpp implements it.
#pragma once
#include <cstddef>

namespace machine {

struct Index {
  unsigned x, y, z;
};

struct Thread {
  Index thread, block;
  bool may_access;  // memory; false in an overlapping launch until the thread awaits the predecessor
};

extern Thread* current;
extern Index block_size, grid_size;

void block_barrier();
void cluster_barrier();
int cluster_rank();
float shuffle_xor(float value, int lane_mask);

// This block's shared memory, `bytes` of it in use; filled with NaN when the block starts.
void* shared_memory(std::size_t bytes);
// The same offset in the shared memory of another block of the cluster.
const void* remote_shared(const void* address, int rank);

[[noreturn]] void fault(const char* message);

}  // namespace machine
