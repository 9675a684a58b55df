// What the kernels that work on operands where they lie take, and their vectors.
#pragma once

#include "group.cuh"

namespace warpweave {

// The layout of `Direct` in `launch.rs`. Source and destination of rank p's turn are `from.of[p]` and `to.of[p]`, null where
// there is none; all turns have `bytes`.
struct Direct {
  Group group;
  Addresses from;
  Addresses to;
  uint64_t bytes;
  uint32_t enter;  // meet before the first access
  uint32_t leave;  // meet behind the last
};
static_assert(sizeof(Direct) == sizeof(Group) + 2 * 64 + 16, "as in Rust");

// A vector of `kBytes` as 32-bit words. Peers' memory changes between launches: loads go past the L1 cache.
template <int kBytes>
struct Vector {
  static constexpr int kWords = kBytes / 4;
  uint32_t words[kWords];
  __device__ __forceinline__ void load(uint64_t from) {
    if constexpr (kBytes == 16)
      asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                   : "l"(from));
    else
      asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(words[0]) : "l"(from));
  }
  __device__ __forceinline__ void store(uint64_t to) const {
    if constexpr (kBytes == 16)
      asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(words[0]), "r"(words[1]),
                   "r"(words[2]), "r"(words[3])
                   : "memory");
    else
      asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(to), "r"(words[0]) : "memory");
  }
};

// One element of two bytes, in the low half of a word.
template <>
struct Vector<2> {
  static constexpr int kWords = 1;
  uint32_t words[1];
  __device__ __forceinline__ void load(uint64_t from) {
    uint16_t value;
    asm volatile("ld.relaxed.sys.global.u16 %0, [%1];" : "=h"(value) : "l"(from));
    words[0] = value;
  }
  __device__ __forceinline__ void store(uint64_t to) const {
    asm volatile("st.relaxed.sys.global.u16 [%0], %1;" ::"l"(to), "h"(uint16_t(words[0])) : "memory");
  }
};

}  // namespace warpweave
