// Who holds what: a place tells a thread which packs of a [outer, hidden, inner] tensor are its own, and adds
// a number over all threads that share a row.
//
//   LaneRow     1..32 lanes of a warp per row      rows: inner = 1, packs run along hidden
//   BlockRow    one block per row                  rows
//   ClusterRow  kBlocks blocks per row (sm_90+)    rows
//   ColumnTile  kColumns packs of rows per block   columns: inner >= 1, packs run along inner
//
// Every place has kItems packs per thread (the loop bound when the row is held in registers), items() (how many
// it really needs for this hidden), at(item), sum<kPhase>(statistic) and finish(). No thread ever leaves early:
// all 32 lanes take part in every shuffle. Sums use one buffer per phase, so that one barrier is enough.
#pragma once
#include "elementwise.cuh"

constexpr int kPhases = 2;  // mean, variance

// A pack of a row-layout tensor: kPack neighbours along hidden.
template <int kPack>
struct RowPosition {
  int item;
  long long row;
  int hidden;
  int channel;
  bool inside;
  bool writes = true;

  ONEKERNEL_DEVICE long long offset() const { return row * hidden + channel; }
  template <class T>
  ONEKERNEL_DEVICE Pack<kPack> load(const T* full) const {
    return inside ? load_pack<kPack>(full + offset()) : Pack<kPack>{};
  }
  template <class T>
  ONEKERNEL_DEVICE Pack<kPack> load_channel(const T* vector) const {
    return inside ? load_pack<kPack>(vector + channel) : Pack<kPack>{};
  }
  template <class T>
  ONEKERNEL_DEVICE float load_row(const T* column) const {
    return inside ? to_float(column[row]) : 0.0f;
  }
  template <class T>
  ONEKERNEL_DEVICE float load_scalar(const T* one) const {
    return to_float(*one);
  }
  template <class T>
  ONEKERNEL_DEVICE void store(T* full, const Pack<kPack>& value) const {
    if (inside && writes) store_pack(full + offset(), value);
  }
};

// A pack of a column-layout tensor: kPack neighbours along inner, that is kPack rows.
template <int kPack>
struct ColumnPosition {
  int item;
  long long outer;
  int hidden, inner;
  int channel, column;
  bool inside;
  bool writes = true;

  ONEKERNEL_DEVICE long long offset() const { return (outer * hidden + channel) * inner + column; }
  template <class T>
  ONEKERNEL_DEVICE Pack<kPack> load(const T* full) const {
    return inside ? load_pack<kPack>(full + offset()) : Pack<kPack>{};
  }
  template <class T>
  ONEKERNEL_DEVICE float load_channel(const T* vector) const {
    return inside ? to_float(vector[channel]) : 0.0f;
  }
  template <class T>
  ONEKERNEL_DEVICE Pack<kPack> load_row(const T* rows) const {
    return inside ? load_pack<kPack>(rows + outer * inner + column) : Pack<kPack>{};
  }
  template <class T>
  ONEKERNEL_DEVICE float load_scalar(const T* one) const {
    return to_float(*one);
  }
  template <class T>
  ONEKERNEL_DEVICE void store(T* full, const Pack<kPack>& value) const {
    if (inside && writes) store_pack(full + offset(), value);
  }
};

template <int N>
ONEKERNEL_DEVICE float horizontal_sum(const Pack<N>& pack) {
  float total = pack.at[0];
#pragma unroll
  for (int i = 1; i < N; ++i) total += pack.at[i];
  return total;
}

// Sum over the lanes whose index differs in bits [kFirst, kLast); all of them get it.
template <int kFirst, int kLast>
ONEKERNEL_DEVICE float lane_sum(float value) {
#pragma unroll
  for (int mask = kFirst; mask < kLast; mask *= 2) value += shuffle_xor(value, mask);
  return value;
}

