// Product and all-reduce in one launch for outputs so small that words and ways cost more than bytes: every rank writes its partial
// product into staging of all others without asking, and each sums all of C by itself, in *one shot*. `reduction.cuh` has the other
// way, on which a rank sums its rows and the others fetch these sums.
//
//   producer    one thread: A and B by TMA into the stages of a ring
//   consumers   each 64 rows of a tile: wgmma from the ring into registers; registers to a stage that the ring lends; behind the last
//               tile each waits for all parts of its tiles and adds them
//   storers     a warp for each consumer: one thread stores a tile into the staging of every rank, this one included; when that has
//               arrived, a lane for each announces it, while the consumer multiplies again
//   warp 3      draws for the block, and in the last block ends the call
//
// **Units.** Parts are announced by *units*, boxes of C as the host cuts it, so that ranks may differ in their tiles: a word of the pad
// for each, slots `slot` and behind it, given once a call to every rank, this one included: "my part of the unit is in your staging". Where
// a unit has several tiles, the storers of these draw, and the last announces it. The words carry the number of the call.
//
// **Two stagings.** Calls take them in turn, by the parity of their number: `eager.cuh` says why that takes the place of other words.
// Here too a rank that begins call e has heard all ranks in call e - 1, and they have ended e - 2.
//
// **The memory model**, from a part on rank s to a sum on rank r, in the terms of `warpweave/signal.cuh`:
//   1. A thread stores the part by TMA and waits for the stores in full (`bulk_wait`). Its warp meets; a lane draws (release, GPU), and
//      that of the last draw (acquire, GPU) meets the lanes that store the word: a release to the system.
//   2. A lane of each warp that sums acquires the word, the warp meets, and loads, all through the generic proxy.
//
// **The end.** A call is over when its sums are: nobody is waited for.
//
// **Faults.** After a wait that failed, for a peer or for other blocks of this rank, the launch ends with worthless sums. A launch that
// finds a fault when it begins writes nothing to a peer, which may still be reading what it got two calls before, and signals nothing: its
// own waits for its own parts fail too.
//
// **Bits.** All parts are rounded to the element type, this rank's too, and added in f32 in the order of ranks, a bias behind them; the
// sum is rounded once. So all ranks have the same bits, and every run.
//
// All blocks are to be resident at once, since each has parts that others wait for. Nothing waits in a circle: storing parts waits for
// nothing. The launch is not programmatic: it looks at the counter before anything else.
#pragma once

#include "handover.cuh"
#include "warpweave/signal.cuh"

namespace warpweave {

// The parameters of a launch. `OneShot` in `sm90/one_shot.rs` has the same layout.
struct alignas(128) OneShot {
  TensorMap a;
  TensorMap last_a;
  TensorMap b;
  // By rank its stagings, as matrices behind each other: in the first the part of each rank, then in the second.
  TensorMap parts[kMostRanks];
  PadView pad;
  // This rank's.
  const char* staging;
  char* c;
  // From a part in `staging` to the next.
  uint64_t part_bytes;
  // From a row of C or a part to the next, in bytes.
  uint64_t row_stride;
  Raster raster;
  // Steps of K.
  uint32_t steps;
  uint32_t rows;
  uint32_t columns;
  // Of a unit, each 64 or a larger power of two, and how many units lie side by side.
  uint32_t unit_rows;
  uint32_t unit_columns;
  uint32_t units_across;
  // Of the first unit, and one that is for tickets and the counter alone.
  uint32_t slot;
  uint32_t end;
  Bias bias;

  __device__ __forceinline__ uint32_t* calls() const { return pad.expected + counter_index(pad, end, pad.rank); }
};
static_assert(sizeof(OneShot) == 1664, "as in Rust");

// What the tiles of a call are computed from.
struct OneShotCall {
  const OneShot& product;
  const uint32_t epoch;
  // After a fault, of this rank or of a peer, nothing is stored for anybody or signalled. The same in all lanes of a warp; the loads overlap
  // that of the epoch.
  const bool sound;
  const uint32_t steps;
  const TensorMap& b;

  __device__ __forceinline__ OneShotCall(const OneShot& product)
      : product(product),
        epoch(load_counter(product.calls()) + 1),
        sound(__all_sync(0xffffffff, !faulted(product.pad))),
        steps(product.steps),
        b(product.b) {}

  // Parts before those of this call.
  __device__ __forceinline__ uint32_t first_part() const { return (epoch & 1) * product.pad.world; }

  __device__ __forceinline__ const TensorMap* map_a(Corner, bool last) const { return last ? &product.last_a : &product.a; }
  __device__ __forceinline__ uint32_t height(Corner) const { return product.rows; }
  // One thread: stores a box of a part for every rank, in its open group of bulk stores.
  __device__ __forceinline__ void store_part(uint32_t column, uint32_t row, const char* box) const {
    const PadView& pad = product.pad;
    if (row >= product.rows || column >= product.columns) return;
    const int32_t part = int32_t(first_part() + pad.rank);
    // The next rank first: at each time every rank gets from another.
    for (uint32_t step = 1; step <= pad.world; ++step) {
      store_box(&product.parts[(pad.rank + step) % pad.world], int32_t(column), int32_t(row), part, box);
    }
  }

