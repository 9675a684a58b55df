// Collectives through multicast addresses: the switch copies what is stored and reduces what is loaded. The
// barriers are those of direct.cu.
//
// After the first barrier a rank has acquired what its peers did through the plain addresses of their memory;
// `fence_alias` then orders its accesses through multicast addresses after that. Before the last barrier it
// orders the plain loads of the peers after its stores. Every element of an output is stored by one rank,
// which for reductions has also loaded it: the result is the same on all ranks, and may be where the inputs
// were.

#include "direct.cuh"
#include "warpweave/multimem.cuh"

namespace {

using warpweave::Direct;

// The layout of `Multimem` in `launch.rs`.
struct Multimem {
  Direct direct;  // plain addresses of the same ranges, for what is less than a vector
  uint64_t from;  // spread: this rank's data, null if it has none; reduce: the inputs of all ranks
  uint64_t to;    // the outputs of all ranks; null if the result stays with this rank
};
static_assert(sizeof(Multimem) == sizeof(Direct) + 16, "as in Rust");

constexpr int kUnroll = 4;

// A launch: `vectors(first, stride)` by all threads, and `loose()`, for what is less than a vector, by those
// of the last block.
template <typename Vectors, typename Loose>
__device__ __forceinline__ void run(const Direct& p, Vectors vectors, Loose loose) {
  warpweave::between_barriers(
      p, [] {},
      [&] {
        warpweave::fence_alias();
        vectors(blockIdx.x * blockDim.x + threadIdx.x, gridDim.x * blockDim.x);
        if (blockIdx.x == gridDim.x - 1) loose();
        warpweave::fence_alias();
      });
}

// Stores this rank's data, if it has any, to all ranks.
__device__ __forceinline__ void spread(const Multimem& m) {
  const Direct& p = m.direct;
  const uint64_t from = m.from;
  const uint64_t vectors = from == 0 ? 0 : p.bytes / 16;
  run(
      p,
      [&](uint64_t first, uint64_t stride) {
        for (uint64_t i = first; i < vectors; i += kUnroll * stride) {
          warpweave::Vector<16> values[kUnroll];
#pragma unroll
          for (int u = 0; u < kUnroll; ++u)
            if (i + u * stride < vectors) values[u].load(from + 16 * (i + u * stride));
#pragma unroll
          for (int u = 0; u < kUnroll; ++u) {
            const uint32_t (&w)[4] = values[u].words;
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

// Reduces this rank's chunk, to all ranks or to this one.
template <typename T>
__device__ __forceinline__ void reduce(const Multimem& m) {
  const Direct& p = m.direct;
  const uint64_t vectors = p.bytes / 16;
  run(
      p,
      [&](uint64_t first, uint64_t stride) {
        for (uint64_t i = first; i < vectors; i += kUnroll * stride) {
          uint4 results[kUnroll];
#pragma unroll
          for (int u = 0; u < kUnroll; ++u)
            if (i + u * stride < vectors)
              results[u] = warpweave::multimem_reduce<T>(m.from + 16 * (i + u * stride));
#pragma unroll
          for (int u = 0; u < kUnroll; ++u) {
            const uint64_t at = 16 * (i + u * stride);
            if (i + u * stride >= vectors) break;
            if (m.to != 0)
              warpweave::multimem_store(m.to + at, results[u]);
            else
              *reinterpret_cast<uint4*>(p.to.of[p.group.pad.rank] + at) = results[u];
          }
        }
      },
      [&] {
        const uint64_t at = p.bytes / 16 * 16 + threadIdx.x * sizeof(T);
        if (at < p.bytes) warpweave::reduce_element<T>(p, at);
      });
}

}  // namespace

#define KERNEL(name, body) \
  extern "C" __global__ void __launch_bounds__(512) name(const __grid_constant__ Multimem p) { body(p); }

KERNEL(multimem_spread, spread)
KERNEL(multimem_reduce_f32, reduce<float>)
KERNEL(multimem_reduce_f16, reduce<__half>)
KERNEL(multimem_reduce_bf16, reduce<__nv_bfloat16>)
