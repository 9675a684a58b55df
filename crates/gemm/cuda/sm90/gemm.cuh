// C[M, N] = A[M, K] · B[K, N] on Hopper: persistent blocks of one warpgroup that loads and two that multiply.
//
//   producer    one thread: A and B by TMA into the stages of a ring
//   consumers   each 64 rows of the tile: wgmma from the ring into registers; registers to shared memory, and by TMA to C,
//               while the producer loads the next tile
//
// Edges: TMA does not store beyond a matrix, and fills columns beyond it with zeros. It is not asked for rows beyond A (`rows_of_box`).
//
// A product that communicates is this one with another order of tiles and other places for boxes of C (`Product`), and another
// `Exchange`: what happens before a tile's loads (waiting for rows of A), in the warps that have nothing to do, and behind all of it.
#pragma once

#include "pipeline.cuh"
#include "tile.cuh"
#include "warpweave/dependent.cuh"

namespace warpweave {

// Ranks that a launch has place for: `RANKS` in `sm90/mod.rs`.
constexpr uint32_t kMostRanks = 8;

// A tile of C, by its first row and column. `part` says in which of the matrices C, where a product has several.
struct Corner {
  uint32_t row;
  uint32_t column;
  uint32_t part;
};

template <class Tile>
__device__ __forceinline__ Corner corner_of(Raster::Place place, uint32_t part = 0) {
  const uint32_t rank = Tile::kCluster == 1 ? 0 : cluster_rank();
  const uint32_t row = place.row * Tile::kClusterM + (Tile::kCommon == Common::kB ? rank : 0);
  const uint32_t column = place.column * Tile::kClusterN + (Tile::kCommon == Common::kA ? rank : 0);
  return {row * Tile::kM, column * Tile::kN, part};
}

template <class Tile, class Visit>
__device__ __forceinline__ void for_each_in(const Raster& raster, Visit&& visit) {
  const uint32_t tiles = raster.count();
  for (uint32_t index = blockIdx.x / Tile::kCluster; index < tiles; index += gridDim.x / Tile::kCluster) {
    visit(corner_of<Tile>(raster.at(index)));
  }
}

// What is added to each row of C before it is rounded: as many elements as C has columns, or null. `Bias` in `sm90/plan.rs`.
struct Bias {
  const void* elements;
  uint32_t columns;

  // A warpgroup: adds the elements of 64 columns, from `column` on, to the sums of these.
  template <typename T>
  __device__ __forceinline__ void add(uint32_t column, float (&sums)[kBox / 2]) const {
    if (elements == nullptr) return;
    const uint32_t first = column + threadIdx.x % 4 * 2;
#pragma unroll
    for (uint32_t i = 0; i < kBox; i += 8) {
      if (first + i >= columns) continue;
      const float2 pair = widened_pair<T>(static_cast<const uint32_t*>(elements)[(first + i) / 2]);
      // Two columns of a row, and of the row eight behind it.
      float* d = &sums[i / 2];
      d[0] += pair.x, d[1] += pair.y;
      d[2] += pair.x, d[3] += pair.y;
    }
  }
};
static_assert(sizeof(Bias) == 16, "as in Rust");

// The parameters of a launch. `Product` in `sm90/plan.rs` has the same layout.
struct alignas(128) Product {
  TensorMap a;
  TensorMap last_a;
  TensorMap b;
  TensorMap c;
  // In tiles of a cluster.
  Raster raster;
  // Steps of K.
  uint32_t steps;
  // Of A.
  uint32_t rows;
  Bias bias;

  // The matrix in which a tile's rows of A lie, in boxes of a whole tile or of the last.
  __device__ __forceinline__ const TensorMap* map_a(Corner, bool last) const { return last ? &last_a : &a; }
  // Its rows.
  __device__ __forceinline__ uint32_t height(Corner) const { return rows; }
  // One thread: stores a box of a tile of C, in its open group of bulk stores.
  __device__ __forceinline__ void store_c(Corner, uint32_t column, uint32_t row, const char* box) const {
    store_box(&c, int32_t(column), int32_t(row), box);
  }

