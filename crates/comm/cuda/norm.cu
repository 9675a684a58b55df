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

using warpweave::Exchanged;
using warpweave::for_units;
using warpweave::kLocalThreads;
using warpweave::kNormThreads;
using warpweave::kUnitWords;
using warpweave::norm_row;
using warpweave::Packets;
using warpweave::RowCluster;
using warpweave::RowNorm;
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

// Where the packets of a unit are in a section. The first packets of the units of a segment are neighbours,
// then come the second ones: what a warp sends or polls by one instruction is contiguous.
struct Places {
  uint32_t first;
  uint32_t stride;

  __device__ __forceinline__ Places(uint32_t units, uint32_t row, uint32_t unit)
      : first(kUnitPackets * (row * units + unit - unit % 32) + unit % 32),
        stride(min(32u, units - (unit - unit % 32))) {}

  __device__ __forceinline__ Places after(uint32_t packets) const {
    Places places = *this;
    places.first += packets;
    return places;
  }
  __device__ __forceinline__ uint32_t operator[](uint32_t packet) const { return first + packet * stride; }
};

// Not of the kernel that computes locally.
template <typename T, int W>
struct Thread {
  const ReducedNorm& p;
  const Sections sections;
  const Units<T> units;
  const uint32_t rank;
  const uint32_t world;

  __device__ __forceinline__ explicit Thread(const ReducedNorm& p)
      : p(p),
        sections(p.packets),
        units{p.norm},
        rank(p.packets.group.pad.rank),
        world(p.packets.group.pad.world) {}