  template <class Tile, class Visit>
  __device__ __forceinline__ void for_each_tile(Visit&& visit) const {
    for_each_in<Tile>(product.raster, visit);
  }
  __device__ __forceinline__ void prefetch_maps() const {
    prefetch_map(&product.a);
    prefetch_map(&product.b);
  }
};

// The units in which a consumer's part of a tile lies, and a lane for each of them and each rank.
template <class Tile>
class UnitLane {
 public:
  __device__ __forceinline__ UnitLane(const OneShot& product, uint32_t row, uint32_t column)
      : product_(product), row_(row), unit_(threadIdx.x % 32 / product.pad.world) {
    const uint32_t width = min(product.unit_columns, Tile::kN);
    column_ = column + unit_ * width;
    is_ = unit_ * width < Tile::kN && column_ < product.columns && row < product.rows;
  }
  static_assert(Tile::kBoxesC * kMostRanks <= 32, "a lane for each");

  // Whether this lane has a unit.
  __device__ __forceinline__ bool is() const { return is_; }
  // A lane beyond those of all units may have the number of any rank.
  __device__ __forceinline__ uint32_t rank() const { return threadIdx.x % 32 % product_.pad.world; }

  __device__ __forceinline__ uint32_t slot() const {
    return product_.slot + row_ / product_.unit_rows * product_.units_across + column_ / product_.unit_columns;
  }
  // How often it is stored into: once by each consumer of each tile.
  __device__ __forceinline__ uint32_t stores() const {
    const uint32_t rows = min(product_.unit_rows, product_.rows - row_ / product_.unit_rows * product_.unit_rows);
    const uint32_t columns =
        min(product_.unit_columns, product_.columns - column_ / product_.unit_columns * product_.unit_columns);
    return (rows + 63) / 64 * ((columns + Tile::kN - 1) / Tile::kN);
  }
  // The lane of this rank for the same unit.
  __device__ __forceinline__ uint32_t own() const { return unit_ * product_.pad.world + product_.pad.rank; }

 private:
  const OneShot& product_;
  const uint32_t row_;
  const uint32_t unit_;
  uint32_t column_;
  bool is_;
};

// One thread: all loads of this block.
template <class Tile>
__device__ __forceinline__ void load_tiles(const OneShotCall& call, const Pipeline<Tile>& pipeline) {
  typename Pipeline<Tile>::Cursor at;
  Alone alone;
  call.template for_each_tile<Tile>([&](Corner corner) {
    load_tile<Tile>(call, corner, pipeline, at, alone);
    pipeline.lend(at);
  });
}

// A warp: all stores of a consumer's tiles.
template <class Tile>
__device__ __forceinline__ void send_parts(const OneShotCall& call, const Pipeline<Tile>& pipeline, uint32_t consumer) {
  const PadView& pad = call.product.pad;
  const Handover<Tile> handover(pipeline, consumer);
  handover.begin();
  // Stages of the ring before the one that is lent.
  uint32_t stages = 0;
  call.template for_each_tile<Tile>([&](Corner corner) {
    stages += call.steps;
    const uint32_t stage = stages++ % Tile::kStages;
    const uint32_t row = corner.row + consumer * 64;
    const auto sound = [&] { return call.sound; };
    const auto store = [&](uint32_t box, const char* place) { call.store_part(corner.column + box * kBox, row, place); };
    const bool stored = handover.take(stage, sound, store);
    if (!call.sound) return;
    if (stored) bulk_wait<0>();
    __syncwarp();
    const UnitLane<Tile> lane(call.product, row, corner.column);
    bool last = lane.is();
    if (last && lane.rank() == pad.rank) {
      const uint32_t stores = lane.stores();
      if (stores > 1) last = draw_last(pad, lane.slot(), pad.rank, stores);
    }
    last = __shfl_sync(0xffffffff, last, int(lane.own() % 32)) && lane.is();
    __syncwarp();
    // Whoever drew has looked whether it may.
    if (last) store_release_sys(word_at(pad, lane.rank(), lane.slot(), pad.rank), call.epoch);
  });
}

// A warpgroup: the sums of what it has multiplied.
template <class Tile>
class OneShotSum {
 public:
  using Element = typename Tile::Element;

  __device__ __forceinline__ explicit OneShotSum(const OneShotCall& call) : call_(call), product_(call.product) {}

