// Reduces boxes in the order given: adds them in f32 and rounds once. Partials may be in peers' memory. The
// destination may be one of them, since a thread reads all partials of an element before it stores the
// result.
//
// Bound by memory: a thread issues all loads of several vectors before it adds the first.

#include <cstdint>

#include "vector.cuh"
#include "warpweave/range.cuh"

namespace warpweave {

constexpr uint32_t kThreads = 256;
constexpr int kMaxPartials = 8;
// Vectors of 16 bytes that a thread loads before it adds.
constexpr int kLoads = 8;

struct Strided {
  char* address;
  // In bytes.
  uint64_t row_stride;
};

// `crates/kernels/src/cuda/parameters.rs` has the same layout.
struct ReduceParams {
  Strided partials[kMaxPartials];
  Strided dst;
  // Units of every row, and of all rows: vectors or elements.
  uint32_t columns;
  uint32_t units;
  uint32_t count;
  // Whether a unit is a vector of 16 bytes, and not one element.
  uint32_t vectors;
};
static_assert(sizeof(ReduceParams) == 160, "as in Rust");

// The elements of a vector, accumulated in f32 from negative zero, the neutral element.
template <typename T>
struct Accumulator {
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

__device__ __forceinline__ uint64_t offset_of(const Strided& box, uint32_t row, uint32_t column,
                                              uint32_t unit) {
  return row * box.row_stride + uint64_t(column) * unit;
}

template <typename T, int kPartials>
__device__ __forceinline__ void reduce_vectors(const ReduceParams& p) {
  constexpr int kVectors = kLoads / kPartials > 0 ? kLoads / kPartials : 1;
  const uint32_t threads = gridDim.x * kThreads;
  for (uint64_t first = blockIdx.x * kThreads + threadIdx.x; first < p.units;
       first += uint64_t(threads) * kVectors) {
    uint4 held[kVectors][kPartials];
    uint64_t to[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const uint64_t unit = first + uint64_t(v) * threads;
      // Beyond the last unit, an existing one is loaded and not stored.
      const uint32_t loaded = unit < p.units ? uint32_t(unit) : uint32_t(first);
      const uint32_t row = loaded / p.columns, column = loaded % p.columns;
      to[v] = offset_of(p.dst, row, column, 16);
#pragma unroll
      for (int s = 0; s < kPartials; ++s) {
        held[v][s] = load_vector(p.partials[s].address + offset_of(p.partials[s], row, column, 16));
      }
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      Accumulator<T> total;
      total.clear();
#pragma unroll
      for (int s = 0; s < kPartials; ++s) total.add(held[v][s]);
      if (first + uint64_t(v) * threads < p.units) store_vector(p.dst.address + to[v], total.rounded());
    }
  }
}

template <typename T>
__device__ __forceinline__ void reduce_elements(const ReduceParams& p) {
  const uint32_t threads = gridDim.x * kThreads;
  for (uint64_t unit = blockIdx.x * kThreads + threadIdx.x; unit < p.units; unit += threads) {
    const uint32_t row = uint32_t(unit) / p.columns, column = uint32_t(unit) % p.columns;
    // All loads before the first addition, so that none waits for another.
    T held[kMaxPartials];
#pragma unroll
    for (int s = 0; s < kMaxPartials; ++s) {
      if (uint32_t(s) < p.count) {
        const Strided& box = p.partials[s];
        held[s] = *reinterpret_cast<const T*>(box.address + offset_of(box, row, column, sizeof(T)));
      }
    }
    float total = -0.0f;
#pragma unroll
    for (int s = 0; s < kMaxPartials; ++s) {
      if (uint32_t(s) < p.count) total += widen(held[s]);
    }
    *reinterpret_cast<T*>(p.dst.address + offset_of(p.dst, row, column, sizeof(T))) = round_to<T>(total);
  }
}

template <typename T>
__device__ __forceinline__ void reduce(const ReduceParams& p) {
  if (!p.vectors) return reduce_elements<T>(p);
  switch (p.count) {
    case 1:
      return reduce_vectors<T, 1>(p);
    case 2:
      return reduce_vectors<T, 2>(p);
    case 3:
      return reduce_vectors<T, 3>(p);
    case 4:
      return reduce_vectors<T, 4>(p);
    case 5:
      return reduce_vectors<T, 5>(p);
    case 6:
      return reduce_vectors<T, 6>(p);
    case 7:
      return reduce_vectors<T, 7>(p);
    default:
      return reduce_vectors<T, 8>(p);
  }
}

}  // namespace warpweave

#define WARPWEAVE_KERNEL(name, type)                                  \
  extern "C" __global__ void __launch_bounds__(warpweave::kThreads)   \
      sum_##name(const __grid_constant__ warpweave::ReduceParams p) { \
    warpweave::reduce<type>(p);                                       \
  }

WARPWEAVE_KERNEL(f32, float)
WARPWEAVE_KERNEL(f16, __half)
WARPWEAVE_KERNEL(bf16, __nv_bfloat16)
