// Packets: 12 bytes of data that travel with the epoch of their call, without fences or signals.
//
// A packet is one 128-bit access, which the memory model makes single-copy atomic: whoever sees the epoch
// sees the data. Each rank has a receive buffer with a section for every (parity of the epoch, source). A
// section of call e is overwritten in call e + 2, by a rank that has ended call e + 1 and so has received
// from its owner after the owner's call e.
#pragma once

#include "group.cuh"

namespace warpweave {

constexpr uint32_t kPayload = 12;  // bytes of data in a packet

// A packet's flag: a set bit, so that zeroed memory differs, the epoch of the launch, and above these eleven
// bits of the call's signature.
constexpr uint32_t kEpochBits = 20;
constexpr uint32_t kEpochMask = (2u << kEpochBits) - 1;

struct Packet {
  uint32_t data[3];
  uint32_t epoch;
};

__device__ __forceinline__ void store_packet(uint64_t to, const Packet& packet) {
  asm volatile(
      "{\n.reg .b64 low, high;\n.reg .b128 packet;\n"
      "mov.b64 low, {%1, %2};\nmov.b64 high, {%3, %4};\nmov.b128 packet, {low, high};\n"
      "st.relaxed.sys.global.b128 [%0], packet;\n}" ::"l"(to),
      "r"(packet.data[0]), "r"(packet.data[1]), "r"(packet.data[2]), "r"(packet.epoch)
      : "memory");
}

__device__ __forceinline__ Packet load_packet(uint64_t from) {
  Packet packet;
  asm volatile(
      "{\n.reg .b64 low, high;\n.reg .b128 packet;\n"
      "ld.relaxed.sys.global.b128 packet, [%4];\n"
      "mov.b128 {low, high}, packet;\nmov.b64 {%0, %1}, low;\nmov.b64 {%2, %3}, high;\n}"
      : "=r"(packet.data[0]), "=r"(packet.data[1]), "=r"(packet.data[2]), "=r"(packet.epoch)
      : "l"(from)
      : "memory");
  return packet;
}

// `bytes` at most of a message at `from`, a multiple of 2, the rest zero. `words`: the message is aligned to
// 4 bytes.
template <int N>
__device__ __forceinline__ void load_payload(uint32_t (&data)[N], uint64_t from, uint64_t bytes, bool words) {
  const uint32_t* whole = reinterpret_cast<const uint32_t*>(from);
  const uint16_t* half = reinterpret_cast<const uint16_t*>(from);
#pragma unroll
  for (int w = 0; w < N; ++w) {
    if (words && 4 * w + 4 <= bytes) {
      data[w] = whole[w];
    } else {
      const uint32_t low = 4 * w + 2 <= bytes ? half[2 * w] : 0u;
      const uint32_t high = 4 * w + 4 <= bytes ? half[2 * w + 1] : 0u;
      data[w] = low | high << 16;
    }
  }
}

template <int N>
__device__ __forceinline__ void store_payload(uint64_t to, const uint32_t (&data)[N], uint64_t bytes,
                                              bool words) {
  uint32_t* whole = reinterpret_cast<uint32_t*>(to);
  uint16_t* half = reinterpret_cast<uint16_t*>(to);
#pragma unroll
  for (int w = 0; w < N; ++w) {
    if (words && 4 * w + 4 <= bytes) {
      whole[w] = data[w];
    } else {
      if (4 * w + 2 <= bytes) half[2 * w] = uint16_t(data[w]);
      if (4 * w + 4 <= bytes) half[2 * w + 1] = uint16_t(data[w] >> 16);
    }
  }
}

// Packets of a chunk. At least one: the protocol needs every rank to receive from every other.
__device__ __forceinline__ uint32_t packets_of(uint64_t bytes) {
  return bytes == 0 ? 1u : (uint32_t(bytes) + kPayload - 1) / kPayload;
}

// The layout of `Packets` in `launch.rs`. What a launch reads before it sends stands together, since
// parameters, too, come from memory by lines.
struct Packets {
  uint64_t input;
  uint64_t output;
  uint64_t bytes;     // of a chunk, what one rank has for another; a multiple of 2
  uint64_t total;     // of an all-reduce whose chunks are its parts (sentinels): all of them
  uint32_t capacity;  // packets of a section
  uint32_t root;
  uint32_t aligned;  // input, output, chunks and message are multiples of 4 bytes
  uint32_t admits;   // the next kernel of the stream may start
  Group group;
  Addresses areas;  // receive buffers: [parity][source][capacity] packets; by step, this rank's first
};
static_assert(sizeof(Packets) == sizeof(Group) + sizeof(Addresses) + 48, "as in Rust");

// The same for messages of whole words only: a fraction of the code, which each launch has to load.
template <bool kWords>
__device__ __forceinline__ void load_payload(uint32_t (&data)[3], uint64_t from, uint32_t bytes) {
  if constexpr (kWords) {
#pragma unroll
    for (int w = 0; w < 3; ++w) data[w] = 4 * w < bytes ? reinterpret_cast<const uint32_t*>(from)[w] : 0u;
  } else {
    load_payload(data, from, bytes, false);
  }
}

template <bool kWords>
__device__ __forceinline__ void store_payload(uint64_t to, const uint32_t (&data)[3], uint32_t bytes) {
  if constexpr (kWords) {
#pragma unroll
    for (int w = 0; w < 3; ++w)
      if (4 * w < bytes) reinterpret_cast<uint32_t*>(to)[w] = data[w];
  } else {
    store_payload(to, data, bytes, false);
  }
}

// The slot that faults of packets name. It has no flags.
constexpr uint32_t kPacketSlot = kSliceSlot + kMaxSlices * kMaxBlocks;

// The rank so many steps after `rank`.
__device__ __forceinline__ uint32_t peer_of(uint32_t rank, uint32_t world, int step) {
  return rank + step < world ? rank + step : rank + step - world;
}

// Receives those of `N` items that are `missing`, by polling. `load(i)` loads item i, which comes from
// `source(i)`; when the loads of all are in flight, `is_here(i, seen)` looks at what that returned or loaded.
// `is_of_other_call(i)`: it never will be here. False if one timed out: the fault is recorded.
template <int N, typename Load, typename Here, typename Other, typename Source>
__device__ __forceinline__ bool receive_all(const PadView& pad, uint32_t epoch, uint32_t missing, Load load,
                                            Here is_here, Other is_of_other_call, Source source) {
  uint64_t start = 0;
  HostStop host;
  for (uint32_t polls = 1; missing != 0; ++polls) {
    uint32_t seen[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if ((missing >> i & 1) == 0) continue;
      seen[i] = load(i);
    }
#pragma unroll
    for (int i = 0; i < N; ++i)
      if ((missing >> i & 1) && is_here(i, seen[i])) missing &= ~(1u << i);
    if (polls % 64 != 0 || missing == 0) continue;
    if (start == 0) start = global_time();
    const uint64_t waited = global_time() - start;
    const uint32_t first = __ffs(missing) - 1;
    const bool other = is_of_other_call(first);
    const bool late = waited > pad.timeout_ns || other;
    if (!late && !faulted(pad) && !host.seen(pad, waited)) continue;
    record_fault(pad, kPacketSlot, source(first), epoch, other ? of_other_call(epoch) : epoch - 1,
                 late ? waited + 1 : 0);
    return false;
  }
  return true;
}

// The packets of one call as a rank sees them.
//
// A launch begins with four loads: of a peer's notice, of the stop flag, of the epoch and of the first data.
// `may_send` has the compiler compute nothing of any before all are in flight: it would wait for the first
// three before it loads data.
struct Sections {
  const Packets& p;
  uint32_t notice;   // what a peer that has given up left
  uint32_t stopped;  // whether this rank has
  uint32_t calls;    // of the group, before this one

