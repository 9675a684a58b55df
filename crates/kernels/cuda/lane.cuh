// Lanes: what a grid does with the rows of one owner.
//
// A lane signals the owner, waits for the owner, reads its rows, and signals that they have been read. Lanes
// are independent, so no barrier spans the grid: the blocks of a lane take tickets, and the last of them
// signals for all. All blocks are resident.
//
// Epochs. One thread of the grid signals a flag or closes a lane, and advances the counter that it used. The
// blocks that wait for an epoch read it before they take their tickets; it advances after the last ticket.
#pragma once

#include <cstdint>

#include "warpweave/signal.cuh"

namespace warpweave {

// The rows of a sharded matrix that one rank owns: the first `total % world` ranks have one more.
struct Rows {
  uint32_t first;
  uint32_t count;
};

__device__ __forceinline__ Rows shard(uint32_t total, uint32_t rank, uint32_t world) {
  const uint32_t each = total / world, extra = total % world;
  return {rank * each + min(rank, extra), each + (rank < extra ? 1u : 0u)};
}

// The owner of a lane: this rank first, then its successors. No two ranks start with the same owner.
__device__ __forceinline__ uint32_t lane_owner(const PadView& pad, uint32_t lane) {
  const uint32_t owner = pad.rank + lane;
  return owner < pad.world ? owner : owner - pad.world;
}

// An entry of a table of addresses, with a hint for the compiler that it is in global memory.
template <typename T>
__device__ __forceinline__ T* entry(const uint64_t* table, uint32_t rank) {
  T* address = reinterpret_cast<T*>(table[rank]);
  __builtin_assume(__isGlobal(address));
  return address;
}

}  // namespace warpweave
