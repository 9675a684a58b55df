// All-reduces of data that need no flag: two shots in one launch. Memory to which nothing has come holds a
// *sentinel*, zero, and a word is sent inverted: that it is there shows in the word itself. Packets spend a
// quarter of the link on their flags; this spends nothing, and like them needs no fence before the data are
// used.
//
// One word inverts to zero: all ones, a NaN of f32 or two of 16 bits. Other NaNs are sent for it, which a sum
// does not tell apart.
//
// An area has sections for three *generations* of calls, which take turns, and in each for every source, one
// half for its chunk and one for its result. A call zeroes the sections of the call before once it has sent:
// - They have been read, since the launch that read them has ended.
// - Peers write to them again in the call after the next one, which they begin when they have ended the next
//   one, for which this rank has to have ended this one.
// The second holds by a barrier of the blocks, for which no data wait: the last warp of each block has none,
// and arrives and waits meanwhile. The barrier also tells this call from others, as the data do not.

#pragma once

#include "accumulator.cuh"
#include "direct.cuh"
#include "packet.cuh"
#include "warpweave/dependent.cuh"

namespace warpweave::sentinel {

constexpr uint32_t kBytes = 16;  // of a vector, the unit of transfer
constexpr uint32_t kGenerations = 3;

using Vector = warpweave::Vector<kBytes>;

// What a call leaves for the next. Each block has a copy; all are the same.
struct State {
  uint32_t generation;
  uint32_t used;  // by the call before: vectors at the start of each half
};
static_assert(sizeof(State) == 8, "as in Rust");

// In the place of all ones: a NaN, or two of 16 bits.
constexpr uint32_t kOtherNan = 0x7fff7fff;

// The barrier by which the last warp of a block knows that all have read the state.
constexpr uint32_t kHaveRead = 1;

// As data are sent.
__device__ __forceinline__ Vector inverted(const uint32_t (&data)[4]) {
  Vector sent;
#pragma unroll
  for (int w = 0; w < 4; ++w) sent.words[w] = ~(data[w] == ~0u ? kOtherNan : data[w]);
  return sent;
}

// Whether `data` are there, as they were sent.
__device__ __forceinline__ bool has_come(const Vector& data) {
  const uint32_t(&words)[4] = data.words;
  return words[0] != 0 && words[1] != 0 && words[2] != 0 && words[3] != 0;
}

// A call as one thread sees it. A thread of any warp but the last handles one vector of each chunk at a time,
// `first`, `first + stride` and so on. Every launch has to load its code: what is short is fast.
template <typename T, int W, bool kAligned>
struct Thread {
  const Packets& p;
  Sections sections;
  const uint32_t rank;
  const uint32_t world;
  const uint32_t stride;
  const uint32_t lane;  // of a thread of the last warp; else above 31
  const uint32_t first;
  const uint32_t message;  // its vectors
  const uint32_t chunk;    // those that a rank reduces
  State state;

