// Transfers by bulk copies through shared memory: one thread of a block feeds a ring of stages, the hardware moves the
// bytes. Few blocks fill a link, and the multiprocessors' load and store units stay free.

#include <cstdint>

#include "transfer.cuh"
#include "warpweave/bulk.cuh"

namespace warpweave {

// As in `p2p/cuda/grid.rs`.
constexpr uint32_t kStages = 12;
// Groups of stores that may still read their stages while the thread goes on: the others are being loaded.
constexpr int kStoresInFlight = 4;
// One warp issues, the other takes the loose bytes at both ends.
constexpr uint32_t kBulkThreads = 64;

// The chunks of `bytes` that fall to this block, dealt like cards. A load runs ahead of its store by up to the stages
// that no store holds. There are more than `kStoresInFlight` stages, or one for each chunk of the block.
struct Chunks {
  char* to;
  const char* from;
  uint64_t bytes;
  uint32_t chunk;
  uint32_t stages;
  char* ring;
  uint64_t* filled;

  __device__ __forceinline__ uint32_t count() const {
    const uint64_t all = (bytes + chunk - 1) / chunk;
    return blockIdx.x < all ? uint32_t((all - blockIdx.x + gridDim.x - 1) / gridDim.x) : 0;
  }
  __device__ __forceinline__ uint64_t offset(uint32_t index) const {
    return (blockIdx.x + uint64_t(index) * gridDim.x) * chunk;
  }
  __device__ __forceinline__ uint32_t size(uint32_t index) const {
    const uint64_t left = bytes - offset(index);
    return left < chunk ? uint32_t(left) : chunk;
  }
  __device__ __forceinline__ void load(uint32_t index, uint32_t stage) const {
    arrive_expecting(filled + stage, size(index));
    bulk_load(ring + stage * chunk, from + offset(index), size(index), filled + stage);
  }
  __device__ __forceinline__ void store(uint32_t index, uint32_t stage) const {
    bulk_store(to + offset(index), ring + stage * chunk, size(index));
    bulk_commit();
  }

  // By one thread. What was copied has been written when it returns.
  __device__ __forceinline__ void copy() const {
    const uint32_t mine = count();
    for (uint32_t index = 0; index < mine && index < stages; ++index) load(index, index);
    uint32_t stage = 0, parity = 0;  // of the chunk to be stored
    uint32_t freed = 0;              // the stage of the chunk `kStoresInFlight` before it
    for (uint32_t index = 0; index < mine; ++index) {
      wait_phase(filled + stage, parity);
      store(index, stage);
      if (++stage == stages) stage = 0, parity ^= 1;
      if (index >= kStoresInFlight) {
        const uint32_t next = index - kStoresInFlight + stages;
        if (next < mine) {
          bulk_wait_read<kStoresInFlight>();
          load(next, freed);
        }
        if (++freed == stages) freed = 0;
      }
    }
    bulk_wait<0>();
  }
};

}  // namespace warpweave

// Both addresses have the same remainder modulo 16. Dynamic shared memory: `stages * chunk`.
extern "C" __global__ void __launch_bounds__(warpweave::kBulkThreads)
    transfer_bulk(const __grid_constant__ warpweave::Transfer p) {
  using namespace warpweave;
  extern __shared__ __align__(128) char ring[];
  __shared__ __align__(8) uint64_t filled[kStages];
  __shared__ bool granted;
  const uint64_t head_room = -reinterpret_cast<uintptr_t>(p.from) & 15;
  const uint64_t head = head_room < p.bytes ? head_room : p.bytes;
  const uint64_t middle = (p.bytes - head) / 16 * 16;
  char* to = static_cast<char*>(p.to);
  const char* from = static_cast<const char*>(p.from);

  Turn turn = {};
  if (threadIdx.x == 0) {
    for (uint32_t stage = 0; stage < p.stages; ++stage) init_barrier(filled + stage, 1);
    publish_barriers();
    turn = begin_transfer(p);
    granted = turn.granted;
    // What the peer wrote through the generic proxy is read by the async proxy next.
    fence_async();
  }
  __syncthreads();
  if (granted && threadIdx.x == 0) {
    Chunks{to + head, from + head, middle, p.chunk, p.stages, ring, filled}.copy();
    // The writes of the async proxy come before the release of this thread, or of the block that draws the last ticket.
    fence_async();
  } else if (granted && blockIdx.x == 0 && threadIdx.x >= 32) {
    const uint64_t tail = head + middle, loose = head + (p.bytes - tail);
    const uint64_t offset = threadIdx.x - 32;
    if (offset < loose) {
      const uint64_t at = offset < head ? offset : tail + (offset - head);
      to[at] = from[at];
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) end_transfer(p, turn);
}
