// Collectives by packets, one launch each: every thread sends its packets, then takes in those of the peers with the same
// indices. Operands are this rank's own memory; input and output may be the same. What has not come in time is neither
// stored nor passed on.

#include "elements.cuh"
#include "packet.cuh"

namespace {

using warpweave::kPayload;
using warpweave::packets_of;
using warpweave::Packets;
using warpweave::Sections;

struct Any {
  __device__ bool operator()(uint32_t) const { return true; }
};

// A call as one thread sees it.
template <int W, bool kWords>
struct Thread {
  const Packets& p;
  const Sections sections;
  const uint32_t rank;
  const uint32_t world;
  const uint32_t first;
  const uint32_t stride;

  __device__ __forceinline__ explicit Thread(const Packets& p)
      : p(p),
        sections(p, epoch_of(p.group)),
        rank(p.group.pad.rank),
        world(p.group.pad.world),
        first(blockIdx.x * blockDim.x + threadIdx.x),
        stride(gridDim.x * blockDim.x) {}

  // Bytes of chunk `owner` of a message that is cut into one for each rank.
  __device__ __forceinline__ uint64_t part(uint32_t owner) const {
    const uint64_t start = owner * p.bytes;
    return start >= p.total ? 0 : min(p.total - start, p.bytes);
  }
  __device__ __forceinline__ void load(uint32_t (&data)[3], uint32_t chunk, uint32_t index, uint64_t bytes) const {
    const uint64_t offset = uint64_t(index) * kPayload;
    warpweave::load_payload<kWords>(data, p.input + chunk * p.bytes + offset, uint32_t(bytes - offset));
  }
  __device__ __forceinline__ void store(uint32_t chunk, uint32_t index, uint64_t bytes, const uint32_t (&data)[3]) const {
    const uint64_t offset = uint64_t(index) * kPayload;
    warpweave::store_payload<kWords>(p.output + chunk * p.bytes + offset, data, uint32_t(bytes - offset));
  }
  // The peer that is served in this turn.
  __device__ __forceinline__ uint32_t peer(int turn) const {
    return rank + turn < world ? rank + turn : rank + turn - world;
  }
  // The same data to every peer.
  __device__ __forceinline__ void send_all(uint32_t index, const uint32_t (&data)[3]) const {
#pragma unroll
    for (int turn = 1; turn < W; ++turn)
      if (turn < world) sections.send(peer(turn), index, data);
  }
  // To every peer its own chunk's packet, if the chunk, of `bytes(peer)`, has one. All are loaded before the first is sent:
  // a load would wait for the store before it.
  template <typename Bytes>
  __device__ __forceinline__ void send_chunks(uint32_t index, Bytes bytes) const {
    uint32_t data[W][3];
#pragma unroll
    for (int turn = 1; turn < W; ++turn)
      if (turn < world && index < packets_of(bytes(peer(turn)))) load(data[turn], peer(turn), index, bytes(peer(turn)));
#pragma unroll
    for (int turn = 1; turn < W; ++turn)
      if (turn < world && index < packets_of(bytes(peer(turn)))) sections.send(peer(turn), index, data[turn]);
  }
  // The sum of all ranks' data, this rank's in its place among them.
  template <typename T>
  __device__ __forceinline__ void sum(const uint32_t (&data)[W][3], const uint32_t (&own)[3], uint32_t (&out)[3]) const {
    warpweave::Sum<T, 3> sum;
    sum.clear();
#pragma unroll
    for (int source = 0; source < W; ++source) {
      if (source == rank)
        sum.add(own);
      else if (source < world)
        sum.add(data[source]);
    }
    sum.pack(out);
  }
  // What a launch owes the next one, done while packets are on their way. By all threads.
  __device__ __forceinline__ void settle(uint32_t used, uint32_t second = 0) const {
    __syncthreads();
    warpweave::advance_epoch(p.group, sections.epoch);
    sections.scrub(used, second);
  }
};

template <int W, bool kWords>
__device__ __forceinline__ void all_gather(const Packets& p) {
  // Its loads overlap that of the epoch.
  const bool failed = warpweave::faulted(p.group.pad);
  const Thread<W, kWords> t(p);
  if (gives_up(p, failed)) return;
  const uint32_t packets = packets_of(p.bytes);
  for (uint32_t i = t.first; i < packets; i += t.stride) {
    uint32_t own[3];
    t.load(own, 0, i, p.bytes);
    t.send_all(i, own);
    if (p.output + t.rank * p.bytes != p.input) t.store(t.rank, i, p.bytes, own);
  }
  t.settle(packets);
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
  const bool failed = warpweave::faulted(p.group.pad);
  const Thread<W, kWords> t(p);
  if (gives_up(p, failed)) return;
  const uint32_t packets = packets_of(p.bytes);
  for (uint32_t i = t.first; i < packets; i += t.stride) {
    t.send_chunks(i, [&](uint32_t) { return p.bytes; });
    uint32_t own[3];
    if (p.output != p.input) {
      t.load(own, t.rank, i, p.bytes);
      t.store(t.rank, i, p.bytes, own);
    }
  }
  t.settle(packets);
  for (uint32_t i = t.first; i < packets; i += t.stride) {
    uint32_t data[W][3];
    if (!t.sections.template receive<W>(i, data, Any{})) continue;
#pragma unroll
    for (int source = 0; source < W; ++source)
      if (source < t.world && source != t.rank) t.store(source, i, p.bytes, data[source]);
  }
}

// The root sends its data and everybody else one empty packet.
template <int W, bool kWords>
__device__ __forceinline__ void broadcast(const Packets& p) {
  const bool failed = warpweave::faulted(p.group.pad);
  const Thread<W, kWords> t(p);
  if (gives_up(p, failed)) return;
  const uint32_t packets = packets_of(p.bytes);
  const bool root = t.rank == p.root;
  uint32_t own[3] = {0, 0, 0};
  for (uint32_t i = t.first; i < (root ? packets : 1); i += t.stride) {
    if (root) t.load(own, 0, i, p.bytes);
    t.send_all(i, own);
    if (root && p.output != p.input) t.store(0, i, p.bytes, own);
  }
  t.settle(packets);
  for (uint32_t i = t.first; i < packets; i += t.stride) {
    uint32_t data[W][3];
    if (!t.sections.template receive<W>(i, data, [&](uint32_t source) { return source == p.root || i == 0; })) continue;
#pragma unroll
    for (int source = 0; source < W; ++source)
      if (source == p.root && !root) t.store(0, i, p.bytes, data[source]);
  }
}

template <typename T, int W, bool kWords>
__device__ __forceinline__ void reduce_scatter(const Packets& p) {
  const bool failed = warpweave::faulted(p.group.pad);
  const Thread<W, kWords> t(p);
  if (gives_up(p, failed)) return;
  const uint32_t packets = packets_of(p.bytes);
  for (uint32_t i = t.first; i < packets; i += t.stride) {
    t.send_chunks(i, [&](uint32_t) { return p.bytes; });
  }
  t.settle(packets);
  for (uint32_t i = t.first; i < packets; i += t.stride) {
    uint32_t own[3], data[W][3], sum[3];
    t.load(own, t.rank, i, p.bytes);
    if (!t.sections.template receive<W>(i, data, Any{})) continue;
    t.template sum<T>(data, own, sum);
    t.store(0, i, p.bytes, sum);
  }
}

// Every rank sends everything to all and sums everything.
template <typename T, int W, bool kWords>
__device__ __forceinline__ void all_reduce_one_shot(const Packets& p) {
  const bool failed = warpweave::faulted(p.group.pad);
  const Thread<W, kWords> t(p);
  if (gives_up(p, failed)) return;
  const uint32_t packets = packets_of(p.bytes);
  for (uint32_t i = t.first; i < packets; i += t.stride) {
    uint32_t own[3];
    t.load(own, 0, i, p.bytes);
    t.send_all(i, own);
  }
  t.settle(packets);
  for (uint32_t i = t.first; i < packets; i += t.stride) {
    uint32_t own[3], data[W][3], sum[3];
    t.load(own, 0, i, p.bytes);
    if (!t.sections.template receive<W>(i, data, Any{})) continue;
    t.template sum<T>(data, own, sum);
    t.store(0, i, p.bytes, sum);
  }
}

// Every rank sums one chunk and sends the sum to all, behind the middle of the sections.
template <typename T, int W, bool kWords>
__device__ __forceinline__ void all_reduce_two_shot(const Packets& p) {
  const bool failed = warpweave::faulted(p.group.pad);
  const Thread<W, kWords> t(p);
  if (gives_up(p, failed)) return;
  const uint32_t packets = packets_of(p.bytes);
  const uint32_t middle = p.capacity / 2;
  for (uint32_t i = t.first; i < packets; i += t.stride) {
    t.send_chunks(i, [&](uint32_t peer) { return t.part(peer); });
  }
  t.settle(packets, packets);
  const uint64_t own_bytes = t.part(t.rank);
  for (uint32_t i = t.first; i < packets_of(own_bytes); i += t.stride) {
    uint32_t own[3], data[W][3], sum[3];
    t.load(own, t.rank, i, own_bytes);
    if (!t.sections.template receive<W>(i, data, Any{})) continue;
    t.template sum<T>(data, own, sum);
    t.send_all(middle + i, sum);
    t.store(t.rank, i, own_bytes, sum);
  }
  for (uint32_t i = t.first; i < packets; i += t.stride) {
    const auto wanted = [&](uint32_t source) { return i < packets_of(t.part(source)); };
    uint32_t data[W][3];
    if (!t.sections.template receive<W>(middle + i, data, wanted)) continue;
#pragma unroll
    for (int source = 0; source < W; ++source)
      if (source < t.world && source != t.rank && wanted(source)) t.store(source, i, t.part(source), data[source]);
  }
}

}  // namespace