  // The walk of this block's cluster over the tiles: `visit(corner)` for each.
  template <class Tile, class Visit>
  __device__ __forceinline__ void for_each_tile(Visit&& visit) const {
    for_each_in<Tile>(raster, visit);
  }
  __device__ __forceinline__ void prefetch_maps() const {
    prefetch_map(&a);
    prefetch_map(&b);
    prefetch_map(&c);
  }
};
static_assert(sizeof(Product) == 640, "as in Rust");

// A product that is alone.
struct Alone {
  // By the producer's thread, before it loads for the tile, and before each step of K.
  __device__ __forceinline__ void before_loads(Corner) {}
  __device__ __forceinline__ void before_step(uint32_t) {}
  // By the producer's thread, behind all of its loads.
  __device__ __forceinline__ void behind_loads() { admit_dependents(); }
  // By warps 1 to 3, while warp 0 loads and the consumers multiply.
  __device__ __forceinline__ void beside(uint32_t) {}
  // By all threads of the block, once each has done its part.
  __device__ __forceinline__ void behind_all() {}
};

// Loads a box for this block, or for both.
template <bool kBoth>
__device__ __forceinline__ void load(void* to, const TensorMap* map, uint32_t x, uint32_t y, uint64_t* full) {
  if constexpr (kBoth) {
    load_box_multicast(to, map, int32_t(x), int32_t(y), full, 0b11);
  } else {
    load_box(to, map, int32_t(x), int32_t(y), full);
  }
}

// Rows of a box of A where so many are left of the matrix. Rows that TMA fills with zeros take it several times as long as others, so
// that the last tile has low boxes, by a map of their own; what the stage has behind them is multiplied too, into rows of C that are not
// there. `rows_of_box` in `sm90/plan.rs`.
template <class Tile>
__device__ __forceinline__ uint32_t rows_of_box(uint32_t left) {
  const uint32_t each = (min(left, Tile::kM) + Tile::kClusterN - 1) / Tile::kClusterN;
  // Boxes start at multiples of eight rows.
  return (each + 7) / 8 * 8;
}

// One thread: the loads of this block for the tile that begins at row `row` and column `column`, a stage for each step of K. Boxes of
// A have `rows` rows.
template <class Tile, class Exchange>
__device__ __forceinline__ void load_steps(const TensorMap* map_a, const TensorMap* map_b, uint32_t rows, uint32_t row,
                                           uint32_t column, uint32_t steps, const Pipeline<Tile>& pipeline,
                                           typename Pipeline<Tile>::Cursor& at, Exchange& exchange) {
  constexpr bool kBothA = Tile::kCommon == Common::kA, kBothB = Tile::kCommon == Common::kB;
  const uint32_t rank = Tile::kCluster == 1 ? 0 : cluster_rank();
  const uint32_t bytes = rows * Tile::kClusterN * kSwizzledRow + Tile::kBytesB;
  // This block's part of what both have in common.
  const uint32_t first_a = kBothA ? rank * rows : 0;
  const uint32_t first_b = kBothB ? rank * Tile::kRowsB : 0;
  for (uint32_t step = 0; step < steps; ++step, at.advance()) {
    exchange.before_step(step);
    uint64_t* full = pipeline.fill(at, bytes);
    char* a = pipeline.memory.stages[at.stage].a + first_a * kSwizzledRow;
    char* b = pipeline.memory.stages[at.stage].b + first_b * kSwizzledRow;
    const uint32_t k = step * Tile::kK;
    if (rows != 0) load<kBothA>(a, map_a, k, row + first_a, full);
    if constexpr (Tile::kMajorB == Major::kK) {
      load<kBothB>(b, map_b, k, column + first_b, full);
    } else {
      // Boxes of 64 columns, each as large as 64 K-major rows.
#pragma unroll
      for (uint32_t box = 0; box < Tile::kRowsB; box += kBox) {
        load<kBothB>(b + box * kSwizzledRow, map_b, column + first_b + box, k, full);
      }
    }
  }
}

// One thread: all loads of this block for a tile.
template <class Tile, class AnyProduct, class Exchange>
__device__ __forceinline__ void load_tile(const AnyProduct& product, Corner corner, const Pipeline<Tile>& pipeline,
                                          typename Pipeline<Tile>::Cursor& at, Exchange& exchange) {
  exchange.before_loads(corner);
  const uint32_t height = product.height(corner);
  const uint32_t left = height > corner.row ? height - corner.row : 0;
  load_steps<Tile>(product.map_a(corner, left < Tile::kM), &product.b, rows_of_box<Tile>(left), corner.row, corner.column,
                   product.steps, pipeline, at, exchange);
}

// What a thread has of the sums of a tile, by boxes of 64 columns.
template <class Tile>
using Sums = float[Tile::kBoxesC][kBox / 2];

// A warpgroup: the sums of rows 64 `consumer` and behind of a tile.
template <class Tile>
__device__ __forceinline__ void multiply(const Pipeline<Tile>& pipeline, typename Pipeline<Tile>::Cursor& at, uint32_t steps,
                                         uint32_t consumer, Sums<Tile>& boxes) {
  constexpr uint32_t kRowsA = 64 * kSwizzledRow;
  auto& sums = reinterpret_cast<float (&)[Tile::kN / 2]>(boxes);
  uint32_t previous = 0;
  for (uint32_t step = 0; step < steps; ++step, at.advance()) {
    pipeline.wait_full(at);
    const uint32_t address_a = shared_address(pipeline.memory.stages[at.stage].a) + consumer * kRowsA;
    const uint32_t address_b = shared_address(pipeline.memory.stages[at.stage].b);
    const uint64_t a = wgmma_descriptor<Major::kK>(address_a, 0);
    const uint64_t b = wgmma_descriptor<Tile::kMajorB>(address_b, Tile::kBoxBytes);
    hold(sums);
    wgmma_fence();
#pragma unroll
    for (uint32_t part = 0; part < Tile::kK / kWgmmaDepth; ++part) {
      wgmma<typename Tile::Element, Tile::kMajorB>(sums, a + part * kDescriptorStep<Major::kK>,
                                                   b + part * kDescriptorStep<Tile::kMajorB>, step != 0 || part != 0);
    }
    wgmma_commit();
    hold(sums);
    // The tensor cores stay busy with this step while the one before it gives its stage back.
    wgmma_wait<1>();
    if (step != 0) pipeline.release(previous);
    previous = at.stage;
  }
  wgmma_wait<0>();
  hold(sums);
  pipeline.release(previous);
}

// The threads of a consumer meet, apart from the others.
__device__ __forceinline__ void sync_consumer(uint32_t consumer) {
  asm volatile("bar.sync %0, %1;" ::"r"(1 + consumer), "n"(kWarpgroup) : "memory");
}

// Where this lane addresses matrices of its warp's 16 rows of a box: its row in a pair of matrices one above the other, and
// which of two such pairs side by side.
struct MatrixLane {
  uint32_t row = threadIdx.x % kWarpgroup / 32 * 16 + threadIdx.x % 16;
  uint32_t side = threadIdx.x % 32 / 16;

