// The epilogue: accumulators, plus a bias, by an activation, rounded, to boxes in shared memory, and from
// there to global memory by TMA.
//
// There are two. `store_tile` stores from the consumer's own buffers of C; the consumer waits when both are
// in use. `EpilogueStaging` puts a whole tile into a stage of the ring, which a store warp stores while the
// consumer multiplies.
#pragma once

#include "mainloop.cuh"
#include "warpweave/mma.cuh"

namespace warpweave {

// What follows the sums. `sm90/prepared.rs` has the same layout.
struct Epilogue {
  // One element for each column of B, added to each row; or null.
  const void* bias;
  uint32_t columns;
  // Not 0: columns alternate between eight of a gate and eight of up, and C has silu(gate) · up.
  uint32_t swiglu;

  // A warpgroup: adds the bias of 64 columns, from `column` on, to the accumulators of these.
  template <typename T>
  __device__ __forceinline__ void add_bias(uint32_t column, float (&box)[kBox / 2]) const {
    if (bias == nullptr) return;
    const uint32_t first = column + threadIdx.x % 4 * 2;
#pragma unroll
    for (uint32_t i = 0; i < kBox; i += 8) {
      if (first + i >= columns) continue;
      const float2 pair = widen_pair<T>(static_cast<const uint32_t*>(bias)[(first + i) / 2]);
      // Two columns of a row, and of the row eight below.
      float* d = &box[i / 2];
      d[0] += pair.x, d[1] += pair.y;
      d[2] += pair.x, d[3] += pair.y;
    }
  }
};
static_assert(sizeof(Epilogue) == 16, "as in Rust");

// silu(gate) · up.
__device__ __forceinline__ float swiglu(float gate, float up) {
  return __fdividef(gate, 1.0f + __expf(-gate)) * up;
}

// A barrier of the threads of one consumer. Barrier 0 is that of the block.
__device__ __forceinline__ void sync_consumer(uint32_t consumer) {
  asm volatile("bar.sync %0, %1;" ::"r"(1 + consumer), "n"(kWarpgroup) : "memory");
}

// The matrices of a box that this lane addresses for `stmatrix` and `ldmatrix`: its row in a pair of
// matrices, one above the other, of its warp's 16 rows; and which of two such pairs side by side.
struct MatrixLane {
  uint32_t row = threadIdx.x % kWarpgroup / 32 * 16 + threadIdx.x % 16;
  uint32_t side = threadIdx.x % 32 / 16;

  __device__ __forceinline__ uint32_t at(const char* box, uint32_t column) const {
    return shared_address(box) + swizzled(row, (column + side * 8) * 2);
  }
};

// A warpgroup: rounds the accumulators of 64 columns to a box in shared memory.
template <typename T>
__device__ __forceinline__ void round_to_box(char* to, const float (&box)[kBox / 2]) {
  const MatrixLane lane;
#pragma unroll
  for (uint32_t column = 0; column < kBox; column += 16) {
    const float* d = &box[column / 2];
    store_matrices(lane.at(to, column), round_pair<T>(d[0], d[1]), round_pair<T>(d[2], d[3]),
                   round_pair<T>(d[4], d[5]), round_pair<T>(d[6], d[7]));
  }
}

// A warpgroup: the SwiGLU of two neighbouring boxes, in the place of the first. A thread has two columns of
// each eight, so that it has those of the gate and of up.
__device__ __forceinline__ void swiglu_boxes(float (&first)[kBox / 2], const float (&second)[kBox / 2]) {
  constexpr uint32_t kHalf = kBox / 4;
#pragma unroll
  for (uint32_t i = 0; i < kHalf; i += 4) {
#pragma unroll
    for (uint32_t j = i; j < i + 4; ++j) first[j] = swiglu(first[i + j], first[i + j + 4]);
  }
#pragma unroll
  for (uint32_t i = 0; i < kHalf; i += 4) {
#pragma unroll
    for (uint32_t j = i; j < i + 4; ++j) first[kHalf + j] = swiglu(second[i + j], second[i + j + 4]);
  }
}

// A warpgroup: finishes the accumulators of `kColumns` columns of a tile, or the first half of them, rounds
// and stores them. `leader` is true in the one thread that stores.
template <class Tile, bool kSwiGlu, uint32_t kColumns>
__device__ __forceinline__ void store_tile(const TensorMap* c, const Scales& scales,
                                           const Epilogue& epilogue, Memory<Tile>& memory, TileCoord tile,
                                           uint32_t consumer, bool leader,
                                           Boxes<kColumns>& accumulators) {
  // Boxes of accumulators of a box of C.
  constexpr uint32_t kOf = kSwiGlu ? 2 : 1;
  constexpr uint32_t kBoxes = kColumns / kBox / kOf;
  // Each tile begins with the first buffer.
  constexpr uint32_t kBuffers = kBoxes % Tile::kBuffersC == 0 ? Tile::kBuffersC : 1;
  const uint32_t boxes = Tile::kSkipsHalf && tile.is_half ? kBoxes / 2 : kBoxes;
  const EpilogueScales<Tile> of_tile(scales, tile, consumer);
#pragma unroll
  for (uint32_t box = 0; box < kBoxes; ++box) {
    if (box >= boxes) break;
    float (&of_box)[kBox / 2] = accumulators[kOf * box];
#pragma unroll
    for (uint32_t i = kOf * box; i < kOf * (box + 1); ++i) {
      of_tile.apply(i, accumulators[i]);
      epilogue.add_bias<typename Tile::Output>(tile.column + i * kBox, accumulators[i]);
    }
    if constexpr (kSwiGlu) swiglu_boxes(of_box, accumulators[kOf * box + 1]);
    char* buffer = memory.c[consumer][box % kBuffers];
    // An earlier store has read the buffer.
    if (leader) bulk_wait_read<int(kBuffers) - 1>();
    sync_consumer(consumer);
    round_to_box<typename Tile::Output>(buffer, of_box);
    fence_async_shared();
    sync_consumer(consumer);
    if (leader) {
      store_box(c, int32_t(tile.column / kOf + box * kBox), int32_t(tile.row + consumer * 64), buffer);
      bulk_commit();
    }
  }
}

// Between a consumer and its store warp: a tile in boxes of 64 columns, in a stage that the load warp has
// acquired for it and, for what does not fit there, in the buffers of C. Each side waits at one of two named
// barriers and arrives at the other.
template <class Tile>
class EpilogueStaging {
 public:
  __device__ __forceinline__ EpilogueStaging(const Pipeline<Tile>& pipeline, uint32_t consumer)
      : pipeline_(pipeline), consumer_(consumer) {}

