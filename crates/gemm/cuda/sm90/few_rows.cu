// The GEMM of few rows, as decode steps have: C[M, N] = A[M, K] · Bᵀ + bias, or its SwiGLU, where B is stored
// N×K. All it does is read B once, from DRAM. Tiles are 64 rows high, and as narrow as it takes to give every
// SM one.
//
//   warps 0 to 3   multiply: `wgmma` of 64 rows, of which those beyond A are not stored
//   warp 4         one thread loads boxes of B and A by TMA into a ring of stages
//
// Each element has one accumulator, which takes K from 0 upwards in steps of 16, as in `multiply`
// (mainloop.cuh), or adds the sums of 128 elements of e4m3 in f32, as in `multiply_promoting`: the bits are
// those of the other kernels.

#include "epilogue.cuh"
#include "warpweave/dependent.cuh"

namespace warpweave {

// The parameters of a launch. `sm90/few_rows.rs` has the same layout.
struct alignas(128) FewRowsParams {
  // In boxes of 64 rows, and of those of the last tile where that has fewer.
  TensorMap a;
  TensorMap last_a;
  TensorMap b;
  void* c;
  // Elements from a row of C to the next.
  uint64_t stride;
  uint32_t rows;
  // Of B.
  uint32_t columns;
  // Steps of K, of the boxes of a stage each, and stages of the ring.
  uint32_t steps;
  uint32_t stages;
  Epilogue epilogue;
  // Not 0 if no kernel that may still run writes B: it is loaded before these have ended.
  uint32_t constant_b;
  // Boxes along K. The last step may have fewer than a stage.
  uint32_t boxes;
  // Of operands of e4m3.
  Scales scales;
};
static_assert(sizeof(FewRowsParams) == 512, "as in Rust");

// Warps that multiply, and rows of their instructions.
constexpr uint32_t kWarps = kWarpgroup / 32;
constexpr uint32_t kRows = 64;

// Waits until all but the last `pending` groups of instructions have ended. There are three at most.
__device__ __forceinline__ void wgmma_wait_for_all_but(uint32_t pending) {
  if (pending == 0) wgmma_wait<0>();
  if (pending == 1) wgmma_wait<1>();
  if (pending == 2) wgmma_wait<2>();
  if (pending == 3) wgmma_wait<3>();
}

// What `BlockScales` asks of a tile.
template <uint32_t kColumns>
struct Narrow {
  static constexpr uint32_t kN = kColumns;
};

// What a block multiplies.
template <typename T, uint32_t kColumns, uint32_t kBoxes>
struct Operands {
  uint32_t ring;
  uint32_t stage_bytes;
  uint32_t box_a;

