// Sums of elements in f32, whatever they are stored as.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace warpweave {

// A 32-bit word of elements of type T, as f32 values and back.
template <typename T>
struct Word;

template <>
struct Word<float> {
  static constexpr int kElements = 1;
  static __device__ __forceinline__ void add(float* sum, uint32_t word) { sum[0] += __uint_as_float(word); }
  static __device__ __forceinline__ uint32_t pack(const float* sum) { return __float_as_uint(sum[0]); }
};

template <>
struct Word<__half> {
  static constexpr int kElements = 2;
  static __device__ __forceinline__ void add(float* sum, uint32_t word) {
    const float2 pair = __half22float2(reinterpret_cast<const __half2&>(word));
    sum[0] += pair.x;
    sum[1] += pair.y;
  }
  static __device__ __forceinline__ uint32_t pack(const float* sum) {
    const __half2 pair = __floats2half2_rn(sum[0], sum[1]);
    return reinterpret_cast<const uint32_t&>(pair);
  }
};

template <>
struct Word<__nv_bfloat16> {
  static constexpr int kElements = 2;
  static __device__ __forceinline__ void add(float* sum, uint32_t word) {
    sum[0] += __uint_as_float(word << 16);
    sum[1] += __uint_as_float(word & 0xffff0000u);
  }
  static __device__ __forceinline__ uint32_t pack(const float* sum) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(sum[0], sum[1]);
    return reinterpret_cast<const uint32_t&>(pair);
  }
};

// The sum of `kWords` words of each rank, taken in the order of ranks, so that it is the same wherever it is taken. It
// starts from negative zero, the neutral element: positive zero would lose the sign of a sum of negative zeros.
template <typename T, int kWords>
struct Sum {
  float values[kWords * Word<T>::kElements];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (float& value : values) value = -0.0f;
  }
  __device__ __forceinline__ void add(const uint32_t (&words)[kWords]) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) Word<T>::add(values + w * Word<T>::kElements, words[w]);
  }
  __device__ __forceinline__ void pack(uint32_t (&words)[kWords]) const {
#pragma unroll
    for (int w = 0; w < kWords; ++w) words[w] = Word<T>::pack(values + w * Word<T>::kElements);
  }
};

}  // namespace warpweave
