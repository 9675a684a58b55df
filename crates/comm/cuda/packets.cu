// Collectives by packets, one launch each, which may start while the kernel before still runs: every thread
// waits for that, sends its packets, then receives those of the peers with the same indices. Operands are
// this rank's own memory; input and output may be the same. Data that timed out is neither stored nor
// forwarded.

#include "accumulator.cuh"
#include "packet.cuh"
#include "warpweave/dependent.cuh"

namespace {

using warpweave::kPayload;
using warpweave::Packets;
using warpweave::packets_of;
using warpweave::peer_of;
using warpweave::Sections;

struct Any {
  __device__ bool operator()(uint32_t) const { return true; }
};

// A call as one thread sees it.
template <int W, bool kWords>
struct Thread {
  const Packets& p;
  const uint32_t rank;
  const uint32_t world;
  const uint32_t first;
  const uint32_t stride;

  __device__ __forceinline__ explicit Thread(const Packets& p)
      : p(p),
        rank(p.group.pad.rank),
        world(p.group.pad.world),
        first(blockIdx.x * blockDim.x + threadIdx.x),
        stride(gridDim.x * blockDim.x) {}

  __device__ __forceinline__ void load(uint32_t (&data)[3], uint32_t chunk, uint32_t index) const {
    const uint64_t offset = uint64_t(index) * kPayload;
    warpweave::load_payload<kWords>(data, p.input + chunk * p.bytes + offset, uint32_t(p.bytes - offset));
  }
  __device__ __forceinline__ void store(uint32_t chunk, uint32_t index, const uint32_t (&data)[3]) const {
    const uint64_t offset = uint64_t(index) * kPayload;
    warpweave::store_payload<kWords>(p.output + chunk * p.bytes + offset, data, uint32_t(p.bytes - offset));
  }

