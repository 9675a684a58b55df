// C = A · B with a thread for each element of C, which reads its row of A from the rank that owns it.
//
// A block computes tiles of kTileRows x kTileColumns elements; a warp computes half a row of one. Its loads
// of A are broadcasts, its loads of B neighbours, and the warps of a block share rows of B through L1. Every
// element of a row crosses the link once for each tile of the row. A thread loads 128 bytes of its row at a
// time, so that many values of k share one link latency.

#include <cstdint>

#include "lane.cuh"
#include "vector.cuh"

namespace warpweave {

constexpr uint32_t kTileRows = 8;
constexpr uint32_t kTileColumns = 64;
constexpr uint32_t kThreads = kTileRows * kTileColumns;
constexpr int kPackets = 8;

// `crates/kernels/src/cuda/parameters.rs` has the same layout.
struct NaiveRemoteRead {
  const uint64_t* a_peers;
  const void* b;
  void* c;
  PadView pad;
  uint32_t m, n, k;
  uint32_t ready, done;
  uint32_t reserved;
};
static_assert(sizeof(NaiveRemoteRead) == 128, "as in Rust");

// One element of C.
template <typename T>
__device__ __forceinline__ float dot(const T* a, const T* b, uint32_t n, uint32_t k, bool packed) {
  constexpr int kPacket = Packet<T>::count;
  float sum = 0.0f;
  uint32_t i = 0;
  if (packed) {
#pragma unroll 1
    for (; i + kPackets * kPacket <= k; i += kPackets * kPacket) {
      Packet<T> row[kPackets];
#pragma unroll
      for (int p = 0; p < kPackets; ++p) row[p] = reinterpret_cast<const Packet<T>*>(a + i)[p];
#pragma unroll
      for (int p = 0; p < kPackets; ++p) {
#pragma unroll
        for (int e = 0; e < kPacket; ++e, b += n) sum = fmaf(widen(row[p].element[e]), widen(*b), sum);
      }
    }
  }
  constexpr int kElements = 16;
#pragma unroll 1
  for (; i + kElements <= k; i += kElements) {
    T row[kElements];
#pragma unroll
    for (int e = 0; e < kElements; ++e) row[e] = a[i + e];
#pragma unroll
    for (int e = 0; e < kElements; ++e, b += n) sum = fmaf(widen(row[e]), widen(*b), sum);
  }
#pragma unroll 1
  for (; i < k; ++i, b += n) sum = fmaf(widen(a[i]), widen(*b), sum);
  return sum;
}

template <typename T>
__device__ __forceinline__ void naive_remote_read(const NaiveRemoteRead& p) {
  const PadView& pad = p.pad;
  __shared__ bool here;
  const bool leader = threadIdx.x == 0;

  // The first blocks open the lanes.
  for (uint32_t lane = blockIdx.x; lane < pad.world; lane += gridDim.x) {
    if (leader && lane > 0) signal_peer(pad, p.ready, lane_owner(pad, lane));
  }

  const uint32_t tile_columns = (p.n + kTileColumns - 1) / kTileColumns;
  uint32_t tile = blockIdx.x;  // among the tiles of this lane and the next ones
  for (uint32_t lane = 0; lane < pad.world; ++lane) {
    const uint32_t owner = lane_owner(pad, lane);
    const Rows rows = shard(p.m, owner, pad.world);
    // A lane without elements has one empty tile: its owner waits for the signal all the same.
    const uint32_t tiles = max(1u, (rows.count + kTileRows - 1) / kTileRows * tile_columns);
    if (tile >= tiles) {
      tile -= tiles;
      continue;
    }
    const T* shard_of_a = entry<const T>(p.a_peers, owner);
    const bool packed = (reinterpret_cast<uintptr_t>(shard_of_a) | p.k * sizeof(T)) % 16 == 0;
    uint32_t epoch = 0;
    if (leader) {
      epoch = lane > 0 ? next_epoch(pad, p.ready, owner) : 0;
      here = lane == 0 || wait_epoch(pad, p.ready, owner, epoch);
    }
    __syncthreads();
    for (; tile < tiles; tile += gridDim.x) {
      const uint32_t row =
          tile_columns == 0 ? rows.count : tile / tile_columns * kTileRows + threadIdx.x / kTileColumns;
      const uint32_t column =
          tile_columns == 0 ? p.n : tile % tile_columns * kTileColumns + threadIdx.x % kTileColumns;
      if (here && row < rows.count && column < p.n) {
        const T* a = shard_of_a + size_t(row) * p.k;
        const float sum = dot(a, static_cast<const T*>(p.b) + column, p.n, p.k, packed);
        static_cast<T*>(p.c)[size_t(rows.first + row) * p.n + column] = round_to<T>(sum);
      }
    }
    tile -= tiles;
    __syncthreads();
    // Tiles are dealt to blocks round robin: this many blocks take a ticket.
    if (leader && lane > 0 && take_last_ticket(pad, p.ready, owner, min(tiles, gridDim.x))) {
      signal_peer(pad, p.done, owner);
      advance_expected(pad, p.ready, owner, epoch);
    }
  }

  // The blocks that opened a lane wait until it is closed: A may be overwritten when the grid has ended.
  for (uint32_t lane = blockIdx.x; lane < pad.world; lane += gridDim.x) {
    if (leader && lane > 0) wait_peer(pad, p.done, lane_owner(pad, lane));
  }
}

}  // namespace warpweave

#define WARPWEAVE_KERNEL(name, type)                                                   \
  extern "C" __global__ void __launch_bounds__(warpweave::kThreads, 2)                 \
      naive_remote_read_##name(const __grid_constant__ warpweave::NaiveRemoteRead p) { \
    warpweave::naive_remote_read<type>(p);                                             \
  }

WARPWEAVE_KERNEL(f32, float)
WARPWEAVE_KERNEL(f16, __half)
WARPWEAVE_KERNEL(bf16, __nv_bfloat16)
