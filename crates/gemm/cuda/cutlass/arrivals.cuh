// Turns a CUTLASS GEMM into one that waits per chunk and multiplies rows of A as they arrive from other
// ranks: a tile schedule, a wait before the first load of a tile, and a second address for the rows that this
// rank has from the start.
//
// `src/chunked_matmul/table.rs` makes the tables. The memory model of the waits is that of
// `warpweave/signal.cuh`.
#pragma once

#include "cute/tensor.hpp"
#include "cutlass/cutlass.h"
#include "cutlass/gemm/kernel/tile_scheduler.hpp"

#include "warpweave/signal.cuh"

namespace warpweave {

// Consecutive rows of clusters whose tiles are taken column by column, so that their rows of A and a few
// columns of B stay in L2. A unit is the tile of a cluster.
struct SwizzleGroup {
  uint32_t first_unit, end_unit;
  uint32_t first_row, rows;
};

// The flags that signal the rows of a call, and which of them a row of tiles waits for.
struct Arrivals {
  PadView pad;
  const uint2* tiles;       // for each row of tiles its waits: first, end
  const uint2* waits;       // source rank; number of its signal in the call, from 1
  const uint32_t* signals;  // [world] signals of a call
  uint32_t slot;
};

// Tag of the scheduler below.
struct ArrivalOrder {};

// CUTLASS's persistent scheduler with the order of a table of groups. The grid is one cluster high along M
// and has its clusters along y.
class ArrivalScheduler : public cutlass::gemm::kernel::detail::PersistentTileSchedulerSm90 {
  using Plain = cutlass::gemm::kernel::detail::PersistentTileSchedulerSm90;

 public:
  struct Arguments : Plain::Arguments {
    const SwizzleGroup* groups = nullptr;
  };
  struct Params : Plain::Params {
    const SwizzleGroup* groups = nullptr;
    uint32_t units = 0;
  };

  template <class Shape, class Tile, class Cluster>
  static Params to_underlying_arguments(Shape shape, Tile tile, Cluster cluster,
                                        cutlass::KernelHardwareInfo const& hardware,
                                        Arguments const& arguments, void* workspace = nullptr,
                                        uint32_t subtiles = 1) {
    static_assert(cute::size<1>(Cluster{}) == 1, "a unit is one tile wide");
    Plain::Arguments plain = arguments;
    plain.raster_order = RasterOrderOptions::AlongN;
    plain.max_swizzle_size = 1;
    Params params;
    static_cast<Plain::Params&>(params) =
        Plain::to_underlying_arguments(shape, tile, cluster, hardware, plain, workspace, subtiles);
    params.groups = arguments.groups;
    params.units = static_cast<uint32_t>(params.blocks_per_problem_ / cute::size<0>(Cluster{}));
    return params;
  }

  CUTLASS_DEVICE explicit ArrivalScheduler(Params const& params)
      : group_(params.groups), units_(params.units), unit_(blockIdx.y) {}

  template <class Cluster>
  CUTLASS_DEVICE WorkTileInfo initial_work_tile_info(Cluster) {
    return get_current_work();
  }

  CUTLASS_DEVICE WorkTileInfo get_current_work() {
    if (unit_ >= units_) return WorkTileInfo::invalid_work_tile();
    // Units only grow: the group is this one or a later one.
    while (unit_ >= __ldg(&group_->end_unit)) ++group_;
    const uint4 group = __ldg(reinterpret_cast<const uint4*>(group_));
    const uint32_t at = unit_ - group.x, column = at / group.w, row = group.z + at % group.w;
    return {static_cast<int32_t>(row * gridDim.x + blockIdx.x), static_cast<int32_t>(column), 0, true};
  }

  CUTLASS_DEVICE void advance_to_next_work(uint32_t count = 1) { unit_ += gridDim.y * count; }

  // CUTLASS admits the next kernel at the last tile. Here it must not start before the end
  // (`waiting_gemm.cuh`).
  CUTLASS_DEVICE bool is_last_tile(WorkTileInfo&, uint32_t = 1) const { return false; }

  template <class... Pipeline>
  CUTLASS_DEVICE auto fetch_next_work(WorkTileInfo, Pipeline&&...) {
    advance_to_next_work();
    return cute::make_tuple(get_current_work(), true);
  }

 private:
  const SwizzleGroup* group_;
  uint32_t units_, unit_;
};
static_assert(sizeof(SwizzleGroup) == sizeof(uint4), "one load");

// CUTLASS's mainloop with waits. Only the load warp waits; the others wait for its barriers.
template <class Plain>
struct ArrivalMainloop : Plain {
  using ElementA = typename Plain::ElementA;
  using Pipeline = typename Plain::MainloopPipeline;
  using PipelineState = typename Plain::PipelineState;

