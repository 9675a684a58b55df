// Elements: exact widening to f32 and one rounding back, to nearest even; one at a time, or as pairs of
// neighbours in a 32-bit word.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace warpweave {

__device__ __forceinline__ float widen(float value) { return value; }
__device__ __forceinline__ float widen(__half value) { return __half2float(value); }
__device__ __forceinline__ float widen(__nv_bfloat16 value) { return __bfloat162float(value); }

template <typename T>
__device__ __forceinline__ T round_to(float value);
template <>
__device__ __forceinline__ float round_to<float>(float value) {
  return value;
}
template <>
__device__ __forceinline__ __half round_to<__half>(float value) {
  return __float2half_rn(value);
}
template <>
__device__ __forceinline__ __nv_bfloat16 round_to<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

// The two elements of 16 bits in a word; the first is the low half.
template <typename T>
__device__ __forceinline__ float2 widen_pair(uint32_t pair) {
  if constexpr (std::is_same_v<T, __half>) {
    return __half22float2(*reinterpret_cast<const __half2*>(&pair));
  } else {
    static_assert(std::is_same_v<T, __nv_bfloat16>);
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
  }
}

// The word of two elements of 16 bits.
template <typename T>
__device__ __forceinline__ uint32_t round_pair(float first, float second) {
  uint32_t pair;
  if constexpr (std::is_same_v<T, __half>) {
    asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(pair) : "f"(first), "f"(second));
  } else {
    static_assert(std::is_same_v<T, __nv_bfloat16>);
    asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(pair) : "f"(first), "f"(second));
  }
  return pair;
}

}  // namespace warpweave
