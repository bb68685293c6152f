// The weights of a block as one stream, packed in the order in which its warps use them (megakernel/pack.py).
//
// A fragment is 8 rows times 32 columns for the tensor cores, 16 bytes a lane. A chunk is up to four fragments for each
// warp. From sm_90 on a warp of its own copies chunks into a ring in shared memory and waits for nothing but free
// slots; before, each warp loads its own fragments, as early as its registers allow.
#pragma once
#include "phases/workers.cuh"
#include "primitives/tensor_core.cuh"

struct Fragment {  // of weights, two in a word
  unsigned at[4];
};

constexpr int kFragmentBytes = 16 * kWarpLanes;  // of a warp
constexpr int kChunk = 4;                        // fragments
constexpr int kSlotBytes = kChunk * kFragmentBytes * kWarps;

// The bytes of so many fragments for each warp.
constexpr long long stream_bytes(int fragments) { return 1ll * fragments * kFragmentBytes * kWarps; }

template <int kSlots>
struct alignas(128) Ring {
  unsigned char slot[kSlots][kSlotBytes];
  Mbarrier full[kSlots], empty[kSlots];

  // By all threads, before a block barrier.
  ONEKERNEL_DEVICE void open() {
    if (threadIdx.x != 0) return;
    for (int i = 0; i < kSlots; ++i) {
      mbarrier_init(full[i], 1);
      mbarrier_init(empty[i], kWarps);
    }
  }
};

// A place in the ring, and the parity of its round.
template <int kSlots>
struct Turn {
  int slot = 0, parity = 0;

  ONEKERNEL_DEVICE void next() {
    if (++slot == kSlots) {
      slot = 0;
      parity ^= 1;
    }
  }
};

// The part of a matrix that a block has; or other rows that it reads once, one behind the other.
struct Copy {
  bool here;
  int groups, bytes;  // of a group
};
template <class M>
ONEKERNEL_DEVICE Copy copy_of() {
  return {M::here(), M::kGroups, M::kFragments * kFragmentBytes * kWarps};
}

// The warp that copies; one lane of it does. More than kAhead chunks on their way, or all pieces of a chunk at once,
// would delay what blocks give to each other: pieces are kPace cycles apart.
template <int kSlots, int kAhead, int kPiece, int kPace>
struct Writer {
  static_assert(kAhead <= kSlots, "a slot is watched until its copy is there, not until it is copied into again");
  Ring<kSlots>& ring;
  Turn<kSlots> turn, oldest;
  int flying = 0;
  unsigned last = 0;
  unsigned long long once = evict_first();  // all else that a step reads shall stay in L2

  // Copy a matrix (phases/project.cuh), group by group; returns where the stream goes on.
  ONEKERNEL_DEVICE const unsigned char* put(const unsigned char* from, const Copy& copy) {
    if (copy.here)
#pragma unroll 1
      for (int group = 0; group < copy.groups; ++group)
#pragma unroll 1
        for (int at = 0; at < copy.bytes; at += kSlotBytes)
          put_chunk(from + 1ll * group * copy.bytes + at, copy.bytes - at < kSlotBytes ? copy.bytes - at : kSlotBytes);
    return from + 1ll * copy.groups * copy.bytes;
  }

  ONEKERNEL_DEVICE void put_chunk(const unsigned char* from, int bytes) {
    if (flying == kAhead) {
      mbarrier_wait(ring.full[oldest.slot], oldest.parity);
      oldest.next();
      --flying;
    }
    mbarrier_wait(ring.empty[turn.slot], turn.parity ^ 1);
    mbarrier_arrive_expecting(ring.full[turn.slot], bytes);
#pragma unroll 1
    for (int at = 0; at < bytes; at += kPiece) {
      let_pass(last, kPace);
      last = clock_ticks();
      const int piece = bytes - at < kPiece ? bytes - at : kPiece;
      copy_bulk_hinted(ring.slot[turn.slot] + at, from + at, piece, ring.full[turn.slot], once);
    }
    turn.next();
    ++flying;
  }
};

// A warp that computes, on a ring.
template <int kSlots>
struct RingReader {
  Ring<kSlots>& ring;
  Turn<kSlots> turn;

  ONEKERNEL_DEVICE void begin(const unsigned char*) {}  // the writer knows
  template <class M>
  ONEKERNEL_DEVICE void skip() {}

  template <int kFragments>
  ONEKERNEL_DEVICE void take(Fragment (&fragments)[kChunk]) {
    const auto* mine = open<unsigned char>(nullptr) + warp_index() * kFragments * kFragmentBytes + 16 * lane_index();
#pragma unroll
    for (int i = 0; i < kFragments; ++i) load_fragment(mine + i * kFragmentBytes, fragments[i]);
    close();
  }

  // Other rows, as many as fit into a slot: where they are, until `close`.
  template <class T>
  ONEKERNEL_DEVICE const T* open(const T*) {
    mbarrier_wait_together(ring.full[turn.slot], turn.parity);
    return reinterpret_cast<const T*>(ring.slot[turn.slot]);
  }
  ONEKERNEL_DEVICE void close() {
    warp_barrier();
    if (lane_index() == 0) mbarrier_arrive(ring.empty[turn.slot]);
    turn.next();
  }

  ONEKERNEL_DEVICE static void load_fragment(const unsigned char* from, Fragment& fragment) {
    const auto words = load_vector<4>(reinterpret_cast<const unsigned*>(from));
#pragma unroll
    for (int i = 0; i < 4; ++i) fragment.at[i] = words.at[i];
  }
};

// A warp that computes, without a ring.
struct DirectReader {
  const unsigned char* from = nullptr;

  ONEKERNEL_DEVICE void begin(const unsigned char* stream) { from = stream; }
  template <class M>
  ONEKERNEL_DEVICE void skip() {
    from += M::kGroups * stream_bytes(M::kFragments);
  }

  template <class T>
  ONEKERNEL_DEVICE const T* open(const T* rows) {
    return rows;
  }
  ONEKERNEL_DEVICE void close() {}

  template <int kFragments>
  ONEKERNEL_DEVICE void take(Fragment (&fragments)[kChunk]) {
    const int thread = fresh_thread_index();
    const auto* mine = from + thread / kWarpLanes * kFragments * kFragmentBytes + 16 * (thread % kWarpLanes);
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
      const auto words = load_early<4>(reinterpret_cast<const unsigned*>(mine + i * kFragmentBytes));
#pragma unroll
      for (int k = 0; k < 4; ++k) fragments[i].at[k] = words.at[k];
    }
    from += kFragments * kFragmentBytes * kWarps;
  }
};
