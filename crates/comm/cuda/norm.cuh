// Residual addition and RMSNorm of the rows of a matrix, with the same bits whatever computes the rows: one
// launch or several, any grid, any number of rows. `collective/norm/arithmetic.rs` is the twin.
//
// The arithmetic of a row, all of it in f32 to nearest even:
// - r[j] = round(x[j] + residual[j]), stored; what follows depends on these stored values alone.
// - The sum of squares is taken in a fixed order. The squares of the elements of 12 bytes, a packet's
//   payload, are added from the first on, by fused multiply-add; their sums in a binary tree, neighbours
//   first, with zeros up to a power of two. So any aligned power of two of payloads can be a thread's, a
//   warp's or a block's.
// - y[j] = round((r[j] * (1 / sqrt(sum * (1 / hidden) + epsilon))) * weight[j]).
// - With e4m3: scale = max |y[j]| / 448, and q[j] = e4m3(y[j] * (1 / scale)), to nearest even, saturating.
//
// A row belongs to a cluster of blocks, which exchange sums through shared memory. One block is a cluster,
// too.
#pragma once

#include <cuda_fp8.h>

#include <type_traits>

#include "accumulator.cuh"
#include "packet.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#include "warpweave/cluster.cuh"
#endif

namespace warpweave {

// Warps that add values of a row, at most: of payloads each of their threads takes one at a time.
constexpr uint32_t kMaxWarpSums = 512;
// Threads of a block, at most: as many as have registers for a packet of each of `W` ranks. A thread takes
// one payload at a time: a call of few rows waits for chains of instructions, not for their number.
template <int W>
constexpr uint32_t kNormThreads = W > 4 ? 512 : W > 2 ? 768 : 1024;
// Without packets, threads take vectors.
constexpr uint32_t kLocalThreads = 512;

// The layout of `RowNorm` in `norm/launch.rs`. Rows are contiguous; addresses of what is not wanted are null.
struct RowNorm {
  uint64_t input;         // [rows][hidden]: x, or this rank's partial of it
  uint64_t residual;      // [rows][hidden]
  uint64_t weight;        // [hidden]
  uint64_t residual_out;  // [rows][hidden]; may be `residual`
  uint64_t normalized;    // [rows][hidden]; may be `input`
  uint64_t quantized;     // [rows][hidden] e4m3
  uint64_t scales;        // [rows] f32
  uint32_t rows;
  uint32_t hidden;
  float share;  // 1 / hidden
  float epsilon;
  uint32_t alignment;  // by which the host has chosen the kernel
  uint32_t stages;     // of a block of `stream_add_rms_norm_*`
};
static_assert(sizeof(RowNorm) == 80, "as in Rust");

// The layout of `ReducedNorm` in `norm/launch.rs`.
struct ReducedNorm {
  Packets packets;
  RowNorm norm;
};
static_assert(sizeof(ReducedNorm) == sizeof(Packets) + 80, "as in Rust");

// An integer or vector of so many bytes: 1, 2, 4, 8 or 16.
template <uint32_t kBytes>
using Sized = std::conditional_t<
    kBytes == 16, uint4,
    std::conditional_t<kBytes == 8, uint2,
                       std::conditional_t<kBytes == 4, uint32_t,
                                          std::conditional_t<kBytes == 2, uint16_t, uint8_t>>>>;

// The units of rows of type T: `kPayloads` each, which one thread computes, in accesses of `kAccess` bytes,
// to which all addresses and rows are aligned.
template <typename T, uint32_t kPayloads, uint32_t kAccess>
struct Units {
  static constexpr uint32_t kWords = 3 * kPayloads;
  static constexpr uint32_t kBytes = 4 * kWords;
  static constexpr uint32_t kElements = kBytes / sizeof(T);
  // Elements in e4m3, two in each.
  static constexpr uint32_t kPairs = (kElements + 1) / 2;
  using Words = uint32_t[kWords];

  const RowNorm& n;

  __device__ __forceinline__ uint32_t row_bytes() const { return n.hidden * uint32_t(sizeof(T)); }
  __device__ __forceinline__ uint32_t count() const { return (row_bytes() + kBytes - 1) / kBytes; }
  __device__ __forceinline__ uint64_t row(uint64_t matrix, uint32_t row) const {
    return matrix + uint64_t(row) * row_bytes();
  }

