// The order of the tiles of a product whose rows lie in shards.
#pragma once

#include "gemm.cuh"

namespace warpweave {

// Consecutive rows of clusters' tiles of a shard, walked column after column. `Band` in `all_gather_matmul/table.rs`.
struct Band {
  // The first tile of the walk behind it.
  uint32_t end;
  uint32_t row;
  uint32_t rows;
  uint32_t shard;
};
static_assert(sizeof(Band) == sizeof(uint4), "one load");

// `Walk` in `sm90/all_gather/parameters.rs` has the same layout.
struct Walk {
  const Band* bands;
  // In tiles of a cluster: all of them, and of a row.
  uint32_t tiles;
  uint32_t columns;

  template <class Tile, class Visit>
  __device__ __forceinline__ void for_each_tile(Visit&& visit) const {
    const Band* next = bands;
    for (uint32_t index = blockIdx.x / Tile::kCluster; index < tiles; index += gridDim.x / Tile::kCluster) {
      // The walk only goes on, so that the band is this one or a later one.
      uint4 band = __ldg(reinterpret_cast<const uint4*>(next));
      while (index >= band.x) band = __ldg(reinterpret_cast<const uint4*>(++next));
      const uint32_t within = index - (band.x - band.z * columns);
      visit(corner_of<Tile>({band.y + within % band.z, within / band.z}, band.w));
    }
  }
};

}  // namespace warpweave