  // Sends this thread's part of so many packets, if this rank may: `send(sections, index, data)` what
  // `load(data, index)` has loaded. The first load is in flight when those of `Sections` begin. All loads of
  // an index come before its first store: a load would wait for an earlier store.
  template <int N, typename Load, typename Send>
  __device__ __forceinline__ Sections send(uint32_t packets, Load load, Send send) const {
    uint32_t data[N][3];
    if (first < packets) load(data, first);
    Sections sections(p);
    for (uint32_t i = first; i < packets;) {
      if (sections.may_send(reinterpret_cast<uint32_t(&)[3 * N]>(data))) send(sections, i, data);
      i += stride;
      if (i < packets) load(data, i);
    }
    return sections;
  }
  // The whole input to every peer. `keep(index, data)`: what else happens to it.
  template <typename Keep>
  __device__ __forceinline__ Sections send_all(uint32_t packets, Keep keep) const {
    const auto load = [&](uint32_t(&data)[1][3], uint32_t index) { this->load(data[0], 0, index); };
    return send<1>(packets, load, [&](const Sections& sections, uint32_t index, const uint32_t(&data)[1][3]) {
      sections.send_all<W>(index, data[0]);
      keep(index, data[0]);
    });
  }
  // To every peer its own chunk.
  __device__ __forceinline__ Sections send_chunks(uint32_t packets) const {
    const auto load = [&](uint32_t(&data)[W][3], uint32_t index) {
#pragma unroll
      for (int step = 1; step < W; ++step)
        if (step < world) this->load(data[step], peer_of(rank, world, step), index);
    };
    return send<W>(packets, load, [&](const Sections& sections, uint32_t index, const uint32_t(&data)[W][3]) {
#pragma unroll
      for (int step = 1; step < W; ++step)
        if (step < world) sections.send(step, index, data[step]);
    });
  }
  // Stores in the output the chunks of the peers.
  __device__ __forceinline__ void receive_chunks(const Sections& sections, uint32_t packets) const {
    for (uint32_t i = first; i < packets; i += stride) {
      uint32_t data[W][3];
      if (!sections.receive<W>(i, data, Any{})) continue;
#pragma unroll
      for (int source = 0; source < W; ++source)
        if (source < world && source != rank) store(source, i, data[source]);
    }
  }
  // Stores in the output the sum of what the peers sent and this rank's `chunk`, in the order of ranks.
  template <typename T>
  __device__ __forceinline__ void reduce(const Sections& sections, uint32_t packets, uint32_t chunk) const {
    for (uint32_t i = first; i < packets; i += stride) {
      uint32_t own[3], data[W][3], sum[3];
      load(own, chunk, i);
      if (!sections.receive<W>(i, data, Any{})) continue;
      const auto of = [&](int source) -> const uint32_t(&)[3] { return data[source]; };
      warpweave::reduce_words<T, W>(rank, world, of, own, sum);
      store(0, i, sum);
    }
  }
};

template <int W, bool kWords>
__device__ __forceinline__ void all_gather(const Packets& p) {
  const Thread<W, kWords> t(p);
  const uint32_t packets = packets_of(p.bytes);
  const Sections sections = t.send_all(packets, [&](uint32_t i, const uint32_t(&own)[3]) {
    if (p.output + t.rank * p.bytes != p.input) t.store(t.rank, i, own);
  });
  if (sections.gives_up()) return;
  sections.prepare_next(packets);
  t.receive_chunks(sections, packets);
}

template <int W, bool kWords>
__device__ __forceinline__ void all_to_all(const Packets& p) {
  const Thread<W, kWords> t(p);
  const uint32_t packets = packets_of(p.bytes);
  const Sections sections = t.send_chunks(packets);
  if (sections.gives_up()) return;
  sections.prepare_next(packets);
  if (p.output != p.input) {
    for (uint32_t i = t.first; i < packets; i += t.stride) {
      uint32_t own[3];
      t.load(own, t.rank, i);
      t.store(t.rank, i, own);
    }
  }
  t.receive_chunks(sections, packets);
}

// The root sends its data, every other rank one empty packet.
template <int W, bool kWords>
__device__ __forceinline__ void broadcast(const Packets& p) {
  const Thread<W, kWords> t(p);
  const uint32_t packets = packets_of(p.bytes);
  const bool root = t.rank == p.root;
  const auto load = [&](uint32_t(&own)[1][3], uint32_t i) {
    if (root)
      t.load(own[0], 0, i);
    else
      own[0][0] = own[0][1] = own[0][2] = 0;
  };
  const auto send = [&](const Sections& sections, uint32_t i, const uint32_t(&own)[1][3]) {
    sections.send_all<W>(i, own[0]);
    if (root && p.output != p.input) t.store(0, i, own[0]);
  };
  const Sections sections = t.template send<1>(root ? packets : 1, load, send);
  if (sections.gives_up()) return;
  sections.prepare_next(packets);
  for (uint32_t i = t.first; i < packets; i += t.stride) {
    uint32_t data[W][3];
    if (!sections.receive<W>(i, data, [&](uint32_t source) { return source == p.root || i == 0; })) continue;
#pragma unroll
    for (int source = 0; source < W; ++source)
      if (source == p.root && !root) t.store(0, i, data[source]);
  }
}

// The layout of `UnevenPackets` in `launch.rs`.
struct UnevenPackets {
  Packets packets;
  warpweave::Addresses from;
  warpweave::Addresses to;
  uint32_t sent[warpweave::kMaxWorld];
  uint32_t received[warpweave::kMaxWorld];
};
static_assert(sizeof(UnevenPackets) ==
                  sizeof(Packets) + 2 * sizeof(warpweave::Addresses) + 8 * warpweave::kMaxWorld,
              "as in Rust");

// What the flags of a chunk's packets have besides, in the bits of the signature, so that two ranks that
// disagree about its length make different calls. Lengths that differ by a multiple of 4 KiB look alike.
__device__ __forceinline__ uint32_t length_mark(uint32_t bytes) {
  return bytes / 2 << (warpweave::kEpochBits + 1);
}

// Chunks of different lengths. Of an empty one, too, a packet is sent: each rank hears from every other.
template <int W, bool kWords>
__device__ __forceinline__ void all_to_all_uneven(const UnevenPackets& p) {
  const Thread<W, kWords> t(p.packets);
  const uint32_t packets = packets_of(p.packets.bytes);
  const auto is_sent = [&](int step, uint32_t i) {
    return step < t.world && i < packets_of(p.sent[peer_of(t.rank, t.world, step)]);
  };
  const auto load = [&](uint32_t(&data)[W][3], uint32_t i) {
    const uint32_t at = i * kPayload;
#pragma unroll
    for (int step = 0; step < W; ++step) {
      if (!is_sent(step, i)) continue;
      const uint32_t peer = peer_of(t.rank, t.world, step);
      warpweave::load_payload<kWords>(data[step], p.from.of[peer] + at, p.sent[peer] - at);
    }
  };
  const auto send = [&](const Sections& sections, uint32_t i, const uint32_t(&data)[W][3]) {
    const uint32_t at = i * kPayload;
#pragma unroll
    for (int step = 1; step < W; ++step)
      if (is_sent(step, i))
        sections.send(step, i, data[step], length_mark(p.sent[peer_of(t.rank, t.world, step)]));
    if (is_sent(0, i)) warpweave::store_payload<kWords>(p.to.of[t.rank] + at, data[0], p.sent[t.rank] - at);
  };
  const Sections sections = t.template send<W>(packets, load, send);
  if (sections.gives_up()) return;
  __syncthreads();
  warpweave::advance_epoch(p.packets.group, sections.epoch());
  sections.scrub_unless(
      [&](uint32_t source, uint32_t index) { return index < packets_of(p.received[source]); });
  for (uint32_t i = t.first; i < packets; i += t.stride) {
    const auto wanted = [&](uint32_t source) { return i < packets_of(p.received[source]); };
    const uint32_t at = i * kPayload;
    uint32_t data[W][3];
    const auto mark = [&](uint32_t source) { return length_mark(p.received[source]); };
    if (!sections.receive<W>(i, data, wanted, mark)) continue;
#pragma unroll
    for (int source = 0; source < W; ++source)
      if (source < t.world && source != t.rank && wanted(source))
        warpweave::store_payload<kWords>(p.to.of[source] + at, data[source], p.received[source] - at);
  }
}

template <typename T, int W, bool kWords>
__device__ __forceinline__ void reduce_scatter(const Packets& p) {
  const Thread<W, kWords> t(p);
  const uint32_t packets = packets_of(p.bytes);
  const Sections sections = t.send_chunks(packets);
  if (sections.gives_up()) return;
  sections.prepare_next(packets);
  t.template reduce<T>(sections, packets, t.rank);
}

// Every rank sends everything to all and reduces everything.
template <typename T, int W, bool kWords>
__device__ __forceinline__ void all_reduce(const Packets& p) {
  const Thread<W, kWords> t(p);
  const uint32_t packets = packets_of(p.bytes);
  const Sections sections = t.send_all(packets, [](uint32_t, const uint32_t(&)[3]) {});
  if (sections.gives_up()) return;
  sections.prepare_next(packets);
  t.template reduce<T>(sections, packets, 0);
}

__device__ __forceinline__ bool admits(const Packets& p) { return p.admits; }
__device__ __forceinline__ bool admits(const UnevenPackets& p) { return p.packets.admits; }

}  // namespace