  // A unit of the row at `row`; zero beyond its end.
  __device__ __forceinline__ void load(Words& words, uint64_t row, uint32_t unit) const {
    using Access = Sized<kAccess>;
    const uint32_t left = row_bytes() - unit * kBytes;
    const Access* from = reinterpret_cast<const Access*>(row + unit * kBytes);
    Access parts[kBytes / kAccess] = {};
#pragma unroll
    for (uint32_t i = 0; i < kBytes / kAccess; ++i)
      if (i * kAccess < left) parts[i] = from[i];
    memcpy(words, parts, kBytes);
  }
  __device__ __forceinline__ void store(uint64_t row, uint32_t unit, const Words& words) const {
    store_parts<kAccess>(row + unit * kBytes, words, row_bytes() - unit * kBytes);
  }
  // A byte for each element, of row `row` of the quantized matrix.
  __device__ __forceinline__ void store_quantized(uint32_t row, uint32_t unit,
                                                  const uint16_t (&pairs)[kPairs]) const {
    const uint64_t to = n.quantized + uint64_t(row) * n.hidden;
    // The last pair may be half empty.
    const uint32_t left = min(n.hidden - unit * kElements, kElements);
    store_parts<kAccess / sizeof(T)>(to + unit * kElements, pairs, left);
  }
  // `left` bytes at most, in accesses of `kPart`.
  template <uint32_t kPart, typename Data>
  static __device__ __forceinline__ void store_parts(uint64_t to, const Data& data, uint32_t left) {
    using Part = Sized<kPart>;
    Part parts[sizeof(Data) / kPart];
    memcpy(parts, data, sizeof(Data));
#pragma unroll
    for (uint32_t i = 0; i < sizeof(Data) / kPart; ++i)
      if (i * kPart < left) reinterpret_cast<Part*>(to)[i] = parts[i];
  }
  __device__ __forceinline__ void widen_to(float (&values)[kElements], const Words& words) const {
    Accumulator<T, kWords> exact;
    exact.clear();
    exact.add(words);
#pragma unroll
    for (uint32_t e = 0; e < kElements; ++e) values[e] = exact.values[e];
  }
  // round(x + residual).
  __device__ __forceinline__ void add(Words& sum, const Words& x, const Words& residual) const {
    Accumulator<T, kWords> accumulator;
    accumulator.clear();
    accumulator.add(x);
    accumulator.add(residual);
    accumulator.pack(sum);
  }
  __device__ __forceinline__ float squares(const Words& words) const {
    float values[kElements], sums[kPayloads] = {};
    widen_to(values, words);
#pragma unroll
    for (uint32_t e = 0; e < kElements; ++e) {
      float& sum = sums[e * kPayloads / kElements];
      sum = __fmaf_rn(values[e], values[e], sum);
    }
#pragma unroll
    for (uint32_t apart = 1; apart < kPayloads; apart *= 2)
#pragma unroll
      for (uint32_t at = 0; at < kPayloads; at += 2 * apart)
        sums[at] = __fadd_rn(sums[at], sums[at + apart]);
    return sums[0];
  }
  // round((r * inverse) * weight).
  __device__ __forceinline__ void normalize(Words& y, const Words& r, const Words& weight,
                                            float inverse) const {
    float values[kElements], weights[kElements];
    widen_to(values, r);
    widen_to(weights, weight);
    Accumulator<T, kWords> rounded;
#pragma unroll
    for (uint32_t e = 0; e < kElements; ++e)
      rounded.values[e] = __fmul_rn(__fmul_rn(values[e], inverse), weights[e]);
    rounded.pack(y);
  }
  __device__ __forceinline__ float peak(const Words& words) const {
    float values[kElements], most = 0;
    widen_to(values, words);
    // The maximum of a number and a NaN is the number.
#pragma unroll
    for (uint32_t e = 0; e < kElements; ++e) most = fmaxf(most, fabsf(values[e]));
    return most;
  }
  __device__ __forceinline__ void quantize(uint16_t (&pairs)[kPairs], const Words& y,
                                           float inverse_scale) const {
    float values[kElements];
    widen_to(values, y);
#pragma unroll
    for (uint32_t pair = 0; pair < kPairs; ++pair) {
      const uint32_t e = 2 * pair;
      const float second = e + 1 < kElements ? values[e + 1] : 0.0f;
      const float2 scaled = make_float2(__fmul_rn(values[e], inverse_scale),
                                        __fmul_rn(second, inverse_scale));
      pairs[pair] = __nv_cvt_float2_to_fp8x2(scaled, __NV_SATFINITE, __NV_E4M3);
    }
  }
};

// Shared memory of a block: the values that the warps of its cluster exchange, of every second exchange, and
// in a cluster of several blocks the barriers that end exchanges.
struct alignas(16) Exchanged {
  float values[2][kMaxWarpSums];
  uint64_t arrived[2];
};

// The blocks that compute a row together, in a sequence of exchanges. All threads of all of them make the
// same calls. In an exchange every block publishes something. So a block that publishes in exchange i + 2 has
// ended i + 1, to which all have published after the end of i: nothing of i is overwritten too early, and no
// phase of a barrier counts bytes of the next. Each block waits for all that is stored to it, so any may end.
//
// Values are stored with the barrier that counts their bytes. A release to the cluster would also wait for
// the packets in flight.
class RowCluster {
 public:
  uint32_t index;  // of this cluster
  uint32_t count;  // of clusters

