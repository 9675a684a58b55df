// Residual addition and RMSNorm of the rows of a matrix, with the same bits whatever computes the rows: one
// launch or several, any grid, any number of rows. `collective/norm/arithmetic.rs` is the twin.
//
// The arithmetic of a row, all of it in f32 to nearest even:
// - r[j] = round(x[j] + residual[j]), stored; what follows depends on these stored values alone.
// - The sum of squares is taken in a fixed order. A thread adds the squares of a *unit* of 48 bytes, from the
//   first on, by fused multiply-add; a warp adds those of a *segment* of 32 units in a tree, i and i + 16
//   first; the sums of segments are added from the first on.
// - y[j] = round((r[j] / sqrt(sum / hidden + epsilon)) * weight[j]), where the reciprocal is rounded first.
// - With e4m3: scale = max |y[j]| / 448, and q[j] = e4m3(y[j] * (1 / scale)), to nearest even, saturating.
//
// A row belongs to a cluster of blocks, which exchange sums through shared memory. One block is a cluster,
// too.
#pragma once

#include <cuda_fp8.h>

#include "accumulator.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#include "warpweave/cluster.cuh"
#endif

namespace warpweave {

constexpr uint32_t kUnitWords = 12;
constexpr uint32_t kUnitBytes = 4 * kUnitWords;
constexpr uint32_t kMaxSegments = 128;
// Threads of a block, at most. Without packets a thread has registers to spare.
constexpr uint32_t kNormThreads = 256;
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
  float epsilon;
  uint32_t vectors;  // rows and addresses are multiples of 16 bytes
};
static_assert(sizeof(RowNorm) == 72, "as in Rust");

// The units of rows of type T.
template <typename T>
struct Units {
  static constexpr uint32_t kElements = kUnitBytes / sizeof(T);
  static constexpr uint32_t kQuantizedWords = kElements / 4;

  const RowNorm& n;

  __device__ __forceinline__ uint32_t row_bytes() const { return n.hidden * uint32_t(sizeof(T)); }
  __device__ __forceinline__ uint32_t count() const { return (row_bytes() + kUnitBytes - 1) / kUnitBytes; }
  __device__ __forceinline__ uint64_t row(uint64_t matrix, uint32_t row) const {
    return matrix + uint64_t(row) * row_bytes();
  }