  // `ptr_A` is staging. Rows that need no wait are read from `ptr_own`, the address of row 0 of A if all rows
  // lay as this rank's own do: only this rank's rows are ever read there, and none from `own_end` on exists.
  // A cluster's tile without rows is loaded from staging: for a box beyond the matrix TMA gives zeros, but
  // touches the matrix's first row, which here may be unmapped.
  struct Arguments : Plain::Arguments {
    ElementA const* ptr_own = nullptr;
    int32_t own_end = 0;
    Arrivals arrivals{};
  };
  struct Params : Plain::Params {
    typename Plain::Params own;
    int32_t own_end;
    Arrivals arrivals;
  };

  template <class Shape>
  static Params to_underlying_arguments(Shape const& shape, Arguments const& arguments, void* workspace) {
    typename Plain::Arguments own = arguments;
    own.ptr_A = arguments.ptr_own;
    Shape own_shape = shape;
    cute::get<0>(own_shape) = arguments.own_end;
    return {Plain::to_underlying_arguments(shape, arguments, workspace),
            Plain::to_underlying_arguments(own_shape, own, workspace), arguments.own_end, arguments.arrivals};
  }

  CUTLASS_DEVICE static void prefetch_tma_descriptors(Params const& params) {
    Plain::prefetch_tma_descriptors(params);
    cute::prefetch_tma_descriptor(params.own.tma_load_a.get_tma_descriptor());
  }

  template <class Shape>
  CUTLASS_DEVICE auto load_init(Shape const& shape, Params const& params) {
    arrivals_ = &params.arrivals;
    return Plain::load_init(shape, params);
  }

  template <class Inputs, class Coord, class Steps>
  CUTLASS_DEVICE void load(Params const& params, Pipeline pipeline, PipelineState state, Inputs const& inputs,
                           Coord const& coord, Steps steps, int step_count, int thread,
                           uint32_t block_in_cluster, typename Plain::TensorStorage& tensors) {
    const int32_t tile = cute::get<0>(coord);
    const uint2 waits = __ldg(params.arrivals.tiles + tile);
    if (waits.x != waits.y) wait(waits);
    const bool own = waits.x == waits.y && tile * cute::size<0>(typename Plain::TileShape{}) < params.own_end;
    typename Plain::Params const& from = own ? params.own : params;
    Plain::load(from, pipeline, state, inputs, coord, steps, step_count, thread, block_in_cluster, tensors);
  }

  // The last block to have waited for all its rows makes the next call wait for the signals after those of
  // this one.
  CUTLASS_DEVICE void load_tail(Pipeline pipeline, PipelineState state) {
    Plain::load_tail(pipeline, state);
    const PadView& pad = arrivals_->pad;
    const uint32_t slot = arrivals_->slot;
    if (threadIdx.x % 32 != 0 || !take_last_ticket(pad, slot, pad.rank, gridDim.x * gridDim.y)) return;
    for (uint32_t source = 0; source < pad.world; ++source) {
      const uint32_t before = load_counter(pad.expected + counter_index(pad, slot, source));
      advance_expected(pad, slot, source, before + __ldg(arrivals_->signals + source));
    }
  }

 private:
  // Tiles of a chunk have the same waits, and a block takes most of a chunk's tiles one after the other. A
  // peer that misses the deadline is recorded; its rows are then computed from what is in staging, and nobody
  // reads them.
  CUTLASS_DEVICE void wait(uint2 waits) {
    if (waits.x == waited_.x && waits.y == waited_.y) return;
    waited_ = waits;
    if (threadIdx.x % 32 == 0) {
      const PadView& pad = arrivals_->pad;
      const uint32_t slot = arrivals_->slot;
      for (uint32_t i = waits.x; i < waits.y; ++i) {
        const uint2 wait = __ldg(arrivals_->waits + i);
        const uint32_t before = load_counter(pad.expected + counter_index(pad, slot, wait.x));
        // The tile's coordinates live across the wait: a call would spill them.
        wait_epoch<FaultCode::kInline>(pad, slot, wait.x, before + wait.y);
      }
    }
    // All lanes have now what one lane has acquired; after the fence their TMA loads see it.
    __syncwarp();
    fence_async();
  }

  const Arrivals* arrivals_ = nullptr;
  uint2 waited_{0, 0};
};

}  // namespace warpweave

namespace cutlass::gemm::kernel::detail {

template <class Tile, class Cluster, uint32_t Stages>
struct TileSchedulerSelector<warpweave::ArrivalOrder, arch::Sm90, Tile, Cluster, Stages> {
  using Scheduler = warpweave::ArrivalScheduler;
};

}  // namespace cutlass::gemm::kernel::detail
