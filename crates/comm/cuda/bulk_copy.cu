// Transfers by bulk copies through a ring of stages in shared memory.

#include <cstdint>

#include "bulk_ring.cuh"
#include "transfer.cuh"

namespace warpweave {

// As in `p2p/cuda/grid.rs`.
constexpr uint32_t kStages = 12;
// One warp issues, the other copies the loose bytes at both ends.
constexpr uint32_t kBulkThreads = 64;

// One thread: copies this block's chunks of `bytes`. What it copied has been written when it returns.
__device__ __forceinline__ void copy_chunks(char* to, const char* from, uint64_t bytes, uint32_t chunk,
                                            uint32_t stages, char* ring, uint64_t* filled) {
  const auto offset = [&](uint32_t index) { return item_of_block(uint64_t(index)) * chunk; };
  const auto size = [&](uint32_t index) {
    const uint64_t left = bytes - offset(index);
    return left < chunk ? uint32_t(left) : chunk;
  };
  run_ring(
      items_of_block((bytes + chunk - 1) / chunk), stages, filled,
      [&](uint32_t index, uint32_t stage) {
        arrive_expecting(filled + stage, size(index));
        bulk_load(ring + stage * chunk, from + offset(index), size(index), filled + stage);
      },
      [&](uint32_t index, uint32_t stage) {
        bulk_store(to + offset(index), ring + stage * chunk, size(index));
        bulk_commit();
      });
  bulk_wait<0>();
}

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

  Grant grant = {};
  if (threadIdx.x == 0) {
    init_ring(filled, p.stages);
    grant = begin_transfer(p);
    granted = grant.granted;
    // The async proxy reads next what the peer wrote through the generic proxy.
    fence_async();
  }
  __syncthreads();
  if (granted && threadIdx.x == 0) {
    copy_chunks(to + head, from + head, middle, p.chunk, p.stages, ring, filled);
    // Orders the writes of the async proxy before the release of this thread, or of the block with the last
    // ticket.
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
  if (threadIdx.x == 0) end_transfer(p, grant);
}
