// C interface between the Rust crate and the CUTLASS kernels.
//
// A configuration is a compiled kernel shape; a plan is a configuration bound to one problem. Matrices are
// row-major: C[m,n] = A[m,k] * B[k,n], leading dimensions in elements. Every function that touches the device
// uses the calling thread's current CUDA context. Nothing here synchronises. Nothing allocates device memory
// after creation.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  const char* name;
  int32_t tile_m, tile_n, tile_k;
  int32_t cluster_m, cluster_n;
  // 1: two consumer warp groups share a tile; 0: each has its own (ping-pong).
  int32_t cooperative;
  // 1: tiles of the last wave are split along K and reduced in a fixed order.
  int32_t stream_k;
} ww_cutlass_config;

typedef struct {
  int32_t m, n, k;
  int64_t lda, ldb, ldc;
  int32_t dtype;        // 0: f16, 1: bf16
  int32_t raster;       // 0: CUTLASS's heuristic, 1: along M, 2: along N
  int32_t max_swizzle;  // 1, 2, 4 or 8
  int32_t device;
  int32_t sm_count;
} ww_cutlass_problem;

// Where the rows of A are and which flags signal them, for plans that wait; the tables are those of
// `arrivals.cuh`.
typedef struct {
  const void* pad;  // a warpweave::PadView, copied
  uint64_t own;     // address of row 0 of A if all rows lay as this rank's own do
  uint64_t groups, tiles, waits, signals;
  int32_t own_end;  // one past the last row of this rank
  uint32_t slot;
} ww_cutlass_arrivals;

typedef struct ww_cutlass_plan ww_cutlass_plan;

// Statuses: 0 is success, a positive value is a cudaError_t, a negative one is minus a cutlass::Status.
const char* ww_cutlass_status_text(int32_t status);

int32_t ww_cutlass_config_count(void);
// Null when `index` is out of range. The returned data is static.
const ww_cutlass_config* ww_cutlass_config_at(int32_t index);

// The same for the configurations whose plans wait for rows of A.
int32_t ww_cutlass_waiting_config_count(void);
const ww_cutlass_config* ww_cutlass_waiting_config_at(int32_t index);

int32_t ww_cutlass_plan_create(int32_t config, const ww_cutlass_problem* problem, ww_cutlass_plan** plan);
int32_t ww_cutlass_waiting_plan_create(int32_t config, const ww_cutlass_problem* problem,
                                       ww_cutlass_plan** plan);
// Before the first bind of a plan that waits, whose A is staging. The tables live as long as the plan is run.
int32_t ww_cutlass_plan_await(ww_cutlass_plan* plan, const ww_cutlass_arrivals* arrivals);
size_t ww_cutlass_plan_workspace(const ww_cutlass_plan* plan);
// Encodes the tensor maps for these addresses (16-byte aligned). Host work only.
int32_t ww_cutlass_plan_bind(ww_cutlass_plan* plan, uint64_t a, uint64_t b, uint64_t c, uint64_t workspace);
// Launches with the bound addresses; `stream` is a CUstream. May be captured in a graph.
int32_t ww_cutlass_plan_run(ww_cutlass_plan* plan, void* stream);
void ww_cutlass_plan_destroy(ww_cutlass_plan* plan);

#ifdef __cplusplus
}
#endif
