// How a consumer leaves a finished tile to a warp that stores it, and multiplies again: in a stage that the ring lends for the time of
// the store.
#pragma once

#include "gemm.cuh"

namespace warpweave {

// Between a consumer and its storer, a warp, one thread of which stores: boxes of 64 columns in a lent stage, and in buffers of C what
// that has no place for. Of two barriers each waits at one and arrives at the other.
template <class Tile>
class Handover {
 public:
  __device__ __forceinline__ Handover(const Pipeline<Tile>& pipeline, uint32_t consumer)
      : pipeline_(pipeline), consumer_(consumer) {}

  // The consumer: leaves the sums of a tile, rounded, in the stage at `at`, which the producer has lent.
  __device__ __forceinline__ void give(typename Pipeline<Tile>::Cursor& at, const Sums<Tile>& sums) const {
    pipeline_.wait_full(at);
    sync(empty());
#pragma unroll
    for (uint32_t box = 0; box < Tile::kBoxesC; ++box) {
      round_to_box<typename Tile::Element>(place(at.stage, box), sums[box]);
    }
    fence_async_shared();
    arrive(full());
    at.advance();
  }

  // The storer, before its first tile.
  __device__ __forceinline__ void begin() const { arrive(empty()); }

  // The storer: takes a tile out of `stage`. One thread calls `store(box, place)` for each of its boxes, in an open group of bulk stores, if
  // `sound()` says so behind what the consumer has seen; returns the same, in this thread alone.
  template <class Sound, class Store>
  __device__ __forceinline__ bool take(uint32_t stage, Sound&& sound, Store&& store) const {
    // Whole warps take part in named barriers.
    __syncwarp();
    sync(full());
    const bool stores = threadIdx.x % 32 == 0 && sound();
    if (stores) {
      for (uint32_t box = 0; box < Tile::kBoxesC; ++box) store(box, place(stage, box));
      bulk_commit();
      bulk_wait_read<0>();
    }
    __syncwarp();
    arrive(empty());
    pipeline_.give_back(stage);
    return stores;
  }

  // The consumer, behind its last tile: the storer has taken it.
  __device__ __forceinline__ void end() const { sync(empty()); }

 private:
  static constexpr uint32_t kBoxBytes = 64 * kSwizzledRow;
  static constexpr uint32_t kLent = Tile::kStageBytes / kBoxBytes / kConsumers;
  static_assert(kLent + Tile::kBuffersC >= Tile::kBoxesC, "a whole tile");

  __device__ __forceinline__ char* place(uint32_t stage, uint32_t box) const {
    Memory<Tile>& memory = pipeline_.memory;
    if (box >= kLent) return memory.c[consumer_][box - kLent];
    return memory.stages[stage].a + (consumer_ * kLent + box) * kBoxBytes;
  }

  // Barrier 0 is that of the block, those behind it the consumers' own.
  __device__ __forceinline__ uint32_t empty() const { return 1 + kConsumers + 2 * consumer_; }
  __device__ __forceinline__ uint32_t full() const { return empty() + 1; }

  __device__ __forceinline__ static void sync(uint32_t barrier) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kWarpgroup + 32) : "memory");
  }
  __device__ __forceinline__ static void arrive(uint32_t barrier) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(kWarpgroup + 32) : "memory");
  }

  const Pipeline<Tile>& pipeline_;
  const uint32_t consumer_;
};

}  // namespace warpweave