template <int kItemsPerThread, int kPack, int kLanes>
struct LaneRow {
  static_assert(kLanes >= 1 && kLanes <= kWarpLanes && (kLanes & (kLanes - 1)) == 0, "lanes of one warp");
  static constexpr int kItems = kItemsPerThread;
  using Item = Pack<kPack>;
  using Statistic = float;

  long long row;
  int rows, hidden, lane;

  ONEKERNEL_DEVICE LaneRow(int outer, int hidden_, int /*inner*/) : rows(outer), hidden(hidden_) {
    const long long thread = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    row = thread / kLanes;
    lane = threadIdx.x % kLanes;
  }
  ONEKERNEL_DEVICE int items() const { return (hidden + kLanes * kPack - 1) / (kLanes * kPack); }
  ONEKERNEL_DEVICE RowPosition<kPack> at(int item) const {
    const int channel = (item * kLanes + lane) * kPack;
    const bool owned = row < rows;  // the last warp may have rows too many: it loads the last row again
    return {item, owned ? row : rows - 1LL, hidden, channel, channel < hidden, owned};
  }
  ONEKERNEL_DEVICE static float fold(const Item& pack) { return horizontal_sum(pack); }
  template <int kPhase>
  ONEKERNEL_DEVICE float sum(float value) const {
    return lane_sum<1, kLanes>(value);
  }
  ONEKERNEL_DEVICE void finish() const {}
};

template <int kItemsPerThread, int kPack, int kThreads>
struct BlockRow {
  static_assert((kThreads & (kThreads - 1)) == 0 && kThreads >= kWarpLanes && kThreads <= 1024, "2^n whole warps");
  static constexpr int kItems = kItemsPerThread;
  static constexpr int kWarps = kThreads / kWarpLanes;
  using Item = Pack<kPack>;
  using Statistic = float;
  struct Storage {
    float partial[kPhases][kWarps];
  };

  int hidden;

  ONEKERNEL_DEVICE BlockRow(int /*outer*/, int hidden_, int /*inner*/) : hidden(hidden_) {}
  ONEKERNEL_DEVICE int items() const { return (hidden + kThreads * kPack - 1) / (kThreads * kPack); }
  ONEKERNEL_DEVICE RowPosition<kPack> at(int item) const {
    const int channel = (item * kThreads + static_cast<int>(threadIdx.x)) * kPack;
    return {item, static_cast<long long>(blockIdx.x), hidden, channel, channel < hidden};
  }
  ONEKERNEL_DEVICE static float fold(const Item& pack) { return horizontal_sum(pack); }
  template <int kPhase>
  ONEKERNEL_DEVICE float sum(float value) const {
    float* partial = shared_storage<Storage>().partial[kPhase];
    const int warp = threadIdx.x / kWarpLanes, lane = threadIdx.x % kWarpLanes;
    value = lane_sum<1, kWarpLanes>(value);
    if (lane == 0) partial[warp] = value;
    block_barrier();
    return lane_sum<1, kWarps>(partial[lane % kWarps]);
  }
  ONEKERNEL_DEVICE void finish() const {}
};

template <int kItemsPerThread, int kPack, int kThreads, int kBlocks>
struct ClusterRow {
  static_assert(kThreads % kWarpLanes == 0 && kThreads <= 1024, "whole warps");
  static constexpr int kItems = kItemsPerThread;
  static constexpr int kWarps = kThreads / kWarpLanes;
  using Item = Pack<kPack>;
  using Statistic = float;
  struct Storage {
    float partial[kPhases][kWarps];
  };

  int hidden, rank;

