// GEMM + all-reduce in one launch, in *one shot*, for outputs so small that flags and link crossings cost
// more than bytes: every rank pushes its partial C into the staging of all ranks without waiting for them,
// and each reduces all of C by itself. In `reduction.cu` a rank reduces its rows and the others pull them.
//
//   warp 0      one thread loads tiles by TMA, as in `gemm.cuh`, and acquires a stage for the epilogue after
//               each tile
//   consumers   wgmma; accumulators to that stage. After the last tile each waits for all partials of its
//               tiles and reduces them
//   warps 1, 2  the store warps, one for each consumer: one thread stores a tile into the staging of every
//               rank, this one included. When it has arrived, a lane for each rank signals, while the
//               consumer multiplies again
//   warp 3      takes the block's ticket; in the last block it ends the call
//
// **Units.** Partials are signalled by *units*, boxes of C that the host cuts, so that ranks may differ in
// their tiles. Each has a flag, in the slots from `slot` on, signalled once a call to every rank, this one
// included: "my partial of the unit is in your staging". If several tiles store into a unit, their store
// warps take tickets, and the last one signals. The epoch is the number of the call.
//
// **Two stagings.** Calls alternate between them by the parity of their number; `eager.cu` says why that
// replaces other flags. Here too a rank that begins call e has acquired flags of all ranks in call e - 1, and
// these had ended call e - 2.
//
// **Memory model**, in the terms of `warpweave/signal.cuh`, from a partial on rank s to the result on rank r:
//   1. A thread stores the partial by TMA and waits until the stores are complete (`bulk_wait`). Its warp
//      synchronises. A lane takes a ticket (release, GPU); that of the last ticket (acquire, GPU)
//      synchronises with the lanes that signal (release, system).
//   2. A lane of each warp that reduces acquires the flag, the warp synchronises, and loads. All this goes
//      through the generic proxy.
//
// **End.** A call ends with its results; it waits for nobody.
//
// **Faults.** After a wait that failed, for a peer or for other blocks of this rank, the launch ends with
// worthless results. A launch that finds a fault when it begins writes nothing to a peer, which may still be
// reading what it got two calls before, and signals nothing: its own waits for its own partials fail too.
//
// **Bits.** All partials, scaled if operands are e4m3, are rounded to the element type of C, this rank's too,
// and added in f32 in the order of ranks, from negative zero, then a bias; the result is rounded once. So all
// ranks have the same bits, in every run, and those of `reduction.cu`.
//
// All blocks are resident, since each has partials that others wait for. No cycle of waits: storing partials
// waits for nothing. The launch is not programmatic: it reads the counter first.

#include "gemm.cuh"
#include "instantiate.cuh"
#include "warpweave/signal.cuh"

namespace warpweave {

// The parameters of a launch. `sm90/one_shot.rs` has the same layout.
struct alignas(128) OneShotParams {
  TensorMap a;
  TensorMap last_a;
  TensorMap b;
  // By staging and rank: the partials of all ranks, as a stack of matrices.
  TensorMap partials[2][kMostRanks];
  PadView pad;
  // This rank's first.
  const char* staging;
  char* c;
  // Bytes from the first staging to the second: the same for calls of any number of rows.
  uint64_t staging_stride;
  // Bytes from a partial in `staging` to the next.
  uint64_t partial_bytes;
  // Bytes from a row of C or a partial to the next.
  uint64_t row_stride;
  Raster raster;
  // Steps of K.
  uint32_t steps;
  uint32_t rows;
  uint32_t columns;
  // Of a unit, each 64 or a larger power of two; and the units side by side.
  uint32_t unit_rows;
  uint32_t unit_columns;
  uint32_t units_across;
  // Of the first unit; and one for tickets and the counter alone.
  uint32_t slot;
  uint32_t end;
  Epilogue epilogue;
  // Of operands of e4m3: of this rank's columns of A and rows of B.
  Scales scales;

  __device__ __forceinline__ CallCounter calls() const { return call_counter(pad, end); }
};
static_assert(sizeof(OneShotParams) == 2688, "as in Rust");

// The units that a consumer's rows of a tile lie in: a lane for each unit and each rank.
template <class Tile>
class UnitLane {
 public:
  __device__ __forceinline__ UnitLane(const OneShotParams& p, uint32_t row, uint32_t column)
      : p_(p), row_(row), unit_(threadIdx.x % 32 / p.pad.world) {
    const uint32_t width = min(p.unit_columns, Tile::kN);
    column_ = column + unit_ * width;
    has_unit_ = unit_ * width < Tile::kN && column_ < p.columns && row < p.rows;
  }
  static_assert(Tile::kBoxesC * kMostRanks <= 32, "a lane for each");

