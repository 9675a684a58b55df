// All-reduces of data that need no flag, one launch each. Memory to which nothing has come holds a
// *sentinel*, zero, and a word is sent inverted: that it is there shows in the word itself. Packets spend a
// quarter of the link on their flags; this spends nothing, and like them needs no fence before the data are
// used.
//
// One word inverts to zero: all ones, a NaN of f32 or two of 16 bits. Other NaNs are sent for it, which a sum
// does not tell apart.
//
// An area has sections for three *generations* of calls, which take turns, and in each for every source. A
// call zeroes the sections of the call before once it has sent its data:
// - They have been read, since the launch that read them has ended.
// - Peers write to them again in the call after the next one, which they begin when they have ended the next
//   one, for which this rank has to have ended this one.
// The second holds by a barrier of the blocks, for which no data wait: the last warp of each block has none,
// and arrives and waits meanwhile. The barrier also tells this call from others, as the data do not.

#include "accumulator.cuh"
#include "direct.cuh"
#include "packet.cuh"
#include "warpweave/dependent.cuh"

namespace {

using warpweave::Packets;
using warpweave::PadView;
using warpweave::peer_of;
using warpweave::Sections;

constexpr uint32_t kBytes = 16;  // of a vector, the unit of transfer
constexpr uint32_t kGenerations = 3;

// What a call leaves for the next. Each block has a copy; all are the same.
struct State {
  uint32_t generation;
  uint32_t used[kGenerations];  // twice the vectors at the start of each section, odd if halves have them
};
static_assert(sizeof(State) == kBytes, "as in Rust");

using Vector = warpweave::Vector<kBytes>;

// In the place of all ones: a NaN, or two of 16 bits.
constexpr uint32_t kOtherNan = 0x7fff7fff;

__device__ __forceinline__ uint32_t vectors_of(uint64_t bytes) {
  return uint32_t((bytes + kBytes - 1) / kBytes);
}

// A call as one thread sees it. A thread of any warp but the last has the vectors `first`, `first + stride`
// and so on of each chunk, and handles `kUnroll` of them at a time.
template <typename T, int W, bool kAligned>
struct Thread {
  static constexpr int kUnroll = warpweave::kUnrolled<W>;

  const Packets& p;
  const PadView& pad;
  Sections sections;
  const uint32_t rank;
  const uint32_t world;
  const uint32_t stride;
  const uint32_t peer;  // of a thread of the last warp; else no rank
  const uint32_t first;
  State state;

  __device__ __forceinline__ explicit Thread(const Packets& p)
      : p(p),
        pad(p.group.pad),
        sections(p),
        rank(p.group.pad.rank),
        world(p.group.pad.world),
        stride(gridDim.x * (blockDim.x - 32)),
        peer(threadIdx.x - (blockDim.x - 32)),
        first(peer < 32 ? ~0u : blockIdx.x * (blockDim.x - 32) + threadIdx.x) {
    Vector words;
    words.load(state_of(blockIdx.x));
    state = {words.words[0], {words.words[1], words.words[2], words.words[3]}};
  }

  __device__ __forceinline__ uint64_t state_of(uint32_t block) const {
    return p.areas.of[rank] + block * sizeof(State);
  }
  // Vector `index` of the section of `source` in the area of `owner`.
  __device__ __forceinline__ uint64_t at(uint32_t generation, uint32_t owner, uint32_t source,
                                         uint32_t index) const {
    const uint64_t section = generation * world + source;
    return p.areas.of[owner] + warpweave::kMaxBlocks * sizeof(State) +
           (section * p.capacity + index) * kBytes;
  }

  // Vector `index` of the input from `start` on, of which `bytes` are there.
  __device__ __forceinline__ void load(uint32_t (&data)[4], uint64_t start, uint32_t index,
                                       uint64_t bytes) const {
    const uint64_t offset = uint64_t(index) * kBytes, from = p.input + start + offset;
    if constexpr (kAligned) {
      const uint4 all = *reinterpret_cast<const uint4*>(from);
      data[0] = all.x, data[1] = all.y, data[2] = all.z, data[3] = all.w;
    } else {
      warpweave::load_payload(data, from, bytes - offset, sizeof(T) == 4);
    }
  }
  __device__ __forceinline__ void store(uint64_t start, uint32_t index, uint64_t bytes,
                                        const uint32_t (&data)[4]) const {
    const uint64_t offset = uint64_t(index) * kBytes, to = p.output + start + offset;
    if constexpr (kAligned)
      *reinterpret_cast<uint4*>(to) = make_uint4(data[0], data[1], data[2], data[3]);
    else
      warpweave::store_payload(to, data, bytes - offset, sizeof(T) == 4);
  }

