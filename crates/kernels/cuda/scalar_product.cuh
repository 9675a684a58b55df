// A few rows of A times all of B by scalar fused multiply-adds: f32 sums from k = 0 upwards, one rounding.
//
// A block holds a tile of A in shared memory as [k][row], so that one broadcast load gives four rows of a k, and each
// thread keeps the sums of its four columns of all rows. B streams through registers, a step ahead of the arithmetic.
#pragma once

#include <cstdint>

#include "element.cuh"
#include "opaque.cuh"

namespace warpweave {

constexpr uint32_t kProductThreads = 256;
constexpr uint32_t kThreadColumns = 4;
constexpr uint32_t kTileColumns = kProductThreads * kThreadColumns;
constexpr int kTileBytes = 32 * 1024;

// Values of k that a tile of `RowCount` rows holds.
template <int RowCount>
constexpr uint32_t kTileDepth = kTileBytes / sizeof(float) / RowCount;

// This thread's four columns. Neighbours, in one load, where rows of B and C allow it; else a block's width apart, so
// that a warp's loads of one element are neighbours.
template <typename T, bool Neighbours>
struct Columns {
  uint32_t first;
  uint32_t n;

  __device__ __forceinline__ Columns(uint32_t tile, uint32_t n_)
      : first(tile + threadIdx.x * (Neighbours ? kThreadColumns : 1)), n(n_) {}

  __device__ __forceinline__ uint32_t column(int j) const { return Neighbours ? first + j : first + j * kProductThreads; }

  __device__ __forceinline__ bool any() const { return first < n; }

  __device__ __forceinline__ Four<T> load(const T* row) const {
    if constexpr (Neighbours) {
      return *reinterpret_cast<const Four<T>*>(row + first);
    } else {
      T element[kThreadColumns];
#pragma unroll
      for (int j = 0; j < kThreadColumns; ++j) element[j] = column(j) < n ? row[column(j)] : round_to<T>(0.0f);
      return pack(element);
    }
  }

  __device__ __forceinline__ void store(T* row, const float (&sums)[kThreadColumns]) const {
    if constexpr (Neighbours) {
      T element[kThreadColumns];
#pragma unroll
      for (int j = 0; j < kThreadColumns; ++j) element[j] = round_to<T>(sums[j]);
      *reinterpret_cast<Four<T>*>(row + first) = pack(element);
    } else {
#pragma unroll
      for (int j = 0; j < kThreadColumns; ++j) {
        if (column(j) < n) row[column(j)] = round_to<T>(sums[j]);
      }
    }
  }
};

// Adds one k to the sums: `tile` holds that k of all rows.
template <typename T, int RowCount>
__device__ __forceinline__ void add_step(float (&sums)[RowCount][kThreadColumns], const float* tile,
                                         const Four<T>& b) {
  float wide[kThreadColumns];
  widen(b, wide);
#pragma unroll
  for (int r = 0; r < RowCount; r += 4) {
    const float4 a = *reinterpret_cast<const float4*>(tile + r);
#pragma unroll
    for (int j = 0; j < kThreadColumns; ++j) {
      sums[r + 0][j] = fmaf(a.x, wide[j], sums[r + 0][j]);
      sums[r + 1][j] = fmaf(a.y, wide[j], sums[r + 1][j]);
      sums[r + 2][j] = fmaf(a.z, wide[j], sums[r + 2][j]);
      sums[r + 3][j] = fmaf(a.w, wide[j], sums[r + 3][j]);
    }
  }
}

// Adds `depth` values of k, the rows of B from `b` on.
template <typename T, int RowCount, bool Neighbours>
__device__ __forceinline__ void add_tile(float (&sums)[RowCount][kThreadColumns], const float* tile, const T* b,
                                         uint32_t depth, const Columns<T, Neighbours>& columns) {
  // Rows of B in flight: enough arithmetic behind each load to cover the L2 cache's latency. Loads one by one take an
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
    for (int i = 0; i < kAhead; ++i) add_step<T, RowCount>(sums, tile + (k + i) * RowCount, now[i]);
  }
#pragma unroll 1
  for (; k < depth; ++k, b += n) add_step<T, RowCount>(sums, tile + k * RowCount, columns.load(b));
}

// Fills `tile` with `depth` values of k of `rows` rows of A, which lie `stride` elements apart; rows beyond are zero. Four
// rows at a time: the sums are live, and addresses of all rows would cost them their registers.
template <typename T, int RowCount>
__device__ __forceinline__ void fill_tile(float* tile, const T* a, size_t stride, uint32_t rows, uint32_t depth) {
#pragma unroll 1
  for (uint32_t first = 0; first < RowCount; first += 4) {
#pragma unroll 2
    for (uint32_t k = threadIdx.x; k < depth; k += kProductThreads) {
      float column[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) column[r] = first + r < rows ? widen(a[(first + r) * stride + k]) : 0.0f;
      *reinterpret_cast<float4*>(tile + k * RowCount + first) =
          make_float4(column[0], column[1], column[2], column[3]);
    }
  }
}

// C[rows, n] = A[rows, k] · B[k, n], rows <= RowCount. All threads of the block; `tile` has kTileBytes of shared memory.
template <typename T, int RowCount, bool Neighbours>
__device__ __forceinline__ void multiply(float* tile, const T* a, const T* b, T* c, uint32_t rows, uint32_t n, uint32_t k) {
  constexpr uint32_t kDepth = kTileDepth<RowCount>;
  for (uint32_t first = 0; first < n; first += kTileColumns) {
    const Columns<T, Neighbours> columns(first, n);
    float sums[RowCount][kThreadColumns] = {};
    for (uint32_t start = 0; start < k; start += kDepth) {
      const uint32_t depth = min(kDepth, k - start);
      // A tile that holds all of k serves all columns.
      if (first == 0 || k > kDepth) {
        __syncthreads();
        fill_tile<T, RowCount>(tile, a + start, k, rows, depth);
        __syncthreads();
      }
      if (columns.any()) add_tile<T, RowCount, Neighbours>(sums, tile, b + size_t(start) * n, depth, columns);
    }
    if (columns.any()) {
      const size_t stride = forget(size_t(n));
#pragma unroll
      for (int r = 0; r < RowCount; ++r) {
        if (r < rows) columns.store(c + r * stride, sums[r]);
      }
    }
  }
}

}  // namespace warpweave