  // A unit of the row at `row`; zero beyond its end.
  __device__ __forceinline__ void load(uint32_t (&words)[kUnitWords], uint64_t row, uint32_t unit) const {
    const uint32_t left = row_bytes() - unit * kUnitBytes;
    const uint64_t from = row + unit * kUnitBytes;
    if (n.vectors) {
#pragma unroll
      for (uint32_t v = 0; v < 3; ++v) {
        uint4 vector = make_uint4(0, 0, 0, 0);
        if (16 * v < left) vector = reinterpret_cast<const uint4*>(from)[v];
        words[4 * v] = vector.x, words[4 * v + 1] = vector.y;
        words[4 * v + 2] = vector.z, words[4 * v + 3] = vector.w;
      }
    } else if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (uint32_t w = 0; w < kUnitWords; ++w)
        words[w] = 4 * w < left ? reinterpret_cast<const uint32_t*>(from)[w] : 0u;
    } else {
      const uint16_t* halves = reinterpret_cast<const uint16_t*>(from);
#pragma unroll
      for (uint32_t w = 0; w < kUnitWords; ++w) {
        const uint32_t low = 4 * w < left ? halves[2 * w] : 0u;
        const uint32_t high = 4 * w + 2 < left ? halves[2 * w + 1] : 0u;
        words[w] = low | high << 16;
      }
    }
  }
  __device__ __forceinline__ void store(uint64_t row, uint32_t unit,
                                        const uint32_t (&words)[kUnitWords]) const {
    const uint32_t left = row_bytes() - unit * kUnitBytes;
    const uint64_t to = row + unit * kUnitBytes;
    if (n.vectors) {
#pragma unroll
      for (uint32_t v = 0; v < 3; ++v)
        if (16 * v < left)
          reinterpret_cast<uint4*>(to)[v] =
              make_uint4(words[4 * v], words[4 * v + 1], words[4 * v + 2], words[4 * v + 3]);
    } else if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (uint32_t w = 0; w < kUnitWords; ++w)
        if (4 * w < left) reinterpret_cast<uint32_t*>(to)[w] = words[w];
    } else {
      uint16_t* halves = reinterpret_cast<uint16_t*>(to);
#pragma unroll
      for (uint32_t w = 0; w < kUnitWords; ++w) {
        if (4 * w < left) halves[2 * w] = uint16_t(words[w]);
        if (4 * w + 2 < left) halves[2 * w + 1] = uint16_t(words[w] >> 16);
      }
    }
  }
  // A byte for each element, of row `row` of the quantized matrix.
  __device__ __forceinline__ void store_quantized(uint32_t row, uint32_t unit,
                                                  const uint32_t (&words)[kQuantizedWords]) const {
    const uint32_t left = n.hidden - unit * kElements;
    const uint64_t to = n.quantized + uint64_t(row) * n.hidden + unit * kElements;
    // What 16 bytes of the row become.
    constexpr uint32_t kWords = kQuantizedWords / 3;
    if (n.vectors) {
#pragma unroll
      for (uint32_t v = 0; v < 3; ++v) {
        if (4 * kWords * v >= left) continue;
        if constexpr (kWords == 2)
          reinterpret_cast<uint2*>(to)[v] = make_uint2(words[2 * v], words[2 * v + 1]);
        else
          reinterpret_cast<uint32_t*>(to)[v] = words[v];
      }
    } else {
#pragma unroll
      for (uint32_t e = 0; e < kElements; ++e)
        if (e < left) reinterpret_cast<uint8_t*>(to)[e] = uint8_t(words[e / 4] >> 8 * (e % 4));
    }
  }
  __device__ __forceinline__ void widen_to(float (&values)[kElements],
                                           const uint32_t (&words)[kUnitWords]) const {
    Accumulator<T, kUnitWords> exact;
    exact.clear();
    exact.add(words);
#pragma unroll
    for (uint32_t e = 0; e < kElements; ++e) values[e] = exact.values[e];
  }
  // round(x + residual).
  __device__ __forceinline__ void add(uint32_t (&sum)[kUnitWords], const uint32_t (&x)[kUnitWords],
                                      const uint32_t (&residual)[kUnitWords]) const {
    Accumulator<T, kUnitWords> accumulator;
    accumulator.clear();
    accumulator.add(x);
    accumulator.add(residual);
    accumulator.pack(sum);
  }
  __device__ __forceinline__ float squares(const uint32_t (&words)[kUnitWords]) const {
    float values[kElements], sum = 0;
    widen_to(values, words);
#pragma unroll
    for (uint32_t e = 0; e < kElements; ++e) sum = __fmaf_rn(values[e], values[e], sum);
    return sum;
  }
  // round((r * inverse) * weight).
  __device__ __forceinline__ void normalize(uint32_t (&y)[kUnitWords], const uint32_t (&r)[kUnitWords],
                                            const uint32_t (&weight)[kUnitWords], float inverse) const {
    float values[kElements], weights[kElements];
    widen_to(values, r);
    widen_to(weights, weight);
    Accumulator<T, kUnitWords> rounded;
#pragma unroll
    for (uint32_t e = 0; e < kElements; ++e)
      rounded.values[e] = __fmul_rn(__fmul_rn(values[e], inverse), weights[e]);
    rounded.pack(y);
  }
  __device__ __forceinline__ float peak(const uint32_t (&words)[kUnitWords]) const {
    float values[kElements], most = 0;
    widen_to(values, words);
    // The maximum of a number and a NaN is the number.
#pragma unroll
    for (uint32_t e = 0; e < kElements; ++e) most = fmaxf(most, fabsf(values[e]));
    return most;
  }
  __device__ __forceinline__ void quantize(uint32_t (&q)[kQuantizedWords], const uint32_t (&y)[kUnitWords],
                                           float inverse_scale) const {
    float values[kElements];
    widen_to(values, y);
#pragma unroll
    for (uint32_t w = 0; w < kQuantizedWords; ++w) {
      q[w] = 0;
#pragma unroll
      for (uint32_t pair = 0; pair < 2; ++pair) {
        const uint32_t e = 4 * w + 2 * pair;
        const float2 scaled =
            make_float2(__fmul_rn(values[e], inverse_scale), __fmul_rn(values[e + 1], inverse_scale));
        q[w] |= uint32_t(__nv_cvt_float2_to_fp8x2(scaled, __NV_SATFINITE, __NV_E4M3)) << 16 * pair;
      }
    }
  }
};

// Shared memory of a block: the values that the warps of its cluster exchange, of every second exchange, and
// in a cluster of several blocks the barriers that end exchanges.
struct alignas(16) Exchanged {
  float values[2][kMaxSegments];
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
    if (blocks_ > 1) {
      if (threadIdx.x == 0) {
        init_barrier(&shared_.arrived[0], blockDim.x / 32);
        init_barrier(&shared_.arrived[1], blockDim.x / 32);
        publish_barriers();
      }
      __syncwarp();
      asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
    }
#endif
    index = blockIdx.x / blocks_;
    count = gridDim.x / blocks_;
  }
  // Ends when all blocks have begun. Once, before the first exchange.
  __device__ __forceinline__ void begin() const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (blocks_ > 1) asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
  }
  // Of this thread. Consecutive warps are in different blocks, so that each block has a segment of the row.
  __device__ __forceinline__ uint32_t warp() const { return threadIdx.x / 32 * blocks_ + rank_; }
  __device__ __forceinline__ uint32_t warps() const { return blocks_ * (blockDim.x / 32); }

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