  __device__ __forceinline__ explicit Thread(const Packets& p)
      : p(p),
        sections(p),
        rank(p.group.pad.rank),
        world(p.group.pad.world),
        stride(gridDim.x * (blockDim.x - 32)),
        lane(threadIdx.x - (blockDim.x - 32)),
        first(blockIdx.x * (blockDim.x - 32) + threadIdx.x),
        message(uint32_t((p.total + kBytes - 1) / kBytes)),
        chunk(uint32_t(p.bytes / kBytes)) {
    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];"
                 : "=r"(state.generation), "=r"(state.used)
                 : "l"(state_of(blockIdx.x)));
  }

  __device__ __forceinline__ State* state_of(uint32_t block) const {
    return reinterpret_cast<State*>(p.areas.of[0]) + block;
  }
  // Vector `index` of the section of `source` in any area, from its start.
  __device__ __forceinline__ uint64_t offset(uint32_t generation, uint32_t source, uint32_t index) const {
    const uint64_t section = uint64_t(generation * world + source) * p.capacity;
    return kMaxBlocks * sizeof(State) + (section + index) * kBytes;
  }
  // The generation of the call before.
  __device__ __forceinline__ uint32_t previous() const {
    return state.generation == 0 ? kGenerations - 1 : state.generation - 1;
  }

  // Vector `index` of the message.
  __device__ __forceinline__ void load(uint32_t (&data)[4], uint32_t index) const {
    const uint64_t start = uint64_t(index) * kBytes, from = p.input + start;
    if constexpr (kAligned) {
      const uint4 all = *reinterpret_cast<const uint4*>(from);
      data[0] = all.x, data[1] = all.y, data[2] = all.z, data[3] = all.w;
    } else {
      load_payload(data, from, p.total - start, sizeof(T) == 4);
    }
  }
  __device__ __forceinline__ void store(uint32_t index, const uint32_t (&data)[4]) const {
    const uint64_t start = uint64_t(index) * kBytes, to = p.output + start;
    if constexpr (kAligned)
      *reinterpret_cast<uint4*>(to) = make_uint4(data[0], data[1], data[2], data[3]);
    else
      store_payload(to, data, p.total - start, sizeof(T) == 4);
  }

  // Of this rank's section in the area of the rank so many steps after it.
  __device__ __forceinline__ uint64_t at(uint32_t step, uint32_t index) const {
    return p.areas.of[step] + offset(state.generation, rank, index);
  }

  // All that the last warp of a block does, while the others move data: signals the peers, prepares the next
  // call as soon as all warps have read the state, and waits for the flags of the peers.
  __device__ __forceinline__ void attend() const {
    if (sections.failed()) return;
    const uint32_t epoch = sections.epoch();
    const uint32_t slot = kEnter * kMaxBlocks + blockIdx.x;
    const bool theirs = lane < world && lane != rank;
    if (theirs) arrive(p.group, slot, lane, epoch);
    asm volatile("bar.sync %0, %1;" ::"n"(kHaveRead), "r"(blockDim.x) : "memory");
    const State next = {state.generation + 1 == kGenerations ? 0 : state.generation + 1, chunk};
#pragma unroll 1
    for (uint32_t block = blockIdx.x + lane * gridDim.x; block < kMaxBlocks;
         block += 32 * gridDim.x) {
      *state_of(block) = next;
      p.group.epochs[block] = epoch;
    }
    if (theirs) wait_for(p.group, slot, lane, epoch);
  }
  // In any other warp, once it has sent: lets the last warp go on, and zeroes what the call before received.
  // False if this rank gives up.
  __device__ __forceinline__ bool join() const {
    asm volatile("bar.arrive %0, %1;" ::"n"(kHaveRead), "r"(blockDim.x) : "memory");
    if (sections.gives_up()) return false;
    const uint64_t area = p.areas.of[0] + offset(previous(), 0, 0), section = uint64_t(p.capacity) * kBytes;
    const Vector zero = {};
#pragma unroll 1
    for (uint32_t i = first; i < state.used; i += stride) {
      uint64_t to = area + uint64_t(i) * kBytes;
#pragma unroll 1
      for (uint32_t source = 0; source < world; ++source, to += section) {
        if (source == rank) continue;
        zero.store(to);
        zero.store(to + section / 2);
      }
    }
    return true;
  }

  // Receives vector `index` of the section of each source for which `wanted(source)`, but this rank.
  template <typename Wanted>
  __device__ __forceinline__ bool receive(uint32_t index, Vector (&data)[W], Wanted wanted) const {
    uint32_t missing = 0;
#pragma unroll
    for (int source = 0; source < W; ++source)
      if (source < world && source != rank && wanted(source)) missing |= 1u << source;
    const uint64_t from = p.areas.of[0] + offset(state.generation, 0, index);
    const uint64_t section = uint64_t(p.capacity) * kBytes;
    const bool here = receive_all<W>(
        p.group.pad, sections.epoch(), missing,
        [&](int source) {
          data[source].load(from + source * section);
          return 0;
        },
        [&](int source, uint32_t) { return has_come(data[source]); }, [](uint32_t) { return false; },
        [](uint32_t source) { return source; });
#pragma unroll
    for (int source = 0; source < W; ++source)
#pragma unroll
      for (int w = 0; w < 4; ++w) data[source].words[w] = ~data[source].words[w];
    return here;
  }

  // Sends every peer what it reduces.
  __device__ __forceinline__ void scatter() {
    for (uint32_t i = first; i < chunk; i += stride) {
      uint32_t data[W][4];
#pragma unroll
      for (int step = 1; step < W; ++step) {
        const uint32_t index = peer_of(rank, world, step) * chunk + i;
        if (step < world && index < message) load(data[step], index);
      }
      if (!sections.may_send(reinterpret_cast<uint32_t (&)[4 * W]>(data))) break;
#pragma unroll
      for (int step = 1; step < W; ++step) {
        const uint32_t index = peer_of(rank, world, step) * chunk + i;
        if (step < world && index < message) inverted(data[step]).store(at(step, i));
      }
    }
  }
  // Reduces this rank's chunk, in the order of ranks, and sends the sums to all, in the second half of the
  // sections. `keep(index, sum, sent)`: what this rank does with a vector of it. False if one timed out.
  template <typename Keep>
  __device__ __forceinline__ bool reduce(Keep keep) const {
    const uint32_t own = rank * chunk;
    for (uint32_t i = first; i < chunk && own + i < message; i += stride) {
      uint32_t words[4], sum[4];
      Vector data[W];
      load(words, own + i);
      if (!receive(i, data, [](uint32_t) { return true; })) return false;
      const auto of = [&](int source) -> const uint32_t(&)[4] { return data[source].words; };
      reduce_words<T, W>(rank, world, of, words, sum);
      const Vector sent = inverted(sum);
#pragma unroll
      for (int step = 1; step < W; ++step)
        if (step < world) sent.store(at(step, p.capacity / 2 + i));
      keep(i, sum, sent);
    }
    return true;
  }
};

}  // namespace warpweave::sentinel