  __device__ __forceinline__ void send(uint32_t peer, uint32_t index, const uint32_t (&data)[4]) const {
    Vector sent;
#pragma unroll
    for (int w = 0; w < 4; ++w) sent.words[w] = ~(data[w] == ~0u ? kOtherNan : data[w]);
    sent.store(at(state.generation, peer, rank, index));
  }
  __device__ __forceinline__ void send_all(uint32_t index, const uint32_t (&data)[4]) const {
#pragma unroll
    for (int step = 1; step < W; ++step)
      if (step < world) send(peer_of(rank, world, step), index, data);
  }

  // Once this thread has sent: prepares the next call, zeroes what the call before received, and in the last
  // warp tells the peers and hears from them. So many vectors are received at the start of each section, and
  // of its second half too if `halves`.
  __device__ __forceinline__ void join(uint32_t vectors, bool halves) {
    const bool theirs = peer < world && peer != rank;
    const uint32_t slot = warpweave::kEnter * warpweave::kMaxBlocks + blockIdx.x;
    if (theirs) arrive(p.group, warpweave::kEnter, slot, peer, sections.epoch());
    __syncthreads();
    warpweave::advance_epoch(p.group, sections.epoch());
    const uint32_t previous = (state.generation + kGenerations - 1) % kGenerations;
    Vector next;
    next.words[0] = (state.generation + 1) % kGenerations;
#pragma unroll
    for (int g = 0; g < kGenerations; ++g)
      next.words[1 + g] = g == state.generation ? 2 * vectors + halves : g == previous ? 0 : state.used[g];
    for (uint32_t block = blockIdx.x + threadIdx.x * gridDim.x; block < warpweave::kMaxBlocks;
         block += blockDim.x * gridDim.x)
      next.store(state_of(block));
    clear(previous);
    if (theirs) wait_for(p.group, slot, peer, sections.epoch());
  }

  // Zeroes what peers sent in a generation.
  __device__ __forceinline__ void clear(uint32_t generation) const {
    uint32_t used = 0;
#pragma unroll
    for (int g = 0; g < kGenerations; ++g)
      if (g == generation) used = state.used[g];
    const Vector zero = {};
    for (uint32_t i = first; i < used / 2; i += stride)
      for (uint32_t source = 0; source < world; ++source) {
        if (source == rank) continue;
        zero.store(at(generation, rank, source, i));
        if (used % 2 != 0) zero.store(at(generation, rank, source, p.capacity / 2 + i));
      }
  }

  // Receives vectors from `index` on of each source for which `wanted(source, index)`, but this rank.
  template <typename Wanted>
  __device__ __forceinline__ bool receive(uint32_t index, uint32_t start, Vector (&data)[W][kUnroll],
                                          Wanted wanted) const {
    uint32_t missing = 0;
#pragma unroll
    for (int source = 0; source < W; ++source)
#pragma unroll
      for (int u = 0; u < kUnroll; ++u)
        if (source < world && source != rank && wanted(source, index + u * stride))
          missing |= 1u << (source * kUnroll + u);
    const bool here = warpweave::receive_all<W * kUnroll>(
        pad, sections.epoch(), missing,
        [&](int i) {
          const uint32_t place = start + index + i % kUnroll * stride;
          data[i / kUnroll][i % kUnroll].load(at(state.generation, rank, i / kUnroll, place));
          return 0;
        },
        [&](int i, uint32_t) {
          const uint32_t(&words)[4] = data[i / kUnroll][i % kUnroll].words;
          return words[0] != 0 && words[1] != 0 && words[2] != 0 && words[3] != 0;
        },
        [](uint32_t) { return false; }, [](uint32_t i) { return i / kUnroll; });
#pragma unroll
    for (int source = 0; source < W; ++source)
#pragma unroll
      for (int u = 0; u < kUnroll; ++u)
#pragma unroll
        for (int w = 0; w < 4; ++w) data[source][u].words[w] = ~data[source][u].words[w];
    return here;
  }

  // Reduces what all ranks have of the `bytes` of the message from `start` on, in the order of ranks, to the
  // output and to `send(index, sum)`. False if a vector timed out.
  template <typename Send>
  __device__ __forceinline__ bool reduce(uint64_t start, uint64_t bytes, Send send) const {
    const uint32_t vectors = vectors_of(bytes);
    for (uint32_t i = first; i < vectors; i += kUnroll * stride) {
      uint32_t own[kUnroll][4];
      Vector data[W][kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u)
        if (i + u * stride < vectors) load(own[u], start, i + u * stride, bytes);
      if (!receive(i, 0, data, [&](uint32_t, uint32_t index) { return index < vectors; })) return false;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (i + u * stride >= vectors) break;
        uint32_t sum[4];
        const auto of = [&](int source) -> const uint32_t(&)[4] { return data[source][u].words; };
        warpweave::reduce_words<T, W>(rank, world, of, own[u], sum);
        send(i + u * stride, sum);
        store(start, i + u * stride, bytes, sum);
      }
    }
    return true;
  }
};

