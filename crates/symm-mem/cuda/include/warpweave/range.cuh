// Copies between any two addresses, by many threads: loads and stores of 16 bytes, whatever the alignment and
// whichever side crosses the link.
#pragma once

#include <cstdint>

namespace warpweave {

// Loads of 16 bytes that a thread has in flight.
constexpr int kRangeLoads = 8;

// Loads without a copy in L1: the bytes are used once.
__device__ __forceinline__ uint4 load_vector(const char* from) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}

__device__ __forceinline__ void store_vector(char* to, const uint4& v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

// The 16 bytes that begin `shift` bytes (0 to 15) into two contiguous packets.
__device__ __forceinline__ uint4 straddling(const uint4& low, const uint4& high, uint32_t shift) {
  uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  if (shift & 8) {
#pragma unroll
    for (int i = 0; i < 6; ++i) words[i] = words[i + 2];
  }
  if (shift & 4) {
#pragma unroll
    for (int i = 0; i < 5; ++i) words[i] = words[i + 1];
  }
  const uint32_t bits = 8 * (shift & 3);
  return make_uint4(__funnelshift_r(words[0], words[1], bits), __funnelshift_r(words[1], words[2], bits),
                    __funnelshift_r(words[2], words[3], bits), __funnelshift_r(words[3], words[4], bits));
}

// `packets` of 16 bytes between aligned addresses.
__device__ __forceinline__ void copy_aligned(char* to, const char* from, size_t packets, uint32_t thread,
                                             uint32_t threads) {
  for (size_t first = thread; first < packets; first += size_t(threads) * kRangeLoads) {
    uint4 held[kRangeLoads];
#pragma unroll
    for (int i = 0; i < kRangeLoads; ++i) {
      const size_t packet = first + size_t(i) * threads;
      // Zero, because an unset value would keep its registers from the last iteration.
      held[i] = packet < packets ? load_vector(from + 16 * packet) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < kRangeLoads; ++i) {
      const size_t packet = first + size_t(i) * threads;
      if (packet < packets) store_vector(to + 16 * packet, held[i]);
    }
  }
}

// `packets` of 16 bytes to an aligned address, from one that is `shift` bytes (1 to 15) after an aligned one.
// Whole warps: a thread takes its second packet from its neighbour, and only the last thread of a warp loads
// it.
__device__ __forceinline__ void copy_shifted(char* to, const char* from, uint32_t shift, size_t packets,
                                             uint32_t thread, uint32_t threads) {
  constexpr int kLoads = kRangeLoads / 2;
  const uint32_t lane = thread % 32;
  const char* aligned = from - shift;
  for (size_t first = thread; first - lane < packets; first += size_t(threads) * kLoads) {
    uint4 low[kLoads], last[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const size_t packet = first + size_t(i) * threads;
      low[i] = packet <= packets ? load_vector(aligned + 16 * packet) : make_uint4(0, 0, 0, 0);
      last[i] =
          lane == 31 && packet < packets ? load_vector(aligned + 16 * packet + 16) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const size_t packet = first + size_t(i) * threads;
      uint4 high = make_uint4(__shfl_down_sync(~0u, low[i].x, 1), __shfl_down_sync(~0u, low[i].y, 1),
                              __shfl_down_sync(~0u, low[i].z, 1), __shfl_down_sync(~0u, low[i].w, 1));
      if (lane == 31) high = last[i];
      if (packet < packets) store_vector(to + 16 * packet, straddling(low[i], high, shift));
    }
  }
}

// Copies `bytes` with `threads` threads, of which this is `thread`; all of a warp call it. Reads and writes
// no byte outside of the range.
__device__ __forceinline__ void copy_range(void* to_, const void* from_, size_t bytes, uint32_t thread,
                                           uint32_t threads) {
  char* to = static_cast<char*>(to_);
  const char* from = static_cast<const char*>(from_);
  __builtin_assume(__isGlobal(to));
  __builtin_assume(__isGlobal(from));
  size_t head = size_t(-reinterpret_cast<uintptr_t>(to) & 15);
  const uint32_t shift = uint32_t((reinterpret_cast<uintptr_t>(from) + head) & 15);
  // Shifted packets are loaded with the bytes around them. The margins keep these inside of the range.
  if (head < shift) head += 16;
  const size_t margin = head + (shift == 0 ? 0 : 16 - shift);
  const size_t packets = bytes > margin ? (bytes - margin) / 16 : 0;
  if (packets == 0) head = 0;
  if (shift == 0) {
    copy_aligned(to + head, from + head, packets, thread, threads);
  } else {
    copy_shifted(to + head, from + head, shift, packets, thread, threads);
  }
  const size_t tail = head + 16 * packets;
  const size_t loose = head + (bytes - tail);
  for (size_t offset = thread; offset < loose; offset += threads) {
    const size_t at = offset < head ? offset : tail + (offset - head);
    to[at] = from[at];
  }
}

}  // namespace warpweave
