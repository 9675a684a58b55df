// What a launch of `reduction.cuh` is given: its matrices, the shards of their rows and the groups of these, and the order in
// which the blocks take their tiles.
#pragma once

#include "gemm.cuh"
#include "inbox.cuh"
#include "warpweave/signal.cuh"

namespace warpweave {

// A tile in the order of the blocks. `Unit` in `sm90/reduction.rs`.
struct Unit {
  // Whose rows they are, and which group of them.
  uint16_t owner;
  uint16_t group;
  // In tiles, in the shard.
  uint32_t row;
  uint32_t column;
  // Units of the group.
  uint32_t of;
};
static_assert(sizeof(Unit) == sizeof(uint4), "one load");

// The parameters of a launch. `Reduction` in `sm90/reduction.rs` has the same layout.
struct alignas(128) Reduction {
  TensorMap a;
  TensorMap b;
  // This rank's rows of C.
  TensorMap c;
  // For each other rank: this rank's part of its rows, in staging.
  TensorMap outgoing[kMostRanks];
  // The parts of this rank's rows from all other ranks, in their order, once fetched.
  TensorMap incoming;
  PadView pad;
  // For each other rank: where its part lies, and where it is fetched to.
  const char* from[kMostRanks];
  char* to[kMostRanks];
  // Row 0 of each rank's C, where everyone gets the sums.
  char* sums[kMostRanks];
  const Unit* units;
  // By own group, and behind them the calls.
  uint32_t* arrived;
  // Of A and C, by rank: the rows before its shard, and those of it.
  uint32_t starts[kMostRanks];
  uint32_t rows[kMostRanks];
  // Of a group, but the last of a shard.
  uint32_t group_rows;
  // Of the largest shard.
  uint32_t groups;
  // From a row of C or a part to the next, and of a row of C.
  uint32_t row_stride;
  uint32_t row_bytes;
  uint32_t unit_count;
  // Steps of K.
  uint32_t steps;
  uint32_t ready;
  uint32_t summed;
  uint32_t done;
  // Whether every rank gets the sums.
  uint32_t everyone;
  // Of the largest shard.
  uint32_t most_rows;
  Bias bias;

  __device__ __forceinline__ uint32_t* calls() const { return &arrived[groups]; }
  __device__ __forceinline__ void prefetch_maps() const {
    prefetch_map(&a);
    prefetch_map(&b);
  }

  // Rows of a group; 0 behind the last of the shard.
  __device__ __forceinline__ uint32_t height(uint32_t owner, uint32_t group) const {
    const uint32_t first = group * group_rows;
    return first < rows[owner] ? min(group_rows, rows[owner] - first) : 0;
  }
  __device__ __forceinline__ Lines part(uint32_t group) const {
    return {1, uint64_t(height(pad.rank, group)) * row_stride, 0};
  }
  // Rows that lie behind each other are one line.
  __device__ __forceinline__ Lines sum(uint32_t owner, uint32_t group) const {
    const uint32_t count = height(owner, group);
    return row_bytes == row_stride ? Lines{1, uint64_t(count) * row_bytes, 0} : Lines{count, row_bytes, row_stride};
  }
};
static_assert(sizeof(Reduction) == 2048, "as in Rust");

// A tile of the shard of `owner`, by its first row there and its first column.
struct Part {
  uint32_t owner;
  uint32_t group;
  uint32_t row;
  uint32_t column;
  // Stores of the group by this rank: one by each consumer of each of its tiles.
  uint32_t draws;
};

__device__ __forceinline__ Unit unit_at(const Unit* from) {
  const uint4 unit = __ldg(reinterpret_cast<const uint4*>(from));
  return {uint16_t(unit.x), uint16_t(unit.x >> 16), unit.y, unit.z, unit.w};
}

// The walk of this block over the tiles: `visit(part)` for each.
template <class Tile, class Visit>
__device__ __forceinline__ void for_each_part(const Reduction& reduction, Visit&& visit) {
  for (uint32_t i = blockIdx.x; i < reduction.unit_count; i += gridDim.x) {
    const Unit unit = unit_at(reduction.units + i);
    const Corner corner = corner_of<Tile>({unit.row, unit.column});
    visit(Part{unit.owner, unit.group, corner.row, corner.column, unit.of * kConsumers});
  }
}

}  // namespace warpweave