  __device__ __forceinline__ explicit Sections(const Packets& packets)
      : p(packets),
        notice(load_relaxed_sys(&packets.group.pad.fault->notice)),
        stopped(load_counter(packets.group.pad.stopped)),
        calls(load_counter(packets.group.epochs + blockIdx.x)) {}

  // The group's.
  __device__ __forceinline__ uint32_t epoch() const { return calls + 1; }

  // Whether this rank or a peer had given up when the launch began.
  __device__ __forceinline__ bool failed() const { return (notice | stopped) != 0; }
  // In packets; repeated only after 2^20 calls.
  __device__ __forceinline__ uint32_t flag() const {
    return (p.group.signature & ~kEpochMask) | ((epoch() << 1 | 1) & kEpochMask);
  }
  // Whether this rank sends `data`, which it has loaded: one that gave up does not know whether its peers
  // have read what it sent before.
  template <int N>
  __device__ __forceinline__ bool may_send(uint32_t (&data)[N]) {
#pragma unroll
    for (int w = 0; w < N; ++w) asm volatile("" : "+r"(data[w]), "+r"(notice), "+r"(stopped), "+r"(calls));
    return !failed();
  }
  // Whether the launch ends here, because this rank may not send.
  __device__ __forceinline__ bool gives_up() const {
    const PadView& pad = p.group.pad;
    if (failed() && threadIdx.x == 0) record_fault(pad, kPacketSlot, (pad.rank + 1) % pad.world, 0, 0, 0);
    return failed();
  }
  // Packet `index` of the section of `source`, from the start of an area.
  __device__ __forceinline__ uint64_t offset(uint32_t source, uint32_t index) const {
    const uint32_t section = (epoch() & 1) * p.group.pad.world + source;
    return uint64_t(section * p.capacity + index) * sizeof(Packet);
  }
  // In this rank's area.
  __device__ __forceinline__ uint64_t at(uint32_t source, uint32_t index) const {
    return p.areas.of[0] + offset(source, index);
  }
  // To the rank so many steps after this one. `mark`: what the flag has besides.
  __device__ __forceinline__ void send(uint32_t step, uint32_t index, const uint32_t (&data)[3],
                                       uint32_t mark = 0) const {
    store_packet(p.areas.of[step] + offset(p.group.pad.rank, index),
                 {{data[0], data[1], data[2]}, flag() ^ mark});
  }
  // The same data to every peer.
  template <int W>
  __device__ __forceinline__ void send_all(uint32_t index, const uint32_t (&data)[3]) const {
#pragma unroll
    for (int step = 1; step < W; ++step)
      if (step < p.group.pad.world) send(step, index, data);
  }
  // Receives those of `N` packets that are `missing`: packet i is at `place(i)`, comes from `source(i)` and
  // has `mark(i)`. False if one timed out: the fault is recorded and its data undefined.
  template <int N, typename Place, typename Source, typename Mark>
  __device__ __forceinline__ bool take(uint32_t missing, uint32_t (&data)[N][3], Place place, Source source,
                                       Mark mark) const {
    const uint32_t flag = this->flag();
    return receive_all<N>(
        p.group.pad, epoch(), missing,
        [&](int i) {
          const Packet packet = load_packet(place(i));
#pragma unroll
          for (int w = 0; w < 3; ++w) data[i][w] = packet.data[w];
          return packet.epoch;
        },
        [&](int i, uint32_t seen) { return (flag ^ mark(i)) == seen; },
        [&](uint32_t i) {
          // The epoch with another signature.
          const uint32_t found = load_packet(place(i)).epoch ^ mark(i);
          return found != flag && ((found ^ flag) & kEpochMask) == 0;
        },
        source);
  }
  template <int N, typename Place, typename Source>
  __device__ __forceinline__ bool take(uint32_t missing, uint32_t (&data)[N][3], Place place,
                                       Source source) const {
    return take(missing, data, place, source, [](uint32_t) { return 0u; });
  }
  // Packet `index` of each source for which `wanted`, except this rank. Undefined where one timed out.
  template <int W, typename Wanted, typename Mark>
  __device__ __forceinline__ bool receive(uint32_t index, uint32_t (&data)[W][3], Wanted wanted,
                                          Mark mark) const {
    const PadView& pad = p.group.pad;
    uint32_t missing = 0;
#pragma unroll
    for (int source = 0; source < W; ++source)
      if (source < pad.world && source != pad.rank && wanted(source)) missing |= 1u << source;
    return take(
        missing, data, [&](uint32_t source) { return at(source, index); },
        [](uint32_t source) { return source; }, mark);
  }
  template <int W, typename Wanted>
  __device__ __forceinline__ bool receive(uint32_t index, uint32_t (&data)[W][3], Wanted wanted) const {
    return receive<W>(index, data, wanted, [](uint32_t) { return 0u; });
  }

  // Prepares the next launch, while packets are in flight. `used`: packets at the start of each section that
  // this call uses. All threads.
  __device__ __forceinline__ void prepare_next(uint32_t used) const {
    __syncthreads();
    advance_epoch(p.group, epoch());
    scrub_unless([&](uint32_t, uint32_t index) { return index < used; });
  }
  // Zeroes a few packets that this call does not use, in rotation, so that no packet survives until its flag
  // repeats. `is_used(source, index)`: those that it does.
  template <typename IsUsed>
  __device__ __forceinline__ void scrub_unless(IsUsed is_used) const {
    // The warp that is the least likely to have packets of its own.
    const uint32_t lane = threadIdx.x - (blockDim.x - 32);
    if (blockIdx.x != 0 || lane >= 32) return;
    const uint32_t index = (epoch() / 2 * 32 + lane) % p.capacity;
#pragma unroll 1
    for (uint32_t source = 0; source < p.group.pad.world; ++source)
      if (!is_used(source, index)) store_packet(at(source, index), {{0, 0, 0}, 0});
  }
};

}  // namespace warpweave
