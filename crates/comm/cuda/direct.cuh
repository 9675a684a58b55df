// Kernels that access symmetric operands in place: their parameters, the barriers around their work, and
// their vectors.
#pragma once

#include "accumulator.cuh"
#include "group.cuh"

namespace warpweave {

// The layout of `Direct` in `launch.rs`. This rank moves `bytes` from `from.of[p]` to `to.of[p]` for each
// rank p; null where there is no move.
struct Direct {
  Group group;
  Addresses from;
  Addresses to;
  uint64_t bytes;
  uint32_t enter;  // barrier before the first access
  uint32_t leave;  // barrier after the last
};
static_assert(sizeof(Direct) == sizeof(Group) + 2 * sizeof(Addresses) + 16, "as in Rust");

// A vector of `kBytes` as 32-bit words. Peers' memory changes between launches: loads bypass L1.
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
      asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(words[0]),
                   "r"(words[1]), "r"(words[2]), "r"(words[3])
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

// The element at offset `at` of all sources, reduced in the order of ranks, to that offset of every
// destination.
template <typename T>
__device__ __forceinline__ void reduce_element(const Direct& p, uint64_t at) {
  using Element = Vector<int(sizeof(T))>;
  Accumulator<T, 1> accumulator;
  accumulator.clear();
  for (uint32_t source = 0; source < p.group.pad.world; ++source) {
    Element element;
    element.load(p.from.of[source] + at);
    accumulator.add(element.words);
  }
  Element result;
  accumulator.pack(result.words);
  for (uint32_t peer = 0; peer < p.group.pad.world; ++peer)
    if (p.to.of[peer] != 0) result.store(p.to.of[peer] + at);
}

// A launch that accesses peers' memory in `work()`, between its barriers. `prepare()` runs first. All
// threads.
template <typename Prepare, typename Work>
__device__ __forceinline__ void between_barriers(const Direct& p, Prepare prepare, Work work) {
  const uint32_t epoch = epoch_of(p.group);
  prepare();
  if (!p.enter || group_barrier(p.group, kEnter, epoch)) work();
  if (p.leave) group_barrier(p.group, kLeave, epoch);
  if (p.enter || p.leave) {
    __syncthreads();
    advance_epoch(p.group, epoch);
  }
}

}  // namespace warpweave
