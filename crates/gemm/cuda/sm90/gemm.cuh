// The GEMM for Hopper, C[M, N] = A[M, K] · B[K, N], and the basis of the fused kernels. Each kernel here is:
//
//   begin                               prefetch tensor maps, initialise the barriers of the ring
//   run_roles(
//     load thread:                      one thread of warp 0
//       for tile in schedule:
//         [wait for the rows of A]      kernels that gather A
//         for step of K:
//           acquire a stage
//           load boxes of A and B by TMA into it
//         [acquire a stage for the epilogue]
//     auxiliary warps 1 to 3:           communication: signal, wait, pull, push, store
//     consumer warpgroups 0 and 1:      64 rows of the tile each
//       for tile in schedule:
//         for step of K:
//           wait for the stage
//           wgmma into the accumulators
//           release the stage
//         [add up the partial tiles of all ranks]
//         round to shared memory; TMA stores, of this warpgroup or of a store warp)
//   [end the call]                      the last block waits for the peers, advances counters
//
// A grid is persistent. A kernel that waits for peers has all its blocks resident.
//
// Reading order: `tile.cuh` (shapes, shared memory), `schedule.cuh` (order of tiles), `pipeline.cuh` (the
// ring of stages), `mainloop.cuh`, `epilogue.cuh`, this file, `plain.cu`. Then `recv_ring.cuh` and the
// kernels that communicate, each of which is one file: `all_gather.cu`, `eager.cu`, `reduction.cu`,
// `multimem_reduction.cu`, `one_shot.cu`. `instantiate.cuh` names their entry points; `proof.cuh` checks the
// layouts at compile time.
//
// Edges: TMA stores nothing beyond a matrix, and fills columns beyond it with zeros. Rows beyond A are not
// loaded (`rows_of_box`).
#pragma once

#include <type_traits>

#include "epilogue.cuh"

namespace warpweave {

// All threads of a kernel, first: prefetches `maps` and initialises the ring.
template <class Tile, class... Maps>
__device__ __forceinline__ void begin(const Pipeline<Tile>& pipeline, const Maps&... maps) {
  if (threadIdx.x == 0) {
    (prefetch_map(&maps), ...);
    pipeline.init();
  }
  // No block loads into another or arrives at its barriers before they are initialised.
  if constexpr (Tile::kCluster == 1) {
    __syncthreads();
  } else {
    sync_cluster();
  }
}

// All threads of a kernel: each takes its role. `load()` runs in one thread of warp 0, `aux(warp)` in warps 1
// to 3, `consume(consumer)` in the two other warpgroups.
template <class Load, class Aux, class Consume>
__device__ __forceinline__ void run_roles(Load&& load, Aux&& aux, Consume&& consume) {
  // The same in all lanes; the shuffle tells the compiler.
  const uint32_t warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  const uint32_t warpgroup = warp / (kWarpgroup / 32);
  if (warpgroup == 0) {
    release_registers<kProducerRegisters>();
    if (warp == 0) {
      if (elected()) load();
    } else {
      aux(warp);
    }
  } else {
    acquire_registers<kConsumerRegisters>();
    consume(warpgroup - 1);
  }
}

// A consumer of a kernel that reduces: multiplies this rank's partial of a tile, and scales it.
template <class Tile>
__device__ __forceinline__ void multiply_partial(const Pipeline<Tile>& pipeline,
                                                 typename Pipeline<Tile>::Cursor& at, uint32_t steps,
                                                 const Scales& scales, TileCoord tile, uint32_t consumer,
                                                 Accumulators<Tile>& accumulators) {
  multiply_tile<Tile>(pipeline, at, steps, scales, tile, consumer, accumulators);
  const EpilogueScales<Tile> of_tile(scales, tile, consumer);
#pragma unroll
  for (uint32_t box = 0; box < Tile::kBoxesC; ++box) of_tile.apply(box, accumulators[box]);
}

// A consumer of a kernel that stores its tiles itself, in halves too. `c(tile)` is the map of the matrix that
// a tile is stored to; `scales(tile)` are those of its rows and columns, if its elements have some.
template <class Tile, class Schedule, class MapOf, class ScalesOf>
__device__ __forceinline__ void multiply_and_store(const Schedule& schedule, const Pipeline<Tile>& pipeline,
                                                   uint32_t steps, const Epilogue& epilogue,
                                                   uint32_t consumer, MapOf&& c, ScalesOf&& scales) {
  const bool leader = threadIdx.x % kWarpgroup == 0;
  typename Pipeline<Tile>::Cursor at;
  Accumulators<Tile> accumulators;
  const auto compute = [&](TileCoord tile, auto columns) {
    constexpr uint32_t kColumns = decltype(columns)::value;
    auto& boxes = reinterpret_cast<Boxes<kColumns>&>(accumulators);
    multiply_tile<Tile, kColumns>(pipeline, at, steps, scales(tile), tile, consumer, boxes);
    const auto store = [&](auto swiglu) {
      store_tile<Tile, decltype(swiglu)::value, kColumns>(&c(tile), scales(tile), epilogue, pipeline.memory,
                                                          tile, consumer, leader, boxes);
    };
    if constexpr (kColumns >= 2 * kBox) {
      if (epilogue.swiglu) return store(std::true_type{});
    }
    store(std::false_type{});
  };
  schedule.template for_each_part<Tile>([&](TileCoord tile) {
    if constexpr (Tile::kHasHalves && !Tile::kSkipsHalf) {
      if (tile.is_half) return compute(tile, std::integral_constant<uint32_t, Tile::kN / 2>{});
    }
    compute(tile, std::integral_constant<uint32_t, Tile::kN>{});
  });
  if (leader) bulk_wait<0>();
}

}  // namespace warpweave
