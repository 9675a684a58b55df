// Lanes: what a grid does with the rows of one owner.
//
// A lane signals the owner, waits for the owner, reads its rows, tells it that they have been read. Lanes know nothing of
// each other, so no barrier spans the grid: the blocks of a lane meet in the lane's ticket alone, and the last of them
// speaks for all. All blocks are co-resident.
//
// Epochs. Only one thread of the grid signals a word or closes a lane, so it advances the counter it used. The epoch
// that many blocks wait for is read by each before it draws its ticket, and advanced behind the last ticket.
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

// The owner of a lane: this rank first, then its successors, so that no two ranks start with the same owner.
__device__ __forceinline__ uint32_t lane_owner(const PadView& pad, uint32_t lane) {
  const uint32_t owner = pad.rank + lane;
  return owner < pad.world ? owner : owner - pad.world;
}

// An entry of a table of addresses. The compiler cannot see that it lies in global memory.
template <typename T>
__device__ __forceinline__ T* entry(const uint64_t* table, uint32_t rank) {
  T* address = reinterpret_cast<T*>(table[rank]);
  __builtin_assume(__isGlobal(address));
  return address;
}

}  // namespace warpweave