  __device__ __forceinline__ uint32_t at(const char* box, uint32_t column) const {
    return shared_address(box) + swizzled(row, (column + side * 8) * 2);
  }
};

// A warpgroup: the sums of 64 columns, rounded, to a box in shared memory.
template <typename T>
__device__ __forceinline__ void round_to_box(char* box, const float (&sums)[kBox / 2]) {
  const MatrixLane lane;
#pragma unroll
  for (uint32_t column = 0; column < kBox; column += 16) {
    const float* d = &sums[column / 2];
    store_matrices(lane.at(box, column), rounded_pair<T>(d[0], d[1]), rounded_pair<T>(d[2], d[3]),
                   rounded_pair<T>(d[4], d[5]), rounded_pair<T>(d[6], d[7]));
  }
}

// A warpgroup: its sums, rounded, to C. `leader` is the one thread that stores.
template <class Tile, class AnyProduct>
__device__ __forceinline__ void store(const AnyProduct& product, Memory<Tile>& memory, Corner corner, uint32_t consumer,
                                      bool leader, Sums<Tile>& sums) {
  // Each tile begins with the first.
  constexpr uint32_t kBuffers = Tile::kBoxesC % Tile::kBuffersC == 0 ? Tile::kBuffersC : 1;
#pragma unroll
  for (uint32_t box = 0; box < Tile::kBoxesC; ++box) {
    product.bias.template add<typename Tile::Element>(corner.column + box * kBox, sums[box]);
    char* buffer = memory.c[consumer][box % kBuffers];
    // An earlier store has read the box that is written next.
    if (leader) bulk_wait_read<int(kBuffers) - 1>();
    sync_consumer(consumer);
    round_to_box<typename Tile::Element>(buffer, sums[box]);
    fence_async_shared();
    sync_consumer(consumer);
    if (leader) {
      product.store_c(corner, corner.column + box * kBox, corner.row + consumer * 64, buffer);
      bulk_commit();
    }
  }
}

// All threads of a kernel, first.
template <class Tile, class AnyProduct>
__device__ __forceinline__ void begin(const AnyProduct& product, const Pipeline<Tile>& pipeline) {
  if (threadIdx.x == 0) {
    product.prefetch_maps();
    pipeline.init();
  }
  // No block loads into or arrives at another before the other's barriers are there.
  if constexpr (Tile::kCluster == 1) {
    __syncthreads();
  } else {
    sync_cluster();
  }
}

// The same in all lanes, and the compiler is to know it.
__device__ __forceinline__ uint32_t warp_of_block() { return __shfl_sync(0xffffffff, threadIdx.x / 32, 0); }

template <class Tile, class AnyProduct, class Exchange>
__device__ __forceinline__ void gemm(const AnyProduct& product, Exchange exchange) {
  const Pipeline<Tile> pipeline{memory_of_block<Tile>()};

  begin<Tile>(product, pipeline);
  wait_for_prerequisites();

  const uint32_t warp = warp_of_block();
  const uint32_t warpgroup = warp / (kWarpgroup / 32);
  if (warpgroup == 0) {
    give_registers<kProducerRegisters>();
    if (warp == 0 && elected()) {
      typename Pipeline<Tile>::Cursor at;
      product.template for_each_tile<Tile>([&](Corner corner) { load_tile<Tile>(product, corner, pipeline, at, exchange); });
      exchange.behind_loads();
    }
    if (warp != 0) exchange.beside(warp);
  } else {
    take_registers<kConsumerRegisters>();
    const uint32_t consumer = warpgroup - 1;
    const bool leader = threadIdx.x % kWarpgroup == 0;
    typename Pipeline<Tile>::Cursor at;
    Sums<Tile> sums;
    product.template for_each_tile<Tile>([&](Corner corner) {
      multiply<Tile>(pipeline, at, product.steps, consumer, sums);
      store<Tile>(product, pipeline.memory, corner, consumer, leader, sums);
    });
    if (leader) bulk_wait<0>();
  }
  // No block ends while the other may still arrive at its barriers.
  if constexpr (Tile::kCluster != 1) sync_cluster();
  exchange.behind_all();
}

}  // namespace warpweave
