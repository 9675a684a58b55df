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

// A consumer's scales by block, of `kAhead` steps of K at a time: of the two rows of A that this thread has
// sums of, and of each 128 columns of its tile, or of the two blocks that a narrow tile may have columns of.
// Those of the next steps are being loaded meanwhile.
//
// Lanes share the loads: four of them have sums of the same rows, and all of the same columns. So a load of
// each lane brings four steps of A, and one load `kAhead` steps of B. Loads for each step would share a
// scoreboard, and each wait would be for those that have just begun, which takes longer than a step.
template <class Tile, uint32_t kAhead_ = 4>
class BlockScales {
  static constexpr bool kStraddles = Tile::kN < kScaleBlock && kScaleBlock % Tile::kN != 0;
  static constexpr uint32_t kBlocks = (Tile::kN + kScaleBlock - 1) / kScaleBlock + kStraddles;
  // Lanes that have sums of the same rows, and loads of A.
  static constexpr uint32_t kLanes = 4, kLoads = kAhead_ / kLanes;
  static_assert(kAhead_ % kLanes == 0 && kAhead_ * kBlocks <= 32, "a lane for each scale of B");

 public:
  static constexpr uint32_t kAhead = kAhead_;

  // Those of a step: for each block of columns, of the upper row and of the lower.
  struct OfStep {
    float2 of_block[kBlocks];
  };

  __device__ __forceinline__ BlockScales(const Scales& scales, TileCoord tile, uint32_t consumer,
                                         uint32_t steps)
      : block_step_(scales.block_step), steps_(steps), in_first_(kScaleBlock - tile.column % kScaleBlock) {
    const uint32_t row = tile.row + consumer * 64 + threadIdx.x % 128 / 32 * 16 + lane() / kLanes;
    const uint32_t last_row = scales.rows - 1, last_block = (scales.columns - 1) / kScaleBlock;
    const size_t of_lane = size_t(lane() % kLanes) * scales.block_step;
    a_[0] = scales.a + size_t(min(row, last_row)) * scales.row_step + of_lane;
    a_[1] = scales.a + size_t(min(row + 8, last_row)) * scales.row_step + of_lane;
    const uint32_t block = tile.column / kScaleBlock + min(lane() / kAhead, kBlocks - 1);
    b_ = scales.b + size_t(min(block, last_block)) * scales.stride + lane() % kAhead;
    load();
  }

  // All lanes: those of the step whose number modulo `kAhead` is `place`. Steps are asked for in order, so
  // the first of `kAhead` begins the loads for the next.
  __device__ __forceinline__ OfStep at(uint32_t place) {
    if (place == 0) {
#pragma unroll
      for (uint32_t i = 0; i < kLoads; ++i) of_a_[i][0] = next_a_[i][0], of_a_[i][1] = next_a_[i][1];
      of_b_ = next_b_;
      load();
    }
    const uint32_t of_a = lane() / kLanes * kLanes + place % kLanes;
    const float upper = shuffled(of_a_[place / kLanes][0], of_a);
    const float lower = shuffled(of_a_[place / kLanes][1], of_a);
    OfStep of_step;
#pragma unroll
    for (uint32_t i = 0; i < kBlocks; ++i) {
      const float b = shuffled(of_b_, i * kAhead + place);
      of_step.of_block[i] = make_float2(upper * b, lower * b);
    }
    return of_step;
  }

  // Adds `partial`, sums of a step over 64 rows and the columns of `block`, to the accumulators.
  template <uint32_t kCount>
  __device__ __forceinline__ void add(float (&sums)[kCount], const float (&partial)[kCount],
                                      const OfStep& of_step, uint32_t block) const {
    float2 by = of_step.of_block[block];
#pragma unroll
    for (uint32_t i = 0; i < kCount; i += 4) {
      // Sums of eight columns.
      if constexpr (kStraddles) by = 2 * i < in_first_ ? of_step.of_block[0] : of_step.of_block[1];
      sums[i] = fmaf(partial[i], by.x, sums[i]), sums[i + 1] = fmaf(partial[i + 1], by.x, sums[i + 1]);
      sums[i + 2] = fmaf(partial[i + 2], by.y, sums[i + 2]);
      sums[i + 3] = fmaf(partial[i + 3], by.y, sums[i + 3]);
    }
  }

 private:
  __device__ __forceinline__ static uint32_t lane() { return threadIdx.x % 32; }
  __device__ __forceinline__ static float shuffled(float value, uint32_t from) {
    return __shfl_sync(0xffffffff, value, from);
  }

  // Loads those of the next `kAhead` steps, as far as there are steps.
  __device__ __forceinline__ void load() {
#pragma unroll
    for (uint32_t i = 0; i < kLoads; ++i) {
      if (begun_ + i * kLanes + lane() % kLanes < steps_) {
        next_a_[i][0] = __ldg(a_[0]), next_a_[i][1] = __ldg(a_[1]);
      }
      a_[0] += kLanes * block_step_, a_[1] += kLanes * block_step_;
    }
    if (begun_ + lane() % kAhead < steps_) next_b_ = __ldg(b_);
    b_ += kAhead;
    begun_ += kAhead;
  }

  const float* a_[2];
  const float* b_;
  const uint32_t block_step_;
  const uint32_t steps_;
  // Columns of the tile that are of its first block.
  const uint32_t in_first_;
  // Steps whose loads have begun.
  uint32_t begun_ = 0;
  float of_a_[kLoads][2], next_a_[kLoads][2] = {};
  float of_b_, next_b_ = 0;
};

// Sums that are not scaled step by step, of so many steps at a time.
template <uint32_t kSteps>
struct NoScales {
  static constexpr uint32_t kAhead = kSteps;
  struct OfStep {};
  __device__ __forceinline__ NoScales(const Scales&, TileCoord, uint32_t, uint32_t) {}
  __device__ __forceinline__ OfStep at(uint32_t) { return {}; }
  template <uint32_t kCount>
  __device__ __forceinline__ void add(float (&sums)[kCount], const float (&partial)[kCount], OfStep,
                                      uint32_t) const {
#pragma unroll
    for (uint32_t i = 0; i < kCount; ++i) sums[i] += partial[i];
  }
};

}  // namespace warpweave
