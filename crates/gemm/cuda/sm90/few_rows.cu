// The GEMM of few rows, as decode steps have: C[M, N] = A[M, K] · Bᵀ + bias for M ≤ 16, where B is stored
// N×K. All it does is read B once; tiles of 64 columns would leave most SMs without one.
//
//   warp 0   one thread loads boxes of B and A by TMA into a ring of stages, 128 of K each
//   1, 2     16 columns of C each. They are the rows of `mma.sync`, and rows of A its columns
//
// Each element has one accumulator, which takes K from 0 upwards in steps of 16, as in `multiply`
// (mainloop.cuh): the bits are those of the other kernels.

#include "epilogue.cuh"
#include "warpweave/dependent.cuh"
#include "warpweave/mma.cuh"

namespace warpweave {

// The parameters of a launch. `sm90/few_rows.rs` has the same layout.
struct alignas(128) FewRowsParams {
  TensorMap a;
  TensorMap b;
  void* c;
  // Elements from a row of C to the next.
  uint64_t stride;
  uint32_t rows;
  uint32_t columns;
  // Steps of K, of the boxes of a stage each, and stages of the ring.
  uint32_t steps;
  uint32_t stages;
  Bias bias;
};
static_assert(sizeof(FewRowsParams) == 384, "as in Rust");

// Warps that have columns, the columns of each, and rows of A that an instruction takes.
constexpr uint32_t kWarps = 2;
constexpr uint32_t kColumns = 16;
constexpr uint32_t kTileRows = 8;
// Boxes of each operand in a stage.
constexpr uint32_t kBoxes = 2;

// Up to `kTiles` times eight rows.
template <typename T, uint32_t kTiles>
__device__ __forceinline__ void few_rows(const FewRowsParams& p) {
  extern __shared__ char shared[];
  const uint32_t beyond = shared_address(shared) % kSwizzleAlignment;
  char* const ring = shared + (kSwizzleAlignment - beyond) % kSwizzleAlignment;
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  constexpr uint32_t kBoxBytesA = kTiles * kTileRows * kSwizzledRow;
  constexpr uint32_t kBoxBytesB = kWarps * kColumns * kSwizzledRow;
  constexpr uint32_t kStageBytes = kBoxes * (kBoxBytesA + kBoxBytesB);
  uint64_t* const full = reinterpret_cast<uint64_t*>(ring + p.stages * kStageBytes);
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
  wait_for_prerequisites();

  uint32_t stage = 0, parity = 0;
  const auto advance = [&] {
    if (++stage == p.stages) stage = 0, parity ^= 1;
  };
  if (warp == 0) {
    if (!elected()) return;
    for (uint32_t step = 0; step < p.steps; ++step, advance()) {
      wait_phase(&empty[stage], parity ^ 1);
      char* const at = ring + stage * kStageBytes;
      // The boxes of A have its rows alone: what is below them in the stage gives columns that are not
      // stored.
      arrive_expecting(&full[stage], kBoxes * (kBoxBytesB + p.rows * kSwizzledRow));
#pragma unroll
      for (uint32_t box = 0; box < kBoxes; ++box) {
        const int32_t x = (step * kBoxes + box) * kBox, y = blockIdx.x * kWarps * kColumns;
        load_box(at + box * kBoxBytesB, &p.b, x, y, &full[stage]);
        load_box(at + kBoxes * kBoxBytesB + box * kBoxBytesA, &p.a, x, 0, &full[stage]);
      }
    }
    admit_dependents();
    return;
  }

  // The operands of a box are in registers before those of the box before it have been multiplied: an
  // element's instructions follow each other, and little else may stand between them.
  struct Operands {
    uint32_t a[kTiles][2][4];
    uint32_t b[4][4];
  };
  // Where this lane reads in the first stage: of B for each 16 of K, of A for two of these.
  uint32_t of_b[4], of_a[2];
#pragma unroll
  for (uint32_t k = 0; k < 4; ++k) {
    of_b[k] = shared_address(ring) + (warp - 1) * kColumns * kSwizzledRow +
              swizzled(lane % 16, (k * 2 + lane / 16) * 16);
  }
#pragma unroll
  for (uint32_t half = 0; half < 2; ++half) {
    of_a[half] = shared_address(ring) + kBoxes * kBoxBytesB + swizzled(lane % 8, (half * 4 + lane / 8) * 16);
  }
  const auto load = [&](Operands& to, uint32_t box) {
    const uint32_t at = stage * kStageBytes;
#pragma unroll
    for (uint32_t k = 0; k < 4; ++k) load_matrices(of_b[k] + at + box * kBoxBytesB, to.b[k]);
#pragma unroll
    for (uint32_t tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (uint32_t half = 0; half < 2; ++half) {
        load_matrices(of_a[half] + at + box * kBoxBytesA + tile * kTileRows * kSwizzledRow, to.a[tile][half]);
      }
    }
  };
  float sums[kTiles][4] = {};
  const auto multiply = [&](const Operands& of) {
#pragma unroll
    for (uint32_t k = 0; k < 4; ++k) {
#pragma unroll
      for (uint32_t tile = 0; tile < kTiles; ++tile) {
        const uint32_t(&a)[4] = of.a[tile][k / 2];
        multiply_matrices<T>(sums[tile], of.b[k], a[k % 2 * 2], a[k % 2 * 2 + 1]);
      }
    }
  };
  Operands first, second;
  wait_phase(&full[stage], parity);
  load(first, 0);
  for (uint32_t step = 0; step < p.steps; ++step) {
    load(second, 1);
    multiply(first);
    __syncwarp();
    if (lane == 0) arrive(&empty[stage]);
    advance();
    if (step + 1 < p.steps) {
      wait_phase(&full[stage], parity);
      load(first, 0);
    }
    multiply(second);
  }

#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t column = (blockIdx.x * kWarps + warp - 1) * kColumns + i / 2 * 8 + lane / 4;
    if (column >= p.columns) continue;
    const T* const bias = static_cast<const T*>(p.bias.elements);
#pragma unroll
    for (uint32_t tile = 0; tile < kTiles; ++tile) {
      const uint32_t row = tile * kTileRows + lane % 4 * 2 + i % 2;
      if (row >= p.rows) continue;
      const float sum = bias == nullptr ? sums[tile][i] : sums[tile][i] + widen(bias[column]);
      static_cast<T*>(p.c)[row * p.stride + column] = round_to<T>(sum);
    }
  }
}

#define WARPWEAVE_FEW_ROWS(name, ...)                              \
  extern "C" __global__ void __launch_bounds__(32 + 32 * kWarps)   \
      name(const __grid_constant__ FewRowsParams p) {              \
    few_rows<__VA_ARGS__>(p);                                      \
  }
WARPWEAVE_FEW_ROWS(few_rows_f16_8, __half, 1)
WARPWEAVE_FEW_ROWS(few_rows_f16_16, __half, 2)
WARPWEAVE_FEW_ROWS(few_rows_bf16_8, __nv_bfloat16, 1)
WARPWEAVE_FEW_ROWS(few_rows_bf16_16, __nv_bfloat16, 2)

}  // namespace warpweave
