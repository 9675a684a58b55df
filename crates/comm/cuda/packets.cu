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
  Sections sections;
  const uint32_t rank;
  const uint32_t world;
  const uint32_t first;
  const uint32_t stride;

  __device__ __forceinline__ explicit Thread(const Packets& p)
      : p(p),
        sections(p),
        rank(p.group.pad.rank),
        world(p.group.pad.world),
        first(blockIdx.x * blockDim.x + threadIdx.x),
        stride(gridDim.x * blockDim.x) {}

  __device__ __forceinline__ void load(uint32_t (&data)[3], uint32_t chunk, uint32_t index,
                                       uint64_t bytes) const {
    const uint64_t offset = uint64_t(index) * kPayload;
    warpweave::load_payload<kWords>(data, p.input + chunk * p.bytes + offset, uint32_t(bytes - offset));
  }
  __device__ __forceinline__ void store(uint32_t chunk, uint32_t index, uint64_t bytes,
                                        const uint32_t (&data)[3]) const {
    const uint64_t offset = uint64_t(index) * kPayload;
    warpweave::store_payload<kWords>(p.output + chunk * p.bytes + offset, data, uint32_t(bytes - offset));
  }
  // To every peer its own chunk's packet, if the chunk, of `bytes(peer)`, has one, and if this rank may send.
  // All loads come before the first store: a load would wait for an earlier store.
  template <typename Bytes>
  __device__ __forceinline__ void send_chunks(uint32_t index, Bytes bytes) {
    uint32_t data[W][3];
#pragma unroll
    for (int step = 1; step < W; ++step)
      if (step < world && index < packets_of(bytes(peer_of(rank, world, step))))
        load(data[step], peer_of(rank, world, step), index, bytes(peer_of(rank, world, step)));
    if (!sections.may_send(reinterpret_cast<uint32_t (&)[3 * W]>(data))) return;
#pragma unroll
    for (int step = 1; step < W; ++step)
      if (step < world && index < packets_of(bytes(peer_of(rank, world, step))))
        sections.send(peer_of(rank, world, step), index, data[step]);
  }
  // Reduces all ranks' data in the order of ranks.
  template <typename T>
  __device__ __forceinline__ void reduce(const uint32_t (&data)[W][3], const uint32_t (&own)[3],
                                         uint32_t (&out)[3]) const {
    const auto of = [&](int source) -> const uint32_t(&)[3] { return data[source]; };
    warpweave::reduce_words<T, W>(rank, world, of, own, out);
  }
};

template <int W, bool kWords>
__device__ __forceinline__ void all_gather(const Packets& p) {
  Thread<W, kWords> t(p);
  const uint32_t packets = packets_of(p.bytes);
  for (uint32_t i = t.first; i < packets; i += t.stride) {
    uint32_t own[3];
    t.load(own, 0, i, p.bytes);
    if (!t.sections.may_send(own)) continue;
    t.sections.template send_all<W>(i, own);
    if (p.output + t.rank * p.bytes != p.input) t.store(t.rank, i, p.bytes, own);
  }
  if (t.sections.gives_up()) return;
  t.sections.prepare_next(packets);
  for (uint32_t i = t.first; i < packets; i += t.stride) {
    uint32_t data[W][3];
    if (!t.sections.template receive<W>(i, data, Any{})) continue;
#pragma unroll
    for (int source = 0; source < W; ++source)
      if (source < t.world && source != t.rank) t.store(source, i, p.bytes, data[source]);
  }
}

template <int W, bool kWords>
__device__ __forceinline__ void all_to_all(const Packets& p) {
  Thread<W, kWords> t(p);
  const uint32_t packets = packets_of(p.bytes);
  for (uint32_t i = t.first; i < packets; i += t.stride) {
    t.send_chunks(i, [&](uint32_t) { return p.bytes; });
    uint32_t own[3];
    if (p.output != p.input) {
      t.load(own, t.rank, i, p.bytes);
      if (t.sections.may_send(own)) t.store(t.rank, i, p.bytes, own);
    }
  }
  if (t.sections.gives_up()) return;
  t.sections.prepare_next(packets);
  for (uint32_t i = t.first; i < packets; i += t.stride) {
    uint32_t data[W][3];
    if (!t.sections.template receive<W>(i, data, Any{})) continue;
#pragma unroll
    for (int source = 0; source < W; ++source)
      if (source < t.world && source != t.rank) t.store(source, i, p.bytes, data[source]);
  }
}

