// Reductions of elements in f32, whatever they are stored as.
#pragma once

#include <cstdint>

#include "warpweave/element.cuh"

namespace warpweave {

// A 32-bit word of elements of type T, as f32 values and back.
template <typename T>
struct Word {
  static constexpr int kElements = 2;
  static __device__ __forceinline__ void add(float* to, uint32_t word) {
    const float2 pair = widen_pair<T>(word);
    to[0] += pair.x;
    to[1] += pair.y;
  }
  static __device__ __forceinline__ uint32_t pack(const float* from) {
    return round_pair<T>(from[0], from[1]);
  }
};

template <>
struct Word<float> {
  static constexpr int kElements = 1;
  static __device__ __forceinline__ void add(float* to, uint32_t word) { to[0] += __uint_as_float(word); }
  static __device__ __forceinline__ uint32_t pack(const float* from) { return __float_as_uint(from[0]); }
};

// Adds `kWords` words of each rank. In the order of ranks, the result is the same on every rank that computes
// it. It starts from negative zero, the neutral element: positive zero would lose the sign of a sum of
// negative zeros.
template <typename T, int kWords>
struct Accumulator {
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

// Reduces the words of all ranks, `of(source)` those of a peer, in the order of ranks.
template <typename T, int W, int kWords, typename Of>
__device__ __forceinline__ void reduce_words(uint32_t rank, uint32_t world, Of of,
                                             const uint32_t (&own)[kWords], uint32_t (&sum)[kWords]) {
  Accumulator<T, kWords> accumulator;
  accumulator.clear();
#pragma unroll
  for (int source = 0; source < W; ++source) {
    if (source >= world) break;
    uint32_t words[kWords];
#pragma unroll
    for (int w = 0; w < kWords; ++w) words[w] = source == rank ? own[w] : of(source)[w];
    accumulator.add(words);
  }
  accumulator.pack(sum);
}

}  // namespace warpweave
