// The GEMM of few rows, as decode steps have: C[M, N] = A[M, K] · Bᵀ + bias, or its SwiGLU, where B is stored
// N×K. All it does is read B once, from DRAM. Tiles are 64 rows high, and so narrow that all SMs have as
// many: one each, or several, which up to three blocks on an SM take in turns.
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
template <uint32_t kColumns, bool kSeveral>
constexpr uint32_t kBoxesOfStage = !kSeveral && kColumns <= 40 ? 4 : 2;

// The epilogue of a thread that multiplies, for a tile. All that it needs is loaded at once: if that of each
// eight columns were loaded after the stores of those before, the thread would wait each time.
template <typename C, Scaling kScaling, uint32_t kColumns>
class ThreadEpilogue {
  static constexpr uint32_t kPairs = kColumns / 8;

 public:
  __device__ __forceinline__ void load(const FewRowsParams& p, TileCoord tile) {
    column_ = tile.column + threadIdx.x % 4 * 2;
    row_ = tile.row + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    if constexpr (kScaling == Scaling::kOuter) {
#pragma unroll
      for (uint32_t half = 0; half < 2; ++half) {
        of_rows_[half] = p.scales.a[min(row_ + half * 8, p.rows - 1) * p.scales.stride];
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < kPairs; ++i) {
      const uint32_t column = min(column_ + i * 8, p.columns - 2);
      if constexpr (kScaling == Scaling::kOuter) {
        const float* b = p.scales.b + column * p.scales.stride;
        of_columns_[i] = make_float2(b[0], b[p.scales.stride]);
      }
      const uint32_t* bias = static_cast<const uint32_t*>(p.epilogue.bias);
      bias_[i] = bias == nullptr ? 0 : bias[column / 2];
    }
  }

  // Scales the sums, adds the bias, and stores them or their SwiGLU.
  __device__ __forceinline__ void store(const FewRowsParams& p, float (&sums)[kColumns / 2]) const {
#pragma unroll
    for (uint32_t i = 0; i < kPairs; ++i) {
      const uint32_t column = column_ + i * 8;
      if (column >= p.columns) continue;
      float* of_columns = &sums[4 * i];
      if constexpr (kScaling == Scaling::kOuter) {
        const auto [left, right] = of_columns_[i];
        of_columns[0] *= of_rows_[0] * left, of_columns[1] *= of_rows_[0] * right;
        of_columns[2] *= of_rows_[1] * left, of_columns[3] *= of_rows_[1] * right;
      }
      if (p.epilogue.bias != nullptr) {
        const float2 bias = widen_pair<C>(bias_[i]);
        of_columns[0] += bias.x, of_columns[1] += bias.y;
        of_columns[2] += bias.x, of_columns[3] += bias.y;
      }
      if (!p.epilogue.swiglu) {
        store_pair(p, column, of_columns);
      } else if (i % 2 == 1) {
        // The eight columns before are the gate's, these are up's.
        float* gate = of_columns - 4;
#pragma unroll
        for (uint32_t j = 0; j < 4; ++j) gate[j] = swiglu(gate[j], of_columns[j]);
        const uint32_t lane = column_ % 8;
        store_pair(p, (column - lane - 8) / 2 + lane, gate);
      }
    }
  }

 private:
  // Stores two columns of both rows. Those beyond A are not stored.
  __device__ __forceinline__ void store_pair(const FewRowsParams& p, uint32_t column,
                                             const float* of_columns) const {
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      const uint32_t row = row_ + half * 8;
      if (row >= p.rows) continue;
      static_cast<uint32_t*>(p.c)[(row * p.stride + column) / 2] =
          round_pair<C>(of_columns[2 * half], of_columns[2 * half + 1]);
    }
  }

  // The first of its columns: it has two of each eight. The first of its two rows, which are eight apart.
  uint32_t column_;
  uint32_t row_;
  // Outer scales, and the bias.
  float of_rows_[2];
  float2 of_columns_[kPairs];
  uint32_t bias_[kPairs];
};