  __device__ __forceinline__ explicit RowCluster(Exchanged& shared) : shared_(shared) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    rank_ = cluster_rank();
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks_));
    asm("mov.u32 %0, %%clusterid.x;" : "=r"(index));
    asm("mov.u32 %0, %%nclusterid.x;" : "=r"(count));
#else
    index = blockIdx.x;
    count = gridDim.x;
#endif
  }
  // Peers may store to this block from now on. Once.
  __device__ __forceinline__ void arrive_cluster() const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (blocks_ == 1) return;
    if (threadIdx.x == 0) {
      init_barrier(&shared_.arrived[0], blockDim.x / 32);
      init_barrier(&shared_.arrived[1], blockDim.x / 32);
      publish_barriers();
    }
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
  }
  // Ends when all blocks have arrived. Once, before the first exchange.
  __device__ __forceinline__ void begin() const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (blocks_ > 1) asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
  }
  // Of this thread. Consecutive warps are in different blocks, so that each block has a part of the row.
  __device__ __forceinline__ uint32_t warp() const { return threadIdx.x / 32 * blocks_ + rank_; }
  __device__ __forceinline__ uint32_t warps() const { return blocks_ * (blockDim.x / 32); }

  // Of the threads that compute a row.
  __device__ __forceinline__ uint32_t thread() const { return 32 * warp() + threadIdx.x % 32; }

  // Gives every block `value` at `place`. All lanes of a warp.
  __device__ __forceinline__ void publish(uint32_t place, float value) const {
    const uint32_t lane = threadIdx.x % 32;
    float* to = &shared_.values[exchange_ % 2][place];
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (blocks_ > 1) {
      if (lane < blocks_)
        asm volatile(
            "{\n.reg .b32 there, arrived;\n"
            "mapa.shared::cluster.u32 there, %0, %2;\n"
            "mapa.shared::cluster.u32 arrived, %1, %2;\n"
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [there], %3, [arrived];\n}" ::"r"(
                shared_address(to)),
            "r"(shared_address(&shared_.arrived[exchange_ % 2])), "r"(lane), "r"(__float_as_uint(value))
            : "memory");
      return;
    }
#endif
    if (lane == 0) *to = value;
  }
  // Ends the exchange: gives all of its `number` values.
  __device__ __forceinline__ const float* collect(uint32_t number) {
    const uint32_t exchange = exchange_++;
    const float* values = shared_.values[exchange % 2];
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (blocks_ > 1) {
      uint64_t* arrived = &shared_.arrived[exchange % 2];
      if (threadIdx.x == 0)
        arrive_expecting(arrived, number * uint32_t(sizeof(float)));
      else if (threadIdx.x % 32 == 0)
        arrive(arrived);
      wait_phase(arrived, exchange / 2 % 2);
      return values;
    }
#endif
    __syncthreads();
    return values;
  }

 private:
  Exchanged& shared_;
  uint32_t rank_ = 0;    // of this block
  uint32_t blocks_ = 1;  // of the cluster
  uint32_t exchange_ = 0;
};

// A warp's sum, neighbours first, the same on all lanes.
__device__ __forceinline__ float sum_of_warp(float value) {
#pragma unroll
  for (uint32_t mask = 1; mask != 32; mask *= 2) value = __fadd_rn(value, __shfl_xor_sync(~0u, value, mask));
  return value;
}
__device__ __forceinline__ float max_of_warp(float value) {
#pragma unroll
  for (uint32_t mask = 16; mask != 0; mask /= 2) value = fmaxf(value, __shfl_xor_sync(~0u, value, mask));
  return value;
}

