// Moving a contiguous range of bytes with many threads: loads of 16 bytes, many of them in flight.
//
// Shards and chunks of rows are contiguous on both sides, but rows of odd length make the two sides differ in alignment.
// Loads are the expensive side, as they cross the link: they are always wide, and stores take what alignment allows.
#pragma once

#include <cstdint>

#include "warpweave/dependent.cuh"

namespace warpweave {

// Threads of a block of a gather alone that copy.
constexpr uint32_t kGatherThreads = 512;
// Loads of 16 bytes that a thread has in flight.
constexpr int kLoadsInFlight = 8;

// Lets a product that was launched as this kernel's programmatic dependent take the multiprocessors as they become free
// and prepare itself; it waits for the end of this grid before it reads staging. Without such a launch it does nothing.
__device__ __forceinline__ void let_next_launch() { admit_dependents(); }

// A load that leaves no copy in L1: the bytes are used once.
__device__ __forceinline__ uint4 load_once(const void* address) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address)
               : "memory");
  return v;
}

// Stores 16 bytes in pieces of `Width`, to which `to` is aligned.
template <int Width>
__device__ __forceinline__ void store_pieces(char* to, const uint4& v) {
  if constexpr (Width == 16) {
    *reinterpret_cast<uint4*>(to) = v;
  } else if constexpr (Width == 8) {
    reinterpret_cast<uint2*>(to)[0] = make_uint2(v.x, v.y);
    reinterpret_cast<uint2*>(to)[1] = make_uint2(v.z, v.w);
  } else {
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (Width == 4) {
        reinterpret_cast<uint32_t*>(to)[i] = words[i];
      } else {
        reinterpret_cast<uint16_t*>(to)[2 * i] = static_cast<uint16_t>(words[i]);
        reinterpret_cast<uint16_t*>(to)[2 * i + 1] = static_cast<uint16_t>(words[i] >> 16);
      }
    }
  }
}

// Copies `packets` of 16 bytes with `threads` threads, of which this is `thread`.
template <int Width>
__device__ __forceinline__ void copy_packets(char* to, const char* from, size_t packets, uint32_t thread,
                                             uint32_t threads) {
  for (size_t first = thread; first < packets; first += size_t(threads) * kLoadsInFlight) {
    uint4 held[kLoadsInFlight];
#pragma unroll
    for (int i = 0; i < kLoadsInFlight; ++i) {
      const size_t packet = first + size_t(i) * threads;
      // Zero and not nothing: what is not set here would be kept in registers from before.
      held[i] = packet < packets ? load_once(from + 16 * packet) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < kLoadsInFlight; ++i) {
      const size_t packet = first + size_t(i) * threads;
      if (packet < packets) store_pieces<Width>(to + 16 * packet, held[i]);
    }
  }
}

// A range that is copied in one round: `kRoundLoads` packets a thread. The loads and the stores are separate steps, so
// that what has to know of the loads alone need not wait for the stores.
constexpr int kRoundLoads = 2;

struct Round {
  uint4 held[kRoundLoads] = {};

  __device__ __forceinline__ void load(const char* from, size_t bytes, uint32_t thread, uint32_t threads) {
#pragma unroll
    for (int i = 0; i < kRoundLoads; ++i) {
      const size_t at = 16 * (thread + size_t(i) * threads);
      if (at < bytes) held[i] = load_once(from + at);
    }
  }

  // Any function of all bits will do: to compute it is to have them.
  __device__ __forceinline__ bool arrived() const {
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < kRoundLoads; ++i) bits |= held[i].x | held[i].y | held[i].z | held[i].w;
    return bits != 0;
  }

  __device__ __forceinline__ void store(char* to, size_t bytes, uint32_t thread, uint32_t threads) const {
#pragma unroll
    for (int i = 0; i < kRoundLoads; ++i) {
      const size_t at = 16 * (thread + size_t(i) * threads);
      if (at < bytes) *reinterpret_cast<uint4*>(to + at) = held[i];
    }
  }
};

// Whether `threads` threads copy the range in one round of whole packets.
__device__ __forceinline__ bool is_one_round(const void* to, const void* from, size_t bytes, uint32_t threads) {
  const uintptr_t all = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | bytes;
  return all % 16 == 0 && bytes <= size_t(16) * kRoundLoads * threads;
}

// Copies `bytes` that are elements of `size` (2 or 4) bytes, to which both sides are aligned.
__device__ __forceinline__ void copy_range(void* to_, const void* from_, size_t bytes, uint32_t size, uint32_t thread,
                                           uint32_t threads) {
  char* to = static_cast<char*>(to_);
  const char* from = static_cast<const char*>(from_);
  const size_t head = min(bytes, size_t(-reinterpret_cast<uintptr_t>(from) & 15));
  const size_t packets = (bytes - head) / 16;
  const uintptr_t alignment = reinterpret_cast<uintptr_t>(to) + head;
  if (alignment % 16 == 0) {
    copy_packets<16>(to + head, from + head, packets, thread, threads);
  } else if (alignment % 8 == 0) {
    copy_packets<8>(to + head, from + head, packets, thread, threads);
  } else if (alignment % 4 == 0) {
    copy_packets<4>(to + head, from + head, packets, thread, threads);
  } else {
    copy_packets<2>(to + head, from + head, packets, thread, threads);
  }
  // What lies before the first and behind the last packet is less than 32 bytes: an element a thread.
  const size_t tail = head + 16 * packets;
  const size_t loose = head + (bytes - tail);
  const size_t offset = size_t(thread) * size;
  if (offset < loose) {
    const size_t at = offset < head ? offset : tail + (offset - head);
    if (size == 4) {
      *reinterpret_cast<uint32_t*>(to + at) = *reinterpret_cast<const uint32_t*>(from + at);
    } else {
      *reinterpret_cast<uint16_t*>(to + at) = *reinterpret_cast<const uint16_t*>(from + at);
    }
  }
}

}  // namespace warpweave
