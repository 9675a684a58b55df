// Scales of e4m3 operands: f32, by which an element of C is multiplied before the bias is added.
#pragma once

#include <type_traits>

#include "schedule.cuh"

namespace warpweave {

// Rows of B, and elements along K, that share a scale (`Scaling::kBlock`).
constexpr uint32_t kScaleBlock = 128;

// Where the scales of A and B are. `Scaling` in `problem.rs` says how they lie; `sm90/prepared.rs` has the
// same layout.
struct Scales {
  const float* a;
  const float* b;
  // Of A and of C.
  uint32_t rows;
  uint32_t columns;
  // Outer scales: whether rows of A and columns of B have their own. Blocks: from the scales of 128 columns
  // of B to those of the next.
  uint32_t stride;
  // Blocks: from the scales of a row of A to those of the next, and from that of 128 elements of a row to
  // that of the next 128.
  uint32_t row_step;
  uint32_t block_step;
};
static_assert(sizeof(Scales) == 40, "as in Rust");

// The scales of a GEMM whose rows of A come from all ranks. `sm90/all_gather/parameters.rs` has the same
// layout.
struct GatheredScales {
  // By shard, those of its rows: of this rank's where the caller has them, of the others in staging. Or the
  // one of A.
  float* a[kMostRanks];
  // Of rows, by rank: those of its shard as mapped here; or where this rank's go in that rank's staging.
  float* peers[kMostRanks];
  const float* b;
  uint32_t columns;
  // Whether rows of A and columns of B have their own.
  uint32_t stride;

  // Those of a shard of `rows` rows, `offset` elements after `a`.
  __device__ __forceinline__ Scales of(uint32_t shard, uint32_t rows, uint64_t offset = 0) const {
    return {a[shard] + offset, b, rows, columns, stride, 0, 0};
  }
};
static_assert(sizeof(GatheredScales) == 144, "as in Rust");

// A consumer's outer scales of a tile: of the two rows that this thread has sums of, and of two of each 64
// columns. The other lanes of the warp have those of the rest: if each thread loaded all that it multiplies
// by, eight times for each 64 columns, that would take the SM longer than the multiplications.
template <class Tile>
class OuterScales {
 public:
  __device__ __forceinline__ OuterScales(const Scales& scales, TileCoord tile, uint32_t consumer)
      : per_tensor_(scales.stride == 0) {
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t row = tile.row + consumer * 64 + threadIdx.x % 128 / 32 * 16 + lane / 4;
    // Rows beyond A, and columns beyond C, have sums that are not stored.
    upper_ = scales.a[min(row, scales.rows - 1) * scales.stride];
    lower_ = scales.a[min(row + 8, scales.rows - 1) * scales.stride];
#pragma unroll
    for (uint32_t box = 0; box < Tile::kBoxesC; ++box) {
      const uint32_t column = tile.column + box * kBox + 2 * lane;
      const float2* at = reinterpret_cast<const float2*>(scales.b + (column < scales.columns ? column : 0));
      of_columns_[box] = per_tensor_ ? make_float2(*scales.b, 0) : *at;
    }
  }

  // Multiplies the accumulators of a box.
  __device__ __forceinline__ void apply(uint32_t box, float (&sums)[kBox / 2]) const {
    const float2 mine = of_columns_[box];
    if (per_tensor_) {
      const float of_all = upper_ * mine.x;
#pragma unroll
      for (float& sum : sums) sum *= of_all;
      return;
    }
#pragma unroll
    for (uint32_t i = 0; i < kBox; i += 8) {
      const uint32_t lane = i / 2 + threadIdx.x % 4;
      const float left = __shfl_sync(0xffffffff, mine.x, lane);
      const float right = __shfl_sync(0xffffffff, mine.y, lane);
      float* d = &sums[i / 2];
      d[0] *= upper_ * left, d[1] *= upper_ * right;
      d[2] *= lower_ * left, d[3] *= lower_ * right;
    }
  }