// Tiles of `kColumns` of C: one for an SM, or several.
template <typename T, typename C, Scaling kScaling, uint32_t kColumns, bool kSeveral>
__device__ __forceinline__ void few_rows(const FewRowsParams& p) {
  constexpr uint32_t kBoxes = kBoxesOfStage<kColumns, kSeveral>;
  extern __shared__ char shared[];
  const uint32_t beyond = shared_address(shared) % kSwizzleAlignment;
  char* const ring = shared + (kSwizzleAlignment - beyond) % kSwizzleAlignment;
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  // Tiles side by side are of the same columns.
  const uint32_t bands = (p.rows + kRows - 1) / kRows;
  const uint32_t tiles = bands * ((p.columns + kColumns - 1) / kColumns);
  const auto tile_at = [&](uint32_t index) {
    return TileCoord{index % bands * kRows, index / bands * kColumns};
  };
  const TileCoord first = tile_at(blockIdx.x);
  // Without a loop the compiler knows that all threads are at the same stage.
  const auto for_each_tile = [&](auto&& visit) {
    if constexpr (kSeveral) {
      for (uint32_t index = blockIdx.x; index < tiles; index += gridDim.x) visit(tile_at(index));
    } else {
      visit(first);
    }
  };
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
    const auto load_b = [&](TileCoord tile, uint32_t step) {
      const uint32_t rows = min(p.rows - tile.row, kRows);
      arrive_expecting(&full[stage], kBoxes * (kBoxB + rows * kSwizzledRow));
#pragma unroll
      for (uint32_t box = 0; box < kBoxes; ++box) {
        load_box(ring + stage * stage_bytes + box * kBoxB, &p.b, (step * kBoxes + box) * kElements,
                 tile.column, &full[stage]);
      }
    };
    // Steps of the first tile of which B has been loaded.
    uint32_t loaded = 0;
    if (p.constant_b) {
      for (; loaded < min(p.stages, p.steps); ++loaded, advance()) load_b(first, loaded);
      stage = 0, parity = 0;
    }
    wait_for_prerequisites();
    for_each_tile([&](TileCoord tile) {
      const TensorMap* const map_a = bands == 1 || p.rows - tile.row >= kRows ? &p.a : &p.last_a;
      for (uint32_t step = 0; step < p.steps; ++step, advance()) {
        if (step >= loaded) {
          wait_phase(&empty[stage], parity ^ 1);
          load_b(tile, step);
        }
#pragma unroll
        for (uint32_t box = 0; box < kBoxes; ++box) {
          load_box(ring + stage * stage_bytes + kBoxes * kBoxB + box * box_a, map_a,
                   (step * kBoxes + box) * kElements, tile.row, &full[stage]);
        }
      }
      loaded = 0;
    });
    admit_dependents();
    return;
  }

  wait_for_prerequisites();
  const Operands<T, kColumns, kBoxes> operands{shared_address(ring), stage_bytes, box_a};
  const auto release = [&](uint32_t stage) {
    if (lane == 0) arrive(&empty[stage]);
  };
  for_each_tile([&](TileCoord tile) {
    ThreadEpilogue<C, kScaling, kColumns> epilogue;
    // Several blocks on an SM have no registers for it meanwhile.
    if constexpr (!kSeveral) epilogue.load(p, tile);
    float sums[kColumns / 2];
    if constexpr (kScaling == Scaling::kNone) {
      uint32_t previous = 0;
      for (uint32_t step = 0; step < p.steps; ++step, advance()) {
        wait_phase(&full[stage], parity);
        fence_accumulators(sums);
        wgmma_fence();
#pragma unroll
        for (uint32_t box = 0; box < kBoxes; ++box) {
          operands.issue(sums, stage, box, step != 0 || box != 0);
        }
        wgmma_commit();
        fence_accumulators(sums);
        // The tensor cores are busy with this stage while the previous one is released.
        wgmma_wait<1>();
        if (step != 0) release(previous);
        previous = stage;
      }
      wgmma_wait<0>();
      fence_accumulators(sums);
      release(previous);
    } else {
      // Scales are loaded for eight boxes at a time: these take longer than loading the next.
      constexpr uint32_t kAhead = 8;
      using BoxScales = std::conditional_t<kScaling == Scaling::kBlock,
                                           BlockScales<Narrow<kColumns>, kAhead>, NoScales<kAhead>>;
      BoxScales box_scales{p.scales, tile, 0, p.boxes};
#pragma unroll
      for (float& sum : sums) sum = 0;
      // Boxes whose sums are in registers, as many as was fastest: those of one are added while the tensor
      // cores multiply the others. Several blocks on an SM have registers for two.
      constexpr uint32_t kSets = kSeveral ? 2 : kScaling == Scaling::kBlock ? 4 : 3;
      // Boxes that have been added.
      uint32_t done = 0;
      // Multiplies the next step, of which boxes may be beyond K, or all boxes of several. At their end all
      // have been added: ptxas serialises instructions that cross iterations.
      const auto multiply = [&](uint32_t place, auto count) {
        constexpr uint32_t kCount = decltype(count)::value;
        // All are within K. Without scales ptxas would serialise them if it were not asked of each.
        constexpr bool kWithin = kScaling == Scaling::kBlock && kCount == kAhead;
        float sets[kSets][kColumns / 2];
        uint32_t read = stage, at = 0;
        const auto begin = [&](uint32_t box) {
          if (box % kBoxes == 0) {
            // The same in all lanes; the shuffle tells the compiler.
            at = __shfl_sync(0xffffffff, stage, 0);
            wait_phase(&full[stage], parity);
          }
          float(&of_box)[kColumns / 2] = sets[box % kSets];
          fence_accumulators(of_box);
          wgmma_fence();
          operands.issue(of_box, at, box % kBoxes, false);
          wgmma_commit();
          if (box % kBoxes == kBoxes - 1) advance();
        };
#pragma unroll
        for (uint32_t box = 0; box < min(kSets - 1, kCount); ++box) begin(box);
#pragma unroll
        for (uint32_t box = 0; box < kCount; ++box) {
          if (box + kSets - 1 < kCount) begin(box + kSets - 1);
          const typename BoxScales::OfStep of_box = box_scales.at(place + box);
          wgmma_wait_for_all_but(min(kSets - 1, kCount - 1 - box));
          fence_accumulators(sets[box % kSets]);
          if (box % kBoxes == kBoxes - 1) {
            release(read);
            if (++read == p.stages) read = 0;
          }
          if (kWithin || done + box < p.boxes) box_scales.add(sums, sets[box % kSets], of_box, 0);
        }
        done += kCount;
      };
      while (!kSeveral && done + kAhead <= p.boxes) multiply(0, std::integral_constant<uint32_t, kAhead>{});
      while (done < p.boxes) {
#pragma unroll
        for (uint32_t place = 0; place < kAhead; place += kBoxes) {
          if (place == 0 || done < p.boxes) multiply(place, std::integral_constant<uint32_t, kBoxes>{});
        }
      }
    }
    if constexpr (kSeveral) epilogue.load(p, tile);
    epilogue.store(p, sums);
  });
}

