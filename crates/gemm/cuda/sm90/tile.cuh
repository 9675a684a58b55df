// The shapes of a product: the tile of a block, the boxes that bring its operands, its shared memory, and the order in
// which the tiles are computed.
#pragma once

#include <cstdint>

#include "warpweave/cluster.cuh"
#include "warpweave/tma.cuh"
#include "warpweave/wgmma.cuh"

namespace warpweave {

// Which operand the two blocks of a cluster have in common: each loads one half of it, for both.
enum class Common { kNothing, kA, kB };

// Elements of 16 bits in a swizzled row.
constexpr uint32_t kBox = kSwizzledRow / 2;
// Warpgroups that multiply, 64 rows of the tile each.
constexpr uint32_t kConsumers = 2;
constexpr uint32_t kWarpgroup = 128;
// One warpgroup loads.
constexpr uint32_t kThreads = (1 + kConsumers) * kWarpgroup;
// Registers a thread; together no more than `kThreads` threads have at the launch.
constexpr int kProducerRegisters = 40;
constexpr int kConsumerRegisters = 232;
static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <= 65536 / kThreads / 8 * 8 * 3, "all that there are");

// A block computes `kM` × `kN` elements of C in steps of `kK`.
//
// B is stored as rows of K (`Major::kK`, N×K: transposed) or as rows of N (`Major::kMN`, K×N: row-major). With two buffers
// of C a consumer fills one box while the other is being stored; with one, shared memory is left for others.
template <typename T, Major kMajorB_, uint32_t kN_, Common kCommon_, uint32_t kBuffersC_ = 2>
struct Tile {
  using Element = T;
  static constexpr Major kMajorB = kMajorB_;
  static constexpr Common kCommon = kCommon_;
  static constexpr uint32_t kM = kConsumers * 64;
  static constexpr uint32_t kN = kN_;
  static constexpr uint32_t kK = kBox;
  static constexpr uint32_t kCluster = kCommon == Common::kNothing ? 1 : 2;
  // Tiles of a cluster.
  static constexpr uint32_t kClusterM = kCommon == Common::kB ? 2 : 1;
  static constexpr uint32_t kClusterN = kCommon == Common::kA ? 2 : 1;

  static constexpr uint32_t kBytesA = kM * kK * 2;
  static constexpr uint32_t kBytesB = kN * kK * 2;
  // What a block's own shared memory receives in a stage, whoever loads it.
  static constexpr uint32_t kStageBytes = kBytesA + kBytesB;
  static constexpr uint32_t kStages = 4 * (kBox * 2 * (128 + 256)) / kStageBytes;

  // Rows of a box of A, but of the last tile, and of a K-major box of B: what one block loads of the tile.
  static constexpr uint32_t kRowsA = kM / kClusterN;
  static constexpr uint32_t kRowsB = kN / kClusterM;
  static_assert(kRowsA <= 256 && kRowsB <= 256, "the longest side of a box");
  static_assert(kRowsB % kBox == 0, "whole MN-major boxes");

  // An MN-major box of B: 64 columns in each of 64 steps of K.
  static constexpr uint32_t kBoxBytes = kBox * kK * 2;
  // A box of C: 64 columns of the 64 rows of a consumer.
  static constexpr uint32_t kBoxesC = kN / kBox;
  static constexpr uint32_t kBuffersC = kBuffersC_;
};

// The operands of a step of K.
template <class Tile>
struct Stage {
  char a[Tile::kBytesA];
  char b[Tile::kBytesB];
};

// The shared memory of a block. Boxes start at multiples of 1024.
template <class Tile>
struct alignas(kSwizzleAlignment) Memory {
  Stage<Tile> stages[Tile::kStages];
  char c[kConsumers][Tile::kBuffersC][64 * kSwizzledRow];
  // A stage has been filled; a stage may be filled.
  uint64_t full[Tile::kStages];
  uint64_t empty[Tile::kStages];
};

// This block's, at the first place in dynamic shared memory where boxes may start.
template <class Tile>
__device__ __forceinline__ Memory<Tile>& memory_of_block() {
  extern __shared__ char shared[];
  const uint32_t behind = shared_address(shared) % kSwizzleAlignment;
  return *reinterpret_cast<Memory<Tile>*>(shared + (kSwizzleAlignment - behind) % kSwizzleAlignment);
}

// Dynamic shared memory of a launch: `SHARED_BYTES` in `sm90/config.rs`. The layout, and what may lie before its start.
template <class Tile>
constexpr uint32_t kSharedBytes = sizeof(Memory<Tile>) + kSwizzleAlignment;

// The order of the clusters' tiles: bands of `band` rows of tiles, in each column after column, so that what a wave of
// blocks reads of A and B is nearly square and stays in L2. `sm90/raster.rs` is the same.
struct Raster {
  uint32_t rows;
  uint32_t columns;
  uint32_t band;

  struct Place {
    uint32_t row;
    uint32_t column;
  };

  __host__ __device__ constexpr uint32_t count() const { return rows * columns; }

  __host__ __device__ constexpr Place at(uint32_t index) const {
    const uint32_t first = index / (band * columns) * band;
    const uint32_t height = rows - first < band ? rows - first : band;
    const uint32_t within = index - first * columns;
    return {first + within % height, within / height};
  }
};
static_assert(Raster{5, 3, 2}.at(3).row == 1 && Raster{5, 3, 2}.at(3).column == 1, "down the band first");
static_assert(Raster{5, 3, 2}.at(13).row == 4 && Raster{5, 3, 2}.at(13).column == 1, "the last band is lower");

}  // namespace warpweave
