// All-reduces by sentinels.

#include "sentinel.cuh"

namespace {

using warpweave::Packets;

template <typename T, int W, bool kAligned>
__device__ __forceinline__ void all_reduce(const Packets& p) {
  warpweave::sentinel::Thread<T, W, kAligned> t(p);
  if (t.lane < 32) return t.attend();
  t.scatter();
  if (!t.join()) return;
  const auto keep = [&](uint32_t i, const uint32_t(&sum)[4], const auto&) {
    t.store(t.rank * t.chunk + i, sum);
  };
  if (!t.reduce(keep)) return;
  for (uint32_t i = t.first; i < t.chunk; i += t.stride) {
    const auto wanted = [&](uint32_t source) { return source * t.chunk + i < t.message; };
    warpweave::sentinel::Vector data[W];
    if (!t.receive(p.capacity / 2 + i, data, wanted)) return;
#pragma unroll
    for (int source = 0; source < W; ++source)
      if (source < t.world && source != t.rank && wanted(source))
        t.store(source * t.chunk + i, data[source].words);
  }
}

}  // namespace

#define KERNEL(name, ...)                                                                     \
  extern "C" __global__ void __launch_bounds__(512) name(const __grid_constant__ Packets p) { \
    if (p.admits) warpweave::admit_dependents();                                              \
    warpweave::wait_for_prerequisites();                                                      \
    all_reduce<__VA_ARGS__>(p);                                                               \
  }

// Vectors of 16 bytes at a time from and to aligned operands, else elements.
#define FOR_TYPE(T, suffix, W)                   \
  KERNEL(sentinel_16_##suffix##_##W, T, W, true) \
  KERNEL(sentinel_1_##suffix##_##W, T, W, false)

#define FOR_WORLD(W)       \
  FOR_TYPE(float, f32, W)  \
  FOR_TYPE(__half, f16, W) \
  FOR_TYPE(__nv_bfloat16, bf16, W)

WARPWEAVE_WORLDS(FOR_WORLD)
