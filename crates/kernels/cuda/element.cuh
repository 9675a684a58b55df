// Element types: exact widening to f32, one rounding back, four neighbours in one load.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>

namespace warpweave {

// The same bits as another type.
template <typename To, typename From>
__device__ __forceinline__ To bits_as(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "the same bits");
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

__device__ __forceinline__ float widen(float value) { return value; }
__device__ __forceinline__ float widen(__half value) { return __half2float(value); }
__device__ __forceinline__ float widen(__nv_bfloat16 value) { return __bfloat162float(value); }

template <typename T>
__device__ __forceinline__ T round_to(float value);
template <>
__device__ __forceinline__ float round_to<float>(float value) { return value; }
template <>
__device__ __forceinline__ __half round_to<__half>(float value) { return __float2half_rn(value); }
template <>
__device__ __forceinline__ __nv_bfloat16 round_to<__nv_bfloat16>(float value) { return __float2bfloat16_rn(value); }

// Four elements as the words that they travel in: elements of two bytes that are held one by one take a register each.
template <typename T>
struct alignas(4 * sizeof(T)) Four {
  uint32_t word[sizeof(T)];
};

__device__ __forceinline__ void widen(const Four<float>& four, float (&wide)[4]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) wide[j] = __uint_as_float(four.word[j]);
}

__device__ __forceinline__ void widen(const Four<__half>& four, float (&wide)[4]) {
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const float2 pair = __half22float2(bits_as<__half2>(four.word[j]));
    wide[2 * j] = pair.x;
    wide[2 * j + 1] = pair.y;
  }
}

__device__ __forceinline__ void widen(const Four<__nv_bfloat16>& four, float (&wide)[4]) {
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    wide[2 * j] = __uint_as_float(four.word[j] << 16);
    wide[2 * j + 1] = __uint_as_float(four.word[j] & 0xffff0000u);
  }
}

// Four elements that were loaded one by one.
template <typename T>
__device__ __forceinline__ Four<T> pack(const T (&element)[4]) {
  Four<T> four;
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int j = 0; j < 4; ++j) four.word[j] = bits_as<uint32_t>(element[j]);
  } else {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      four.word[j] = bits_as<uint16_t>(element[2 * j]) | uint32_t(bits_as<uint16_t>(element[2 * j + 1])) << 16;
    }
  }
  return four;
}

// Sixteen bytes of elements, for loads of rows of A.
template <typename T>
struct alignas(16) Packet {
  static constexpr int count = 16 / sizeof(T);
  T element[count];
};

}  // namespace warpweave
