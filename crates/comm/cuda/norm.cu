// Residual addition and RMSNorm of rows: by itself, and after an all-reduce by packets, in one launch.
//
// A thread sends the units of its rows as four packets each, and receives those of the same units from the
// peers. So what a row needs arrives where the row is computed, and the sum of the ranks never goes to
// memory. It reads a unit of the input before it writes that unit of a result, so results may take the
// input's place.

#include "norm.cuh"
#include "packet.cuh"
#include "warpweave/dependent.cuh"

namespace {

using warpweave::for_units;
using warpweave::kLocalThreads;
using warpweave::kNormThreads;
using warpweave::kUnitWords;
using warpweave::norm_row;
using warpweave::Packets;
using warpweave::RowCluster;
using warpweave::RowNorm;
using warpweave::RowSums;
using warpweave::Sections;
using warpweave::Units;

// The layout of `ReducedNorm` in `norm/launch.rs`.
struct ReducedNorm {
  Packets packets;  // chunk: bytes of the units of the rows that a rank reduces
  RowNorm norm;
  uint32_t chunk;  // rows that a rank reduces, in two shots
  uint32_t reserved;
};
static_assert(sizeof(ReducedNorm) == sizeof(Packets) + 80, "as in Rust");

constexpr uint32_t kUnitPackets = kUnitWords / 3;

// Not of the kernel that computes locally.
template <typename T, int W>
struct Thread {
  const ReducedNorm& p;
  const Sections sections;
  const Units<T> units;
  const uint32_t rank;
  const uint32_t world;
  const bool sound;  // neither this rank nor a peer had given up when the launch began

  __device__ __forceinline__ Thread(const ReducedNorm& p, bool failed)
      : p(p),
        sections(p.packets, epoch_of(p.packets.group)),
        units{p.norm},
        rank(p.packets.group.pad.rank),
        world(p.packets.group.pad.world),
        sound(!gives_up(p.packets, failed)) {}

