// Elements in vectors: four neighbours, or 16 bytes, in one load.
#pragma once

#include <cstdint>
#include <cstring>

#include "warpweave/element.cuh"

namespace warpweave {

// The same bits as another type.
template <typename To, typename From>
__device__ __forceinline__ To bits_as(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "the same bits");
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

// Four elements as 32-bit words: single elements of two bytes would take a register each.
template <typename T>
struct alignas(4 * sizeof(T)) Four {
  uint32_t word[sizeof(T)];
};

__device__ __forceinline__ void widen(const Four<float>& four, float (&wide)[4]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) wide[j] = __uint_as_float(four.word[j]);
}

template <typename T>
__device__ __forceinline__ void widen(const Four<T>& four, float (&wide)[4]) {
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const float2 pair = widen_pair<T>(four.word[j]);
    wide[2 * j] = pair.x;
    wide[2 * j + 1] = pair.y;
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
      four.word[j] = bits_as<uint16_t>(element[2 * j]) | uint32_t(bits_as<uint16_t>(element[2 * j + 1]))
                                                             << 16;
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
