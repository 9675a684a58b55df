// Each owner stores its rows of A to all ranks' staging through the multicast address; without a GEMM, or
// followed by it. Staging is read only through this rank's own mapping: loads through the multicast address
// are undefined.

#include <cstdint>

#include "gather.cuh"
#include "lane.cuh"
#include "scalar_gemm.cuh"
#include "warpweave/dependent.cuh"
#include "warpweave/multimem.cuh"

namespace warpweave {

// `crates/kernels/src/cuda/parameters.rs` has the same layout.
struct MultimemGather {
  const uint64_t* staging_peers;
  void* multicast;
  const void* a;
  const void* staging;
  const void* b;
  void* c;
  PadView pad;
  uint32_t m, n, k;
  uint32_t element_size;
  uint32_t ready, free;
  uint32_t signal_free;
  uint32_t neighbours;  // rows of B and C are aligned to four elements
};
static_assert(sizeof(MultimemGather) == 160, "as in Rust");

// 16 bytes at an address that is aligned to elements only.
template <typename T>
__device__ __forceinline__ uint4 load_loose(const char* from) {
  union {
    uint4 packet;
    T element[16 / sizeof(T)];
  } v;
#pragma unroll
  for (int i = 0; i < int(16 / sizeof(T)); ++i) v.element[i] = reinterpret_cast<const T*>(from)[i];
  return v.packet;
}

// Stores this rank's rows to all ranks, with all threads of the grid. Where staging is not aligned to 16
// bytes, at either end, a packet would overwrite rows of other ranks: there elements go to one rank at a
// time.
template <typename T>
__device__ __forceinline__ void store_rows(const MultimemGather& p) {
  const PadView& pad = p.pad;
  const Rows rows = shard(p.m, pad.rank, pad.world);
  const size_t begin = size_t(rows.first) * p.k * sizeof(T), bytes = size_t(rows.count) * p.k * sizeof(T);
  char* to = static_cast<char*>(p.multicast) + begin;
  const char* from = static_cast<const char*>(p.a);
  const size_t head = min(bytes, size_t(-reinterpret_cast<uintptr_t>(to) & 15));
  const size_t packets = (bytes - head) / 16, tail = head + 16 * packets;
  const size_t thread = size_t(blockIdx.x) * blockDim.x + threadIdx.x,
               threads = size_t(gridDim.x) * blockDim.x;
  const bool packed = (reinterpret_cast<uintptr_t>(from) + head) % 16 == 0;
#pragma unroll 1
  for (size_t first = thread; first < packets; first += threads * kRangeLoads) {
    uint4 held[kRangeLoads];
#pragma unroll
    for (int i = 0; i < kRangeLoads; ++i) {
      const size_t packet = first + i * threads;
      const char* at = from + head + 16 * packet;
      held[i] = make_uint4(0, 0, 0, 0);
      if (packet < packets) held[i] = packed ? load_vector(at) : load_loose<T>(at);
    }
#pragma unroll
    for (int i = 0; i < kRangeLoads; ++i) {
      const size_t packet = first + i * threads;
      if (packet < packets) multimem_store(reinterpret_cast<uint64_t>(to + head + 16 * packet), held[i]);
    }
  }
  const size_t loose = head + (bytes - tail), offset = thread * sizeof(T);
  if (offset < loose) {
    const size_t at = offset < head ? offset : tail + (offset - head);
    const T element = *reinterpret_cast<const T*>(from + at);
    for (uint32_t rank = 0; rank < pad.world; ++rank) {
      *reinterpret_cast<T*>(entry<char>(p.staging_peers, rank) + begin + at) = element;
    }
  }
}

// The owner's half: waits until all peers have freed its rows of their staging, stores, signals `ready`.
template <typename T>
__device__ __forceinline__ void store_own_lane(const MultimemGather& p) {
  const PadView& pad = p.pad;
  // All blocks wait for the same credits, a thread for each peer. The credit of this launch is the signal of
  // the last one.
  bool freed = true;
  for (uint32_t lane = 1 + threadIdx.x; lane < pad.world; lane += blockDim.x) {
    const uint32_t peer = lane_owner(pad, lane);
    freed &= wait_epoch(pad, p.free, peer, next_epoch(pad, p.free, peer) - 1);
  }
  if (__syncthreads_and(freed)) store_rows<T>(p);
  // Each thread for its own stores, before one signals for all.
  fence_alias();
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0 && take_last_ticket(pad, p.ready, pad.rank, gridDim.x)) {
    for (uint32_t lane = 1; lane < pad.world; ++lane) {
      const uint32_t peer = lane_owner(pad, lane);
      // Not if a block could not store its rows: its wait has stopped this device before it took its ticket.
      signal_peer(pad, p.ready, peer);
      advance_expected(pad, p.free, peer, next_epoch(pad, p.free, peer));
    }
  }
}

