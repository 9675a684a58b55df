// Barriers in shared memory that count arrivals and bytes (Hopper). A thread waits at one until an
// asynchronous copy has filled shared memory.
//
// A barrier has phases. A phase ends with the last of its expected arrivals and bytes. A waiter names the
// parity of its phase: 0 for the first, then alternating. A thread that has seen the phase end sees what the
// copies wrote.
#pragma once

#include <cstdint>

namespace warpweave {

// An address as the instructions on shared memory take it.
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Initialises a barrier with `arrivals` a phase. The same thread calls `publish_barriers` before anything
// else uses it.
__device__ __forceinline__ void init_barrier(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
               : "memory");
}

// Makes new barriers visible to asynchronous copies. Other threads of the block see them after a
// `__syncthreads`.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Arrives: a release to the threads of the block that see the phase end.
__device__ __forceinline__ void arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Arrives, and makes the phase expect `bytes` more. Call it before the copies that bring them.
__device__ __forceinline__ void arrive_expecting(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}

// Whether the phase of `parity` has ended.
__device__ __forceinline__ bool has_phase_ended(uint64_t* barrier, uint32_t parity) {
  uint32_t ended;
  asm volatile(
      "{\n"
      ".reg .pred ended;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 ended, [%1], %2;\n"
      "selp.u32 %0, 1, 0, ended;\n"
      "}\n"
      : "=r"(ended)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return ended != 0;
}

// Waits until the phase of `parity` has ended. No deadline: hardware copies always end, and threads of the
// block arrive after waits that have one. A waiter must see the phase before the next one ends.
__device__ __forceinline__ void wait_phase(uint64_t* barrier, uint32_t parity) {
  const uint32_t address = shared_address(barrier);
  uint32_t ended;
  do {
    asm volatile(
        "{\n"
        ".reg .pred ended;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2;\n"
        "selp.u32 %0, 1, 0, ended;\n"
        "}\n"
        : "=r"(ended)
        : "r"(address), "r"(parity)
        : "memory");
  } while (ended == 0);
}

}  // namespace warpweave