// A poll of all sources is one batch of loads.
#define KERNEL(name, Parameter, ...)                                                               \
  extern "C" __global__ void __launch_bounds__(512, 1) name(const __grid_constant__ Parameter p) { \
    if (admits(p)) warpweave::admit_dependents();                                                  \
    warpweave::wait_for_prerequisites();                                                           \
    __VA_ARGS__(p);                                                                                \
  }

// For messages of whole words, and of any number of halves.
#define MOVES(name, Parameter, body, W)                \
  KERNEL(name##_##W, Parameter, body<W, true>)         \
  KERNEL(name##_halves_##W, Parameter, body<W, false>)

#define REDUCTIONS(name, body, W)                                        \
  KERNEL(name##_f32_##W, Packets, body<float, W, true>)                  \
  KERNEL(name##_f16_##W, Packets, body<__half, W, true>)                 \
  KERNEL(name##_bf16_##W, Packets, body<__nv_bfloat16, W, true>)         \
  KERNEL(name##_halves_f16_##W, Packets, body<__half, W, false>)         \
  KERNEL(name##_halves_bf16_##W, Packets, body<__nv_bfloat16, W, false>)

#define FOR_WORLD(W)                                                   \
  MOVES(packet_all_gather, Packets, all_gather, W)                     \
  MOVES(packet_all_to_all, Packets, all_to_all, W)                     \
  MOVES(packet_broadcast, Packets, broadcast, W)                       \
  MOVES(packet_all_to_all_uneven, UnevenPackets, all_to_all_uneven, W) \
  REDUCTIONS(packet_reduce_scatter, reduce_scatter, W)                 \
  REDUCTIONS(packet_all_reduce, all_reduce, W)

WARPWEAVE_WORLDS(FOR_WORLD)