  // Gives the instructions of a box of the stage.
  __device__ __forceinline__ void issue(float (&sums)[kColumns / 2], uint32_t stage, uint32_t box,
                                        bool adds) const {
    constexpr uint32_t kBoxB = kColumns * kSwizzledRow;
    const uint32_t at = ring + stage * stage_bytes;
    const uint64_t a = wgmma_descriptor<Major::kK>(at + kBoxes * kBoxB + box * box_a, 0);
    const uint64_t b = wgmma_descriptor<Major::kK>(at + box * kBoxB, 0);
#pragma unroll
    for (uint32_t part = 0; part < kSwizzledRow / kWgmmaBytes; ++part) {
      wgmma<T, Major::kK>(sums, a + part * kDescriptorStep<Major::kK>, b + part * kDescriptorStep<Major::kK>,
                          adds || part != 0);
    }
  }
};

// Boxes of each operand in a stage. `boxes` in `sm90/few_rows.rs` is the same.
template <typename T, uint32_t kColumns>
constexpr uint32_t kBoxesOfStage = kColumns == 64 || (kColumns == 56 && sizeof(T) != 1) ? 2 : 4;

// `kColumns` of C a block.
template <typename T, typename C, Scaling kScaling, uint32_t kColumns>
__device__ __forceinline__ void few_rows(const FewRowsParams& p) {
  constexpr uint32_t kBoxes = kBoxesOfStage<T, kColumns>;
  extern __shared__ char shared[];
  const uint32_t beyond = shared_address(shared) % kSwizzleAlignment;
  char* const ring = shared + (kSwizzleAlignment - beyond) % kSwizzleAlignment;
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  // Tiles side by side are of the same columns.
  const uint32_t tiles = (p.rows + kRows - 1) / kRows;
  const uint32_t first_row = blockIdx.x % tiles * kRows, first_column = blockIdx.x / tiles * kColumns;
  const uint32_t rows = min(p.rows - first_row, kRows);
  // Boxes of A have its rows alone. What an instruction reads below them belongs to others, and gives rows of
  // C that are not stored.
  const uint32_t box_a = (min(p.rows, kRows) + 7) / 8 * kSwizzleGroup;
  constexpr uint32_t kBoxB = kColumns * kSwizzledRow;
  const uint32_t stage_bytes = kBoxes * (kBoxB + box_a);
  uint64_t* const full =
      reinterpret_cast<uint64_t*>(ring + p.stages * stage_bytes + kRows * kSwizzledRow - box_a);
  uint64_t* const empty = full + p.stages;
  if (threadIdx.x == 0) {
    prefetch_map(&p.a), prefetch_map(&p.b);
    for (uint32_t stage = 0; stage < p.stages; ++stage) {
      init_barrier(&full[stage], 1);
      init_barrier(&empty[stage], kWarps);
    }
    publish_barriers();
  }
  __syncthreads();

  uint32_t stage = 0, parity = 0;
  const auto advance = [&] {
    if (++stage == p.stages) stage = 0, parity ^= 1;
  };
  if (warp == kWarps) {
    if (!elected()) return;
    constexpr uint32_t kElements = kSwizzledRow / sizeof(T);
    const uint32_t bytes = kBoxes * (kBoxB + rows * kSwizzledRow);
    const TensorMap* const map_a = rows == kRows || tiles == 1 ? &p.a : &p.last_a;
    const auto load_b = [&](uint32_t step) {
      arrive_expecting(&full[stage], bytes);
#pragma unroll
      for (uint32_t box = 0; box < kBoxes; ++box) {
        load_box(ring + stage * stage_bytes + box * kBoxB, &p.b, (step * kBoxes + box) * kElements,
                 first_column, &full[stage]);
      }
    };
    uint32_t loaded = 0;
    if (p.constant_b) {
      for (; loaded < min(p.stages, p.steps); ++loaded, advance()) load_b(loaded);
      stage = 0, parity = 0;
    }
    wait_for_prerequisites();
    for (uint32_t step = 0; step < p.steps; ++step, advance()) {
      if (step >= loaded) {
        wait_phase(&empty[stage], parity ^ 1);
        load_b(step);
      }
#pragma unroll
      for (uint32_t box = 0; box < kBoxes; ++box) {
        load_box(ring + stage * stage_bytes + kBoxes * kBoxB + box * box_a, map_a,
                 (step * kBoxes + box) * kElements, first_row, &full[stage]);
      }
    }
    admit_dependents();
    return;
  }

  wait_for_prerequisites();
  const Operands<T, kColumns, kBoxes> operands{shared_address(ring), stage_bytes, box_a};
  const auto release = [&](uint32_t stage) {
    if (lane == 0) arrive(&empty[stage]);
  };
  float sums[kColumns / 2];
  if constexpr (kScaling == Scaling::kNone) {
    uint32_t previous = 0;
    for (uint32_t step = 0; step < p.steps; ++step, advance()) {
      wait_phase(&full[stage], parity);
      fence_accumulators(sums);
      wgmma_fence();
#pragma unroll
      for (uint32_t box = 0; box < kBoxes; ++box) operands.issue(sums, stage, box, step != 0 || box != 0);
      wgmma_commit();
      fence_accumulators(sums);
      // The tensor cores are busy with this stage while the previous one is released.
      wgmma_wait<1>();
      if (step != 0) release(previous);
      previous = stage;
    }
    wgmma_wait<0>();
    fence_accumulators(sums);
  } else {
    // The sums of a box are added while the tensor cores are busy with the boxes after it. At the end of a
    // group of stages all have been added: ptxas serialises instructions that cross iterations.
    constexpr bool kByBlock = kScaling == Scaling::kBlock;
    constexpr uint32_t kStages = kByBlock ? 2 : 1, kGroup = kStages * kBoxes;
    // Boxes whose sums are in registers at a time, as was fastest.
    constexpr uint32_t kSets = kByBlock && kColumns > 32 ? 2 : 4;
    using BoxScales =
        std::conditional_t<kByBlock, BlockScales<Narrow<kColumns>, kGroup>, NoScales<kGroup>>;
    BoxScales box_scales{p.scales, TileCoord{first_row, first_column}, 0, p.boxes};
#pragma unroll
    for (float& sum : sums) sum = 0;
    // Multiplies `count` boxes, the first of which is `first`.
    const auto multiply = [&](uint32_t first, auto count) {
      constexpr uint32_t kCount = decltype(count)::value;
      float of_boxes[kSets][kColumns / 2];
      uint32_t read = stage;
      const auto begin = [&](uint32_t box) {
        if (box % kBoxes == 0) wait_phase(&full[stage], parity);
        float(&of_box)[kColumns / 2] = of_boxes[box % kSets];
        fence_accumulators(of_box);
        wgmma_fence();
        operands.issue(of_box, stage, box % kBoxes, false);
        wgmma_commit();
        if (box % kBoxes == kBoxes - 1) advance();
      };
#pragma unroll
      for (uint32_t box = 0; box < min(kSets - 1, kCount); ++box) begin(box);
#pragma unroll
      for (uint32_t box = 0; box < kCount; ++box) {
        if (box + kSets - 1 < kCount) begin(box + kSets - 1);
        const typename BoxScales::OfStep of_box = box_scales.at(box);
        wgmma_wait_for_all_but(min(kSets - 1, kCount - 1 - box));
        fence_accumulators(of_boxes[box % kSets]);
        if (box % kBoxes == kBoxes - 1) {
          release(read);
          if (++read == p.stages) read = 0;
        }
        if (first + box < p.boxes) box_scales.add(sums, of_boxes[box % kSets], of_box, 0);
      }
    };
    uint32_t step = 0;
    for (; step + kStages <= p.steps; step += kStages) {
      multiply(step * kBoxes, std::integral_constant<uint32_t, kGroup>{});
    }
    if (step < p.steps) multiply(step * kBoxes, std::integral_constant<uint32_t, kBoxes>{});
  }

  // Of the two rows, eight apart, that this thread has sums of. Those beyond A are not stored.
  const uint32_t first = first_row + warp * 16 + lane / 4;
  float of_rows[2];
  if constexpr (kScaling == Scaling::kOuter) {
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      of_rows[half] = p.scales.a[min(first + half * 8, p.rows - 1) * p.scales.stride];
    }
  }
  // Stores two columns of them.
  const auto store = [&](uint32_t column, const float* of_columns) {
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      const uint32_t row = first + half * 8;
      if (row >= p.rows) continue;
      static_cast<uint32_t*>(p.c)[(row * p.stride + column) / 2] =
          round_pair<C>(of_columns[2 * half], of_columns[2 * half + 1]);
    }
  };