  __device__ __forceinline__ uint32_t peer(uint32_t step) const {
    return rank + step < world ? rank + step : rank + step - world;
  }
  __device__ __forceinline__ void send(uint32_t peer, uint32_t packet,
                                       const uint32_t (&words)[kUnitWords]) const {
#pragma unroll
    for (uint32_t k = 0; k < kUnitPackets; ++k)
      sections.send(peer, packet + k, {words[3 * k], words[3 * k + 1], words[3 * k + 2]});
  }
  __device__ __forceinline__ void send_all(uint32_t packet, const uint32_t (&words)[kUnitWords]) const {
#pragma unroll
    for (int step = 1; step < W; ++step)
      if (step < world) send(peer(step), packet, words);
  }
  // Receives a unit of every peer and reduces them in the order of ranks, this rank's `own` in its place.
  __device__ __forceinline__ bool reduce(uint32_t packet, const uint32_t (&own)[kUnitWords],
                                         uint32_t (&sum)[kUnitWords]) const {
    // Polls at once as many packets as registers hold.
    constexpr uint32_t kBatch = W > 4 ? 2 : kUnitPackets;
#pragma unroll
    for (uint32_t first = 0; first < kUnitPackets; first += kBatch) {
      uint32_t data[kBatch * W][3];
      uint32_t missing = 0;
#pragma unroll
      for (uint32_t i = 0; i < kBatch * W; ++i)
        if (i % W < world && i % W != rank) missing |= 1u << i;
      const auto place = [&](uint32_t i) { return sections.at(rank, i % W, packet + first + i / W); };
      const auto source_of = [](uint32_t i) { return i % W; };
      if (!sections.template take<kBatch * W>(missing, data, place, source_of)) return false;
#pragma unroll
      for (uint32_t k = 0; k < kBatch; ++k) {
        const uint32_t at = 3 * (first + k);
        const uint32_t mine[3] = {own[at], own[at + 1], own[at + 2]};
        warpweave::Accumulator<T, 3> accumulator;
        accumulator.clear();
#pragma unroll
        for (int source = 0; source < W; ++source) {
          if (source == rank)
            accumulator.add(mine);
          else if (source < world)
            accumulator.add(data[k * W + source]);
        }
        uint32_t result[3];
        accumulator.pack(result);
        sum[at] = result[0], sum[at + 1] = result[1], sum[at + 2] = result[2];
      }
    }
    return true;
  }
  // Receives a unit from `source`.
  __device__ __forceinline__ bool receive(uint32_t source, uint32_t packet,
                                          uint32_t (&words)[kUnitWords]) const {
    uint32_t data[kUnitPackets][3];
    const auto place = [&](uint32_t k) { return sections.at(rank, source, packet + k); };
    if (!sections.template take<kUnitPackets>((1u << kUnitPackets) - 1, data, place,
                                              [&](uint32_t) { return source; }))
      return false;
#pragma unroll
    for (uint32_t w = 0; w < kUnitWords; ++w) words[w] = data[w / 3][w % 3];
    return true;
  }
  // Prepares the next launch, while packets are in flight. No block of the cluster reaches into another
  // before.
  __device__ __forceinline__ void prepare_next(const RowCluster& cluster, uint32_t used,
                                               uint32_t second) const {
    __syncthreads();
    warpweave::advance_epoch(p.packets.group, sections.epoch);
    sections.scrub(used, second);
    cluster.sync();
  }
};

// Every rank sends everything to all, reduces everything and computes all rows.
template <typename T, int W>
__device__ __forceinline__ void one_shot(const ReducedNorm& p) {
  __shared__ RowSums shared;
  // The loads overlap that of the epoch.
  const bool failed = warpweave::faulted(p.packets.group.pad);
  const Thread<T, W> t(p, failed);
  const RowCluster cluster(shared);
  const RowNorm& n = p.norm;
  const uint32_t units = t.units.count();
  for (uint32_t row = cluster.index; t.sound && row < n.rows; row += cluster.count) {
    for_units(cluster, units, [&](uint32_t unit) {
      uint32_t own[kUnitWords];
      t.units.load(own, t.units.row(n.input, row), unit);
      t.send_all(kUnitPackets * (row * units + unit), own);
    });
  }
  t.prepare_next(cluster, kUnitPackets * n.rows * units, 0);
  for (uint32_t row = cluster.index, iteration = 0; row < n.rows; row += cluster.count, ++iteration) {
    norm_row<T>(n, cluster, row, iteration, [&](uint32_t unit, uint32_t (&x)[kUnitWords]) {
      if (!t.sound) return false;
      uint32_t own[kUnitWords];
      t.units.load(own, t.units.row(n.input, row), unit);
      return t.reduce(kUnitPackets * (row * units + unit), own, x);
    });
  }
}

// Every rank reduces whole rows and sends the sums to all, in the second half of the sections. Then all
// compute all rows, their own first: the residual is every rank's.
template <typename T, int W>
__device__ __forceinline__ void two_shot(const ReducedNorm& p) {
  __shared__ RowSums shared;
  const bool failed = warpweave::faulted(p.packets.group.pad);
  const Thread<T, W> t(p, failed);
  const RowCluster cluster(shared);
  const RowNorm& n = p.norm;
  const uint32_t units = t.units.count(), middle = p.packets.capacity / 2;
  const uint32_t begin = min(t.rank * p.chunk, n.rows), end = min(begin + p.chunk, n.rows);
  // The rows of others, from those of the next rank on.
  const uint32_t others = n.rows - (end - begin);
  const auto row_of = [&](uint32_t other) {
    return end + other < n.rows ? end + other : end + other - n.rows;
  };
  // The first packet of a unit in the section of the rank that reduces it.
  const auto packet_of = [&](uint32_t row, uint32_t unit) {
    return kUnitPackets * (row % p.chunk * units + unit);
  };
  for (uint32_t i = cluster.index; t.sound && i < others; i += cluster.count) {
    const uint32_t row = row_of(i);
    for_units(cluster, units, [&](uint32_t unit) {
      uint32_t own[kUnitWords];
      t.units.load(own, t.units.row(n.input, row), unit);
      t.send(row / p.chunk, packet_of(row, unit), own);
    });
  }
  const uint32_t used = kUnitPackets * units * p.chunk;
  t.prepare_next(cluster, used, used);
  uint32_t iteration = 0;
  for (uint32_t row = begin + cluster.index; row < end; row += cluster.count, ++iteration) {
    norm_row<T>(n, cluster, row, iteration, [&](uint32_t unit, uint32_t (&x)[kUnitWords]) {
      if (!t.sound) return false;
      uint32_t own[kUnitWords];
      t.units.load(own, t.units.row(n.input, row), unit);
      const uint32_t packet = packet_of(row, unit);
      if (!t.reduce(packet, own, x)) return false;
      t.send_all(middle + packet, x);
      return true;
    });
  }
  for (uint32_t i = cluster.index; i < others; i += cluster.count, ++iteration) {
    const uint32_t row = row_of(i);
    norm_row<T>(n, cluster, row, iteration, [&](uint32_t unit, uint32_t (&x)[kUnitWords]) {
      return t.sound && t.receive(row / p.chunk, middle + packet_of(row, unit), x);
    });
  }
}

template <typename T>
__device__ __forceinline__ void local(const RowNorm& n) {
  __shared__ RowSums shared;
  const RowCluster cluster(shared);
  const Units<T> units{n};
  // All blocks of the cluster have begun.
  cluster.sync();
  for (uint32_t row = cluster.index, iteration = 0; row < n.rows; row += cluster.count, ++iteration) {
    norm_row<T>(n, cluster, row, iteration, [&](uint32_t unit, uint32_t (&x)[kUnitWords]) {
      units.load(x, units.row(n.input, row), unit);
      return true;
    });
  }
}

}  // namespace

#define KERNEL(name, Parameter, threads, body)                                                      \
  extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ Parameter p) { \
    warpweave::wait_for_prerequisites();                                                            \
    body(p);                                                                                        \
  }

#define FOR_WORLD(T, suffix, W)                                                            \
  KERNEL(packet_norm_one_shot_##suffix##_##W, ReducedNorm, kNormThreads, (one_shot<T, W>)) \
  KERNEL(packet_norm_two_shot_##suffix##_##W, ReducedNorm, kNormThreads, (two_shot<T, W>))

#define FOR_TYPE(T, suffix)                                         \
  KERNEL(add_rms_norm_##suffix, RowNorm, kLocalThreads, (local<T>)) \
  FOR_WORLD(T, suffix, 2)                                           \
  FOR_WORLD(T, suffix, 4)                                           \
  FOR_WORLD(T, suffix, 8)

FOR_TYPE(float, f32)
FOR_TYPE(__half, f16)
FOR_TYPE(__nv_bfloat16, bf16)