// For two, four or as many ranks as there may be: the look at all sources is one batch of loads.
#define KERNEL(name, ...) \
  extern "C" __global__ void __launch_bounds__(512) name(const __grid_constant__ Packets p) { __VA_ARGS__(p); }

#define FOR_WORLDS(name, body, kWords) \
  KERNEL(name##_2, body<2, kWords>)    \
  KERNEL(name##_4, body<4, kWords>)    \
  KERNEL(name##_8, body<8, kWords>)

#define FOR_TYPE(name, body, T, kWords)  \
  KERNEL(name##_2, body<T, 2, kWords>)   \
  KERNEL(name##_4, body<T, 4, kWords>)   \
  KERNEL(name##_8, body<T, 8, kWords>)

// For messages of whole words, and of any number of halves.
#define MOVES(name, body)         \
  FOR_WORLDS(name, body, true)    \
  FOR_WORLDS(name##_halves, body, false)

#define SUMS(name, body)                                       \
  FOR_TYPE(name##_f32, body, float, true)                      \
  FOR_TYPE(name##_f16, body, __half, true)                     \
  FOR_TYPE(name##_bf16, body, __nv_bfloat16, true)             \
  FOR_TYPE(name##_halves_f16, body, __half, false)             \
  FOR_TYPE(name##_halves_bf16, body, __nv_bfloat16, false)

MOVES(packet_all_gather, all_gather)
MOVES(packet_all_to_all, all_to_all)
MOVES(packet_broadcast, broadcast)
SUMS(packet_reduce_scatter, reduce_scatter)
SUMS(packet_all_reduce_one_shot, all_reduce_one_shot)
SUMS(packet_all_reduce_two_shot, all_reduce_two_shot)