#pragma unroll
  for (uint32_t i = 0; i < kColumns / 8; ++i) {
    const uint32_t column = first_column + i * 8 + lane % 4 * 2;
    if (column >= p.columns) continue;
    float* of_columns = &sums[4 * i];
    if constexpr (kScaling == Scaling::kOuter) {
      const float* b = p.scales.b + column * p.scales.stride;
      const float left = b[0], right = b[p.scales.stride];
      of_columns[0] *= of_rows[0] * left, of_columns[1] *= of_rows[0] * right;
      of_columns[2] *= of_rows[1] * left, of_columns[3] *= of_rows[1] * right;
    }
    if (p.epilogue.bias != nullptr) {
      const float2 bias = widen_pair<C>(static_cast<const uint32_t*>(p.epilogue.bias)[column / 2]);
      of_columns[0] += bias.x, of_columns[1] += bias.y;
      of_columns[2] += bias.x, of_columns[3] += bias.y;
    }
    if (!p.epilogue.swiglu) {
      store(column, of_columns);
    } else if (i % 2 == 1) {
      // The eight columns before are the gate's, these are up's.
      float* gate = of_columns - 4;
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) gate[j] = swiglu(gate[j], of_columns[j]);
      store((column - lane % 4 * 2 - 8) / 2 + lane % 4 * 2, gate);
    }
  }
}

#define WARPWEAVE_FEW_ROWS(name, T, C, scaling, columns)                     \
  extern "C" __global__ void __launch_bounds__(32 * (kWarps + 1), 1)         \
      few_rows_##name##_##columns(const __grid_constant__ FewRowsParams p) { \
    few_rows<T, C, scaling, columns>(p);                                     \
  }
// `WIDTHS` in `sm90/few_rows.rs` are the same.
#define WARPWEAVE_WIDTHS(...)         \
  WARPWEAVE_FEW_ROWS(__VA_ARGS__, 16) \
  WARPWEAVE_FEW_ROWS(__VA_ARGS__, 24) \
  WARPWEAVE_FEW_ROWS(__VA_ARGS__, 32) \
  WARPWEAVE_FEW_ROWS(__VA_ARGS__, 40) \
  WARPWEAVE_FEW_ROWS(__VA_ARGS__, 48) \
  WARPWEAVE_FEW_ROWS(__VA_ARGS__, 56) \
  WARPWEAVE_FEW_ROWS(__VA_ARGS__, 64)
WARPWEAVE_WIDTHS(f16, __half, __half, Scaling::kNone)
WARPWEAVE_WIDTHS(bf16, __nv_bfloat16, __nv_bfloat16, Scaling::kNone)
WARPWEAVE_WIDTHS(e4m3_f16_outer, __nv_fp8_e4m3, __half, Scaling::kOuter)
WARPWEAVE_WIDTHS(e4m3_bf16_outer, __nv_fp8_e4m3, __nv_bfloat16, Scaling::kOuter)
WARPWEAVE_WIDTHS(e4m3_f16_block, __nv_fp8_e4m3, __half, Scaling::kBlock)
WARPWEAVE_WIDTHS(e4m3_bf16_block, __nv_fp8_e4m3, __nv_bfloat16, Scaling::kBlock)

}  // namespace warpweave