// The gather without a GEMM ends when all rows are here.
template <typename T>
__device__ __forceinline__ void multimem_gather(const MultimemGather& p) {
  const PadView& pad = p.pad;
  admit_dependents();
  store_own_lane<T>(p);
  for (uint32_t lane = blockIdx.x; lane < pad.world; lane += gridDim.x) {
    if (threadIdx.x == 0 && lane > 0) wait_peer(pad, p.ready, lane_owner(pad, lane));
  }
}

// A block stores its share of this rank's rows, then multiplies chunks of `RowCount` rows, its own rank's
// first.
template <typename T, int RowCount>
__device__ __forceinline__ void multimem_gather_matmul(const MultimemGather& p) {
  const PadView& pad = p.pad;
  __shared__ alignas(16) float tile[kTileBytes / sizeof(float)];
  __shared__ bool here;
  const bool leader = threadIdx.x == 0;
  store_own_lane<T>(p);

  uint32_t chunk = blockIdx.x;  // among the chunks of this lane and the next ones
  for (uint32_t lane = 0; lane < pad.world; ++lane) {
    const uint32_t owner = lane_owner(pad, lane);
    const Rows rows = shard(p.m, owner, pad.world);
    // A lane without rows has one empty chunk: its owner waits for the signal all the same.
    const uint32_t chunks = max(1u, (rows.count + RowCount - 1) / RowCount);
    for (; chunk < chunks; chunk += gridDim.x) {
      uint32_t epoch = 0;
      __syncthreads();
      if (leader) {
        epoch = lane > 0 ? next_epoch(pad, p.ready, owner) : 0;
        here = lane == 0 || wait_epoch(pad, p.ready, owner, epoch);
        fence_alias();
      }
      __syncthreads();
      if (here) {
        const uint32_t first = chunk * RowCount;
        const uint32_t count = min(rows.count - first, uint32_t(RowCount));
        // This rank's own rows are read where they came from, without a wait.
        const T* a = lane == 0 ? static_cast<const T*>(p.a) + size_t(first) * p.k
                               : static_cast<const T*>(p.staging) + size_t(rows.first + first) * p.k;
        const T* b = static_cast<const T*>(p.b);
        T* c = static_cast<T*>(p.c) + size_t(rows.first + first) * p.n;
        if (p.neighbours) {
          multiply<T, RowCount, true>(tile, a, b, c, count, p.n, p.k);
        } else {
          multiply<T, RowCount, false>(tile, a, b, c, count, p.n, p.k);
        }
      }
      __syncthreads();
      if (leader && lane > 0 && take_last_ticket(pad, p.ready, owner, chunks)) {
        if (p.signal_free) signal_peer(pad, p.free, owner);
        advance_expected(pad, p.ready, owner, epoch);
      }
    }
    chunk -= chunks;
  }
}

}  // namespace warpweave

#define WARPWEAVE_GATHER(name, type)                                                \
  extern "C" __global__ void __launch_bounds__(warpweave::kGatherThreads, 1)        \
      multimem_gather_##name(const __grid_constant__ warpweave::MultimemGather p) { \
    warpweave::multimem_gather<type>(p);                                            \
  }

WARPWEAVE_GATHER(16bit, uint16_t)
WARPWEAVE_GATHER(32bit, uint32_t)

#define WARPWEAVE_MATMUL(name, type, rows)                                                          \
  extern "C" __global__ void __launch_bounds__(warpweave::kGemmThreads, 2)                          \
      multimem_gather_matmul_##name##_##rows(const __grid_constant__ warpweave::MultimemGather p) { \
    warpweave::multimem_gather_matmul<type, rows>(p);                                               \
  }

WARPWEAVE_MATMUL(f32, float, 8)
WARPWEAVE_MATMUL(f32, float, 16)
WARPWEAVE_MATMUL(f16, __half, 8)
WARPWEAVE_MATMUL(f16, __half, 16)
WARPWEAVE_MATMUL(bf16, __nv_bfloat16, 8)
WARPWEAVE_MATMUL(bf16, __nv_bfloat16, 16)