  ONEKERNEL_DEVICE ClusterRow(int /*outer*/, int hidden_, int /*inner*/) : hidden(hidden_), rank(cluster_rank()) {}
  ONEKERNEL_DEVICE int items() const {
    return (hidden + kBlocks * kThreads * kPack - 1) / (kBlocks * kThreads * kPack);
  }
  ONEKERNEL_DEVICE RowPosition<kPack> at(int item) const {
    const int thread = rank * kThreads + static_cast<int>(threadIdx.x);
    const int channel = (item * kBlocks * kThreads + thread) * kPack;
    return {item, static_cast<long long>(blockIdx.x / kBlocks), hidden, channel, channel < hidden};
  }
  ONEKERNEL_DEVICE static float fold(const Item& pack) { return horizontal_sum(pack); }
  template <int kPhase>
  ONEKERNEL_DEVICE float sum(float value) const {
    float* partial = shared_storage<Storage>().partial[kPhase];
    const int warp = threadIdx.x / kWarpLanes, lane = threadIdx.x % kWarpLanes;
    value = lane_sum<1, kWarpLanes>(value);
    if (lane == 0) partial[warp] = value;
    cluster_barrier();
    float total = 0.0f;  // lane i adds the partial sums i, i + 32, ... of all blocks
#pragma unroll
    for (int i = 0; i < (kBlocks * kWarps + kWarpLanes - 1) / kWarpLanes; ++i) {
      const int index = i * kWarpLanes + lane;
      if (index < kBlocks * kWarps) total += load_remote(partial + index % kWarps, index / kWarps);
    }
    return lane_sum<1, kWarpLanes>(total);
  }
  // A block must not end while another may still read its shared memory.
  ONEKERNEL_DEVICE void finish() const { cluster_barrier(); }
};

template <int kItemsPerThread, int kPack, int kColumns, int kGroups>
struct ColumnTile {
  static_assert((kColumns & (kColumns - 1)) == 0 && kColumns <= kWarpLanes, "columns of one warp");
  static_assert(kColumns * kGroups % kWarpLanes == 0 && kColumns * kGroups <= 1024, "whole warps");
  static constexpr int kItems = kItemsPerThread;
  static constexpr int kWarps = kColumns * kGroups / kWarpLanes;
  using Item = Pack<kPack>;
  using Statistic = Pack<kPack>;
  struct Storage {
    Statistic partial[kPhases][kWarps][kColumns];
  };

  long long outer;
  int hidden, inner, column, group;

  ONEKERNEL_DEVICE ColumnTile(int /*outer*/, int hidden_, int inner_) : hidden(hidden_), inner(inner_) {
    const int tiles = (inner + kColumns * kPack - 1) / (kColumns * kPack);
    const int blocks = gridDim.x;
    outer = tiles == blocks ? 0 : blockIdx.x / tiles;  // a batch of one needs no division
    column = ((static_cast<int>(blockIdx.x) - static_cast<int>(outer) * tiles) * kColumns +
              static_cast<int>(threadIdx.x) % kColumns) *
             kPack;
    group = threadIdx.x / kColumns;
  }
  ONEKERNEL_DEVICE int items() const { return (hidden + kGroups - 1) / kGroups; }
  ONEKERNEL_DEVICE ColumnPosition<kPack> at(int item) const {
    const int channel = item * kGroups + group;
    return {item, outer, hidden, inner, channel, column, channel < hidden && column < inner};
  }
  ONEKERNEL_DEVICE static Statistic fold(const Item& pack) { return pack; }
  template <int kPhase>
  ONEKERNEL_DEVICE Statistic sum(Statistic value) const {
    auto& partial = shared_storage<Storage>().partial[kPhase];
    const int warp = threadIdx.x / kWarpLanes, lane = threadIdx.x % kWarpLanes;
#pragma unroll
    for (int i = 0; i < kPack; ++i) value.at[i] = lane_sum<kColumns, kWarpLanes>(value.at[i]);
    if (lane < kColumns) partial[warp][lane] = value;
    block_barrier();
    Statistic total = partial[0][lane % kColumns];
#pragma unroll
    for (int i = 1; i < kWarps; ++i) total = each<op::add>(total, partial[i][lane % kColumns]);
    return total;
  }
  ONEKERNEL_DEVICE void finish() const {}
};
