// Clusters (Hopper): the blocks that share a group of multiprocessors, can arrive at each other's barriers and take what
// one load brings to all of them.
//
// A block whose shared memory others may still reach, by an arrival or a multicast load, must not end: all blocks of the
// cluster leave together, behind `sync_cluster`.
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

// All threads of all blocks of the cluster meet; what each did before is visible to all behind it.
__device__ __forceinline__ void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// Arrives at the barrier that lies in block `rank` of the cluster where `barrier` lies in this one; with its own rank, at
// its own. Publishes nothing: it says that reads have ended. (A release to the cluster costs a fence of the whole GPU.)
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

// `wait_phase` for such arrivals: what was read may be overwritten behind it.
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

// One thread of a converged warp, the same each time; the compiler knows that it is one.
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