  // The consumer: rounds the accumulators of a tile into the stage at `at`.
  __device__ __forceinline__ void put(typename Pipeline<Tile>::Cursor& at,
                                      const Accumulators<Tile>& accumulators) const {
    pipeline_.wait_full(at);
    sync(empty());
#pragma unroll
    for (uint32_t box = 0; box < Tile::kBoxesC; ++box) {
      round_to_box<typename Tile::Output>(place(at.stage, box), accumulators[box]);
    }
    fence_async_shared();
    arrive(full());
    at.advance();
  }

  // The consumer, after its last tile: waits until the store warp has read it.
  __device__ __forceinline__ void wait_empty() const { sync(empty()); }

  // The store warp, before its first tile.
  __device__ __forceinline__ void begin() const { arrive(empty()); }

  // The store warp: stores the tile in `stage` and releases it. If `may_store()`, asked when the tile is
  // there, one thread calls `store(box, place)` for each box, in an open group of bulk stores. Returns, in
  // this thread alone, whether it has.
  template <class MayStore, class Store>
  __device__ __forceinline__ bool take(uint32_t stage, MayStore&& may_store, Store&& store) const {
    // Named barriers count whole warps.
    __syncwarp();
    sync(full());
    const bool stores = threadIdx.x % 32 == 0 && may_store();
    if (stores) {
      for (uint32_t box = 0; box < Tile::kBoxesC; ++box) store(box, place(stage, box));
      bulk_commit();
      bulk_wait_read<0>();
    }
    __syncwarp();
    arrive(empty());
    pipeline_.release_for_consumer(stage);
    return stores;
  }

 private:
  static constexpr uint32_t kBoxBytes = 64 * kSwizzledRow;
  // Boxes of a consumer in a stage.
  static constexpr uint32_t kStageBoxes = Tile::kStageBytes / kBoxBytes / kConsumers;
  static_assert(kStageBoxes + Tile::kBuffersC >= Tile::kBoxesC, "a whole tile");

  __device__ __forceinline__ char* place(uint32_t stage, uint32_t box) const {
    Memory<Tile>& memory = pipeline_.memory;
    if (box >= kStageBoxes) return memory.c[consumer_][box - kStageBoxes];
    return memory.stages[stage].a + (consumer_ * kStageBoxes + box) * kBoxBytes;
  }

  // After barrier 0 and those of `sync_consumer`.
  __device__ __forceinline__ uint32_t empty() const { return 1 + kConsumers + 2 * consumer_; }
  __device__ __forceinline__ uint32_t full() const { return empty() + 1; }

  __device__ __forceinline__ static void sync(uint32_t barrier) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kWarpgroup + 32) : "memory");
  }
  __device__ __forceinline__ static void arrive(uint32_t barrier) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(kWarpgroup + 32) : "memory");
  }

  const Pipeline<Tile>& pipeline_;
  const uint32_t consumer_;
};

}  // namespace warpweave
