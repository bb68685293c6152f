// What becomes of rows of many sessions, and the residual streams: whoever makes the rows of a stream keeps them.
#pragma once
#include "phases/sample.cuh"
#include "phases/sessions/multiply.cuh"

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

// ---- finishing eight rows of a session

template <int kRows>
struct PublishRows {
  const Exchange& exchange;
  const float* bias;  // or none

  ONEKERNEL_DEVICE void operator()(int session, int row, const float (&values)[8]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float quad[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int at = 4 * half + k;
        quad[k] = bias != nullptr ? values[at] + bias[row + at] : values[at];
      }
      exchange.publish(session * kRows + row + 4 * half, quad);
    }
  }
};

// Four results of pairs of rows, to vectors V.
template <class V, class T>
struct PublishGates {
  const Exchange& exchange;

  ONEKERNEL_DEVICE void operator()(int session, int row, const float (&values)[8]) const {
    float gated[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) gated[k] = exchanged(silu(values[2 * k]) * values[2 * k + 1]);
    V::template publish<T>(exchange, session, row / 2, gated);
  }
};

// Add to the stream, and publish it under the weights of the norm that comes next.
template <class V, class T, class Stream>
struct AddToStream {
  const Exchange& exchange;
  Stream& stream;
  const float* weight;
  bool heard;

  ONEKERNEL_DEVICE void operator()(int session, int row, const float (&values)[8]) const {
    float (&its)[8] = stream.at[session][row / 8 % Stream::kTiles];
    float sum[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] = its[i] = its[i] + exchanged(values[i]);
    if (heard) V::template publish_normed<T>(exchange, session, row, sum, weight);
  }
};

// The rows of a stream that a block keeps: those that matrix M makes.
template <class M, int kSessions>
struct KeptRows {
  static constexpr int kTiles = M::kTiles;
  static_assert(M::kGroups == 1, "a group of rows");
  alignas(16) float at[kSessions][kTiles][8];
};

// Begin a stream: `make` gives eight of its rows for a session.
template <class M, class V, class T, class Stream, class Make>
ONEKERNEL_DEVICE void begin_stream(Stream& stream, const Exchange& exchange, const float* weight, Make make) {
#pragma unroll 1
  for (int task = threadIdx.x; task < M::kTiles * V::kSessions; task += kWorkers) {
    const int session = task % V::kSessions, tile = task / V::kSessions;
    const int row = blockIdx.x * M::kGroupRows + 8 * tile;
    if (row >= M::kRows) continue;
    float values[8] = {};
    make(session, tile, row, values);
#pragma unroll
    for (int i = 0; i < 8; ++i) stream.at[session][tile][i] = values[i];
    V::template publish_normed<T>(exchange, session, row, values, weight);
  }
}

// Add eight neighbours of a row of a table.
template <class T>
ONEKERNEL_DEVICE void add_eight(const T* from, float (&values)[8]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const auto quad = load_vector<4>(from + 4 * half);
#pragma unroll
    for (int k = 0; k < 4; ++k) values[4 * half + k] += to_float(quad.at[k]);
  }
}

// Await eight rows of a session of an exchange of kRows each.
template <int kRows>
ONEKERNEL_DEVICE void await_eight(const Exchange& exchange, int session, int row, float (&values)[8]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const unsigned* words = exchange.words() + session * kRows + row + 4 * half;
    const unsigned parity = exchange.parity();
    Vector<unsigned, 4> quad;
    unsigned looks = exchange.mail.lost > 0 ? kMostLooks : 0;
    spin_until(
        [&] {
          quad = load_relaxed<4>(words);
          const unsigned all = quad.at[0] & quad.at[1] & quad.at[2] & quad.at[3];
          const unsigned any = quad.at[0] | quad.at[1] | quad.at[2] | quad.at[3];
          if (((parity ? ~all : any) & 1u) == 0) return true;
          if (++looks > kMostLooks) exchange.lose(session * kRows + row + 4 * half);
          return looks > kMostLooks;
        },
        "rows of other blocks");
#pragma unroll
    for (int k = 0; k < 4; ++k) values[4 * half + k] = bits_float(quad.at[k] & ~1u);
  }
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
