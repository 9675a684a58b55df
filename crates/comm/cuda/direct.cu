// Collectives on symmetric operands, read and written in place: moves, reductions, and the barrier by itself.

#include "direct.cuh"

namespace {

using warpweave::Direct;
using warpweave::Group;
using warpweave::Vector;

// The moves to all ranks at once, so that all links are in use all the time.
template <int W, int kBytes>
__device__ __forceinline__ void exchange(const Direct& p) {
  constexpr int kUnroll = warpweave::kUnrolled<W>;
  const uint32_t epoch = p.enter || p.leave ? next_epoch_of(p.group) : 0;
  const bool entered = !p.enter || group_barrier(p.group, warpweave::kEnter, epoch);
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
  if (p.leave) group_barrier(p.group, warpweave::kLeave, epoch);
}

// Reduces the sources, element by element and in the order of ranks, to the same offset of every destination.
template <typename T, int W, int kBytes>
__device__ __forceinline__ void reduce(const Direct& p) {
  using V = Vector<kBytes>;
  constexpr int kUnroll = warpweave::kUnrolled<W>;
  const uint32_t epoch = p.enter || p.leave ? next_epoch_of(p.group) : 0;
  const bool entered = !p.enter || group_barrier(p.group, warpweave::kEnter, epoch);
  if (entered) {
    const uint32_t world = p.group.pad.world;
    const uint64_t vectors = p.bytes / kBytes;
    const uint64_t stride = uint64_t(gridDim.x) * blockDim.x;
    for (uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < vectors; i += kUnroll * stride) {
      V values[W][kUnroll];
      // Each rank starts with another source, so that no two read from the same one at the same time.
#pragma unroll
      for (int step = 0; step < W; ++step) {
#pragma unroll
        for (int source = 0; source < W; ++source) {
          if (step >= world || source != (p.group.pad.rank + step) % world) continue;
#pragma unroll
          for (int u = 0; u < kUnroll; ++u)
            if (i + u * stride < vectors)
              values[source][u].load(p.from.of[source] + (i + u * stride) * kBytes);
        }
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (i + u * stride >= vectors) break;
        warpweave::Accumulator<T, V::kWords> accumulator;
        accumulator.clear();
#pragma unroll
        for (int source = 0; source < W; ++source)
          if (source < world) accumulator.add(values[source][u].words);
        V result;
        accumulator.pack(result.words);
#pragma unroll
        for (int step = 0; step < W; ++step) {
          const uint32_t peer = (p.group.pad.rank + step) % world;
          if (step < world && p.to.of[peer] != 0) result.store(p.to.of[peer] + (i + u * stride) * kBytes);
        }
      }
    }
  }
  if (p.leave) group_barrier(p.group, warpweave::kLeave, epoch);
}

}  // namespace

// No rank leaves before all have entered.
extern "C" __global__ void collective_barrier(const __grid_constant__ Group group) {
  group_barrier(group, warpweave::kEnter, next_epoch_of(group));
}

#define KERNEL(name, ...) \
  extern "C" __global__ void __launch_bounds__(512) name(const __grid_constant__ Direct p) { __VA_ARGS__(p); }

// Reduces a vector of 16 bytes or an element at a time.
#define REDUCE(T, suffix, W)                         \
  KERNEL(reduce_16_##suffix##_##W, reduce<T, W, 16>) \
  KERNEL(reduce_1_##suffix##_##W, reduce<T, W, int(sizeof(T))>)

#define FOR_WORLD(W)                       \
  KERNEL(exchange_16_##W, exchange<W, 16>) \
  KERNEL(exchange_4_##W, exchange<W, 4>)   \
  KERNEL(exchange_2_##W, exchange<W, 2>)   \
  REDUCE(float, f32, W)                    \
  REDUCE(__half, f16, W)                   \
  REDUCE(__nv_bfloat16, bf16, W)

WARPWEAVE_WORLDS(FOR_WORLD)
