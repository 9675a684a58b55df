// Adds boxes in the order given, in f32, and rounds once. Summands may lie in peers' memory; the destination may be one of
// them, since a thread reads all summands of an element before it stores the sum.
//
// Bound by memory: a thread issues all loads of several vectors before it adds the first.

#include <cstdint>

#include "element.cuh"
#include "warpweave/range.cuh"

namespace warpweave {

constexpr uint32_t kThreads = 256;
constexpr int kMaxSummands = 8;
// Vectors of 16 bytes that a thread loads before it adds.
constexpr int kLoads = 8;

struct Strided {
  char* address;
  // In bytes.
  uint64_t row_stride;
};

// `crates/kernels/src/cuda/parameters.rs` has the same layout.
struct Sum {
  Strided summands[kMaxSummands];
  Strided dst;
  // Units of every row, and of all rows: vectors or elements.
  uint32_t columns;
  uint32_t units;
  uint32_t count;
  // Whether a unit is a vector of 16 bytes, and not one element.
  uint32_t vectors;
};
static_assert(sizeof(Sum) == 160, "as in Rust");

// A vector's elements, added in f32 from negative zero, the neutral element.
template <typename T>
struct Total {
  static constexpr int kCount = 16 / sizeof(T);
  float values[kCount];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (float& value : values) value = -0.0f;
  }
  __device__ __forceinline__ void add(const uint4& vector) {
    const Packet<T> packet = bits_as<Packet<T>>(vector);
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] += widen(packet.element[i]);
  }
  __device__ __forceinline__ uint4 rounded() const {
    Packet<T> packet;
#pragma unroll
    for (int i = 0; i < kCount; ++i) packet.element[i] = round_to<T>(values[i]);
    return bits_as<uint4>(packet);
  }
};

__device__ __forceinline__ uint64_t offset_of(const Strided& box, uint32_t row, uint32_t column, uint32_t unit) {
  return row * box.row_stride + uint64_t(column) * unit;
}

template <typename T, int kSummands>
__device__ __forceinline__ void add_vectors(const Sum& sum) {
  constexpr int kVectors = kLoads / kSummands > 0 ? kLoads / kSummands : 1;
  const uint32_t threads = gridDim.x * kThreads;
  for (uint64_t first = blockIdx.x * kThreads + threadIdx.x; first < sum.units; first += uint64_t(threads) * kVectors) {
    uint4 held[kVectors][kSummands];
    uint64_t to[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const uint64_t unit = first + uint64_t(v) * threads;
      // A unit behind the last is one that is there, and not stored.
      const uint32_t there = unit < sum.units ? uint32_t(unit) : uint32_t(first);
      const uint32_t row = there / sum.columns, column = there % sum.columns;
      to[v] = offset_of(sum.dst, row, column, 16);
#pragma unroll
      for (int s = 0; s < kSummands; ++s) {
        held[v][s] = load_vector(sum.summands[s].address + offset_of(sum.summands[s], row, column, 16));
      }
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      Total<T> total;
      total.clear();
#pragma unroll
      for (int s = 0; s < kSummands; ++s) total.add(held[v][s]);
      if (first + uint64_t(v) * threads < sum.units) store_vector(sum.dst.address + to[v], total.rounded());
    }
  }
}

template <typename T>
__device__ __forceinline__ void add_elements(const Sum& sum) {
  const uint32_t threads = gridDim.x * kThreads;
  for (uint64_t unit = blockIdx.x * kThreads + threadIdx.x; unit < sum.units; unit += threads) {
    const uint32_t row = uint32_t(unit) / sum.columns, column = uint32_t(unit) % sum.columns;
    // All loads before the first addition, so that none waits for another.
    T held[kMaxSummands];
#pragma unroll
    for (int s = 0; s < kMaxSummands; ++s) {
      if (uint32_t(s) < sum.count) {
        const Strided& box = sum.summands[s];
        held[s] = *reinterpret_cast<const T*>(box.address + offset_of(box, row, column, sizeof(T)));
      }
    }
    float total = -0.0f;
#pragma unroll
    for (int s = 0; s < kMaxSummands; ++s) {
      if (uint32_t(s) < sum.count) total += widen(held[s]);
    }
    *reinterpret_cast<T*>(sum.dst.address + offset_of(sum.dst, row, column, sizeof(T))) = round_to<T>(total);
  }
}

template <typename T>
__device__ __forceinline__ void add(const Sum& sum) {
  if (!sum.vectors) return add_elements<T>(sum);
  switch (sum.count) {
    case 1: return add_vectors<T, 1>(sum);
    case 2: return add_vectors<T, 2>(sum);
    case 3: return add_vectors<T, 3>(sum);
    case 4: return add_vectors<T, 4>(sum);
    case 5: return add_vectors<T, 5>(sum);
    case 6: return add_vectors<T, 6>(sum);
    case 7: return add_vectors<T, 7>(sum);
    default: return add_vectors<T, 8>(sum);
  }
}

}  // namespace warpweave

#define WARPWEAVE_KERNEL(name, type)                                                                   \
  extern "C" __global__ void __launch_bounds__(warpweave::kThreads)                                    \
      sum_##name(const __grid_constant__ warpweave::Sum sum) {                                         \
    warpweave::add<type>(sum);                                                                         \
  }

WARPWEAVE_KERNEL(f32, float)
WARPWEAVE_KERNEL(f16, __half)
WARPWEAVE_KERNEL(bf16, __nv_bfloat16)
