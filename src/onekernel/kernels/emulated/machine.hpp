// The emulated machine as a kernel sees it: threads are fibres of one host thread, and they switch only where a
// real thread could wait (barriers, shuffles, spins). runtime.cpp implements it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

// Primitives are inlined whatever their size, so that an address in one leads to the line of the kernel that called it.
#define ONEKERNEL_PRIMITIVE inline __attribute__((always_inline))

namespace machine {

struct Index {
  unsigned x, y, z;
};

struct Thread {
  Index thread, block;
  bool may_access;  // global memory; false in an overlapping launch until the thread awaits the predecessor
};

extern Thread* current;
extern Index block_size, grid_size;

// ---- waiting
void block_barrier();
void named_barrier(int id, int threads);
void named_barrier_arrive(int id, int threads);
void cluster_barrier();
int cluster_rank();

// Operations of the lanes of a mask: each waits for the others. A value is replaced by that of the source lane.
void shuffle(unsigned lanes, void* value, std::size_t bytes, int source);
unsigned ballot(const char* operation, unsigned lanes, bool predicate);
void warp_barrier(unsigned lanes);
int lane_index();

// One look at a condition that did not hold; returns when it is worth another look.
void poll(const char* what);
void end_spin();

// ---- asynchronous copies
void copy_async(void* shared, const void* global, std::size_t bytes, bool at_once);
void copy_commit();
void copy_wait(unsigned groups);
void mbarrier_init(const void* barrier, int arrivals);
void mbarrier_arrive(const void* barrier, int bytes);
void mbarrier_wait(const void* barrier, int parity);
void copy_bulk(void* shared, const void* global, int bytes, const void* barrier);

// ---- matrices
struct Fragments {
  struct {
    unsigned a[4], b[2];
  } lane[32];
};
void gather_fragments(Fragments& all, const unsigned (&a)[4], const unsigned (&b)[2]);
void load_matrices(unsigned* result, int matrices, bool transposed, const void* row);

// ---- memory
void await_predecessor();  // it has ended, because launches are synchronous
void allow_access(bool may);
bool is_shared(const void* address);  // of the thread's own block
// This block's copy of a type's shared storage; filled with NaN when the block starts. `type` is an address that
// stands for the type.
void* shared_memory(const void* type, std::size_t bytes);
void* dynamic_memory();
// The same offset in the shared memory of another block of the cluster.
const void* remote_shared(const void* address, int rank);

enum class Word { load, store, update };  // how an atomic operation touches its word
enum class Ordering { relaxed, acquire, release };
void touch_word(const void* address, std::size_t bytes, Word how, Ordering ordering);
void copy_word(void* to, const void* from, std::size_t bytes);  // apart from what watches a kernel's own accesses

[[noreturn]] void fault(const char* message);
[[noreturn]] void misaligned(const void* address, std::size_t bytes);

template <class To, class From>
ONEKERNEL_PRIMITIVE To bits_as(From value) {
  static_assert(sizeof(To) == sizeof(From), "same size");
  To result;
  std::memcpy(&result, &value, sizeof(To));
  return result;
}

}  // namespace machine