// Every rank sends everything to all and reduces everything.
template <typename T, int W, bool kAligned>
__device__ __forceinline__ void one_shot(const Packets& p) {
  using Call = Thread<T, W, kAligned>;
  constexpr int kUnroll = Call::kUnroll;
  Call t(p);
  const uint32_t vectors = vectors_of(p.total);
  for (uint32_t i = t.first; i < vectors; i += kUnroll * t.stride) {
    uint32_t own[kUnroll][4];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (i + u * t.stride < vectors) t.load(own[u], 0, i + u * t.stride, p.total);
    if (!t.sections.may_send(reinterpret_cast<uint32_t (&)[4 * kUnroll]>(own))) break;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (i + u * t.stride < vectors) t.send_all(i + u * t.stride, own[u]);
  }
  if (t.sections.gives_up()) return;
  t.join(vectors, false);
  t.reduce(0, p.total, [](uint32_t, const uint32_t (&)[4]) {});
}

// Every rank reduces one chunk and sends the result to all, in the second half of the sections.
template <typename T, int W, bool kAligned>
__device__ __forceinline__ void two_shot(const Packets& p) {
  using Call = Thread<T, W, kAligned>;
  constexpr int kUnroll = Call::kUnroll;
  Call t(p);
  const uint32_t vectors = vectors_of(p.bytes), middle = p.capacity / 2;
  for (uint32_t i = t.first; i < vectors; i += kUnroll * t.stride) {
    uint32_t data[W][kUnroll][4];
#pragma unroll
    for (int step = 1; step < W; ++step) {
      const uint32_t peer = peer_of(t.rank, t.world, step);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u)
        if (step < t.world && i + u * t.stride < vectors_of(p.part(peer)))
          t.load(data[step][u], peer * p.bytes, i + u * t.stride, p.part(peer));
    }
    if (!t.sections.may_send(reinterpret_cast<uint32_t (&)[4 * W * kUnroll]>(data))) break;
#pragma unroll
    for (int step = 1; step < W; ++step) {
      const uint32_t peer = peer_of(t.rank, t.world, step);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u)
        if (step < t.world && i + u * t.stride < vectors_of(p.part(peer)))
          t.send(peer, i + u * t.stride, data[step][u]);
    }
  }
  if (t.sections.gives_up()) return;
  t.join(vectors, true);
  const auto send = [&](uint32_t i, const uint32_t (&sum)[4]) { t.send_all(middle + i, sum); };
  if (!t.reduce(t.rank * p.bytes, p.part(t.rank), send)) return;
  for (uint32_t i = t.first; i < vectors; i += kUnroll * t.stride) {
    const auto wanted = [&](uint32_t source, uint32_t index) { return index < vectors_of(p.part(source)); };
    Vector data[W][kUnroll];
    if (!t.receive(i, middle, data, wanted)) return;
#pragma unroll
    for (int source = 0; source < W; ++source)
#pragma unroll
      for (int u = 0; u < kUnroll; ++u)
        if (source < t.world && source != t.rank && wanted(source, i + u * t.stride))
          t.store(source * p.bytes, i + u * t.stride, p.part(source), data[source][u].words);
  }
}

}  // namespace

#define KERNEL(name, ...)                                                                     \
  extern "C" __global__ void __launch_bounds__(512) name(const __grid_constant__ Packets p) { \
    if (p.admits) warpweave::admit_dependents();                                              \
    warpweave::wait_for_prerequisites();                                                      \
    __VA_ARGS__(p);                                                                           \
  }

// Vectors of 16 bytes at a time from and to aligned operands, else elements.
#define FOR_SHOTS(shots, T, suffix, W)                            \
  KERNEL(sentinel_##shots##_16_##suffix##_##W, shots<T, W, true>) \
  KERNEL(sentinel_##shots##_1_##suffix##_##W, shots<T, W, false>)

#define FOR_TYPE(T, suffix, W)      \
  FOR_SHOTS(one_shot, T, suffix, W) \
  FOR_SHOTS(two_shot, T, suffix, W)

#define FOR_WORLD(W)       \
  FOR_TYPE(float, f32, W)  \
  FOR_TYPE(__half, f16, W) \
  FOR_TYPE(__nv_bfloat16, bf16, W)

WARPWEAVE_WORLDS(FOR_WORLD)
