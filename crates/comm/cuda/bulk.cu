// Collectives on symmetric operands by bulk copies: moves and reductions as in direct.cu, with the same
// barriers, through a ring of stages in shared memory. All addresses are multiples of 16; so are the bytes of
// moves.
//
// `group.cuh` argues what may be read and written between the barriers. The async proxy needs two more steps:
// a fence between the first barrier, which acquires what peers did through the generic proxy, and the first
// copy; and before the last barrier a wait until copies are complete, not only until they have left shared
// memory.

#include "bulk_ring.cuh"
#include "direct.cuh"

namespace {

using warpweave::Direct;
using warpweave::item_of_block;
using warpweave::items_of_block;
using warpweave::kMaxWorld;

// As in `collective/bulk.rs`.
constexpr uint32_t kStage = 16384;  // bytes
constexpr uint32_t kMoveStages = 12;
constexpr uint32_t kReduceStages = 8;
constexpr uint32_t kResults = 4;       // results that are being stored, each one W-th of a stage
constexpr uint32_t kMoveThreads = 32;  // one issues, all take part in barriers
constexpr uint32_t kReduceThreads = 128;

// A launch: `work` between the barriers, by all threads.
template <typename Work>
__device__ __forceinline__ void between_barriers(const Direct& p, uint64_t* filled, uint32_t stages,
                                                 Work work) {
  const auto prepare = [&] {
    if (threadIdx.x == 0) warpweave::init_ring(filled, stages);
    __syncthreads();
  };
  warpweave::between_barriers(p, prepare, [&] {
    if (threadIdx.x == 0) warpweave::fence_async();
    work();
    if (threadIdx.x == 0) {
      warpweave::bulk_wait<0>();
      warpweave::fence_async();
    }
  });
}

// The moves of a call in items of one stage: a piece for one peer, or, if all moves have the same source, a
// piece for all peers, which is loaded once. Items of different peers alternate, so that all links are in use
// all the time.
struct Moves {
  const Direct& p;
  char* ring;
  uint64_t* filled;
  uint32_t* peers;  // [kMaxWorld] those with a move, from the next rank on
  uint32_t peer_count = 0;
  uint32_t alternating = 1;  // moves with a source of their own

  __device__ __forceinline__ void find_peers() {
    bool shared = true;
    for (uint32_t step = 1; step <= p.group.pad.world; ++step) {
      const uint32_t peer = (p.group.pad.rank + step) % p.group.pad.world;
      if (p.from.of[peer] == 0) continue;
      peers[peer_count++] = peer;
      shared = shared && p.from.of[peer] == p.from.of[peers[0]];
    }
    alternating = shared ? 1 : peer_count;
  }
  __device__ __forceinline__ uint32_t items() const {
    return peer_count == 0 ? 0 : uint32_t((p.bytes + kStage - 1) / kStage) * alternating;
  }
  __device__ __forceinline__ uint64_t offset(uint32_t item) const {
    return uint64_t(item / alternating) * kStage;
  }
  __device__ __forceinline__ uint32_t size(uint32_t item) const {
    const uint64_t left = p.bytes - offset(item);
    return left < kStage ? uint32_t(left) : kStage;
  }
  __device__ __forceinline__ void load(uint32_t item, uint32_t stage) const {
    const uint64_t from = p.from.of[peers[item % alternating]] + offset(item);
    warpweave::arrive_expecting(filled + stage, size(item));
    warpweave::bulk_load(ring + stage * kStage, reinterpret_cast<const void*>(from), size(item),
                         filled + stage);
  }
  __device__ __forceinline__ void store(uint32_t item, uint32_t stage) const {
    const uint32_t first = item % alternating;
    const uint32_t count = alternating == 1 ? peer_count : 1;
    for (uint32_t i = first; i < first + count; ++i) {
      const uint64_t to = p.to.of[peers[i]] + offset(item);
      warpweave::bulk_store(reinterpret_cast<void*>(to), ring + stage * kStage, size(item));
    }
    warpweave::bulk_commit();
  }

  // By one thread.
  __device__ __forceinline__ void run() {
    find_peers();
    warpweave::run_ring(
        items_of_block(items()), kMoveStages, filled,
        [&](uint32_t index, uint32_t stage) { load(item_of_block(index), stage); },
        [&](uint32_t index, uint32_t stage) { store(item_of_block(index), stage); });
  }
};

// Reduces the sources, in the order of ranks, to the same offset of every destination. A stage holds a piece
// of every source.
template <typename T, int W>
struct Reduction {
  static constexpr uint32_t kPiece = kStage / W;
  const Direct& p;
  const uint64_t bytes;  // those that make whole vectors
  char* ring;
  char* results;
  uint64_t* filled;