// Blocks of several tiles that an SM has room for: `MOST_BLOCKS` in `sm90/few_rows.rs`.
constexpr uint32_t kMostBlocks = 3;

#define WARPWEAVE_FEW_ROWS(name, T, C, scaling, columns, several)                            \
  extern "C" __global__ void __launch_bounds__(32 * (kWarps + 1), several ? kMostBlocks : 1) \
      name##_##columns(const __grid_constant__ FewRowsParams p) {                            \
    few_rows<T, C, scaling, columns, several>(p);                                            \
  }
// `WIDTHS` and `WIDE` in `sm90/few_rows.rs` are the same.
#define WARPWEAVE_WIDTHS(name, ...)                                    \
  WARPWEAVE_FEW_ROWS(few_rows_##name, __VA_ARGS__, 16, false)          \
  WARPWEAVE_FEW_ROWS(few_rows_##name, __VA_ARGS__, 24, false)          \
  WARPWEAVE_FEW_ROWS(few_rows_##name, __VA_ARGS__, 32, false)          \
  WARPWEAVE_FEW_ROWS(few_rows_##name, __VA_ARGS__, 40, false)          \
  WARPWEAVE_FEW_ROWS(few_rows_##name, __VA_ARGS__, 48, false)          \
  WARPWEAVE_FEW_ROWS(few_rows_##name, __VA_ARGS__, 56, false)          \
  WARPWEAVE_FEW_ROWS(few_rows_##name, __VA_ARGS__, 64, false)          \
  WARPWEAVE_FEW_ROWS(few_rows_##name##_several, __VA_ARGS__, 40, true) \
  WARPWEAVE_FEW_ROWS(few_rows_##name##_several, __VA_ARGS__, 48, true) \
  WARPWEAVE_FEW_ROWS(few_rows_##name##_several, __VA_ARGS__, 56, true) \
  WARPWEAVE_FEW_ROWS(few_rows_##name##_several, __VA_ARGS__, 64, true)
WARPWEAVE_WIDTHS(f16, __half, __half, Scaling::kNone)
WARPWEAVE_WIDTHS(bf16, __nv_bfloat16, __nv_bfloat16, Scaling::kNone)
WARPWEAVE_WIDTHS(e4m3_f16_outer, __nv_fp8_e4m3, __half, Scaling::kOuter)
WARPWEAVE_WIDTHS(e4m3_bf16_outer, __nv_fp8_e4m3, __nv_bfloat16, Scaling::kOuter)
WARPWEAVE_WIDTHS(e4m3_f16_block, __nv_fp8_e4m3, __half, Scaling::kBlock)
WARPWEAVE_WIDTHS(e4m3_bf16_block, __nv_fp8_e4m3, __nv_bfloat16, Scaling::kBlock)

}  // namespace warpweave