  __device__ __forceinline__ void sum(uint32_t consumer) const {
    const PadView& pad = product_.pad;
    call_.template for_each_tile<Tile>([&](Corner corner) {
      const uint32_t row = corner.row + consumer * 64;
      const UnitLane<Tile> lane(product_, row, corner.column);
      if (lane.is()) wait_epoch(pad, lane.slot(), lane.rank(), call_.epoch);
      __syncwarp();
      for (uint32_t box = 0; box < Tile::kBoxesC; ++box) sum_box(row, corner.column + box * kBox);
    });
  }

 private:
  // 16 bytes of a row.
  static constexpr uint32_t kPack = 8;
  // Rows of a box that a thread sums, and that it loads at a time.
  static constexpr uint32_t kRows = 64 / (kWarpgroup / (kBox / kPack));
  static constexpr uint32_t kAtATime = 2;

  // A warpgroup: 64 × 64 sums, from row `top` on; eight threads a row.
  __device__ __forceinline__ void sum_box(uint32_t top, uint32_t column) const {
    const uint32_t world = product_.pad.world;
    const uint32_t x = column + threadIdx.x % (kBox / kPack) * kPack;
    if (x >= product_.columns) return;
    const char* parts = product_.staging + call_.first_part() * product_.part_bytes;
    const uint32_t first = top + threadIdx.x % kWarpgroup / (kBox / kPack);
    for (uint32_t i = 0; i < kRows; i += kAtATime) {
      uint4 loaded[kAtATime][kMostRanks];
      uint64_t at[kAtATime];
      bool is[kAtATime];
#pragma unroll
      for (uint32_t j = 0; j < kAtATime; ++j) {
        const uint32_t y = first + (i + j) * (64 / kRows);
        is[j] = y < product_.rows;
        at[j] = y * product_.row_stride + x * sizeof(Element);
#pragma unroll
        for (uint32_t rank = 0; rank < kMostRanks; ++rank) {
          if (is[j] && rank < world) {
            // Past the cache of the multiprocessor, which knows nothing of what others write.
            loaded[j][rank] = __ldcg(reinterpret_cast<const uint4*>(parts + rank * product_.part_bytes + at[j]));
          }
        }
      }
#pragma unroll
      for (uint32_t j = 0; j < kAtATime; ++j) {
        if (!is[j]) continue;
        float sums[kPack] = {};
#pragma unroll
        for (uint32_t rank = 0; rank < kMostRanks; ++rank) {
          if (rank < world) add(loaded[j][rank], sums);
        }
        if (product_.bias.elements != nullptr) add(*reinterpret_cast<const uint4*>(bias() + x), sums);
        *reinterpret_cast<uint4*>(product_.c + at[j]) = {
            rounded_pair<Element>(sums[0], sums[1]), rounded_pair<Element>(sums[2], sums[3]),
            rounded_pair<Element>(sums[4], sums[5]), rounded_pair<Element>(sums[6], sums[7])};
      }
    }
  }

  __device__ __forceinline__ const Element* bias() const { return static_cast<const Element*>(product_.bias.elements); }

  __device__ __forceinline__ static void add(uint4 pack, float (&sums)[kPack]) {
    const uint32_t pairs[] = {pack.x, pack.y, pack.z, pack.w};
#pragma unroll
    for (uint32_t i = 0; i < kPack / 2; ++i) {
      const float2 pair = widened_pair<Element>(pairs[i]);
      sums[2 * i] += pair.x;
      sums[2 * i + 1] += pair.y;
    }
  }

  const OneShotCall& call_;
  const OneShot& product_;
};

template <class Tile>
__device__ __forceinline__ void one_shot(const OneShotCall& call) {
  static_assert(Tile::kCluster == 1, "blocks alone");
  const Pipeline<Tile> pipeline{memory_of_block<Tile>()};
  const PadView& pad = call.product.pad;
  begin<Tile>(call, pipeline);

  const uint32_t warp = warp_of_block();
  const uint32_t warpgroup = warp / (kWarpgroup / 32);
  if (warpgroup == 0) {
    give_registers<kProducerRegisters>();
    if (warp == 0) {
      if (elected()) load_tiles<Tile>(call, pipeline);
    } else if (warp <= kConsumers) {
      send_parts<Tile>(call, pipeline, warp - 1);
    } else if (elected()) {
      // All threads of the block know the number of the call.
      if (draw_last(pad, call.product.end, pad.rank, gridDim.x)) *call.product.calls() = call.epoch;
    }
  } else {
    take_registers<kConsumerRegisters>();
    const uint32_t consumer = warpgroup - 1;
    const Handover<Tile> handover(pipeline, consumer);
    typename Pipeline<Tile>::Cursor at;
    Sums<Tile> sums;
    call.template for_each_tile<Tile>([&](Corner) {
      multiply<Tile>(pipeline, at, call.steps, consumer, sums);
      handover.give(at, sums);
    });
    handover.end();
    OneShotSum<Tile>(call).sum(consumer);
  }
}

}  // namespace warpweave
