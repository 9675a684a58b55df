// Multicast addresses (NVLS): one store reaches the memory of all ranks, one load brings the sum of what all ranks hold.
//
// Only these instructions may touch a multicast address: plain loads and stores through it are undefined. The same memory
// has a plain address too, a second name to which the hardware owes no order: `fence_alias` stands between accesses through
// the one and accesses through the other, on either side of a signal.
//
// The switch sums f32 values as such and 16-bit values in f32, rounding once. In which order it takes the ranks nobody says:
// the sum of a place may differ in its last bits from one taken in the order of ranks.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace warpweave {

// Orders accesses to the same memory through its multicast and through its plain address.
__device__ __forceinline__ void fence_alias() { asm volatile("fence.proxy.alias;" ::: "memory"); }

// Stores 16 bytes to the memory of all ranks.
__device__ __forceinline__ void multimem_store(uint64_t to, const uint4& v) {
  asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(__uint_as_float(v.x)),
               "f"(__uint_as_float(v.y)), "f"(__uint_as_float(v.z)), "f"(__uint_as_float(v.w))
               : "memory");
}

// The sums of 16 bytes of elements of type T over all ranks.
template <typename T>
__device__ __forceinline__ uint4 multimem_sum(uint64_t from);

template <>
__device__ __forceinline__ uint4 multimem_sum<float>(uint64_t from) {
  float x, y, z, w;
  asm volatile("multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x), "=f"(y), "=f"(z), "=f"(w)
               : "l"(from)
               : "memory");
  return make_uint4(__float_as_uint(x), __float_as_uint(y), __float_as_uint(z), __float_as_uint(w));
}

template <>
__device__ __forceinline__ uint4 multimem_sum<__half>(uint64_t from) {
  uint4 v;
  asm volatile("multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.f16x2 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}

template <>
__device__ __forceinline__ uint4 multimem_sum<__nv_bfloat16>(uint64_t from) {
  uint4 v;
  asm volatile("multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.bf16x2 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}

}  // namespace warpweave
