// Residual addition and RMSNorm of many rows, without communication: what `add_rms_norm_*` of norm.cu
// computes, at the speed of the memory. Bulk copies bring rows of x and of the residual into a ring of stages
// in shared memory; results take their places there, and bulk copies store them.
//
// Rows and addresses are multiples of 16 bytes. A block reads a row before it writes that row's results, and
// reads ahead only rows of its own, so results may take the place of operands.

#include "bulk_ring.cuh"
#include "norm.cuh"
#include "warpweave/dependent.cuh"

namespace {

using warpweave::Exchanged;
using warpweave::item_of_block;
using warpweave::items_of_block;
using warpweave::RowCluster;
using warpweave::RowNorm;
using warpweave::Units;

// Threads of a block, at most: `STREAM_THREADS` in `cuda/norm.rs`.
constexpr uint32_t kStreamThreads = 384;
// Stages of a block, at most: of `STAGES` in `cuda/norm.rs`.
constexpr uint32_t kMostStages = 6;

// A stage has a row of x, then one of the residual.
template <typename T>
__device__ __forceinline__ void stream_rows(const RowNorm& n, char* ring, uint64_t* filled,
                                            RowCluster& cluster) {
  const uint32_t bytes = n.hidden * uint32_t(sizeof(T)), count = items_of_block(n.rows);
  const bool leads = threadIdx.x == 0;
  const auto place = [&](uint32_t stage) { return ring + stage * 2 * bytes; };
  const auto of_row = [&](uint64_t matrix, uint32_t index) {
    return reinterpret_cast<char*>(matrix + uint64_t(item_of_block(index)) * bytes);
  };
  const auto load = [&](uint32_t index, uint32_t stage) {
    warpweave::arrive_expecting(filled + stage, 2 * bytes);
    warpweave::bulk_load(place(stage), of_row(n.input, index), bytes, filled + stage);
    warpweave::bulk_load(place(stage) + bytes, of_row(n.residual, index), bytes, filled + stage);
  };
  if (leads) {
    for (uint32_t index = 0; index < count && index < n.stages; ++index) load(index, index);
  }
  uint32_t stage = 0, parity = 0, before = 0;  // `before`: the stage of the row before
  for (uint32_t index = 0; index < count; ++index) {
    const uint32_t row = item_of_block(index);
    RowNorm here = n;
    here.input = here.normalized = reinterpret_cast<uint64_t>(place(stage));
    here.residual = here.residual_out = here.input + bytes;
    if (n.normalized == 0) here.normalized = 0;
    if (n.quantized != 0) here.quantized += uint64_t(row) * n.hidden, here.scales += row * sizeof(float);
    const Units<T, 4, 16> units{here};
    warpweave::wait_phase(filled + stage, parity);
    warpweave::norm_row(units, cluster, 0, [&](uint32_t unit, uint32_t (&x)[12]) {
      units.load(x, here.input, unit);
      return true;
    });
    warpweave::fence_async_shared();
    __syncthreads();
    if (leads) {
      warpweave::bulk_store(of_row(n.residual_out, index), place(stage) + bytes, bytes);
      if (n.normalized != 0) warpweave::bulk_store(of_row(n.normalized, index), place(stage), bytes);
      warpweave::bulk_commit();
      if (index > 0 && index - 1 + n.stages < count) {
        warpweave::bulk_wait_read<1>();
        load(index - 1 + n.stages, before);
      }
    }
    before = stage;
    if (++stage == n.stages) stage = 0, parity ^= 1;
  }
  if (leads) warpweave::bulk_wait<0>();
}

}  // namespace

// Dynamic shared memory: `stages` times two rows.
#define KERNEL(T, suffix)                                               \
  extern "C" __global__ void __launch_bounds__(kStreamThreads, 2)       \
      stream_add_rms_norm_##suffix(const __grid_constant__ RowNorm n) { \
    extern __shared__ __align__(128) char ring[];                       \
    __shared__ Exchanged shared;                                        \
    __shared__ uint64_t filled[kMostStages];                            \
    RowCluster cluster(shared);                                         \
    if (threadIdx.x == 0) warpweave::init_ring(filled, n.stages);       \
    warpweave::admit_dependents();                                      \
    __syncthreads();                                                    \
    warpweave::wait_for_prerequisites();                                \
    stream_rows<T>(n, ring, filled, cluster);                           \
  }

KERNEL(float, f32)
KERNEL(__half, f16)
KERNEL(__nv_bfloat16, bf16)
