// Matrices of 8 × 8 elements of 16 bits: between shared memory and the registers of a warp, and multiplied by
// the warp (`mma.sync`).
//
// PTX ISA: "mma.sync.m16n8k16", "ldmatrix", "stmatrix".
#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace warpweave {

// Stores four matrices of 8 × 8 elements of 16 bits, which the warp holds as `wgmma` and `mma.sync` do: lane
// l has a pair of row l / 4 of each, and gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void store_matrices(uint32_t address, uint32_t m0, uint32_t m1, uint32_t m2,
                                               uint32_t m3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(m0),
               "r"(m1), "r"(m2), "r"(m3)
               : "memory");
}

// Loads four such matrices as `store_matrices` stores them, from the same addresses.
__device__ __forceinline__ void load_matrices(uint32_t address, uint32_t (&m)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}

// Loads four matrices and transposes each: lane l has rows 2 (l % 4) and the next of column l / 4.
__device__ __forceinline__ void load_transposed(uint32_t address, uint32_t (&m)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}

// c += a · b of f16 or bf16, 16×8 += 16×16 · 16×8. Of a the warp has the four matrices down its columns, of b
// the two, transposed. Lane l has columns 2 (l % 4) and the next of c, in row l / 4 and in that eight below.
//
// On Hopper a chain of these, 16 of K after 16, gives an element the bits that `wgmma` gives it.
template <typename T>
__device__ __forceinline__ void multiply_matrices(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                                  uint32_t b1) {
  if constexpr (std::is_same_v<T, __half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

}  // namespace warpweave
