// Boxes of matrices between global and shared memory by tensor maps (Hopper): one thread moves a tile with one
// instruction, through the async proxy. Global memory may be a peer's.
//
// - A map is encoded on the host (`cuTensorMapEncodeTiled`) and passed as a `__grid_constant__` parameter. It holds the
//   matrix, the box, and the swizzle of the box in shared memory.
// - What a box reaches beyond the matrix is loaded as zeros, counted in the barrier's bytes all the same, and not stored.
// - With the swizzle of 128 bytes a box is at most 128 bytes wide and starts in shared memory at a multiple of 1024
//   (`swizzled` says where its bytes are).
// - Stores are bulk copies: `fence_async_shared` before, `bulk_commit` and the waits behind them (bulk.cuh).
//
// PTX ISA: "cp.async.bulk.tensor", "Swizzling modes", "prefetch, prefetchu"; CUDA driver API: "Tensor Map Object Management".
#pragma once

#include <cstdint>

#include "warpweave/bulk.cuh"
#include "warpweave/mbarrier.cuh"

namespace warpweave {

// The driver's `CUtensorMap`.
struct alignas(128) TensorMap {
  uint64_t opaque[16];
};
static_assert(sizeof(TensorMap) == 128, "as in the driver");

// Rows of a box with the swizzle of 128 bytes.
constexpr uint32_t kSwizzledRow = 128;
// Where boxes with that swizzle start.
constexpr uint32_t kSwizzleAlignment = 1024;

// Where byte `column` of row `row` of a box lies, from its start: the eight chunks of 16 bytes of a row change places by
// the row's number, so that a column of chunks lies in all banks.
__host__ __device__ constexpr uint32_t swizzled(uint32_t row, uint32_t column) {
  return row * kSwizzledRow + (column ^ ((row % 8) * 16));
}
static_assert(swizzled(0, 112) == 112 && swizzled(1, 0) == 128 + 16 && swizzled(7, 112) == 7 * 128, "chunk ^ row % 8");
static_assert(swizzled(8, 32) == 1024 + 32, "the pattern repeats every eight rows");

// Fetches a map ahead of its first use.
__device__ __forceinline__ void prefetch_map(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Loads the box whose first element is in column `x` and row `y`. `barrier` is to expect its bytes.
__device__ __forceinline__ void load_box(void* shared, const TensorMap* map, int32_t x, int32_t y, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
          shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y)
      : "memory");
}

// The same of matrices behind each other, by a map of three dimensions: a box of each of some, from matrix `z`.
__device__ __forceinline__ void load_box(void* shared, const TensorMap* map, int32_t x, int32_t y, int32_t z,
                                         uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(
          shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z)
      : "memory");
}

// Loads a box into each block of the cluster whose bit is set in `blocks`, where `shared` lies in this block; the bytes
// count at each block's own barrier, where `barrier` lies in this block.
__device__ __forceinline__ void load_box_multicast(void* shared, const TensorMap* map, int32_t x, int32_t y,
                                                   uint64_t* barrier, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%4, %5}], [%2], %3;" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "h"(blocks), "r"(x), "r"(y)
      : "memory");
}

// Stores a box, as part of this thread's open group of bulk stores.
__device__ __forceinline__ void store_box(const TensorMap* map, int32_t x, int32_t y, const void* shared) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
               "r"(shared_address(shared)), "r"(x), "r"(y)
               : "memory");
}

// The same into matrix `z` of several behind each other, by a map of three dimensions.
__device__ __forceinline__ void store_box(const TensorMap* map, int32_t x, int32_t y, int32_t z, const void* shared) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
               "r"(shared_address(shared)), "r"(x), "r"(y), "r"(z)
               : "memory");
}

}  // namespace warpweave
