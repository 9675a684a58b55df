// Gathering rows with many threads: what a block of a gather is, and ranges that it copies in one round of
// loads.
#pragma once

#include <cstdint>

#include "warpweave/range.cuh"

namespace warpweave {

// Threads of a block that copy, in a gather without a GEMM.
constexpr uint32_t kGatherThreads = 512;

// A range that is copied in one round: `kRoundLoads` packets a thread. Loads and stores are separate steps,
// so that a signal that the loads have ended does not wait for the stores.
constexpr int kRoundLoads = 2;

struct Round {
  uint4 held[kRoundLoads] = {};

  __device__ __forceinline__ void load(const char* from, size_t bytes, uint32_t thread, uint32_t threads) {
#pragma unroll
    for (int i = 0; i < kRoundLoads; ++i) {
      const size_t at = 16 * (thread + size_t(i) * threads);
      if (at < bytes) held[i] = load_vector(from + at);
    }
  }

  // Depends on all bits: to compute it, all loads must have ended.
  __device__ __forceinline__ bool arrived() const {
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < kRoundLoads; ++i) bits |= held[i].x | held[i].y | held[i].z | held[i].w;
    return bits != 0;
  }

  __device__ __forceinline__ void store(char* to, size_t bytes, uint32_t thread, uint32_t threads) const {
#pragma unroll
    for (int i = 0; i < kRoundLoads; ++i) {
      const size_t at = 16 * (thread + size_t(i) * threads);
      if (at < bytes) store_vector(to + at, held[i]);
    }
  }
};

// Whether `threads` threads copy the range in one round of whole packets.
__device__ __forceinline__ bool is_one_round(const void* to, const void* from, size_t bytes,
                                             uint32_t threads) {
  const uintptr_t all = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | bytes;
  return all % 16 == 0 && bytes <= size_t(16) * kRoundLoads * threads;
}

}  // namespace warpweave
