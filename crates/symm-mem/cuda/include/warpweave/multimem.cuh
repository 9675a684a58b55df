// Multicast addresses (NVLS): one store writes the memory of all ranks, one load reduces the values of all
// ranks.
//
// Only these instructions may touch a multicast address: plain loads and stores through it are undefined. The
// same memory has a plain address too. The hardware does not order accesses through the two: `fence_alias`
// goes between them, on either side of a signal.
//
// The switch adds f32 values in f32, and 16-bit values in f32 with one rounding. The order of the ranks is
// unspecified: a result may differ in its last bits from a reduction in the order of ranks.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace warpweave {

// Orders accesses to the same memory through its multicast and through its plain address.
__device__ __forceinline__ void fence_alias() { asm volatile("fence.proxy.alias;" ::: "memory"); }

// Stores 16 bytes to the memory of all ranks.
__device__ __forceinline__ void multimem_store(uint64_t to, const uint4& v) {
  asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to),
               "f"(__uint_as_float(v.x)), "f"(__uint_as_float(v.y)), "f"(__uint_as_float(v.z)),
               "f"(__uint_as_float(v.w))
               : "memory");
}

// Reduces 16 bytes of elements of type T over all ranks, by addition.
template <typename T>
__device__ __forceinline__ uint4 multimem_reduce(uint64_t from);

template <>
__device__ __forceinline__ uint4 multimem_reduce<float>(uint64_t from) {
  float x, y, z, w;
  asm volatile("multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x), "=f"(y), "=f"(z), "=f"(w)
               : "l"(from)
               : "memory");
  return make_uint4(__float_as_uint(x), __float_as_uint(y), __float_as_uint(z), __float_as_uint(w));
}

template <>
__device__ __forceinline__ uint4 multimem_reduce<__half>(uint64_t from) {
  uint4 v;
  asm volatile("multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.f16x2 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}

template <>
__device__ __forceinline__ uint4 multimem_reduce<__nv_bfloat16>(uint64_t from) {
  uint4 v;
  asm volatile("multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.bf16x2 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}

}  // namespace warpweave
