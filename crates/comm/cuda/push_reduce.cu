// Reductions of what peers push to this rank's staging memory, one launch: after copy engines, stores use the
// links best, since they need no requests as loads do.
//
// Each block owns slices of every chunk. It pushes a slice of each peer's chunk to that peer's staging memory
// and signals it, pushes the next slice, and reduces the one before, which the peers' blocks of its number
// have pushed meanwhile.
//
// Staging memory is free at the start: a rank that leaves a launch knows that all ranks have reduced. A
// peer's destinations are free when it has pushed its first slice.
//
// Where no peer can write the output, results land in memory that peers map. Each block copies its slices
// from there after the last barrier: the peers' blocks of its number have then written them, and write them
// again only after this rank has begun its next launch.

#include "direct.cuh"

namespace {

using warpweave::Addresses;
using warpweave::Group;
using warpweave::Vector;

// The layout of `PushReduce` in `launch.rs`.
struct PushReduce {
  Group group;
  Addresses staging;  // by rank: where this rank's data for that rank goes
  Addresses to;       // by rank: where the results go; null where they do not
  uint64_t landed;    // where the peers' results land, a chunk from each; null if in the output
  uint64_t output;    // where they go from there
  uint64_t received;  // this rank's staging memory, a chunk from each source
  uint64_t input;     // a chunk for each rank
  uint64_t chunk;     // bytes from one chunk to the next
  uint64_t total;     // bytes of all chunks; the last ones may be shorter
  uint64_t slice;     // bytes
  uint32_t slices;    // of a block
  uint32_t reserved;
};
static_assert(sizeof(PushReduce) == sizeof(Group) + 2 * sizeof(Addresses) + 64, "as in Rust");

template <typename T, int W, int kBytes>
struct Block {
  using V = Vector<kBytes>;
  static constexpr int kUnroll = warpweave::kUnrolled<W>;

  const PushReduce& p;
  const uint32_t epoch;
  const uint32_t rank;
  const uint32_t world;

  __device__ __forceinline__ Block(const PushReduce& p, uint32_t epoch)
      : p(p), epoch(epoch), rank(p.group.pad.rank), world(p.group.pad.world) {}

  __device__ __forceinline__ uint64_t part(uint32_t owner) const {
    const uint64_t start = owner * p.chunk;
    return start >= p.total ? 0 : min(p.total - start, p.chunk);
  }
  __device__ __forceinline__ uint64_t begin(uint32_t index) const {
    return (uint64_t(index) * gridDim.x + blockIdx.x) * p.slice;
  }

  // Copies a slice of every peer's chunk from `from(peer)` to `to(peer)`.
  template <typename From, typename To>
  __device__ __forceinline__ void copy(uint32_t index, From from, To to) const {
    const uint64_t end = begin(index) + p.slice;
    for (uint64_t at = begin(index) + threadIdx.x * kBytes; at < end;
         at += uint64_t(kUnroll) * blockDim.x * kBytes) {
      V values[W][kUnroll];
#pragma unroll
      for (int step = 1; step < W; ++step) {
        const uint32_t peer = (rank + step) % world;
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          const uint64_t place = at + u * blockDim.x * kBytes;
          if (step < world && place < min(end, part(peer))) values[step][u].load(from(peer) + place);
        }
      }
#pragma unroll
      for (int step = 1; step < W; ++step) {
        const uint32_t peer = (rank + step) % world;
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          const uint64_t place = at + u * blockDim.x * kBytes;
          if (step < world && place < min(end, part(peer))) values[step][u].store(to(peer) + place);
        }
      }
    }
  }

  // Pushes a slice of every peer's chunk to that peer, and signals it.
  __device__ __forceinline__ void push(uint32_t index) const {
    copy(
        index, [&](uint32_t peer) { return p.input + peer * p.chunk; },
        [&](uint32_t peer) { return p.staging.of[peer]; });
    __syncthreads();
    if (threadIdx.x < world && threadIdx.x != rank)
      signal_slice(p.group, index, threadIdx.x, epoch);
  }

  // Copies the slices that have landed to the output.
  __device__ __forceinline__ void copy_landed() const {
    for (uint32_t index = 0; index < p.slices; ++index)
      copy(
          index, [&](uint32_t peer) { return p.landed + peer * p.chunk; },
          [&](uint32_t peer) { return p.output + peer * p.chunk; });
  }

  // Waits for every peer's slice.
  __device__ __forceinline__ bool wait(uint32_t index) const {
    bool here = true;
    if (threadIdx.x < world && threadIdx.x != rank) here = wait_slice(p.group, index, threadIdx.x, epoch);
    return __syncthreads_and(here);
  }

  // Reduces a slice of this rank's chunk, in the order of ranks, to every destination.
  __device__ __forceinline__ void reduce(uint32_t index) const {
    const uint64_t end = min(begin(index) + p.slice, part(rank));
    for (uint64_t at = begin(index) + threadIdx.x * kBytes; at < end;
         at += uint64_t(kUnroll) * blockDim.x * kBytes) {
      V values[W][kUnroll];
#pragma unroll
      for (int source = 0; source < W; ++source) {
        if (source >= world) break;
        const uint64_t from = source == rank ? p.input + rank * p.chunk : p.received + source * p.chunk;
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          const uint64_t place = at + u * blockDim.x * kBytes;
          if (place < end) values[source][u].load(from + place);
        }
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const uint64_t place = at + u * blockDim.x * kBytes;
        if (place >= end) break;
        warpweave::Accumulator<T, V::kWords> accumulator;
        accumulator.clear();
#pragma unroll
        for (int source = 0; source < W; ++source)
          if (source < world) accumulator.add(values[source][u].words);
        V result;
        accumulator.pack(result.words);
#pragma unroll
        for (int step = 0; step < W; ++step) {
          const uint32_t peer = (rank + step) % world;
          if (step < world && p.to.of[peer] != 0) result.store(p.to.of[peer] + place);
        }
      }
    }
  }
};

template <typename T, int W, int kBytes>
__device__ __forceinline__ void push_reduce(const PushReduce& p) {
  bool may_send;
  const Block<T, W, kBytes> block(p, next_epoch_of(p.group, may_send));
  // A rank that gave up does not know whether its peers have reduced what it pushed before.
  if (!may_send) return;
  block.push(0);
  for (uint32_t index = 0; index < p.slices; ++index) {
    if (index + 1 < p.slices) block.push(index + 1);
    if (!block.wait(index)) break;
    block.reduce(index);
  }
  const bool left = group_barrier(p.group, warpweave::kLeave, block.epoch);
  if (left && p.landed != 0) block.copy_landed();
}

}  // namespace

#define KERNEL(name, ...)                                                                        \
  extern "C" __global__ void __launch_bounds__(512) name(const __grid_constant__ PushReduce p) { \
    __VA_ARGS__(p);                                                                              \
  }

// Moves and reduces a vector of 16 bytes or an element at a time.
#define FOR_TYPE(T, suffix, W)                                 \
  KERNEL(push_reduce_16_##suffix##_##W, push_reduce<T, W, 16>) \
  KERNEL(push_reduce_1_##suffix##_##W, push_reduce<T, W, int(sizeof(T))>)

#define FOR_WORLD(W)       \
  FOR_TYPE(float, f32, W)  \
  FOR_TYPE(__half, f16, W) \
  FOR_TYPE(__nv_bfloat16, bf16, W)

WARPWEAVE_WORLDS(FOR_WORLD)
