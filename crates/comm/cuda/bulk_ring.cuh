// Copies by bulk copies through a ring of stages in shared memory: one thread issues, the hardware moves the
// bytes. Few blocks saturate a link, and the load and store units of the SMs stay free.
#pragma once

#include <cstdint>

#include "warpweave/bulk.cuh"

namespace warpweave {

// Groups of stores that may still read their stages. The other stages are being loaded.
constexpr int kStoresInFlight = 4;

// Items are dealt to the blocks round-robin: how many this block has of `items`, and which the `index`-th of
// them is.
template <typename Count>
__device__ __forceinline__ uint32_t items_of_block(Count items) {
  return blockIdx.x < items ? uint32_t((items - blockIdx.x + gridDim.x - 1) / gridDim.x) : 0;
}
template <typename Count>
__device__ __forceinline__ Count item_of_block(Count index) {
  return blockIdx.x + index * gridDim.x;
}

// One thread, before a barrier of the block.
__device__ __forceinline__ void init_ring(uint64_t* filled, uint32_t stages) {
  for (uint32_t stage = 0; stage < stages; ++stage) init_barrier(filled + stage, 1);
  publish_barriers();
}

// One thread: runs this block's `count` items through `stages` stages. `load(index, stage)` issues a load
// that fills `filled[stage]`; `store(index, stage)` issues and commits the stores. A load runs ahead of its
// store by the stages that no store holds. There are more than `kStoresInFlight` stages, or one for each
// item. The caller waits for the last stores.
template <typename Load, typename Store>
__device__ __forceinline__ void run_ring(uint32_t count, uint32_t stages, uint64_t* filled, Load load,
                                         Store store) {
  for (uint32_t index = 0; index < count && index < stages; ++index) load(index, index);
  uint32_t stage = 0, parity = 0;  // of the item to be stored
  uint32_t freed = 0;              // the stage of the item `kStoresInFlight` before it
  for (uint32_t index = 0; index < count; ++index) {
    wait_phase(filled + stage, parity);
    store(index, stage);
    if (++stage == stages) stage = 0, parity ^= 1;
    if (index < kStoresInFlight) continue;
    const uint32_t next = index - kStoresInFlight + stages;
    if (next < count) {
      bulk_wait_read<kStoresInFlight>();
      load(next, freed);
    }
    if (++freed == stages) freed = 0;
  }
}

}  // namespace warpweave