// The root sends its data, every other rank one empty packet.
template <int W, bool kWords>
__device__ __forceinline__ void broadcast(const Packets& p) {
  Thread<W, kWords> t(p);
  const uint32_t packets = packets_of(p.bytes);
  const bool root = t.rank == p.root;
  uint32_t own[3] = {0, 0, 0};
  for (uint32_t i = t.first; i < (root ? packets : 1); i += t.stride) {
    if (root) t.load(own, 0, i, p.bytes);
    if (!t.sections.may_send(own)) continue;
    t.sections.template send_all<W>(i, own);
    if (root && p.output != p.input) t.store(0, i, p.bytes, own);
  }
  if (t.sections.gives_up()) return;
  t.sections.prepare_next(packets);
  for (uint32_t i = t.first; i < packets; i += t.stride) {
    uint32_t data[W][3];
    if (!t.sections.template receive<W>(i, data, [&](uint32_t source) { return source == p.root || i == 0; }))
      continue;
#pragma unroll
    for (int source = 0; source < W; ++source)
      if (source == p.root && !root) t.store(0, i, p.bytes, data[source]);
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

// Chunks of different lengths. Of an empty one, too, a packet is sent: each rank hears from every other.
template <int W, bool kWords>
__device__ __forceinline__ void all_to_all_uneven(const UnevenPackets& p) {
  Thread<W, kWords> t(p.packets);
  const uint32_t packets = packets_of(p.packets.bytes);
  for (uint32_t i = t.first; i < packets; i += t.stride) {
    const uint32_t at = i * kPayload;
    uint32_t data[W][3];
#pragma unroll
    for (int peer = 0; peer < W; ++peer)
      if (peer < t.world && i < packets_of(p.sent[peer]))
        warpweave::load_payload<kWords>(data[peer], p.from.of[peer] + at, p.sent[peer] - at);
    if (!t.sections.may_send(reinterpret_cast<uint32_t (&)[3 * W]>(data))) continue;
#pragma unroll
    for (int peer = 0; peer < W; ++peer) {
      if (peer >= t.world || i >= packets_of(p.sent[peer])) continue;
      if (peer == t.rank)
        warpweave::store_payload<kWords>(p.to.of[peer] + at, data[peer], p.sent[peer] - at);
      else
        t.sections.send(peer, i, data[peer]);
    }
  }
  if (t.sections.gives_up()) return;
  __syncthreads();
  warpweave::advance_epoch(p.packets.group, t.sections.epoch());
  t.sections.scrub_unless(
      [&](uint32_t source, uint32_t index) { return index < packets_of(p.received[source]); });
  for (uint32_t i = t.first; i < packets; i += t.stride) {
    const auto wanted = [&](uint32_t source) { return i < packets_of(p.received[source]); };
    const uint32_t at = i * kPayload;
    uint32_t data[W][3];
    if (!t.sections.template receive<W>(i, data, wanted)) continue;
#pragma unroll
    for (int source = 0; source < W; ++source)
      if (source < t.world && source != t.rank && wanted(source))
        warpweave::store_payload<kWords>(p.to.of[source] + at, data[source], p.received[source] - at);
  }
}

template <typename T, int W, bool kWords>
__device__ __forceinline__ void reduce_scatter(const Packets& p) {
  Thread<W, kWords> t(p);
  const uint32_t packets = packets_of(p.bytes);
  for (uint32_t i = t.first; i < packets; i += t.stride) {
    t.send_chunks(i, [&](uint32_t) { return p.bytes; });
  }
  if (t.sections.gives_up()) return;
  t.sections.prepare_next(packets);
  for (uint32_t i = t.first; i < packets; i += t.stride) {
    uint32_t own[3], data[W][3], result[3];
    t.load(own, t.rank, i, p.bytes);
    if (!t.sections.template receive<W>(i, data, Any{})) continue;
    t.template reduce<T>(data, own, result);
    t.store(0, i, p.bytes, result);
  }
}

// Every rank sends everything to all and reduces everything.
template <typename T, int W, bool kWords>
__device__ __forceinline__ void all_reduce(const Packets& p) {
  Thread<W, kWords> t(p);
  const uint32_t packets = packets_of(p.bytes);
  for (uint32_t i = t.first; i < packets; i += t.stride) {
    uint32_t own[3];
    t.load(own, 0, i, p.bytes);
    if (t.sections.may_send(own)) t.sections.template send_all<W>(i, own);
  }
  if (t.sections.gives_up()) return;
  t.sections.prepare_next(packets);
  for (uint32_t i = t.first; i < packets; i += t.stride) {
    uint32_t own[3], data[W][3], result[3];
    t.load(own, 0, i, p.bytes);
    if (!t.sections.template receive<W>(i, data, Any{})) continue;
    t.template reduce<T>(data, own, result);
    t.store(0, i, p.bytes, result);
  }
}

__device__ __forceinline__ bool admits(const Packets& p) { return p.admits; }
__device__ __forceinline__ bool admits(const UnevenPackets& p) { return p.packets.admits; }

}  // namespace

// A poll of all sources is one batch of loads.
#define KERNEL(name, Parameter, ...)                                                            \
  extern "C" __global__ void __launch_bounds__(512) name(const __grid_constant__ Parameter p) { \
    if (admits(p)) warpweave::admit_dependents();                                               \
    warpweave::wait_for_prerequisites();                                                        \
    __VA_ARGS__(p);                                                                             \
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