  __device__ __forceinline__ uint64_t offset(uint32_t index) const {
    return uint64_t(item_of_block(index)) * kPiece;
  }
  __device__ __forceinline__ uint32_t size(uint32_t index) const {
    const uint64_t left = bytes - offset(index);
    return left < kPiece ? uint32_t(left) : kPiece;
  }
  __device__ __forceinline__ void load(uint32_t index) const {
    const uint32_t stage = index % kReduceStages, world = p.group.pad.world;
    warpweave::arrive_expecting(filled + stage, world * size(index));
    for (uint32_t step = 1; step <= world; ++step) {
      const uint32_t source = (p.group.pad.rank + step) % world;
      warpweave::bulk_load(ring + stage * kStage + source * kPiece,
                           reinterpret_cast<const void*>(p.from.of[source] + offset(index)), size(index),
                           filled + stage);
    }
  }
  __device__ __forceinline__ void reduce(uint32_t index) const {
    const char* stage = ring + index % kReduceStages * kStage;
    char* out = results + index % kResults * kPiece;
    for (uint32_t at = 16 * threadIdx.x; at < size(index); at += 16 * kReduceThreads) {
      warpweave::Accumulator<T, 4> accumulator;
      accumulator.clear();
#pragma unroll
      for (int source = 0; source < W; ++source) {
        if (source >= p.group.pad.world) break;
        const uint4 v = *reinterpret_cast<const uint4*>(stage + source * kPiece + at);
        accumulator.add({v.x, v.y, v.z, v.w});
      }
      uint32_t words[4];
      accumulator.pack(words);
      *reinterpret_cast<uint4*>(out + at) = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
  __device__ __forceinline__ void store(uint32_t index) const {
    for (uint32_t step = 1; step <= p.group.pad.world; ++step) {
      const uint64_t to = p.to.of[(p.group.pad.rank + step) % p.group.pad.world];
      if (to == 0) continue;
      warpweave::bulk_store(reinterpret_cast<void*>(to + offset(index)), results + index % kResults * kPiece,
                            size(index));
    }
    warpweave::bulk_commit();
  }

  // By all threads.
  __device__ __forceinline__ void run() const {
    const uint32_t mine = items_of_block(uint32_t((bytes + kPiece - 1) / kPiece));
    if (threadIdx.x == 0)
      for (uint32_t index = 0; index < mine && index < kReduceStages; ++index) load(index);
    for (uint32_t index = 0; index < mine; ++index) {
      warpweave::wait_phase(filled + index % kReduceStages, index / kReduceStages & 1);
      reduce(index);
      warpweave::fence_async_shared();
      // All stores but the last `kResults - 2` have read their results: after the barrier the next result may
      // be written.
      if (threadIdx.x == 0) warpweave::bulk_wait_read<kResults - 2>();
      __syncthreads();
      if (threadIdx.x == 0) {
        store(index);
        // All threads have read the stage.
        if (index + kReduceStages < mine) load(index + kReduceStages);
      }
    }
    // The elements after the last whole vector.
    const uint64_t at = bytes + threadIdx.x * sizeof(T);
    if (blockIdx.x == gridDim.x - 1 && at < p.bytes) warpweave::reduce_element<T>(p, at);
  }
};

template <typename T, int W>
__device__ __forceinline__ void reduce(const Direct& p, char* ring) {
  __shared__ __align__(8) uint64_t filled[kReduceStages];
  const Reduction<T, W> reduction{p, p.bytes / 16 * 16, ring, ring + kReduceStages * kStage, filled};
  between_barriers(p, filled, kReduceStages, [&] { reduction.run(); });
}

}  // namespace

// Dynamic shared memory: `kMoveStages * kStage`.
extern "C" __global__ void __launch_bounds__(kMoveThreads) exchange_bulk(const __grid_constant__ Direct p) {
  extern __shared__ __align__(128) char ring[];
  __shared__ __align__(8) uint64_t filled[kMoveStages];
  __shared__ uint32_t peers[kMaxWorld];
  between_barriers(p, filled, kMoveStages, [&] {
    if (threadIdx.x == 0) Moves{p, ring, filled, peers}.run();
  });
}

// Dynamic shared memory: `kReduceStages * kStage + kResults * kStage / W`.
#define REDUCE(T, suffix, W)                                         \
  extern "C" __global__ void __launch_bounds__(kReduceThreads)       \
      reduce_bulk_##suffix##_##W(const __grid_constant__ Direct p) { \
    extern __shared__ __align__(128) char ring[];                    \
    reduce<T, W>(p, ring);                                           \
  }

#define FOR_WORLD(W)     \
  REDUCE(float, f32, W)  \
  REDUCE(__half, f16, W) \
  REDUCE(__nv_bfloat16, bf16, W)

WARPWEAVE_WORLDS(FOR_WORLD)
