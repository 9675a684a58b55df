// A GEMM of a few rows of A by scalar fused multiply-adds: f32 accumulators from k = 0 upwards, one rounding.
//
// A block holds a tile of A in shared memory as [k][row]: one broadcast load gives four rows of a k. Each
// thread accumulates its four columns of all rows. B streams through registers, a step ahead of the
// arithmetic.
#pragma once

#include <cstdint>

#include "vector.cuh"

namespace warpweave {

// The same value, opaque to the compiler, which would otherwise hoist cheap address arithmetic: what is
// derived from it is computed here again, and not kept in registers through the loops around.
template <typename Integer>
__device__ __forceinline__ Integer forget(Integer value) {
  if constexpr (sizeof(Integer) == 8) {
    asm volatile("" : "+l"(value));
  } else {
    asm volatile("" : "+r"(value));
  }
  return value;
}

constexpr uint32_t kGemmThreads = 256;
constexpr uint32_t kThreadColumns = 4;
constexpr uint32_t kTileColumns = kGemmThreads * kThreadColumns;
constexpr int kTileBytes = 32 * 1024;

// Values of k that a tile of `RowCount` rows holds.
template <int RowCount>
constexpr uint32_t kTileDepth = kTileBytes / sizeof(float) / RowCount;

// This thread's four columns. Neighbours, in one load, where the alignment of B and C allows it; else a
// block's width apart, so that a warp's loads of one element are neighbours.
template <typename T, bool Neighbours>
struct Columns {
  uint32_t first;
  uint32_t n;

  __device__ __forceinline__ Columns(uint32_t tile, uint32_t n_)
      : first(tile + threadIdx.x * (Neighbours ? kThreadColumns : 1)), n(n_) {}

  __device__ __forceinline__ uint32_t column(int j) const {
    return Neighbours ? first + j : first + j * kGemmThreads;
  }

  __device__ __forceinline__ bool any() const { return first < n; }

  __device__ __forceinline__ Four<T> load(const T* row) const {
    if constexpr (Neighbours) {
      return *reinterpret_cast<const Four<T>*>(row + first);
    } else {
      T element[kThreadColumns];
#pragma unroll
      for (int j = 0; j < kThreadColumns; ++j)
        element[j] = column(j) < n ? row[column(j)] : round_to<T>(0.0f);
      return pack(element);
    }
  }

  __device__ __forceinline__ void store(T* row, const float (&accumulators)[kThreadColumns]) const {
    if constexpr (Neighbours) {
      T element[kThreadColumns];
#pragma unroll
      for (int j = 0; j < kThreadColumns; ++j) element[j] = round_to<T>(accumulators[j]);
      *reinterpret_cast<Four<T>*>(row + first) = pack(element);
    } else {
#pragma unroll
      for (int j = 0; j < kThreadColumns; ++j) {
        if (column(j) < n) row[column(j)] = round_to<T>(accumulators[j]);
      }
    }
  }
};

// Accumulates one k; `tile` holds that k of all rows.
template <typename T, int RowCount>
__device__ __forceinline__ void add_step(float (&accumulators)[RowCount][kThreadColumns], const float* tile,
                                         const Four<T>& b) {
  float wide[kThreadColumns];
  widen(b, wide);
#pragma unroll
  for (int r = 0; r < RowCount; r += 4) {
    const float4 a = *reinterpret_cast<const float4*>(tile + r);
#pragma unroll
    for (int j = 0; j < kThreadColumns; ++j) {
      accumulators[r + 0][j] = fmaf(a.x, wide[j], accumulators[r + 0][j]);
      accumulators[r + 1][j] = fmaf(a.y, wide[j], accumulators[r + 1][j]);
      accumulators[r + 2][j] = fmaf(a.z, wide[j], accumulators[r + 2][j]);
      accumulators[r + 3][j] = fmaf(a.w, wide[j], accumulators[r + 3][j]);
    }
  }
}

// Accumulates `depth` values of k, the rows of B from `b` on.
template <typename T, int RowCount, bool Neighbours>
__device__ __forceinline__ void add_tile(float (&accumulators)[RowCount][kThreadColumns], const float* tile,
                                         const T* b, uint32_t depth, const Columns<T, Neighbours>& columns) {
  // Rows of B in flight: enough arithmetic after each load to cover the latency of L2. Single loads need an
  // address each.
  constexpr int kAhead = (Neighbours ? 128 : 64) / (RowCount * int(sizeof(T)));
  const size_t n = forget(size_t(columns.n));
  const uint32_t whole = depth - depth % kAhead;
  Four<T> next[kAhead];
  if (whole > 0) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) next[i] = columns.load(b + i * n);
  }
  uint32_t k = 0;
#pragma unroll 1
  for (; k < whole; k += kAhead) {
    Four<T> now[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) now[i] = next[i];
    b += kAhead * n;
    if (k + kAhead < whole) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) next[i] = columns.load(b + i * n);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) add_step<T, RowCount>(accumulators, tile + (k + i) * RowCount, now[i]);
  }
#pragma unroll 1
  for (; k < depth; ++k, b += n) add_step<T, RowCount>(accumulators, tile + k * RowCount, columns.load(b));
}

// Fills `tile` with `depth` values of k of `rows` rows of A, `stride` elements apart; rows beyond are zero.
// Four rows at a time: the accumulators are live, and the addresses of all rows would spill them.
template <typename T, int RowCount>
__device__ __forceinline__ void fill_tile(float* tile, const T* a, size_t stride, uint32_t rows,
                                          uint32_t depth) {
#pragma unroll 1
  for (uint32_t first = 0; first < RowCount; first += 4) {
#pragma unroll 2
    for (uint32_t k = threadIdx.x; k < depth; k += kGemmThreads) {
      float column[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) column[r] = first + r < rows ? widen(a[(first + r) * stride + k]) : 0.0f;
      *reinterpret_cast<float4*>(tile + k * RowCount + first) =
          make_float4(column[0], column[1], column[2], column[3]);
    }
  }
}

// C[rows, n] = A[rows, k] · B[k, n], rows <= RowCount. All threads of the block; `tile` has kTileBytes of
// shared memory.
template <typename T, int RowCount, bool Neighbours>
__device__ __forceinline__ void multiply(float* tile, const T* a, const T* b, T* c, uint32_t rows, uint32_t n,
                                         uint32_t k) {
  constexpr uint32_t kDepth = kTileDepth<RowCount>;
  for (uint32_t first = 0; first < n; first += kTileColumns) {
    const Columns<T, Neighbours> columns(first, n);
    float accumulators[RowCount][kThreadColumns] = {};
    for (uint32_t start = 0; start < k; start += kDepth) {
      const uint32_t depth = min(kDepth, k - start);
      // A tile that holds all of k serves all columns.
      if (first == 0 || k > kDepth) {
        __syncthreads();
        fill_tile<T, RowCount>(tile, a + start, k, rows, depth);
        __syncthreads();
      }
      if (columns.any())
        add_tile<T, RowCount, Neighbours>(accumulators, tile, b + size_t(start) * n, depth, columns);
    }
    if (columns.any()) {
      const size_t stride = forget(size_t(n));
#pragma unroll
      for (int r = 0; r < RowCount; ++r) {
        if (r < rows) columns.store(c + r * stride, accumulators[r]);
      }
    }
  }
}

}  // namespace warpweave
