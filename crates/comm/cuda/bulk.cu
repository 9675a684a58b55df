// Collectives on symmetric operands by bulk copies of the tensor memory accelerator: moves and sums as in direct.cu, with
// the same meetings, but one thread of a block feeds a ring of stages in shared memory and the hardware moves the bytes.
// All addresses are multiples of 16; so are the bytes of moves.
//
// What may be read and written between the meetings is argued in group.cuh. Two more things keep the async proxy in line:
// a fence between the meeting, which acquires what peers did through the generic proxy, and the first copy; and the wait
// for complete copies, not for those that have merely left shared memory, before the meeting that says so to the peers.

#include "direct.cuh"
#include "elements.cuh"
#include "warpweave/bulk.cuh"

namespace {

using warpweave::Direct;
using warpweave::kMaxWorld;

// As in `collective/bulk.rs`.
constexpr uint32_t kStage = 16384;     // bytes
constexpr uint32_t kMoveStages = 12;
constexpr uint32_t kSumStages = 8;
constexpr uint32_t kSums = 4;          // sums on their way out, each of one W-th of a stage
constexpr uint32_t kMoveThreads = 32;  // one issues, all meet
constexpr uint32_t kSumThreads = 128;
// Groups of stores that may still read their stages while the others are being loaded.
constexpr int kStoresInFlight = 4;

// The items that fall to this block, dealt like cards.
__device__ __forceinline__ uint32_t items_of_block(uint32_t items) {
  return blockIdx.x < items ? (items - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;
}
__device__ __forceinline__ uint32_t item_of_block(uint32_t index) { return blockIdx.x + index * gridDim.x; }

// A launch: `work` between the meetings, by all threads.
template <typename Work>
__device__ __forceinline__ void between_meetings(const Direct& p, uint64_t* filled, uint32_t stages, Work work) {
  const uint32_t epoch = epoch_of(p.group);
  if (threadIdx.x == 0) {
    for (uint32_t stage = 0; stage < stages; ++stage) warpweave::init_barrier(filled + stage, 1);
    warpweave::publish_barriers();
  }
  __syncthreads();
  if (!p.enter || meet(p.group, warpweave::kEnter, epoch)) {
    if (threadIdx.x == 0) warpweave::fence_async();
    work();
    if (threadIdx.x == 0) {
      warpweave::bulk_wait<0>();
      warpweave::fence_async();
    }
  }
  if (p.leave) meet(p.group, warpweave::kLeave, epoch);
  if (p.enter || p.leave) {
    __syncthreads();
    advance_epoch(p.group, epoch);
  }
}

// The moves of a call in items of one stage: a piece of one turn, or, where all turns have the same source, that piece of
// all of them, which is loaded once. Items of all turns alternate, so that all links are in use all the time.
struct Moves {
  const Direct& p;
  char* ring;
  uint64_t* filled;
  uint32_t* turns;  // [kMaxWorld] those that have something to move, from the next rank on
  uint32_t turn_count = 0;
  uint32_t alternating = 1;  // turns with a source of their own

  __device__ __forceinline__ void find_turns() {
    bool shared = true;
    for (uint32_t step = 1; step <= p.group.pad.world; ++step) {
      const uint32_t peer = (p.group.pad.rank + step) % p.group.pad.world;
      if (p.from.of[peer] == 0) continue;
      turns[turn_count++] = peer;
      shared = shared && p.from.of[peer] == p.from.of[turns[0]];
    }
    alternating = shared ? 1 : turn_count;
  }
  __device__ __forceinline__ uint32_t items() const {
    return turn_count == 0 ? 0 : uint32_t((p.bytes + kStage - 1) / kStage) * alternating;
  }
  __device__ __forceinline__ uint64_t offset(uint32_t item) const { return uint64_t(item / alternating) * kStage; }
  __device__ __forceinline__ uint32_t size(uint32_t item) const {
    const uint64_t left = p.bytes - offset(item);
    return left < kStage ? uint32_t(left) : kStage;
  }
  __device__ __forceinline__ void load(uint32_t item, uint32_t stage) const {
    const uint64_t from = p.from.of[turns[item % alternating]] + offset(item);
    warpweave::arrive_expecting(filled + stage, size(item));
    warpweave::bulk_load(ring + stage * kStage, reinterpret_cast<const void*>(from), size(item), filled + stage);
  }
  __device__ __forceinline__ void store(uint32_t item, uint32_t stage) const {
    const uint32_t first = item % alternating;
    const uint32_t count = alternating == 1 ? turn_count : 1;
    for (uint32_t turn = first; turn < first + count; ++turn) {
      const uint64_t to = p.to.of[turns[turn]] + offset(item);
      warpweave::bulk_store(reinterpret_cast<void*>(to), ring + stage * kStage, size(item));
    }
    warpweave::bulk_commit();
  }

  // By one thread. A load runs ahead of its store by up to the stages that no store holds.
  __device__ __forceinline__ void run() {
    find_turns();
    const uint32_t mine = items_of_block(items());
    for (uint32_t index = 0; index < mine && index < kMoveStages; ++index) load(item_of_block(index), index);
    uint32_t stage = 0, parity = 0;  // of the item to be stored
    uint32_t freed = 0;              // the stage of the item `kStoresInFlight` before it
    for (uint32_t index = 0; index < mine; ++index) {
      warpweave::wait_phase(filled + stage, parity);
      store(item_of_block(index), stage);
      if (++stage == kMoveStages) stage = 0, parity ^= 1;
      if (index < kStoresInFlight) continue;
      const uint32_t next = index - kStoresInFlight + kMoveStages;
      if (next < mine) {
        warpweave::bulk_wait_read<kStoresInFlight>();
        load(item_of_block(next), freed);
      }
      if (++freed == kMoveStages) freed = 0;
    }
  }
};

// Sums what the sources hold at a place, in the order of ranks, and stores it at that place of every destination. A stage
// holds a piece of every source.
template <typename T, int W>
struct Sums {
  static constexpr uint32_t kPiece = kStage / W;
  const Direct& p;
  const uint64_t bytes;  // those that make whole vectors
  char* ring;
  char* sums;
  uint64_t* filled;

  __device__ __forceinline__ uint64_t offset(uint32_t index) const { return uint64_t(item_of_block(index)) * kPiece; }
  __device__ __forceinline__ uint32_t size(uint32_t index) const {
    const uint64_t left = bytes - offset(index);
    return left < kPiece ? uint32_t(left) : kPiece;
  }
  __device__ __forceinline__ void load(uint32_t index) const {
    const uint32_t stage = index % kSumStages, world = p.group.pad.world;
    warpweave::arrive_expecting(filled + stage, world * size(index));
    for (uint32_t step = 1; step <= world; ++step) {
      const uint32_t source = (p.group.pad.rank + step) % world;
      warpweave::bulk_load(ring + stage * kStage + source * kPiece,
                           reinterpret_cast<const void*>(p.from.of[source] + offset(index)), size(index),
                           filled + stage);
    }
  }
  __device__ __forceinline__ void sum(uint32_t index) const {
    const char* stage = ring + index % kSumStages * kStage;
    char* out = sums + index % kSums * kPiece;
    for (uint32_t at = 16 * threadIdx.x; at < size(index); at += 16 * kSumThreads) {
      warpweave::Sum<T, 4> sum;
      sum.clear();
#pragma unroll
      for (int source = 0; source < W; ++source) {
        if (source >= p.group.pad.world) break;
        const uint4 v = *reinterpret_cast<const uint4*>(stage + source * kPiece + at);
        sum.add({v.x, v.y, v.z, v.w});
      }
      uint32_t words[4];
      sum.pack(words);
      *reinterpret_cast<uint4*>(out + at) = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
  __device__ __forceinline__ void store(uint32_t index) const {
    for (uint32_t step = 1; step <= p.group.pad.world; ++step) {
      const uint64_t to = p.to.of[(p.group.pad.rank + step) % p.group.pad.world];
      if (to == 0) continue;
      warpweave::bulk_store(reinterpret_cast<void*>(to + offset(index)), sums + index % kSums * kPiece, size(index));
    }
    warpweave::bulk_commit();
  }

  // By all threads.
  __device__ __forceinline__ void run() const {
    const uint32_t mine = items_of_block(uint32_t((bytes + kPiece - 1) / kPiece));
    if (threadIdx.x == 0)
      for (uint32_t index = 0; index < mine && index < kSumStages; ++index) load(index);
    for (uint32_t index = 0; index < mine; ++index) {
      warpweave::wait_phase(filled + index % kSumStages, index / kSumStages & 1);
      sum(index);
      warpweave::fence_async_shared();
      // All stores but the last `kSums - 2` have read their sums: the next sum's place is free behind the barrier.
      if (threadIdx.x == 0) warpweave::bulk_wait_read<kSums - 2>();
      __syncthreads();
      if (threadIdx.x == 0) {
        store(index);
        // Everybody is through with the stage.
        if (index + kSumStages < mine) load(index + kSumStages);
      }
    }
    if (blockIdx.x == gridDim.x - 1) sum_loose();
  }
  // The elements behind the last whole vector.
  __device__ __forceinline__ void sum_loose() const {
    using Element = warpweave::Vector<int(sizeof(T))>;
    const uint64_t at = bytes + threadIdx.x * sizeof(T);
    if (at >= p.bytes) return;
    warpweave::Sum<T, 1> sum;
    sum.clear();
    for (uint32_t source = 0; source < p.group.pad.world; ++source) {
      Element element;
      element.load(p.from.of[source] + at);
      sum.add(element.words);
    }
    Element total;
    sum.pack(total.words);
    for (uint32_t peer = 0; peer < p.group.pad.world; ++peer)
      if (p.to.of[peer] != 0) total.store(p.to.of[peer] + at);
  }
};

template <typename T, int W>
__device__ __forceinline__ void reduce(const Direct& p, char* ring) {
  __shared__ __align__(8) uint64_t filled[kSumStages];
  const Sums<T, W> sums{p, p.bytes / 16 * 16, ring, ring + kSumStages * kStage, filled};
  between_meetings(p, filled, kSumStages, [&] { sums.run(); });
}

}  // namespace

// Dynamic shared memory: `kMoveStages * kStage`.
extern "C" __global__ void __launch_bounds__(kMoveThreads) exchange_bulk(const __grid_constant__ Direct p) {
  extern __shared__ __align__(128) char ring[];
  __shared__ __align__(8) uint64_t filled[kMoveStages];
  __shared__ uint32_t turns[kMaxWorld];
  between_meetings(p, filled, kMoveStages, [&] {
    if (threadIdx.x == 0) Moves{p, ring, filled, turns}.run();
  });
}

// Dynamic shared memory: `kSumStages * kStage + kSums * kStage / W`.
#define REDUCE(T, suffix, W)                                                                                         \
  extern "C" __global__ void __launch_bounds__(kSumThreads) reduce_bulk_##suffix##_##W(                              \
      const __grid_constant__ Direct p) {                                                                            \
    extern __shared__ __align__(128) char ring[];                                                                    \
    reduce<T, W>(p, ring);                                                                                           \
  }

#define FOR_WORLD(W)             \
  REDUCE(float, f32, W)          \
  REDUCE(__half, f16, W)         \
  REDUCE(__nv_bfloat16, bf16, W)

FOR_WORLD(2)
FOR_WORLD(4)
FOR_WORLD(8)
