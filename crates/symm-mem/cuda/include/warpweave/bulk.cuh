// Bulk copies between global and shared memory (Hopper): one thread moves up to tens of kilobytes with one
// instruction, through the async proxy. Addresses and sizes are multiples of 16 bytes; global memory may be a
// peer's.
//
// - A bulk copy sees what the generic proxy wrote, a peer's stores included, if the thread that acquired it
//   calls `fence_async` (signal.cuh) before it issues the copy.
// - After `bulk_wait_read` shared memory may be reused, but nothing need have arrived. Only after `bulk_wait`
//   may a thread signal that it has.
#pragma once

#include <cstdint>

#include "warpweave/mbarrier.cuh"

namespace warpweave {

// Reads `bytes` at `from` into shared memory. `barrier` must expect them (`arrive_expecting`).
__device__ __forceinline__ void bulk_load(void* shared, const void* from, uint32_t bytes, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(shared)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

// Writes `bytes` of shared memory to `to`, as part of this thread's open group.
__device__ __forceinline__ void bulk_store(void* to, const void* shared, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(shared)), "r"(bytes)
               : "memory");
}

// Makes what this thread wrote to shared memory visible to bulk copies out of it. Call it before the barrier
// after which they are issued.
__device__ __forceinline__ void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Closes this thread's open group of stores.
__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until all but the last `Pending` groups of this thread have read their shared memory.
template <int Pending>
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
}

// Waits until all but the last `Pending` groups of this thread are complete and visible to this thread.
template <int Pending>
__device__ __forceinline__ void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(Pending) : "memory");
}

}  // namespace warpweave
