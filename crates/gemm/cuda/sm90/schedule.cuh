// The tile schedule: the order in which a persistent grid takes the tiles of C.
#pragma once

#include "tile.cuh"

namespace warpweave {

// A tile of C by its first row and column, in the shard `shard` where rows are sharded. It has the columns of
// a tile, or half as many.
struct TileCoord {
  uint32_t row;
  uint32_t column;
  uint32_t shard;
  bool is_half;
};

// A tile of a cluster, in tiles of a cluster.
struct ClusterTile {
  uint32_t row;
  uint32_t column;
};

// This block's tile of a cluster's tile.
template <class Tile>
__device__ __forceinline__ TileCoord tile_coord(ClusterTile tile, uint32_t shard = 0) {
  const uint32_t rank = Tile::kCluster == 1 ? 0 : cluster_rank();
  const uint32_t row = tile.row * Tile::kClusterM + (Tile::kMulticast == Multicast::kB ? rank : 0);
  const uint32_t column = tile.column * Tile::kClusterN + (Tile::kMulticast == Multicast::kA ? rank : 0);
  return {row * Tile::kM, column * Tile::kN, shard, false};
}

// A cluster's tiles of a schedule of so many: `visit(index, half)`, where `half` is 0 or 1 for one half of
// the columns, and 2 for all of them. The last wave leaves clusters without a tile. If these are half of all
// or more, its tiles are taken in halves, so that it takes less time. `sm90/config.rs` counts waves alike.
template <class Tile, class Visit>
__device__ __forceinline__ void for_each_index(uint32_t tiles, Visit&& visit) {
  const uint32_t clusters = gridDim.x / Tile::kCluster, cluster = blockIdx.x / Tile::kCluster;
  uint32_t whole = tiles;
  if constexpr (Tile::kHasHalves) {
    if (2 * (tiles % clusters) <= clusters) whole -= tiles % clusters;
  }
  for (uint32_t index = cluster; index < whole; index += clusters) visit(index, 2u);
  if constexpr (Tile::kHasHalves) {
    if (cluster < 2 * (tiles - whole)) visit(whole + cluster / 2, cluster % 2);
  }
}

// One half of a tile, or all of it.
template <class Tile>
__device__ __forceinline__ TileCoord half_of(TileCoord tile, uint32_t half) {
  if (Tile::kHasHalves && half < 2) tile.column += half * (Tile::kN / 2), tile.is_half = true;
  return tile;
}

// The schedule of one matrix: groups of `swizzle` rows of tiles, each taken column after column. The part of
// A and B that a wave of blocks reads is then nearly square and stays in L2. `sm90/raster.rs` is the same.
struct Raster {
  // In tiles of a cluster.
  uint32_t rows;
  uint32_t columns;
  uint32_t swizzle;

  __host__ __device__ constexpr uint32_t count() const { return rows * columns; }

  __host__ __device__ constexpr ClusterTile at(uint32_t index) const {
    const uint32_t first = index / (swizzle * columns) * swizzle;
    const uint32_t height = rows - first < swizzle ? rows - first : swizzle;
    const uint32_t within = index - first * columns;
    return {first + within % height, within / height};
  }

  // Whole tiles.
  template <class Tile, class Visit>
  __device__ __forceinline__ void for_each_tile(Visit&& visit) const {
    const uint32_t tiles = count();
    for (uint32_t index = blockIdx.x / Tile::kCluster; index < tiles; index += gridDim.x / Tile::kCluster) {
      visit(tile_coord<Tile>(at(index)));
    }
  }

  // Tiles, and halves of the last.
  template <class Tile, class Visit>
  __device__ __forceinline__ void for_each_part(Visit&& visit) const {
    for_each_index<Tile>(count(), [&](uint32_t index, uint32_t half) {
      visit(half_of<Tile>(tile_coord<Tile>(at(index)), half));
    });
  }
};
static_assert(Raster{5, 3, 2}.at(3).row == 1 && Raster{5, 3, 2}.at(3).column == 1, "down the group first");
static_assert(Raster{5, 3, 2}.at(13).row == 4 && Raster{5, 3, 2}.at(13).column == 1,
              "the last group is lower");

// Consecutive rows of tiles of a shard, taken column after column. `all_gather_matmul/table.rs` has the same
// layout.
struct SwizzleGroup {
  // The first tile of the schedule after this group.
  uint32_t end;
  uint32_t row;
  uint32_t rows;
  uint32_t shard;
};
static_assert(sizeof(SwizzleGroup) == sizeof(uint4), "one load");

// The schedule of a matrix whose rows are sharded, from a table. `sm90/all_gather/parameters.rs` has the same
// layout.
struct TileSchedule {
  const SwizzleGroup* groups;
  // In tiles of a cluster: all of them, and those of a row.
  uint32_t tiles;
  uint32_t columns;

  // Tiles, and halves of the last.
  template <class Tile, class Visit>
  __device__ __forceinline__ void for_each_part(Visit&& visit) const {
    const SwizzleGroup* next = groups;
    for_each_index<Tile>(tiles, [&](uint32_t index, uint32_t half) {
      // Indices only grow: the group is this one or a later one.
      uint4 group = __ldg(reinterpret_cast<const uint4*>(next));
      while (index >= group.x) group = __ldg(reinterpret_cast<const uint4*>(++next));
      const uint32_t within = index - (group.x - group.z * columns);
      const ClusterTile tile{group.y + within % group.z, within / group.z};
      visit(half_of<Tile>(tile_coord<Tile>(tile, group.w), half));
    });
  }
};

// The chunks of a peer's shard that the rows of a tile lie in. Tiles of a row follow each other, so most
// tiles need the chunks that the tile before needed.
struct ChunkNeed {
  uint32_t shard = ~0u;
  uint32_t first = 0;
  uint32_t last = 0;

  // Goes on to the next tile of a schedule. True if it needs chunks that the last one did not. This rank's
  // shard, `own`, has no chunks. A shard has `rows` rows.
  template <class Tile>
  __device__ __forceinline__ bool advance(TileCoord tile, uint32_t own, uint32_t rows, uint32_t chunk_rows) {
    if (tile.shard == own || tile.row >= rows) return false;
    const uint32_t from = tile.row / chunk_rows, to = (min(tile.row + Tile::kM, rows) - 1) / chunk_rows;
    if (tile.shard == shard && from >= first && to <= last) return false;
    shard = tile.shard, first = from, last = to;
    return true;
  }
};

}  // namespace warpweave
