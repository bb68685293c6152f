// What becomes of rows of many sessions, and the residual streams: whoever makes the rows of a stream keeps them.
#pragma once
#include "phases/sample.cuh"
#include "phases/sessions/project.cuh"

// What the host says of a session, in words of eight bytes.
struct Session {
  void* cache;
  int* said;          // from the first frame of the launch on, 16 codes each
  const float* text;  // rows, the last again and again
  const float* options;
  int* request;  // as in phases/sample.cuh
  long long position;
  long long text_rows;
  long long present;  // 0: a place that no session has

  ONEKERNEL_DEVICE int position_at(int step) const { return static_cast<int>(position) + step; }
};

// ---- finishing rows of a session, of which eight lanes have a tile; whole warps do, some lanes are not `inside`

template <int kRows>
struct PublishRows {
  const Exchange& exchange;
  const float* bias;  // or none

  ONEKERNEL_DEVICE void prefetch(int, bool) {}
  ONEKERNEL_DEVICE float prepared(float value) const { return value; }
  ONEKERNEL_DEVICE void operator()(int session, int row, float value, bool inside) const {
    if (inside) exchange.publish(session * kRows + row, bias != nullptr ? value + bias[row] : value);
  }
};

// Results of pairs of rows, to vectors V.
template <class V, class T>
struct PublishGates {
  const Exchange& exchange;

  ONEKERNEL_DEVICE void prefetch(int, bool) {}
  ONEKERNEL_DEVICE float prepared(float value) const { return exchanged(silu(value) * shuffle_xor(value, 1)); }
  ONEKERNEL_DEVICE void operator()(int session, int row, float gated, bool inside) const {
    const float next = shuffle_xor(gated, 2);
    if (inside && lane_index() % 4 == 0) V::template publish<T>(exchange, session, row / 2, gated, next);
  }
};

// Add to the stream, and publish it under the weights of the norm that comes next.
template <class M, class V, class T, class Stream>
struct AddToStream {
  const Exchange& exchange;
  Stream& stream;
  const float* weights;
  bool heard;
  float weight = 0.0f;

  // Before there is anything to finish: a thread has one row of a group.
  ONEKERNEL_DEVICE void prefetch(int row, bool inside) {
    static_assert(8 * M::kTiles * V::kOctet <= kWorkers, "one row");
    if (heard && inside) weight = weights[row];
  }
  ONEKERNEL_DEVICE float prepared(float value) const { return value; }
  ONEKERNEL_DEVICE void operator()(int session, int row, float value, bool inside) const {
    float sum = 0.0f;
    if (inside) {
      float& its = stream.at[session][row % Stream::kRows];
      sum = its = its + exchanged(value);
    }
    if (heard) V::template publish_normed<T>(exchange, session, row, sum, weight, inside);
  }
};

// The rows of a stream that a block keeps: those that matrix M makes.
template <class M, int kSessions>
struct KeptRows {
  static constexpr int kRows = M::kBlockRows;
  float at[kSessions][kRows];
};

// Begin a stream: `make` gives a row of a session.
template <class M, class V, class T, class Stream, class Make>
ONEKERNEL_DEVICE void begin_stream(Stream& stream, const Exchange& exchange, const float* weights, Make make) {
  using Task = RowTask<M::kGroups * M::kTiles, V::kSessions>;
  workers_barrier();  // other threads may still add to what the stream was before
  for_rows<Task>([&](const Task& task, int) {
    const int of_block = 8 * task.tile + task.of_tile, row = blockIdx.x * M::kBlockRows + of_block;
    const bool inside = task.inside && row < M::kRows;
    float value = 0.0f, weight = 0.0f;
    if (inside) {
      weight = weights[row];
      value = make(task.session, of_block, row);
      stream.at[task.session][of_block] = value;
    }
    V::template publish_normed<T>(exchange, task.session, row, value, weight, inside);
  });
}

// Await a number of an exchange, by any threads.
ONEKERNEL_DEVICE float await_one(const Exchange& exchange, int place) {
  const unsigned parity = exchange.parity();
  unsigned found = 0, looks = exchange.mail.lost > 0 ? kMostLooks : 0;
  spin_until(
      [&] {
        found = load_relaxed<1>(exchange.words() + place).at[0];
        if ((found & 1u) == parity) return true;
        if (++looks > kMostLooks) exchange.lose(place);
        return looks > kMostLooks;
      },
      "rows of other blocks");
  return bits_float(found & ~1u);
}

// ---- codes: the first blocks draw for a session each, and all get to know what was drawn

template <int kSessions>
struct SpokenMemory {
  int codes[kSessions][16], frames[kSessions];  // said before this step

  ONEKERNEL_DEVICE void load(const Session* sessions) {
    for (int i = threadIdx.x; i < 16 * kSessions; i += kWorkers)
      codes[i / 16][i % 16] = sessions[i / 16].request[kRequestHead + i % 16];
    if (threadIdx.x < kSessions) frames[threadIdx.x] = sessions[threadIdx.x].request[2];
  }
};

// Give the code that this block drew, and take those of all sessions.
template <int kSessions>
ONEKERNEL_DEVICE void tell_codes(SpokenMemory<kSessions>& spoken, const Exchange& chosen, int place, int code) {
  const float quad[4] = {bits_float(static_cast<unsigned>(code) << 1)};  // past the tag
  if (threadIdx.x == 0 && static_cast<int>(blockIdx.x) < kSessions) chosen.publish(4 * blockIdx.x, quad);
  if (warp_index() == 0) {
    const bool mine = lane_index() < kSessions;
    float found[1][4];
    chosen.await(4 * lane_index(), 0, mine ? 1 : 0, found);
    if (mine) spoken.codes[lane_index()][place] = static_cast<int>(float_bits(found[0][0]) >> 1);
  }
  chosen.end_use();
  workers_barrier();
}
