// The mainloop: the load warp's loads of a tile, and a consumer's multiplications.
#pragma once

#include "pipeline.cuh"
#include "scales.cuh"
#include "schedule.cuh"

namespace warpweave {

// A, or a shard of it: a map with boxes of a whole tile, one with those of the last tile, and the rows of
// both.
struct OperandA {
  const TensorMap& whole;
  const TensorMap& last;
  uint32_t rows;
};

// Loads a box for this block, or for both blocks of the cluster.
template <bool kBoth>
__device__ __forceinline__ void load(void* to, const TensorMap* map, uint32_t x, uint32_t y, uint64_t* full) {
  if constexpr (kBoth) {
    load_box_multicast(to, map, int32_t(x), int32_t(y), full, 0b11);
  } else {
    load_box(to, map, int32_t(x), int32_t(y), full);
  }
}

// Rows of a box of A if `left` rows of the matrix are left. TMA takes several times as long for rows that it
// fills with zeros, so the last tile has a map with lower boxes. The old rows that its stages keep below them
// give rows of C that TMA does not store. `rows_of_box` in `sm90/prepared.rs` is the same.
template <class Tile>
__device__ __forceinline__ uint32_t rows_of_box(uint32_t left) {
  const uint32_t each = (min(left, Tile::kM) + Tile::kClusterN - 1) / Tile::kClusterN;
  // Boxes start at multiples of eight rows.
  return (each + 7) / 8 * 8;
}

// Called before the loads of each step of K.
struct NoWait {
  __device__ __forceinline__ void operator()(uint32_t) const {}
};

// One thread: this block's loads for the tile at `row` and `column`, or for half of its columns, a stage for
// each step of K. Boxes of A have `rows` rows. Half a tile's B is not multicast: each block loads its own.
template <class Tile, bool kHalf = false, class BeforeStep = NoWait>
__device__ __forceinline__ void load_steps(const TensorMap* map_a, const TensorMap* map_b, uint32_t rows,
                                           uint32_t row, uint32_t column, uint32_t steps,
                                           const Pipeline<Tile>& pipeline,
                                           typename Pipeline<Tile>::Cursor& at,
                                           BeforeStep&& before_step = {}) {
  constexpr bool kBothA = Tile::kMulticast == Multicast::kA;
  constexpr bool kBothB = Tile::kMulticast == Multicast::kB && !kHalf;
  constexpr uint32_t kRowsB = kHalf ? Tile::kN / 2 : Tile::kRowsB;
  const uint32_t rank = Tile::kCluster == 1 ? 0 : cluster_rank();
  const uint32_t bytes = rows * Tile::kClusterN * kSwizzledRow + Tile::kBytesB / (kHalf ? 2 : 1);
  // This block's part of the multicast operand.
  const uint32_t first_a = kBothA ? rank * rows : 0;
  const uint32_t first_b = kBothB ? rank * kRowsB : 0;
  for (uint32_t step = 0; step < steps; ++step, at.advance()) {
    before_step(step);
    uint64_t* full = pipeline.acquire(at, bytes);
    char* a = pipeline.memory.stages[at.stage].a + first_a * kSwizzledRow;
    char* b = pipeline.memory.stages[at.stage].b + first_b * kSwizzledRow;
    const uint32_t k = step * Tile::kK;
    if (rows != 0) load<kBothA>(a, map_a, k, row + first_a, full);
    // An MN-major box is as large as 64 K-major rows.
#pragma unroll
    for (uint32_t box = 0; box < kRowsB; box += Tile::kBoxB) {
      const uint32_t at_column = column + first_b + box;
      if constexpr (Tile::kMajorB == Major::kK) {
        load<kBothB>(b + box * kSwizzledRow, map_b, k, at_column, full);
      } else {
        load<kBothB>(b + box * kSwizzledRow, map_b, at_column, k, full);
      }
    }
  }
}

// One thread: this block's loads for a tile.
template <class Tile, class BeforeStep = NoWait>
__device__ __forceinline__ void load_tile(const OperandA& a, const TensorMap& b, TileCoord tile,
                                          uint32_t steps, const Pipeline<Tile>& pipeline,
                                          typename Pipeline<Tile>::Cursor& at,
                                          BeforeStep&& before_step = {}) {
  const uint32_t left = a.rows > tile.row ? a.rows - tile.row : 0;
  const TensorMap* map_a = left < Tile::kM ? &a.last : &a.whole;
  const uint32_t rows = rows_of_box<Tile>(left);
  if constexpr (Tile::kHasHalves) {
    if (tile.is_half) {
      load_steps<Tile, true>(map_a, &b, rows, tile.row, tile.column, steps, pipeline, at, before_step);
      return;
    }
  }
  load_steps<Tile>(map_a, &b, rows, tile.row, tile.column, steps, pipeline, at, before_step);
}

// A thread's accumulators of so many columns, by boxes of 64.
template <uint32_t kColumns>
using Boxes = float[kColumns / kBox][kBox / 2];

// Those of a tile.
template <class Tile>
using Accumulators = Boxes<Tile::kN>;

// A warpgroup: multiplies 64 rows of a tile, from row 64 `consumer` on, by its first `kColumns` columns.
template <class Tile, uint32_t kColumns>
__device__ __forceinline__ void multiply(const Pipeline<Tile>& pipeline, typename Pipeline<Tile>::Cursor& at,
                                         uint32_t steps, uint32_t consumer, Boxes<kColumns>& boxes) {
  constexpr uint32_t kRowsA = 64 * kSwizzledRow;
  auto& accumulators = reinterpret_cast<float (&)[kColumns / 2]>(boxes);
  uint32_t previous = 0;
  for (uint32_t step = 0; step < steps; ++step, at.advance()) {
    pipeline.wait_full(at);
    const uint32_t address_a = shared_address(pipeline.memory.stages[at.stage].a) + consumer * kRowsA;
    const uint32_t address_b = shared_address(pipeline.memory.stages[at.stage].b);
    const uint64_t a = wgmma_descriptor<Major::kK>(address_a, 0);
    const uint64_t b = wgmma_descriptor<Tile::kMajorB>(address_b, Tile::kBoxBytes);
    fence_accumulators(accumulators);
    wgmma_fence();
#pragma unroll
    for (uint32_t part = 0; part < kSwizzledRow / kWgmmaBytes; ++part) {
      wgmma<typename Tile::Element, Tile::kMajorB>(accumulators, a + part * kDescriptorStep<Major::kK>,
                                                   b + part * kDescriptorStep<Tile::kMajorB>,
                                                   step != 0 || part != 0);
    }
    wgmma_commit();
    fence_accumulators(accumulators);
    // The tensor cores are busy with this step while the stage of the previous one is released.
    wgmma_wait<1>();
    if (step != 0) pipeline.release(previous);
    previous = at.stage;
  }
  wgmma_wait<0>();
  fence_accumulators(accumulators);
  pipeline.release(previous);
}

// A warpgroup, for operands of e4m3: as `multiply`, but the tensor cores add up one step of K at a time, in
// accumulators whose sums keep about 14 bits; these are added in f32, while the tensor cores multiply for the
// other warpgroup. A tile of 128 columns leaves registers for the sums of two steps, and the tensor cores
// take the second one while the first is added; a wider tile has them for 128 columns at a time, and of half
// a tile only the first are computed.
//
// There the tensor cores idle if a warpgroup takes longer from the end of its instructions to the next ones
// than those of the other take. So the next step's descriptors are computed, and its barrier is tested,
// before it waits for the end.
//
// No instructions run from one iteration to the next: ptxas runs such one after the other if their registers
// are read in between.
template <class Tile>
__device__ __forceinline__ void multiply_promoting(const Pipeline<Tile>& pipeline,
                                                   typename Pipeline<Tile>::Cursor& at, uint32_t steps,
                                                   const Scales& scales, TileCoord tile, uint32_t consumer,
                                                   Accumulators<Tile>& boxes) {
  constexpr uint32_t kRowsA = 64 * kSwizzledRow;
  constexpr uint32_t kColumns = Tile::kN < kScaleBlock ? Tile::kN : kScaleBlock;
  constexpr uint32_t kParts = Tile::kN / kColumns;
  constexpr uint32_t kTogether = kParts == 1 ? 2 : 1;
  constexpr uint32_t kSums = kColumns / 2;
  // As descriptors count.
  constexpr uint32_t kStage = sizeof(Stage<Tile>) >> 4, kPart = kColumns * kSwizzledRow >> 4;
  const uint32_t parts = Tile::kSkipsHalf && tile.is_half ? kParts / 2 : kParts;
  auto& accumulators = reinterpret_cast<float (&)[kParts][kSums]>(boxes);
#pragma unroll
  for (uint32_t i = 0; i < kParts * kSums; ++i) accumulators[i / kSums][i % kSums] = 0;
  using StepScales =
      std::conditional_t<Tile::kScaling == Scaling::kBlock, BlockScales<Tile>, NoScales<kTogether>>;
  StepScales step_scales{scales, tile, consumer, steps};

  // Descriptors of the operands in the first stage, and in the one at `at`.
  const uint32_t address_a = shared_address(pipeline.memory.stages[0].a) + consumer * kRowsA;
  const uint64_t first_a = wgmma_descriptor<Major::kK>(address_a, 0);
  const uint64_t first_b = wgmma_descriptor<Major::kK>(shared_address(pipeline.memory.stages[0].b), 0);
  uint64_t a = first_a + at.stage * kStage, b = first_b + at.stage * kStage;
  // Whether the stage at `at` is known to be full.
  bool is_full = false;
  const auto wait_full = [&] {
    if (!is_full) pipeline.wait_full(at);
  };
  // Goes on to the next step.
  const auto advance = [&] {
    at.advance();
    a = at.stage == 0 ? first_a : a + kStage;
    b = at.stage == 0 ? first_b : b + kStage;
    is_full = pipeline.is_full(at);
  };
  // Gives the instructions for a part of the columns of the step at `at`.
  const auto issue = [&](float (&sums)[kSums], uint32_t part) {
    fence_accumulators(sums);
    wgmma_fence();
#pragma unroll
    for (uint32_t depth = 0; depth < kSwizzledRow / kWgmmaBytes; ++depth) {
      wgmma<typename Tile::Element, Major::kK>(sums, a + depth * kDescriptorStep<Major::kK>,
                                               b + part * kPart + depth * kDescriptorStep<Major::kK>,
                                               depth != 0);
    }
    wgmma_commit();
  };
  // The step whose number modulo `kAhead` is `place`.
  const auto multiply_one = [&](uint32_t place) {
    wait_full();
    const uint32_t stage = at.stage;
    typename StepScales::OfStep of_step;
#pragma unroll
    for (uint32_t part = 0; part < kParts; ++part) {
      if (part >= parts) break;
      float sums[kSums];
      issue(sums, part);
      if (part == 0) of_step = step_scales.at(place);
      if (part + 1 == parts) advance();
      wgmma_wait<0>();
      fence_accumulators(sums);
      if (part + 1 == parts) pipeline.release(stage);
      step_scales.add(accumulators[part], sums, of_step, part);
    }
  };
  // That step and the next.
  const auto multiply_two = [&](uint32_t place) {
    float first[kSums], second[kSums];
    wait_full();
    const uint32_t stage = at.stage;
    issue(first, 0);
    advance();
    wait_full();
    const uint32_t next = at.stage;
    issue(second, 0);
    const auto of_first = step_scales.at(place);
    const auto of_second = step_scales.at(place + 1);
    advance();
    wgmma_wait<1>();
    fence_accumulators(first);
    pipeline.release(stage);
    step_scales.add(accumulators[0], first, of_first, 0);
    wgmma_wait<0>();
    fence_accumulators(second);
    pipeline.release(next);
    step_scales.add(accumulators[0], second, of_second, 0);
  };
  uint32_t step = 0;
  for (; step + StepScales::kAhead <= steps; step += StepScales::kAhead) {
#pragma unroll
    for (uint32_t place = 0; place < StepScales::kAhead; place += kTogether) {
      if constexpr (kTogether == 2) {
        multiply_two(place);
      } else {
        multiply_one(place);
      }
    }
  }
#pragma unroll
  for (uint32_t place = 0; place + 1 < StepScales::kAhead; ++place) {
    if (step + place < steps) multiply_one(place);
  }
}

// A warpgroup: one of the two, by the tile's elements, for its first `kColumns` columns. Outer scales are
// left to the epilogue.
template <class Tile, uint32_t kColumns = Tile::kN>
__device__ __forceinline__ void multiply_tile(const Pipeline<Tile>& pipeline,
                                              typename Pipeline<Tile>::Cursor& at, uint32_t steps,
                                              const Scales& scales, TileCoord tile, uint32_t consumer,
                                              Boxes<kColumns>& accumulators) {
  if constexpr (Tile::kScaling == Scaling::kNone) {
    multiply<Tile, kColumns>(pipeline, at, steps, consumer, accumulators);
  } else {
    multiply_promoting<Tile>(pipeline, at, steps, scales, tile, consumer, accumulators);
  }
}

}  // namespace warpweave