// A warp's sum, the same on all lanes.
__device__ __forceinline__ float sum_of_warp(float value) {
#pragma unroll
  for (uint32_t mask = 16; mask != 0; mask /= 2) value = __fadd_rn(value, __shfl_xor_sync(~0u, value, mask));
  return value;
}
__device__ __forceinline__ float max_of_warp(float value) {
#pragma unroll
  for (uint32_t mask = 16; mask != 0; mask /= 2) value = fmaxf(value, __shfl_xor_sync(~0u, value, mask));
  return value;
}

// Calls `body` with each unit of a row that this thread computes.
template <typename Body>
__device__ __forceinline__ void for_units(const RowCluster& cluster, uint32_t units, Body body) {
  const uint32_t first = 32 * cluster.warp() + threadIdx.x % 32;
  for (uint32_t unit = first; unit < units; unit += 32 * cluster.warps()) body(unit);
}

// Computes row `row`. `x(unit, words)` gives a unit of x; where it returns false, nothing is stored of the
// unit, and the rest of the row becomes NaN.
template <typename T, typename X>
__device__ __forceinline__ void norm_row(const RowNorm& n, RowCluster& cluster, uint32_t row, X x) {
  const Units<T> units{n};
  const uint32_t count = units.count(), segments = (count + 31) / 32, lane = threadIdx.x % 32;
  uint32_t r[kUnitWords], weight[kUnitWords];
  bool complete = true;
  for (uint32_t segment = cluster.warp(); segment < segments; segment += cluster.warps()) {
    const uint32_t unit = 32 * segment + lane;
    float sum = 0;
    if (unit < count) {
      uint32_t residual[kUnitWords], words[kUnitWords];
      // These loads overlap what `x` waits for.
      units.load(residual, units.row(n.residual, row), unit);
      units.load(weight, n.weight, unit);
      if (x(unit, words)) {
        units.add(r, words, residual);
        units.store(units.row(n.residual_out, row), unit, r);
        sum = units.squares(r);
      } else {
        complete = false;
        sum = __int_as_float(0x7fffffff);
      }
    }
    cluster.publish(segment, sum_of_warp(sum));
  }
  const float* squares = cluster.collect(segments);
  float sum = 0;
  for (uint32_t segment = 0; segment < segments; segment += 4) {
    const float4 four = *reinterpret_cast<const float4*>(squares + segment);
    sum = __fadd_rn(sum, four.x);
    if (segment + 1 < segments) sum = __fadd_rn(sum, four.y);
    if (segment + 2 < segments) sum = __fadd_rn(sum, four.z);
    if (segment + 3 < segments) sum = __fadd_rn(sum, four.w);
  }
  const float mean = __fdiv_rn(sum, float(n.hidden));
  const float inverse = __frcp_rn(__fsqrt_rn(__fadd_rn(mean, n.epsilon)));
  // A thread of one unit has it in registers.
  const bool reloads = segments > cluster.warps();
  const auto normalize = [&](uint32_t unit, uint32_t (&y)[kUnitWords]) {
    if (reloads) {
      units.load(r, units.row(n.residual_out, row), unit);
      units.load(weight, n.weight, unit);
    }
    units.normalize(y, r, weight, inverse);
  };
  float peak = 0;
  for_units(cluster, complete ? count : 0, [&](uint32_t unit) {
    uint32_t y[kUnitWords];
    normalize(unit, y);
    if (n.normalized != 0) units.store(units.row(n.normalized, row), unit, y);
    if (n.quantized != 0) peak = fmaxf(peak, units.peak(y));
  });
  if (n.quantized == 0) return;
  cluster.publish(cluster.warp(), max_of_warp(peak));
  const float* peaks = cluster.collect(cluster.warps());
  peak = 0;
  for (uint32_t warp = lane; warp < cluster.warps(); warp += 32) peak = fmaxf(peak, peaks[warp]);
  peak = max_of_warp(peak);
  // Of the smallest normal number the reciprocal is finite.
  const float scale = fmaxf(__fdiv_rn(peak, 448.0f), __int_as_float(0x00800000));
  const float inverse_scale = __frcp_rn(scale);
  if (cluster.warp() == 0 && lane == 0) reinterpret_cast<float*>(n.scales)[row] = scale;
  for_units(cluster, complete ? count : 0, [&](uint32_t unit) {
    uint32_t y[kUnitWords], q[Units<T>::kQuantizedWords];
    normalize(unit, y);
    units.quantize(q, y, inverse_scale);
    units.store_quantized(row, unit, q);
  });
}

}  // namespace warpweave
