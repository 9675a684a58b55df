// TMA (Hopper): one thread moves a box of a matrix between global and shared memory with one instruction, by
// a tensor map and through the async proxy. Global memory may be a peer's.
//
// - A map is encoded on the host (`cuTensorMapEncodeTiled`) and passed as a `__grid_constant__` parameter. It
//   holds the matrix, the box, and the swizzle of the box in shared memory.
// - A box may reach beyond the matrix. That part is loaded as zeros, which count as bytes of the barrier, and
//   is not stored.
// - With the swizzle of 128 bytes a box is at most 128 bytes wide and starts in shared memory at a multiple
//   of 1024 (`swizzled` says where its bytes are).
// - Stores are bulk copies: `fence_async_shared` before them, `bulk_commit` and the waits after them
//   (bulk.cuh).
//
// PTX ISA: "cp.async.bulk.tensor", "Swizzling modes", "prefetch, prefetchu"; CUDA driver API: "Tensor Map
// Object Management".
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

// The offset of byte `column` of row `row` in a box. The eight chunks of 16 bytes of a row are permuted by
// the row's number, so that a column of chunks uses all banks.
__host__ __device__ constexpr uint32_t swizzled(uint32_t row, uint32_t column) {
  return row * kSwizzledRow + (column ^ ((row % 8) * 16));
}
static_assert(swizzled(0, 112) == 112 && swizzled(1, 0) == 128 + 16 && swizzled(7, 112) == 7 * 128,
              "chunk ^ row % 8");
static_assert(swizzled(8, 32) == 1024 + 32, "the pattern repeats every eight rows");

// Prefetches a map.
__device__ __forceinline__ void prefetch_map(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Loads the box whose first element is in column `x` and row `y`. `barrier` must expect its bytes.
__device__ __forceinline__ void load_box(void* shared, const TensorMap* map, int32_t x, int32_t y,
                                         uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
      "%4}], [%2];" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y)
      : "memory");
}

// The same for a stack of matrices, by a map of three dimensions: a box of each of several, from matrix `z`
// on.
__device__ __forceinline__ void load_box(void* shared, const TensorMap* map, int32_t x, int32_t y, int32_t z,
                                         uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, "
      "%5}], [%2];" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z)
      : "memory");
}

// Loads a box into each block of the cluster whose bit is set in `blocks`, at the offset of `shared` in this
// block. The bytes count at each block's own barrier, at the offset of `barrier` in this block.
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

// The same into matrix `z` of a stack, by a map of three dimensions.
__device__ __forceinline__ void store_box(const TensorMap* map, int32_t x, int32_t y, int32_t z,
                                          const void* shared) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
      "r"(shared_address(shared)), "r"(x), "r"(y), "r"(z)
      : "memory");
}

}  // namespace warpweave
