// The GEMM of few rows, as decode steps have: C[M, N] = A[M, K] · Bᵀ + bias, or its SwiGLU, for M ≤ 64, where
// B is stored N×K. All it does is read B once. Tiles are as narrow as it takes to give every SM one.
//
//   warps 0 to 3   multiply: `wgmma` of 64 rows, of which those beyond A are not stored
//   warp 4         one thread loads boxes of B and A by TMA into a ring of stages
//
// Each element has one accumulator, which takes K from 0 upwards in steps of 16, as in `multiply`
// (mainloop.cuh): the bits are those of the other kernels.

#include "epilogue.cuh"
#include "warpweave/dependent.cuh"

namespace warpweave {

// The parameters of a launch. `sm90/few_rows.rs` has the same layout.
struct alignas(128) FewRowsParams {
  TensorMap a;
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
};
static_assert(sizeof(FewRowsParams) == 384, "as in Rust");

// Warps that multiply, and rows of their instructions.
constexpr uint32_t kWarps = kWarpgroup / 32;
constexpr uint32_t kRows = 64;

// `kColumns` of C a block; a stage has `kBoxes` boxes of each operand.
template <typename T, uint32_t kColumns, uint32_t kBoxes>
__device__ __forceinline__ void few_rows(const FewRowsParams& p) {
  extern __shared__ char shared[];
  const uint32_t beyond = shared_address(shared) % kSwizzleAlignment;
  char* const ring = shared + (kSwizzleAlignment - beyond) % kSwizzleAlignment;
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  // Boxes of A have its rows alone. What an instruction reads below them belongs to others, and gives rows of
  // C that are not stored.
  const uint32_t box_a = (p.rows + 7) / 8 * kSwizzleGroup;
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
    const uint32_t bytes = kBoxes * (kBoxB + p.rows * kSwizzledRow);
    const auto load_b = [&](uint32_t step) {
      arrive_expecting(&full[stage], bytes);
#pragma unroll
      for (uint32_t box = 0; box < kBoxes; ++box) {
        load_box(ring + stage * stage_bytes + box * kBoxB, &p.b, (step * kBoxes + box) * kBox,
                 blockIdx.x * kColumns, &full[stage]);
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
        load_box(ring + stage * stage_bytes + kBoxes * kBoxB + box * box_a, &p.a,
                 (step * kBoxes + box) * kBox, 0, &full[stage]);
      }
    }
    admit_dependents();
    return;
  }

  wait_for_prerequisites();
  float sums[kColumns / 2];
  uint32_t previous = 0;
  const auto release = [&] {
    if (lane == 0) arrive(&empty[previous]);
  };
  for (uint32_t step = 0; step < p.steps; ++step, advance()) {
    wait_phase(&full[stage], parity);
    const uint32_t at = shared_address(ring) + stage * stage_bytes;
    fence_accumulators(sums);
    wgmma_fence();
#pragma unroll
    for (uint32_t box = 0; box < kBoxes; ++box) {
      const uint64_t a = wgmma_descriptor<Major::kK>(at + kBoxes * kBoxB + box * box_a, 0);
      const uint64_t b = wgmma_descriptor<Major::kK>(at + box * kBoxB, 0);
#pragma unroll
      for (uint32_t part = 0; part < kSwizzledRow / kWgmmaBytes; ++part) {
        wgmma<T, Major::kK>(sums, a + part * kDescriptorStep<Major::kK>,
                            b + part * kDescriptorStep<Major::kK>, step != 0 || box != 0 || part != 0);
      }
    }
    wgmma_commit();
    fence_accumulators(sums);
    // The tensor cores are busy with this stage while the previous one is released.
    wgmma_wait<1>();
    if (step != 0) release();
    previous = stage;
  }
  wgmma_wait<0>();
  fence_accumulators(sums);

  // Stores two columns of two rows, eight apart.
  const auto store = [&](uint32_t column, const float* of_columns) {
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      const uint32_t row = warp * 16 + half * 8 + lane / 4;
      if (row >= p.rows) continue;
      static_cast<uint32_t*>(p.c)[(row * p.stride + column) / 2] =
          round_pair<T>(of_columns[2 * half], of_columns[2 * half + 1]);
    }
  };
#pragma unroll
  for (uint32_t i = 0; i < kColumns / 8; ++i) {
    const uint32_t column = blockIdx.x * kColumns + i * 8 + lane % 4 * 2;
    if (column >= p.columns) continue;
    float* of_columns = &sums[4 * i];
    if (p.epilogue.bias != nullptr) {
      const float2 bias = widen_pair<T>(static_cast<const uint32_t*>(p.epilogue.bias)[column / 2]);
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

#define WARPWEAVE_FEW_ROWS(type, T, columns, boxes)                           \
  extern "C" __global__ void __launch_bounds__(32 * (kWarps + 1), 1)          \
      few_rows_##type##_##columns(const __grid_constant__ FewRowsParams p) {  \
    few_rows<T, columns, boxes>(p);                                           \
  }
// `WIDTHS` in `sm90/few_rows.rs` are the same.
#define WARPWEAVE_WIDTHS(type, T)      \
  WARPWEAVE_FEW_ROWS(type, T, 16, 4)   \
  WARPWEAVE_FEW_ROWS(type, T, 24, 4)   \
  WARPWEAVE_FEW_ROWS(type, T, 32, 4)   \
  WARPWEAVE_FEW_ROWS(type, T, 48, 4)   \
  WARPWEAVE_FEW_ROWS(type, T, 64, 2)
WARPWEAVE_WIDTHS(f16, __half)
WARPWEAVE_WIDTHS(bf16, __nv_bfloat16)

}  // namespace warpweave