  __device__ __forceinline__ uint32_t peer(uint32_t step) const {
    return rank + step < world ? rank + step : rank + step - world;
  }
  __device__ __forceinline__ void send(uint32_t peer, const Places& places,
                                       const uint32_t (&words)[kUnitWords]) const {
#pragma unroll
    for (uint32_t k = 0; k < kUnitPackets; ++k)
      sections.send(peer, places[k], {words[3 * k], words[3 * k + 1], words[3 * k + 2]});
  }
  __device__ __forceinline__ void send_all(const Places& places, const uint32_t (&words)[kUnitWords]) const {
#pragma unroll
    for (int step = 1; step < W; ++step)
      if (step < world) send(peer(step), places, words);
  }
  // Receives a unit of every peer and reduces them in the order of ranks, this rank's `own` in its place.
  __device__ __forceinline__ bool reduce(const Places& places, const uint32_t (&own)[kUnitWords],
                                         uint32_t (&sum)[kUnitWords]) const {
    constexpr uint32_t kBatch = warpweave::kUnrolled<W>;
    static_assert(kUnitPackets % kBatch == 0, "whole batches");
#pragma unroll
    for (uint32_t first = 0; first < kUnitPackets; first += kBatch) {
      uint32_t data[kBatch * W][3];
      uint32_t missing = 0;
#pragma unroll
      for (uint32_t i = 0; i < kBatch * W; ++i)
        if (i % W < world && i % W != rank) missing |= 1u << i;
      const auto place = [&](uint32_t i) { return sections.at(rank, i % W, places[first + i / W]); };
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
  __device__ __forceinline__ bool receive(uint32_t source, const Places& places,
                                          uint32_t (&words)[kUnitWords]) const {
    uint32_t data[kUnitPackets][3];
    const auto place = [&](uint32_t k) { return sections.at(rank, source, places[k]); };
    if (!sections.template take<kUnitPackets>((1u << kUnitPackets) - 1, data, place,
                                              [&](uint32_t) { return source; }))
      return false;
#pragma unroll
    for (uint32_t w = 0; w < kUnitWords; ++w) words[w] = data[w / 3][w % 3];
    return true;
  }
  // Prepares the next launch, while packets are in flight.
  __device__ __forceinline__ void prepare_next(uint32_t used, uint32_t second) const {
    __syncthreads();
    warpweave::advance_epoch(p.packets.group, sections.epoch);
    sections.scrub(used, second);
  }
};

// Every rank sends everything to all, reduces everything and computes all rows.
template <typename T, int W>
__device__ __forceinline__ void one_shot(const ReducedNorm& p) {
  __shared__ Exchanged shared;
  const Thread<T, W> t(p);
  RowCluster cluster(shared);
  const RowNorm& n = p.norm;
  const uint32_t units = t.units.count();
  for (uint32_t row = cluster.index; row < n.rows; row += cluster.count) {
    for_units(cluster, units, [&](uint32_t unit) {
      uint32_t own[kUnitWords];
      t.units.load(own, t.units.row(n.input, row), unit);
      if (t.sections.may_send(own)) t.send_all({units, row, unit}, own);
    });
  }
  const bool sound = !t.sections.gives_up();
  t.prepare_next(kUnitPackets * n.rows * units, 0);
  cluster.begin();
  for (uint32_t row = cluster.index; row < n.rows; row += cluster.count) {
    norm_row<T>(n, cluster, row, [&](uint32_t unit, uint32_t (&x)[kUnitWords]) {
      if (!sound) return false;
      uint32_t own[kUnitWords];
      t.units.load(own, t.units.row(n.input, row), unit);
      return t.reduce({units, row, unit}, own, x);
    });
  }
}

// Every rank reduces whole rows and sends the sums to all, in the second half of the sections. Then all
// compute all rows, their own first: the residual is every rank's.
template <typename T, int W>
__device__ __forceinline__ void two_shot(const ReducedNorm& p) {
  __shared__ Exchanged shared;
  const Thread<T, W> t(p);
  RowCluster cluster(shared);
  const RowNorm& n = p.norm;
  const uint32_t units = t.units.count(), middle = p.packets.capacity / 2;
  const uint32_t begin = min(t.rank * p.chunk, n.rows), end = min(begin + p.chunk, n.rows);
  // The rows of others, from those of the next rank on.
  const uint32_t others = n.rows - (end - begin);
  const auto row_of = [&](uint32_t other) {
    return end + other < n.rows ? end + other : end + other - n.rows;
  };
  // In the section of the rank that reduces the unit.
  const auto places = [&](uint32_t row, uint32_t unit) { return Places(units, row % p.chunk, unit); };
  for (uint32_t i = cluster.index; i < others; i += cluster.count) {
    const uint32_t row = row_of(i);
    for_units(cluster, units, [&](uint32_t unit) {
      uint32_t own[kUnitWords];
      t.units.load(own, t.units.row(n.input, row), unit);
      if (t.sections.may_send(own)) t.send(row / p.chunk, places(row, unit), own);
    });
  }
  const bool sound = !t.sections.gives_up();
  const uint32_t used = kUnitPackets * units * p.chunk;
  t.prepare_next(used, used);
  cluster.begin();
  for (uint32_t row = begin + cluster.index; row < end; row += cluster.count) {
    norm_row<T>(n, cluster, row, [&](uint32_t unit, uint32_t (&x)[kUnitWords]) {
      if (!sound) return false;
      uint32_t own[kUnitWords];
      t.units.load(own, t.units.row(n.input, row), unit);
      const Places at = places(row, unit);
      if (!t.reduce(at, own, x)) return false;
      t.send_all(at.after(middle), x);
      return true;
    });
  }
  for (uint32_t i = cluster.index; i < others; i += cluster.count) {
    const uint32_t row = row_of(i);
    norm_row<T>(n, cluster, row, [&](uint32_t unit, uint32_t (&x)[kUnitWords]) {
      return sound && t.receive(row / p.chunk, places(row, unit).after(middle), x);
    });
  }
}

template <typename T>
__device__ __forceinline__ void local(const RowNorm& n) {
  __shared__ Exchanged shared;
  RowCluster cluster(shared);
  const Units<T> units{n};
  cluster.begin();
  for (uint32_t row = cluster.index; row < n.rows; row += cluster.count) {
    norm_row<T>(n, cluster, row, [&](uint32_t unit, uint32_t (&x)[kUnitWords]) {
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

#define FOR_TYPE(T, suffix, W)                                                             \
  KERNEL(packet_norm_one_shot_##suffix##_##W, ReducedNorm, kNormThreads, (one_shot<T, W>)) \
  KERNEL(packet_norm_two_shot_##suffix##_##W, ReducedNorm, kNormThreads, (two_shot<T, W>))

#define FOR_WORLD(W)       \
  FOR_TYPE(float, f32, W)  \
  FOR_TYPE(__half, f16, W) \
  FOR_TYPE(__nv_bfloat16, bf16, W)

WARPWEAVE_WORLDS(FOR_WORLD)

KERNEL(add_rms_norm_f32, RowNorm, kLocalThreads, (local<float>))
KERNEL(add_rms_norm_f16, RowNorm, kLocalThreads, (local<__half>))
KERNEL(add_rms_norm_bf16, RowNorm, kLocalThreads, (local<__nv_bfloat16>))
