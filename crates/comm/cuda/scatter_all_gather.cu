// Broadcast of large messages, one launch: the root scatters the message over the other ranks, and each of
// them forwards its chunk to the rest slice by slice as it arrives, so that every link carries the message at
// most once. The scheme is van de Geijn's scatter and all-gather, pipelined.
//
// All ranks have entered before the root stores.

#include "direct.cuh"

namespace {

using warpweave::Addresses;
using warpweave::Group;
using warpweave::Vector;

// The layout of `ScatterAllGather` in `launch.rs`.
struct ScatterAllGather {
  Group group;
  Addresses output;
  uint64_t input;   // the root's
  uint64_t chunk;   // bytes of the part of a rank that is not the root
  uint64_t total;   // bytes of the message; the last chunks may be shorter
  uint64_t slice;   // bytes
  uint32_t slices;  // of a block
  uint32_t root;
};
static_assert(sizeof(ScatterAllGather) == sizeof(Group) + sizeof(Addresses) + 40, "as in Rust");

template <int W, int kBytes>
struct Block {
  using V = Vector<kBytes>;
  static constexpr int kUnroll = warpweave::kUnrolled<W>;

  const ScatterAllGather& p;
  const uint32_t epoch;
  const uint32_t rank;
  const uint32_t world;

  __device__ __forceinline__ explicit Block(const ScatterAllGather& p)
      : p(p), epoch(next_epoch_of(p.group)), rank(p.group.pad.rank), world(p.group.pad.world) {}

  // Where the chunk of `owner` begins. The root has none: ranks after it come one earlier.
  __device__ __forceinline__ uint64_t base(uint32_t owner) const {
    return (owner - (owner > p.root)) * p.chunk;
  }

  // The end of a slice of the chunk of `owner`, from the chunk's beginning.
  __device__ __forceinline__ uint64_t end(uint32_t owner, uint32_t index) const {
    const uint64_t start = base(owner);
    const uint64_t part = start >= p.total ? 0 : min(p.total - start, p.chunk);
    return min(begin(index) + p.slice, part);
  }
  __device__ __forceinline__ uint64_t begin(uint32_t index) const {
    return (uint64_t(index) * gridDim.x + blockIdx.x) * p.slice;
  }

  // Stores a slice of each peer's chunk to that peer and to this rank's own output, and signals it.
  __device__ __forceinline__ void scatter(uint32_t index) const {
    const bool here = p.output.of[rank] != p.input;
    for (uint64_t at = begin(index) + threadIdx.x * kBytes; at < begin(index) + p.slice;
         at += uint64_t(kUnroll) * blockDim.x * kBytes) {
      V values[W][kUnroll];
#pragma unroll
      for (int step = 1; step < W; ++step) {
        const uint32_t peer = (rank + step) % world;
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          const uint64_t place = at + u * blockDim.x * kBytes;
          if (step < world && place < end(peer, index)) values[step][u].load(p.input + base(peer) + place);
        }
      }
#pragma unroll
      for (int step = 1; step < W; ++step) {
        const uint32_t peer = (rank + step) % world;
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          const uint64_t place = at + u * blockDim.x * kBytes;
          if (step >= world || place >= end(peer, index)) continue;
          values[step][u].store(p.output.of[peer] + base(peer) + place);
          if (here) values[step][u].store(p.output.of[rank] + base(peer) + place);
        }
      }
    }
    __syncthreads();
    if (threadIdx.x < world && threadIdx.x != rank)
      signal_slice(p.group, index, threadIdx.x, epoch);
  }

  // Waits for this rank's slice and forwards it to all others but the root.
  __device__ __forceinline__ bool forward(uint32_t index) const {
    bool arrived = true;
    if (threadIdx.x == 0) arrived = wait_slice(p.group, index, p.root, epoch);
    if (!__syncthreads_and(arrived)) return false;
    const uint64_t start = base(rank);
    for (uint64_t at = begin(index) + threadIdx.x * kBytes; at < end(rank, index);
         at += uint64_t(kUnroll) * blockDim.x * kBytes) {
      V values[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const uint64_t place = at + u * blockDim.x * kBytes;
        if (place < end(rank, index)) values[u].load(p.output.of[rank] + start + place);
      }
#pragma unroll
      for (int step = 1; step < W; ++step) {
        const uint32_t peer = (rank + step) % world;
        if (step >= world || peer == p.root) continue;
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          const uint64_t place = at + u * blockDim.x * kBytes;
          if (place < end(rank, index)) values[u].store(p.output.of[peer] + start + place);
        }
      }
    }
    return true;
  }
};

template <int W, int kBytes>
__device__ __forceinline__ void scatter_all_gather(const ScatterAllGather& p) {
  const Block<W, kBytes> block(p);
  if (group_barrier(p.group, warpweave::kEnter, block.epoch)) {
    for (uint32_t index = 0; index < p.slices; ++index) {
      if (block.rank == p.root)
        block.scatter(index);
      else if (!block.forward(index))
        break;
    }
  }
  group_barrier(p.group, warpweave::kLeave, block.epoch);
}

}  // namespace

#define KERNEL(name, ...)                                                                              \
  extern "C" __global__ void __launch_bounds__(512) name(const __grid_constant__ ScatterAllGather p) { \
    __VA_ARGS__(p);                                                                                    \
  }

#define FOR_WORLD(W)                                           \
  KERNEL(scatter_all_gather_16_##W, scatter_all_gather<W, 16>) \
  KERNEL(scatter_all_gather_4_##W, scatter_all_gather<W, 4>)   \
  KERNEL(scatter_all_gather_2_##W, scatter_all_gather<W, 2>)

WARPWEAVE_WORLDS(FOR_WORLD)