// The sum of what the warps of a row have, neighbours first. A lane adds two of 64; what each 64 make is
// added in the same way.
__device__ __forceinline__ float sum_of_warps(const float* values, uint32_t count) {
  const uint32_t lane = threadIdx.x % 32;
  float sums = 0;
#pragma unroll 1
  for (uint32_t first = 0;; first += 64) {
    const uint32_t place = first + 2 * lane;
    const float2 two = *reinterpret_cast<const float2*>(values + place);
    const float sum =
        sum_of_warp(__fadd_rn(place < count ? two.x : 0.0f, place + 1 < count ? two.y : 0.0f));
    if (count <= 64) return sum;
    if (lane == first / 64) sums = sum;
    if (first + 64 >= count) return sum_of_warp(sums);
  }
}

// Calls `body` with each unit of a row that this thread computes.
template <typename Cluster, typename Body>
__device__ __forceinline__ void for_units(const Cluster& cluster, uint32_t units, Body body) {
#pragma unroll 1
  for (uint32_t unit = cluster.thread(); unit < units; unit += 32 * cluster.warps()) body(unit);
}

// Computes row `row`. All threads of its cluster. `x(unit, words)` gives a unit of x; where it returns false,
// nothing is stored of the unit, and the rest of the row becomes NaN.
template <typename Units, typename Cluster, typename X>
__device__ __forceinline__ void norm_row(const Units& units, Cluster& cluster, uint32_t row, X x) {
  using Words = typename Units::Words;
  const RowNorm& n = units.n;
  const uint32_t count = units.count(), sums = (count + 31) / 32, lane = threadIdx.x % 32;
  Words r, weight;
  bool complete = true;
#pragma unroll 1
  for (uint32_t place = cluster.warp(); place < sums; place += cluster.warps()) {
    const uint32_t unit = 32 * place + lane;
    bool here = false;
    float sum = 0;
    if (unit < count) {
      Words residual, words;
      // These loads overlap what `x` waits for.
      units.load(residual, units.row(n.residual, row), unit);
      units.load(weight, n.weight, unit);
      here = x(unit, words);
      if (here) {
        units.add(r, words, residual);
        sum = units.squares(r);
      } else {
        complete = false;
        sum = __int_as_float(0x7fffffff);
      }
    }
    cluster.publish(place, sum_of_warp(sum));
    // What others wait for went first.
    if (here) units.store(units.row(n.residual_out, row), unit, r);
  }
  const float sum = sum_of_warps(cluster.collect(sums), sums);
  const float mean = __fmul_rn(sum, n.share);
  const float inverse = __frcp_rn(__fsqrt_rn(__fadd_rn(mean, n.epsilon)));
  // A thread of one unit has it in registers.
  const bool reloads = sums > cluster.warps();
  const auto normalize = [&](uint32_t unit, Words& y) {
    if (reloads) {
      units.load(r, units.row(n.residual_out, row), unit);
      units.load(weight, n.weight, unit);
    }
    units.normalize(y, r, weight, inverse);
  };
  float peak = 0;
  for_units(cluster, complete ? count : 0, [&](uint32_t unit) {
    Words y;
    normalize(unit, y);
    if (n.normalized != 0) units.store(units.row(n.normalized, row), unit, y);
    if (n.quantized != 0) peak = fmaxf(peak, units.peak(y));
  });
  if (n.quantized == 0) return;
  cluster.publish(cluster.warp(), max_of_warp(peak));
  const float* peaks = cluster.collect(cluster.warps());
  peak = 0;
#pragma unroll 1
  for (uint32_t warp = lane; warp < cluster.warps(); warp += 32) peak = fmaxf(peak, peaks[warp]);
  peak = max_of_warp(peak);
  // Of the smallest normal number the reciprocal is finite.
  const float scale = fmaxf(__fdiv_rn(peak, 448.0f), __int_as_float(0x00800000));
  const float inverse_scale = __frcp_rn(scale);
  if (cluster.warp() == 0 && lane == 0) reinterpret_cast<float*>(n.scales)[row] = scale;
  for_units(cluster, complete ? count : 0, [&](uint32_t unit) {
    Words y;
    uint16_t pairs[Units::kPairs];
    normalize(unit, y);
    units.quantize(pairs, y, inverse_scale);
    units.store_quantized(row, unit, pairs);
  });
}

}  // namespace warpweave
