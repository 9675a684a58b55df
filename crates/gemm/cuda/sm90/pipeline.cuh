// The ring of stages between the load warp and the consumers.
//
// A stage is full when all its bytes have arrived: those of its own block's loads and those that the other
// block of the cluster multicasts. It is empty when every warp that reads it has released it. With multicast
// these are the warps of both blocks, since the next load of either block writes into both.
#pragma once

#include "tile.cuh"

namespace warpweave {

// A position in the ring. `parity` is that of the phase of `full` that fills the stage. The phase of `empty`
// before it has the other parity; the first one is passed at once.
template <uint32_t kStages>
struct Cursor {
  uint32_t stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

template <class Tile>
struct Pipeline {
  using Cursor = warpweave::Cursor<Tile::kStages>;
  static constexpr uint32_t kReaders = kConsumers * (kWarpgroup / 32) * Tile::kCluster;

  Memory<Tile>& memory;

  // One thread, before a barrier of all blocks of the cluster.
  __device__ __forceinline__ void init() const {
    for (uint32_t stage = 0; stage < Tile::kStages; ++stage) {
      init_barrier(&memory.full[stage], 1);
      init_barrier(&memory.empty[stage], kReaders);
    }
    publish_barriers();
  }

  // The producer: waits until the stage is empty and returns the barrier for loads of `bytes`. Bytes of the
  // other block may arrive before this block expects them: the phase does not end without this arrival.
  __device__ __forceinline__ uint64_t* acquire(const Cursor& at, uint32_t bytes) const {
    wait_readers(&memory.empty[at.stage], at.parity ^ 1);
    uint64_t* full = &memory.full[at.stage];
    arrive_expecting(full, bytes);
    return full;
  }

  // The producer: acquires an empty stage for the consumers, which use it as epilogue staging.
  __device__ __forceinline__ void acquire_for_epilogue(Cursor& at) const {
    acquire(at, 0);
    at.advance();
  }

  // A consumer: waits until the stage is full, or has been acquired for the epilogue.
  __device__ __forceinline__ void wait_full(const Cursor& at) const {
    wait_phase(&memory.full[at.stage], at.parity);
  }

  // Whether it would not wait.
  __device__ __forceinline__ bool is_full(const Cursor& at) const {
    return has_phase_ended(&memory.full[at.stage], at.parity);
  }

  // Each warp of a consumer, when its instructions on the stage have ended. One lane for each block that
  // loads into it.
  __device__ __forceinline__ void release(uint32_t stage) const {
    const uint32_t lane = threadIdx.x % 32;
    if (lane < Tile::kCluster) arrive_in_cluster(&memory.empty[stage], lane);
  }

  // One warp in place of all warps of a consumer: what they wrote into the stage has been read.
  __device__ __forceinline__ void release_for_consumer(uint32_t stage) const {
    static_assert(Tile::kCluster == 1, "no clusters");
    const uint32_t lane = threadIdx.x % 32;
    if (lane < kWarpgroup / 32) arrive_in_cluster(&memory.empty[stage], 0);
  }
};

}  // namespace warpweave
