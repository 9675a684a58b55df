// Collectives through multicast addresses: the switch copies what is stored and sums what is loaded. The meetings are those
// of direct.cu.
//
// Whoever has met its peers has acquired what they did through the plain names of their memory; `fence_alias` behind the
// meeting orders its accesses through the multicast name behind that, and before the leaving meeting orders the plain loads
// of the peers behind its stores. Every place of an output is stored by one rank, which for sums has also loaded it: the
// result is the same on all ranks, and may lie where the inputs were.

#include "direct.cuh"
#include "elements.cuh"
#include "warpweave/multimem.cuh"

namespace {

using warpweave::Direct;

// The layout of `Multimem` in `launch.rs`.
struct Multimem {
  Direct direct;  // plain addresses of the same ranges, for what is less than a vector
  uint64_t from;  // to spread: this rank's data, null if it has none; to sum: the inputs of all ranks
  uint64_t to;    // the outputs of all ranks; null where the sum stays with this rank
};
static_assert(sizeof(Multimem) == sizeof(Direct) + 16, "as in Rust");

constexpr int kUnroll = 4;

// Meets, lets `vector(first, stride)` and `loose` do their work, meets.
template <typename Vectors, typename Loose>
__device__ __forceinline__ void between_meetings(const Direct& p, Vectors vectors, Loose loose) {
  const uint32_t epoch = epoch_of(p.group);
  if (!p.enter || meet(p.group, warpweave::kEnter, epoch)) {
    warpweave::fence_alias();
    vectors(blockIdx.x * blockDim.x + threadIdx.x, gridDim.x * blockDim.x);
    if (blockIdx.x == gridDim.x - 1) loose();
    warpweave::fence_alias();
  }
  if (p.leave) meet(p.group, warpweave::kLeave, epoch);
  if (p.enter || p.leave) {
    __syncthreads();
    advance_epoch(p.group, epoch);
  }
}

// This rank's data, if it has any to give, to all ranks.
__device__ __forceinline__ void spread(const Multimem& m) {
  const Direct& p = m.direct;
  const uint64_t from = m.from;
  const uint64_t vectors = from == 0 ? 0 : p.bytes / 16;
  between_meetings(
      p,
      [&](uint64_t first, uint64_t stride) {
        for (uint64_t i = first; i < vectors; i += kUnroll * stride) {
          warpweave::Vector<16> values[kUnroll];
#pragma unroll
          for (int u = 0; u < kUnroll; ++u)
            if (i + u * stride < vectors) values[u].load(from + 16 * (i + u * stride));
#pragma unroll
          for (int u = 0; u < kUnroll; ++u) {
            const uint32_t(&w)[4] = values[u].words;
            if (i + u * stride < vectors)
              warpweave::multimem_store(m.to + 16 * (i + u * stride), make_uint4(w[0], w[1], w[2], w[3]));
          }
        }
      },
      [&] {
        const uint64_t at = p.bytes / 16 * 16 + 2 * threadIdx.x;
        if (from == 0 || at >= p.bytes) return;
        warpweave::Vector<2> value;
        value.load(from + at);
        for (uint32_t peer = 0; peer < p.group.pad.world; ++peer)
          if (p.to.of[peer] != 0) value.store(p.to.of[peer] + at);
      });
}

// The sums of this rank's chunk, to all ranks or to this one.
template <typename T>
__device__ __forceinline__ void reduce(const Multimem& m) {
  const Direct& p = m.direct;
  const uint64_t vectors = p.bytes / 16;
  between_meetings(
      p,
      [&](uint64_t first, uint64_t stride) {
        for (uint64_t i = first; i < vectors; i += kUnroll * stride) {
          uint4 sums[kUnroll];
#pragma unroll
          for (int u = 0; u < kUnroll; ++u)
            if (i + u * stride < vectors) sums[u] = warpweave::multimem_sum<T>(m.from + 16 * (i + u * stride));
#pragma unroll
          for (int u = 0; u < kUnroll; ++u) {
            const uint64_t at = 16 * (i + u * stride);
            if (i + u * stride >= vectors) break;
            if (m.to != 0)
              warpweave::multimem_store(m.to + at, sums[u]);
            else
              *reinterpret_cast<uint4*>(p.to.of[p.group.pad.rank] + at) = sums[u];
          }
        }
      },
      [&] {
        using Element = warpweave::Vector<int(sizeof(T))>;
        const uint64_t at = p.bytes / 16 * 16 + threadIdx.x * sizeof(T);
        if (at >= p.bytes) return;
        warpweave::Sum<T, 1> sum;
        sum.clear();
        for (uint32_t source = 0; source < p.group.pad.world; ++source) {
          Element element;
          element.load(p.from.of[source] + at);
          sum.add(element.words);
        }
        Element total;
        sum.pack(total.words);
        for (uint32_t peer = 0; peer < p.group.pad.world; ++peer)
          if (p.to.of[peer] != 0) total.store(p.to.of[peer] + at);
      });
}

}  // namespace

#define KERNEL(name, body) \
  extern "C" __global__ void __launch_bounds__(512) name(const __grid_constant__ Multimem p) { body(p); }

KERNEL(multimem_spread, spread)
KERNEL(multimem_reduce_f32, reduce<float>)
KERNEL(multimem_reduce_f16, reduce<__half>)
KERNEL(multimem_reduce_bf16, reduce<__nv_bfloat16>)