  __device__ __forceinline__ bool has_unit() const { return has_unit_; }
  // A lane without a unit may have any rank.
  __device__ __forceinline__ uint32_t rank() const { return threadIdx.x % 32 % p_.pad.world; }

  __device__ __forceinline__ uint32_t slot() const {
    return p_.slot + row_ / p_.unit_rows * p_.units_across + column_ / p_.unit_columns;
  }
  // How often consumers store into the unit: once for each tile.
  __device__ __forceinline__ uint32_t stores() const {
    const uint32_t rows = min(p_.unit_rows, p_.rows - row_ / p_.unit_rows * p_.unit_rows);
    const uint32_t columns = min(p_.unit_columns, p_.columns - column_ / p_.unit_columns * p_.unit_columns);
    return (rows + 63) / 64 * ((columns + Tile::kN - 1) / Tile::kN);
  }
  // The lane of this rank for the same unit.
  __device__ __forceinline__ uint32_t own() const { return unit_ * p_.pad.world + p_.pad.rank; }

 private:
  const OneShotParams& p_;
  const uint32_t row_;
  const uint32_t unit_;
  uint32_t column_;
  bool has_unit_;
};

// One thread: stores a box of a partial into the staging of every rank, in its open group of bulk stores.
__device__ __forceinline__ void store_partial(const OneShotParams& p, uint32_t call, uint32_t column,
                                              uint32_t row, const char* box) {
  const PadView& pad = p.pad;
  if (row >= p.rows || column >= p.columns) return;
  // The next rank first: at any time every rank receives from another.
  for (uint32_t step = 1; step <= pad.world; ++step) {
    const TensorMap& partials = p.partials[call & 1][(pad.rank + step) % pad.world];
    store_box(&partials, int32_t(column), int32_t(row), int32_t(pad.rank), box);
  }
}

// A warp: signals the units of a consumer's rows, when all tiles of the unit have been stored.
template <class Tile>
__device__ __forceinline__ void signal_units(const OneShotParams& p, uint32_t call, uint32_t row,
                                             uint32_t column) {
  const PadView& pad = p.pad;
  const UnitLane<Tile> lane(p, row, column);
  bool last = lane.has_unit();
  if (last && lane.rank() == pad.rank) {
    const uint32_t stores = lane.stores();
    if (stores > 1) last = take_last_ticket(pad, lane.slot(), pad.rank, stores);
  }
  last = __shfl_sync(0xffffffff, last, int(lane.own() % 32)) && lane.has_unit();
  __syncwarp();
  // The caller has looked for faults.
  if (last) store_release_sys(flag_at(pad, lane.rank(), lane.slot(), pad.rank), call);
}

// 16 bytes of a row, which a thread reduces at a time.
constexpr uint32_t kPack = 8;

template <typename T>
__device__ __forceinline__ void add_pack(uint4 pack, float (&to)[kPack]) {
  const uint32_t pairs[] = {pack.x, pack.y, pack.z, pack.w};
#pragma unroll
  for (uint32_t i = 0; i < kPack / 2; ++i) {
    const float2 pair = widen_pair<T>(pairs[i]);
    to[2 * i] += pair.x;
    to[2 * i + 1] += pair.y;
  }
}

// A warpgroup: reduces 64 × 64 elements, from row `top` on; eight threads a row.
template <typename T>
__device__ __forceinline__ void reduce_box(const OneShotParams& p, uint32_t call, uint32_t top,
                                           uint32_t column) {
  // Rows of a box that a thread reduces, and that it loads at a time.
  constexpr uint32_t kRows = 64 / (kWarpgroup / (kBox / kPack));
  constexpr uint32_t kAtATime = 2;
  const uint32_t world = p.pad.world;
  const uint32_t x = column + threadIdx.x % (kBox / kPack) * kPack;
  if (x >= p.columns) return;
  const char* partials = p.staging + (call & 1) * p.staging_stride;
  const uint32_t first = top + threadIdx.x % kWarpgroup / (kBox / kPack);
  for (uint32_t i = 0; i < kRows; i += kAtATime) {
    uint4 loaded[kAtATime][kMostRanks];
    uint64_t at[kAtATime];
    bool is_row[kAtATime];
#pragma unroll
    for (uint32_t j = 0; j < kAtATime; ++j) {
      const uint32_t y = first + (i + j) * (64 / kRows);
      is_row[j] = y < p.rows;
      at[j] = y * p.row_stride + x * sizeof(T);
#pragma unroll
      for (uint32_t rank = 0; rank < kMostRanks; ++rank) {
        if (is_row[j] && rank < world) {
          // Bypasses L1, which does not see what others write.
          loaded[j][rank] = __ldcg(reinterpret_cast<const uint4*>(partials + rank * p.partial_bytes + at[j]));
        }
      }
    }
#pragma unroll
    for (uint32_t j = 0; j < kAtATime; ++j) {
      if (!is_row[j]) continue;
      float d[kPack];
#pragma unroll
      for (float& sum : d) sum = -0.0f;
#pragma unroll
      for (uint32_t rank = 0; rank < kMostRanks; ++rank) {
        if (rank < world) add_pack<T>(loaded[j][rank], d);
      }
      const T* bias = static_cast<const T*>(p.epilogue.bias);
      if (bias != nullptr) add_pack<T>(*reinterpret_cast<const uint4*>(bias + x), d);
      *reinterpret_cast<uint4*>(p.c + at[j]) = {round_pair<T>(d[0], d[1]), round_pair<T>(d[2], d[3]),
                                                round_pair<T>(d[4], d[5]), round_pair<T>(d[6], d[7])};
    }
  }
}

template <class Tile>
__device__ __forceinline__ void one_shot(const OneShotParams& p) {
  static_assert(Tile::kCluster == 1, "no clusters");
  const PadView& pad = p.pad;
  const uint32_t call = p.calls().current();
  // After a fault, of this rank or of a peer, nothing is stored for anybody or signalled. The same in all
  // lanes of a warp; the loads overlap that of the counter.
  const bool may_write = __all_sync(0xffffffff, !faulted(pad));
  const Pipeline<Tile> pipeline{memory_of_block<Tile>()};
  begin<Tile>(pipeline, p.a, p.b);

  run_roles(
      // Load warp.
      [&] {
        typename Pipeline<Tile>::Cursor at;
        p.raster.for_each_tile<Tile>([&](TileCoord tile) {
          load_tile<Tile>({p.a, p.last_a, p.rows}, p.b, tile, p.steps, pipeline, at);
          pipeline.acquire_for_epilogue(at);
        });
      },
      [&](uint32_t warp) {
        // Store warps: a tile to all ranks, then the flags of its units.
        if (warp <= kConsumers) {
          const uint32_t consumer = warp - 1;
          const EpilogueStaging<Tile> staging(pipeline, consumer);
          staging.begin();
          // Stages of the ring before the one of the epilogue.
          uint32_t stages = 0;
          p.raster.for_each_tile<Tile>([&](TileCoord tile) {
            stages += p.steps;
            const uint32_t stage = stages++ % Tile::kStages;
            const uint32_t row = tile.row + consumer * 64;
            const bool stored = staging.take(
                stage, [&] { return may_write; },
                [&](uint32_t box, const char* place) {
                  store_partial(p, call, tile.column + box * kBox, row, place);
                });
            if (!may_write) return;
            if (stored) bulk_wait<0>();
            __syncwarp();
            signal_units<Tile>(p, call, row, tile.column);
          });
        } else if (elected()) {
          // All threads of the block have read the number of the call.
          if (take_last_ticket(pad, p.end, pad.rank, gridDim.x)) p.calls().end(call);
        }
      },
      // Consumers: multiply all tiles, then reduce them.
      [&](uint32_t consumer) {
        const EpilogueStaging<Tile> staging(pipeline, consumer);
        typename Pipeline<Tile>::Cursor at;
        Accumulators<Tile> accumulators;
        p.raster.for_each_tile<Tile>([&](TileCoord tile) {
          multiply_partial<Tile>(pipeline, at, p.steps, p.scales, tile, consumer, accumulators);
          staging.put(at, accumulators);
        });
        staging.wait_empty();
        p.raster.for_each_tile<Tile>([&](TileCoord tile) {
          const uint32_t row = tile.row + consumer * 64;
          const UnitLane<Tile> lane(p, row, tile.column);
          if (lane.has_unit()) wait_call(pad, lane.slot(), lane.rank(), call);
          __syncwarp();
          for (uint32_t box = 0; box < Tile::kBoxesC; ++box) {
            reduce_box<typename Tile::Output>(p, call, row, tile.column + box * kBox);
          }
        });
      });
}

#define WARPWEAVE_ONE_SHOT(name, ...)                                                                       \
  static_assert(kSharedBytes<Tile<__VA_ARGS__>> == 231424, "as in Rust");                                   \
  extern "C" __global__ void __launch_bounds__(kThreads, 1) name(const __grid_constant__ OneShotParams p) { \
    one_shot<Tile<__VA_ARGS__>>(p);                                                                         \
  }

WARPWEAVE_KERNELS_ALONE(WARPWEAVE_ONE_SHOT, one_shot)
WARPWEAVE_E4M3_TYPES(WARPWEAVE_TILES_ALONE, WARPWEAVE_ONE_SHOT, one_shot, outer, Scaling::kOuter)

}  // namespace warpweave
