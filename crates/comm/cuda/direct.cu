// Collectives on symmetric operands, read and written where they lie: moves, sums, and the meeting by itself.

#include "direct.cuh"
#include "elements.cuh"

namespace {

using warpweave::Direct;
using warpweave::Group;
using warpweave::Vector;

// Moves of all turns side by side, so that all links are in use all the time.
template <int W, int kBytes>
__device__ __forceinline__ void exchange(const Direct& p) {
  constexpr int kUnroll = W > 4 ? 2 : 4;
  const uint32_t epoch = p.enter || p.leave ? next_epoch_of(p.group) : 0;
  const bool entered = !p.enter || meet(p.group, warpweave::kEnter, epoch);
  if (entered) {
    const uint64_t vectors = p.bytes / kBytes;
    const uint64_t stride = uint64_t(gridDim.x) * blockDim.x;
    for (uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < vectors; i += kUnroll * stride) {
      Vector<kBytes> values[W][kUnroll];
#pragma unroll
      for (int step = 0; step < W; ++step) {
        const uint32_t peer = (p.group.pad.rank + step) % p.group.pad.world;
        if (step >= p.group.pad.world || p.from.of[peer] == 0) continue;
#pragma unroll
        for (int u = 0; u < kUnroll; ++u)
          if (i + u * stride < vectors) values[step][u].load(p.from.of[peer] + (i + u * stride) * kBytes);
      }
#pragma unroll
      for (int step = 0; step < W; ++step) {
        const uint32_t peer = (p.group.pad.rank + step) % p.group.pad.world;
        if (step >= p.group.pad.world || p.from.of[peer] == 0) continue;
#pragma unroll
        for (int u = 0; u < kUnroll; ++u)
          if (i + u * stride < vectors) values[step][u].store(p.to.of[peer] + (i + u * stride) * kBytes);
      }
    }
  }
  if (p.leave) meet(p.group, warpweave::kLeave, epoch);
}

// Sums what the sources hold at a place, in the order of ranks, and stores it at that place of every destination.
template <typename T, int W, int kBytes>
__device__ __forceinline__ void reduce(const Direct& p) {
  using V = Vector<kBytes>;
  constexpr int kUnroll = W > 4 ? 2 : 4;
  const uint32_t epoch = p.enter || p.leave ? next_epoch_of(p.group) : 0;
  const bool entered = !p.enter || meet(p.group, warpweave::kEnter, epoch);
  if (entered) {
    const uint32_t world = p.group.pad.world;
    const uint64_t vectors = p.bytes / kBytes;
    const uint64_t stride = uint64_t(gridDim.x) * blockDim.x;
    for (uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < vectors; i += kUnroll * stride) {
      V values[W][kUnroll];
      // Each rank starts with another source, so that no two read from the same one at the same time.
#pragma unroll
      for (int turn = 0; turn < W; ++turn) {
#pragma unroll
        for (int source = 0; source < W; ++source) {
          if (turn >= world || source != (p.group.pad.rank + turn) % world) continue;
#pragma unroll
          for (int u = 0; u < kUnroll; ++u)
            if (i + u * stride < vectors) values[source][u].load(p.from.of[source] + (i + u * stride) * kBytes);
        }
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (i + u * stride >= vectors) break;
        warpweave::Sum<T, V::kWords> sum;
        sum.clear();
#pragma unroll
        for (int source = 0; source < W; ++source)
          if (source < world) sum.add(values[source][u].words);
        V total;
        sum.pack(total.words);
#pragma unroll
        for (int step = 0; step < W; ++step) {
          const uint32_t peer = (p.group.pad.rank + step) % world;
          if (step < world && p.to.of[peer] != 0) total.store(p.to.of[peer] + (i + u * stride) * kBytes);
        }
      }
    }
  }
  if (p.leave) meet(p.group, warpweave::kLeave, epoch);
}

}  // namespace

// All ranks come here before any leaves.
extern "C" __global__ void collective_meet(const __grid_constant__ Group group) {
  meet(group, warpweave::kEnter, next_epoch_of(group));
}

#define KERNEL(name, ...) \
  extern "C" __global__ void __launch_bounds__(512) name(const __grid_constant__ Direct p) { __VA_ARGS__(p); }

// Sums one vector of 16 bytes or one element at a time.
#define REDUCE(T, suffix, W)                                    \
  KERNEL(reduce_16_##suffix##_##W, reduce<T, W, 16>)            \
  KERNEL(reduce_1_##suffix##_##W, reduce<T, W, int(sizeof(T))>)

#define FOR_WORLD(W)                          \
  KERNEL(exchange_16_##W, exchange<W, 16>)    \
  KERNEL(exchange_4_##W, exchange<W, 4>)      \
  KERNEL(exchange_2_##W, exchange<W, 2>)      \
  REDUCE(float, f32, W)                       \
  REDUCE(__half, f16, W)                      \
  REDUCE(__nv_bfloat16, bf16, W)

FOR_WORLD(2)
FOR_WORLD(4)
FOR_WORLD(8)
