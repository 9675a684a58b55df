// The ring of stages between the thread that loads and the warps that multiply.
//
// A stage is full when all its bytes have come, its own block's loads and what the other block of the cluster loads for
// both. It is empty when every warp that reads it has said so: with an operand in common the warps of both blocks, since
// the next load of either block writes into both.
#pragma once

#include "tile.cuh"

namespace warpweave {

// A place in the ring. The parity is that of the phase of `full` that fills the stage; of `empty`, the phase before it
// has the other parity, and the first is passed at once.
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

  // One thread, before all blocks of the cluster meet.
  __device__ __forceinline__ void init() const {
    for (uint32_t stage = 0; stage < Tile::kStages; ++stage) {
      init_barrier(&memory.full[stage], 1);
      init_barrier(&memory.empty[stage], kReaders);
    }
    publish_barriers();
  }

  // The producer: waits until the stage may be filled, and returns the barrier of its loads, which bring `bytes`. The other
  // block's half may arrive before this block expects it: the phase does not end without this arrival.
  __device__ __forceinline__ uint64_t* fill(const Cursor& at, uint32_t bytes) const {
    wait_readers(&memory.empty[at.stage], at.parity ^ 1);
    uint64_t* full = &memory.full[at.stage];
    arrive_expecting(full, bytes);
    return full;
  }

  // The producer: leaves a stage to the consumers, behind what was loaded into it, and goes on to the next.
  __device__ __forceinline__ void lend(Cursor& at) const {
    fill(at, 0);
    at.advance();
  }

  // A warp for all warps of a consumer: what these wrote into a stage has been read.
  __device__ __forceinline__ void give_back(uint32_t stage) const {
    const uint32_t lane = threadIdx.x % 32;
    static_assert(Tile::kCluster == 1, "blocks alone");
    if (lane < kWarpgroup / 32) arrive_in_cluster(&memory.empty[stage], 0);
  }

  // A consumer: waits until the stage has been filled, or lent.
  __device__ __forceinline__ void wait_full(const Cursor& at) const { wait_phase(&memory.full[at.stage], at.parity); }

  // Each warp of a consumer, once its products with the stage have ended. A lane for each block that loads into it.
  __device__ __forceinline__ void release(uint32_t stage) const {
    const uint32_t lane = threadIdx.x % 32;
    if (lane < Tile::kCluster) arrive_in_cluster(&memory.empty[stage], lane);
  }
};

}  // namespace warpweave
