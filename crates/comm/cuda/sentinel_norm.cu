// All-reduces by sentinels whose sums are added to a residual and normalized by the blocks that receive them:
// one row a block at a time, 48 bytes a thread. Peers see no difference to an all-reduce alone.
//
// What this rank reduces goes to its own section, too. The one thread that takes a vector from there zeroes
// it. So sections of this rank hold zero after each call, whatever comes next. Results may take the place of
// the input: a vector of a sum is there only after this rank has loaded its part of it.

#include "norm.cuh"
#include "sentinel.cuh"

namespace {

using warpweave::ReducedNorm;

// The barrier of all warps but the last.
constexpr uint32_t kOfRows = 2;

// What `norm_row` asks of a cluster, of the warps of this block but the last.
struct RowBlock {
  float (&values)[2][warpweave::kMaxWarpSums];
  uint32_t exchange = 0;

  __device__ __forceinline__ uint32_t warp() const { return threadIdx.x / 32; }
  __device__ __forceinline__ uint32_t warps() const { return blockDim.x / 32 - 1; }
  __device__ __forceinline__ uint32_t thread() const { return threadIdx.x; }
  __device__ __forceinline__ void publish(uint32_t place, float value) const {
    if (threadIdx.x % 32 == 0) values[exchange % 2][place] = value;
  }
  __device__ __forceinline__ const float* collect(uint32_t) {
    const float* all = values[exchange++ % 2];
    asm volatile("bar.sync %0, %1;" ::"n"(kOfRows), "r"(blockDim.x - 32) : "memory");
    return all;
  }
};

template <typename T, int W>
__device__ __forceinline__ void normalized(const ReducedNorm& p, RowBlock block) {
  using Thread = warpweave::sentinel::Thread<T, W, true>;
  using warpweave::sentinel::Vector;
  constexpr uint32_t kBytes = warpweave::sentinel::kBytes;
  Thread t(p.packets);
  if (t.lane < 32) return t.attend();
  t.scatter();
  // Whoever gives up still meets the others for the sums of a row.
  bool sound = t.join();
  const uint32_t middle = p.packets.capacity / 2;
  const auto keep = [&](uint32_t i, const uint32_t(&)[4], const Vector& sent) {
    sent.store(t.at(0, middle + i));
  };
  sound = sound && t.reduce(keep);
  const warpweave::Units<T, 4, kBytes> units{p.norm};
  const uint32_t vectors = units.row_bytes() / kBytes;
#pragma unroll 1
  for (uint32_t row = blockIdx.x; row < p.norm.rows; row += gridDim.x) {
    norm_row(units, block, row, [&](uint32_t unit, uint32_t(&x)[12]) {
      if (!sound) return false;
      const uint32_t start = row * vectors + 3 * unit, count = min(vectors - 3 * unit, 3u);
      uint64_t from[3];
      uint32_t source[3];
      Vector data[3];
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        source[i] = (start + i) / t.chunk;
        const uint32_t index = middle + start + i - source[i] * t.chunk;
        from[i] = p.packets.areas.of[0] + t.offset(t.state.generation, source[i], index);
      }
      sound = warpweave::receive_all<3>(
          p.packets.group.pad, t.sections.epoch(), (1u << count) - 1,
          [&](int i) {
            data[i].load(from[i]);
            return 0;
          },
          [&](int i, uint32_t) { return warpweave::sentinel::has_come(data[i]); }, [](uint32_t) { return false; },
          [&](uint32_t i) { return source[i]; });
#pragma unroll
      for (int i = 0; i < 3; ++i) {
#pragma unroll
        for (int w = 0; w < 4; ++w) x[4 * i + w] = i < count ? ~data[i].words[w] : 0;
        if (sound && i < count && source[i] == t.rank) Vector{}.store(from[i]);
      }
      return sound;
    });
  }
}

}  // namespace

#define KERNEL(suffix, T, W)                                                    \
  extern "C" __global__ void __launch_bounds__(512)                             \
      sentinel_norm_##suffix##_##W(const __grid_constant__ ReducedNorm p) {     \
    __shared__ alignas(16) float values[2][warpweave::kMaxWarpSums];            \
    if (p.packets.admits) warpweave::admit_dependents();                        \
    warpweave::wait_for_prerequisites();                                        \
    normalized<T, W>(p, RowBlock{values});                                      \
  }

#define FOR_WORLD(W)     \
  KERNEL(f32, float, W)  \
  KERNEL(f16, __half, W) \
  KERNEL(bf16, __nv_bfloat16, W)

WARPWEAVE_WORLDS(FOR_WORLD)
