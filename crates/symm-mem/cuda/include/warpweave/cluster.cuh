// Clusters (Hopper): blocks on SMs of one GPC, which can arrive at each other's barriers and receive one
// multicast load.
//
// A block must not end while others may still reach its shared memory by an arrival or a multicast load: all
// blocks of a cluster end after a common `sync_cluster`.
//
// PTX ISA: "barrier.cluster", "mapa", "mbarrier.arrive", "mbarrier.try_wait", "elect.sync".
#pragma once

#include <cstdint>

#include "warpweave/mbarrier.cuh"

namespace warpweave {

// This block's rank in its cluster.
__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// A barrier of all threads of the cluster; all see afterwards what each did before.
__device__ __forceinline__ void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// Arrives at the barrier in block `rank` of the cluster (which may be this one) at the offset of `barrier` in
// this block. Relaxed: it signals that reads have ended, and publishes nothing. (A release to the cluster
// costs a fence of the whole GPU.)
__device__ __forceinline__ void arrive_in_cluster(uint64_t* barrier, uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [there];\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
}

// `wait_phase` for such arrivals: what was read may be overwritten afterwards.
__device__ __forceinline__ void wait_readers(uint64_t* barrier, uint32_t parity) {
  const uint32_t address = shared_address(barrier);
  uint32_t ended;
  do {
    asm volatile(
        "{\n"
        ".reg .pred ended;\n"
        "mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 ended, [%1], %2;\n"
        "selp.u32 %0, 1, 0, ended;\n"
        "}\n"
        : "=r"(ended)
        : "r"(address), "r"(parity)
        : "memory");
  } while (ended == 0);
}

// True in one thread of a converged warp, the same each time. The compiler knows that it is one.
__device__ __forceinline__ bool elected() {
  uint32_t chosen;
  asm volatile(
      "{\n"
      ".reg .pred chosen;\n"
      "elect.sync _|chosen, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, chosen;\n"
      "}\n"
      : "=r"(chosen));
  return chosen != 0;
}

}  // namespace warpweave
