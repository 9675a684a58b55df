// What the kernels share in which owners reduce their rows, `reduction.cu` and `multimem_reduction.cu`: the
// parameters of a launch, the order of tiles, and the flag that all peers get.
#pragma once

#include "gemm.cuh"
#include "recv_ring.cuh"
#include "warpweave/signal.cuh"

namespace warpweave {

// A tile in the order of the blocks. `sm90/reduction.rs` has the same layout.
struct ScheduledTile {
  // Whose rows they are, and which group of them.
  uint16_t owner;
  uint16_t group;
  // In tiles, in the shard.
  uint32_t row;
  uint32_t column;
  // Tiles of the group.
  uint32_t of;
};
static_assert(sizeof(ScheduledTile) == sizeof(uint4), "one load");

// A tile of the shard of `owner`, by its first row there and its first column.
struct GroupTile {
  uint32_t owner;
  uint32_t group;
  uint32_t row;
  uint32_t column;
  // Stores of this rank for the group: one by each consumer of each of its tiles.
  uint32_t stores;
};

// The parameters of a launch. `sm90/reduction.rs` has the same layout.
struct alignas(128) ReductionParams {
  TensorMap a;
  TensorMap b;
  // This rank's rows of C; for an all-reduce, where the others pull them.
  TensorMap c;
  // These rows in local memory, if C is there.
  TensorMap local_c;
  // For each other rank: this rank's partial of its rows, in staging. By multimem for this rank too.
  TensorMap outgoing[kMostRanks];
  // The partials of this rank's rows from all other ranks, in their order, once pulled.
  TensorMap incoming;
  PadView pad;
  // For each other rank: where its partial is, and where it is pulled to. By multimem for this rank: the
  // multicast addresses of the partials of its rows, and of its rows of C.
  const char* from[kMostRanks];
  char* to[kMostRanks];
  // For an all-reduce, row 0 of each rank's C, of this one where it is for its own use.
  char* results[kMostRanks];
  const ScheduledTile* schedule;
  // By own group, followed by the calls.
  uint32_t* arrived;
  // Of A and C, by rank: the rows before its shard, and those of it.
  uint32_t starts[kMostRanks];
  uint32_t rows[kMostRanks];
  // Of a group, except the last of a shard.
  uint32_t group_rows;
  // Of the largest shard.
  uint32_t groups;
  // Bytes from a row of C or a partial to the next, and of a row of C.
  uint32_t row_stride;
  uint32_t row_bytes;
  uint32_t tiles;
  // Steps of K.
  uint32_t steps;
  // Slots.
  uint32_t ready;
  uint32_t reduced;
  uint32_t done;
  // Whether every rank gets the results.
  uint32_t all_reduce;
  // Of the largest shard.
  uint32_t most_rows;
  // Whether C is in local memory, so that this rank's rows are stored twice.
  uint32_t is_local;
  Epilogue epilogue;
  // Of operands of e4m3: of this rank's columns of A and rows of B.
  Scales scales;

  // The number of the call, which is the epoch of all flags of the kernel's slots: one counter stands for all
  // of them.
  __device__ __forceinline__ CallCounter epochs() const { return call_counter(pad, done); }
  // The calls that `arrived` has counted.
  __device__ __forceinline__ CallCounter calls() const { return {&arrived[groups]}; }

  // Rows of a group; 0 after the last of the shard.
  __device__ __forceinline__ uint32_t height(uint32_t owner, uint32_t group) const {
    const uint32_t first = group * group_rows;
    return first < rows[owner] ? min(group_rows, rows[owner] - first) : 0;
  }
  // What is pulled of a partial of an own group, and of the results of a group. Contiguous rows are one.
  __device__ __forceinline__ StridedRows partial(uint32_t group) const {
    return {1, uint64_t(height(pad.rank, group)) * row_stride, 0};
  }
  __device__ __forceinline__ StridedRows result(uint32_t owner, uint32_t group) const {
    return StridedRows::of(height(owner, group), row_bytes, row_stride);
  }

  // `visit(tile)` for each tile of this block.
  template <class Tile, class Visit>
  __device__ __forceinline__ void for_each_tile(Visit&& visit) const {
    for (uint32_t i = blockIdx.x; i < tiles; i += gridDim.x) {
      const uint4 each = __ldg(reinterpret_cast<const uint4*>(schedule + i));
      const TileCoord tile = tile_coord<Tile>({each.y, each.z});
      visit(GroupTile{each.x & 0xffff, each.x >> 16, tile.row, tile.column, each.w * kConsumers});
    }
  }
};
static_assert(sizeof(ReductionParams) == 2176, "as in Rust");

__device__ __forceinline__ void signal_peers(const PadView& pad, uint32_t slot, uint32_t epoch) {
  for (uint32_t step = 1; step < pad.world; ++step) {
    store_release_sys(flag_at(pad, (pad.rank + step) % pad.world, slot, pad.rank), epoch);
  }
}

}  // namespace warpweave
