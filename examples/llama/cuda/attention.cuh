// What the kernels of attention share: their operands, and the arithmetic of rows.
#pragma once

#include <cstdint>

#include "warpweave/element.cuh"
#include "warpweave/mbarrier.cuh"

namespace {

using namespace warpweave;

// `src/fused.rs` has the same layout.
struct Attention {
  // [rows, query heads + 2 · key heads, head]: queries, keys, values.
  const void* qkv;
  // Of the first request: [key heads, capacity, head].
  void* keys;
  void* values;
  // [rows, query heads, head]
  void* out;
  const uint32_t* positions;
  // [positions, 3, head / 2]. Those of keys, the second of three, are not scaled.
  const void* cosines;
  const void* sines;
  uint32_t rows;
  uint32_t key_heads;
  // Query heads that share a key head.
  uint32_t groups;
  uint32_t capacity;
};

constexpr float kNothing = -INFINITY;

// A 16-byte vector of eight elements, in f32.
template <typename T>
__device__ __forceinline__ void widen_vector(uint4 vector, float (&wide)[8]) {
  const uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    const float2 pair = widen_pair<T>(words[i]);
    wide[2 * i] = pair.x, wide[2 * i + 1] = pair.y;
  }
}

template <typename T>
__device__ __forceinline__ uint4 round_vector(const float (&wide)[8]) {
  return {round_pair<T>(wide[0], wide[1]), round_pair<T>(wide[2], wide[3]), round_pair<T>(wide[4], wide[5]),
          round_pair<T>(wide[6], wide[7])};
}

__device__ __forceinline__ void store_shared(uint32_t address, uint4 vector) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(vector.x), "r"(vector.y),
               "r"(vector.z), "r"(vector.w)
               : "memory");
}

// The maximum or sum of the four lanes that share a row.
__device__ __forceinline__ float most_of_row(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}
__device__ __forceinline__ float sum_of_row(float x) {
  x += __shfl_xor_sync(0xffffffff, x, 1);
  return x + __shfl_xor_sync(0xffffffff, x, 2);
}

// Two to the x, as the hardware computes it: to two units in the last place, and 0 where that would be
// denormal. `exp2f` has denormal results too, at four instructions for one.
__device__ __forceinline__ float two_to(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

// The factor that sums of a maximum `from` are scaled by where it is `to`.
__device__ __forceinline__ float rescale(float from, float to) {
  return from == kNothing ? 0.0f : two_to(from - to);
}

// One over the square root of a head's width, for scores in powers of two.
template <uint32_t kHead>
__device__ __forceinline__ float score_scale() {
  return 1.4426950408889634f * rsqrtf(float(kHead));
}

// Of the vectors of a head at `position`, the number `pair` of the first half and of the second, rotated.
template <typename T, uint32_t kHead>
__device__ __forceinline__ void rotated(const Attention& p, const uint4* head, uint32_t position,
                                        uint32_t pair, uint4 (&turned)[2]) {
  constexpr uint32_t kHalf = kHead / 16;
  const uint64_t turn = (uint64_t(position) * 3 + 1) * kHalf + pair;
  float first[8], second[8], cosine[8], sine[8], a[8], b[8];
  widen_vector<T>(head[pair], first);
  widen_vector<T>(head[pair + kHalf], second);
  widen_vector<T>(__ldg(static_cast<const uint4*>(p.cosines) + turn), cosine);
  widen_vector<T>(__ldg(static_cast<const uint4*>(p.sines) + turn), sine);
#pragma unroll
  for (uint32_t i = 0; i < 8; ++i) {
    a[i] = first[i] * cosine[i] - second[i] * sine[i];
    b[i] = first[i] * sine[i] + second[i] * cosine[i];
  }
  turned[0] = round_vector<T>(a), turned[1] = round_vector<T>(b);
}

}  // namespace