 private:
  // Whether all of A has one scale, and all of B.
  const bool per_tensor_;
  float upper_;
  float lower_;
  float2 of_columns_[Tile::kBoxesC];
};

// Where the epilogue does not scale.
struct NoOuterScales {
  __device__ __forceinline__ NoOuterScales(const Scales&, TileCoord, uint32_t) {}
  __device__ __forceinline__ void apply(uint32_t, float (&)[kBox / 2]) const {}
};

template <class Tile>
using EpilogueScales =
    std::conditional_t<Tile::kScaling == Scaling::kOuter, OuterScales<Tile>, NoOuterScales>;

// A consumer's scales of the steps of K that come next: of the two rows of A that this thread has sums of,
// and of each 128 columns of its tile, or of the two blocks that a narrow tile may have columns of. They are
// loaded `kAhead` steps before they are needed: a wide tile leaves few registers, and its steps take longer.
template <class Tile, uint32_t kAhead_ = Tile::kN <= kScaleBlock ? 4 : 2>
class BlockScales {
  static constexpr bool kStraddles = Tile::kN < kScaleBlock && kScaleBlock % Tile::kN != 0;
  static constexpr uint32_t kBlocks = (Tile::kN + kScaleBlock - 1) / kScaleBlock + kStraddles;

 public:
  static constexpr uint32_t kAhead = kAhead_;

  __device__ __forceinline__ BlockScales(const Scales& scales, TileCoord tile, uint32_t consumer,
                                         uint32_t steps)
      : step_(scales.block_step), left_(steps), in_first_(kScaleBlock - tile.column % kScaleBlock) {
    const uint32_t first = tile.row + consumer * 64 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    a_[0] = scales.a + size_t(min(first, scales.rows - 1)) * scales.row_step;
    a_[1] = scales.a + size_t(min(first + 8, scales.rows - 1)) * scales.row_step;
    const uint32_t last = (scales.columns - 1) / kScaleBlock;
#pragma unroll
    for (uint32_t i = 0; i < kBlocks; ++i) {
      b_[i] = scales.b + size_t(min(tile.column / kScaleBlock + i, last)) * scales.stride;
    }
#pragma unroll
    for (uint32_t i = 0; i < kAhead; ++i) load(i);
  }

  // Adds `partial`, sums of a step over 64 rows and the columns of `block`, to the accumulators. The scales
  // are those at `place`, the step modulo `kAhead`.
  template <uint32_t kCount>
  __device__ __forceinline__ void add(float (&sums)[kCount], const float (&partial)[kCount], uint32_t place,
                                      uint32_t block) const {
    float b = of_b_[place][block], upper = of_a_[place][0] * b, lower = of_a_[place][1] * b;
#pragma unroll
    for (uint32_t i = 0; i < kCount; i += 4) {
      // Sums of eight columns.
      if constexpr (kStraddles) {
        b = of_b_[place][2 * i < in_first_ ? 0 : 1], upper = of_a_[place][0] * b, lower = of_a_[place][1] * b;
      }
      sums[i] = fmaf(partial[i], upper, sums[i]), sums[i + 1] = fmaf(partial[i + 1], upper, sums[i + 1]);
      sums[i + 2] = fmaf(partial[i + 2], lower, sums[i + 2]);
      sums[i + 3] = fmaf(partial[i + 3], lower, sums[i + 3]);
    }
  }

  // Loads the scales of the next step that none have been loaded for, if there is one, to `place`.
  __device__ __forceinline__ void load(uint32_t place) {
    if (left_ == 0) return;
    --left_;
    of_a_[place][0] = __ldg(a_[0]), of_a_[place][1] = __ldg(a_[1]);
    a_[0] += step_, a_[1] += step_;
#pragma unroll
    for (uint32_t i = 0; i < kBlocks; ++i) of_b_[place][i] = __ldg(b_[i]++);
  }

 private:
  const float* a_[2];
  const float* b_[kBlocks];
  const uint32_t step_;
  uint32_t left_;
  // Columns of the tile that are of its first block.
  const uint32_t in_first_;
  float of_a_[kAhead][2];
  float of_b_[kAhead][kBlocks];
};

// Sums that are not scaled step by step, of so many steps at a time.
template <uint32_t kSteps>
struct NoScales {
  static constexpr uint32_t kAhead = kSteps;
  __device__ __forceinline__ NoScales(const Scales&, TileCoord, uint32_t, uint32_t) {}
  template <uint32_t kCount>
  __device__ __forceinline__ void add(float (&sums)[kCount], const float (&partial)[kCount], uint32_t,
                                      uint32_t) const {
#pragma unroll
    for (uint32_t i = 0; i < kCount; ++i) sums[i] += partial[i];
  }
  __device__ __forceinline__ void load(uint32_t) {}
};

}  // namespace warpweave
