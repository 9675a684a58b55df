// Matrix multiply-accumulate of a warpgroup (Hopper): four warps multiply tiles in shared memory on the
// tensor cores. The instructions are asynchronous.
//
//   D[64, N] (+)= A[64, 16] · B[16, N], f16 or bf16 in, f32 out; depth 32 of e4m3.
//
// Order of use, by all 128 threads: `wgmma_fence`, instructions, `wgmma_commit`, `wgmma_wait`. After a wait
// that covers an instruction, its accumulators may be read and its tiles overwritten.
//
// Thread t of the warpgroup holds in d[4j .. 4j + 4] the columns 8j + 2 (t % 4) and 8j + 2 (t % 4) + 1 of D,
// first of row 16 (t / 32) + t % 32 / 4, then of the row eight below.
//
// PTX ISA: "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions", there "Matrix Descriptor
// Format", "Shared Memory Matrix Layout", "Register Fragments and Shared Memory Matrix Layouts";
// "setmaxnreg".
#pragma once

#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include "warpweave/element.cuh"
#include "warpweave/tma.cuh"

namespace warpweave {

// Which dimension of an operand is contiguous in shared memory.
enum class Major { kK, kMN };

// Depth of one instruction: in bytes, and in elements of 16 bits.
constexpr uint32_t kWgmmaBytes = 32;
constexpr uint32_t kWgmmaDepth = kWgmmaBytes / 2;

// Bytes from one group of eight rows of a swizzled box to the next.
constexpr uint32_t kSwizzleGroup = 8 * kSwizzledRow;

// The descriptor of an operand at `address` that consists of boxes with the swizzle of 128 bytes, as TMA
// leaves them.
//
// - K-major: one box, a row of A or a column of B in each row of 128 bytes. "Stride" leads to the next eight
//   of them; "leading" has no meaning.
// - MN-major: boxes side by side, 64 rows of A or columns of B wide, a step of K in each row of 128 bytes.
//   "Stride" leads to the next eight steps of K, "leading" (`box_bytes`) to the next box.
//
// Addresses and distances count 16 bytes; bits 62 and 63 say "128 bytes" by 1. The base offset is 0 since
// boxes start at multiples of 1024.
template <Major kMajor>
__host__ __device__ constexpr uint64_t wgmma_descriptor(uint32_t address, uint32_t box_bytes) {
  const uint64_t start = (address & 0x3ffff) >> 4;
  const uint64_t leading = kMajor == Major::kK ? 1 : box_bytes >> 4;
  const uint64_t stride = kSwizzleGroup >> 4;
  return start | leading << 16 | stride << 32 | uint64_t(1) << 62;
}
static_assert(wgmma_descriptor<Major::kK>(0x2400, 0) == 0x4000'0040'0001'0240, "start, 1, 64, swizzle");
static_assert(wgmma_descriptor<Major::kMN>(0x2400, 8192) == 0x4000'0040'0200'0240, "start, 512, 64, swizzle");

// What to add to a descriptor for the next instruction: 32 bytes along each swizzled row, or 16 rows.
// The hardware swizzles the address that it computes, so that the start may lie inside of a row.
template <Major kMajor>
constexpr uint64_t kDescriptorStep =
    (kMajor == Major::kK ? kWgmmaBytes : kWgmmaDepth * kSwizzledRow) >> 4;

// Orders this warpgroup's accesses to registers and shared memory before the instructions that follow.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Closes the warpgroup's open group of instructions.
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until all but the last `Pending` groups have ended.
template <int Pending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

// Tells the compiler that the hardware may change the accumulators up to here.
template <int kCount>
__device__ __forceinline__ void fence_accumulators(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

#define WARPWEAVE_TEN(tens)                                                                                 \
  "%" #tens "0,%" #tens "1,%" #tens "2,%" #tens "3,%" #tens "4,%" #tens "5,%" #tens "6,%" #tens "7,%" #tens \
  "8,%" #tens "9,"
#define WARPWEAVE_ACCUMULATORS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WARPWEAVE_ACCUMULATORS(i)                                                             \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define WARPWEAVE_ACCUMULATORS_32(i)                                                        \
  WARPWEAVE_ACCUMULATORS(i), WARPWEAVE_ACCUMULATORS(i + 8), WARPWEAVE_ACCUMULATORS(i + 16), \
      WARPWEAVE_ACCUMULATORS(i + 24)
#define WARPWEAVE_ACCUMULATORS_64(i) WARPWEAVE_ACCUMULATORS_32(i), WARPWEAVE_ACCUMULATORS_32(i + 32)

// N = 16: 8 accumulators, then the descriptors of A and B, whether to add to D, and whether B is MN-major,
// which only types of 16 bits ask: `types` is the end of the name from the depth on, `majors` that of A and
// B.
#define WARPWEAVE_WGMMA_16(types, majors)                                                                    \
  asm volatile(                                                                                              \
      "{\n.reg .pred add;\nsetp.ne.b32 add, %10, 0;\n"                                                       \
      "wgmma.mma_async.sync.aligned.m64n16k" types                                                           \
      " {%0,%1,%2,%3,%4,%5,%6,%7}, %8, %9, add, 1, 1" majors("%11") ";\n}\n"                                 \
      : WARPWEAVE_ACCUMULATORS(0)                                                                            \
      : "l"(a), "l"(b), "r"(add), "n"(int(kMajorB)))

// N = 24, 32, 40, 48, 56: 12, 16, 20, 24, 28 accumulators, then as above.
#define WARPWEAVE_WGMMA_24(types, majors)                                                                    \
  asm volatile(                                                                                              \
      "{\n.reg .pred add;\nsetp.ne.b32 add, %14, 0;\n"                                                       \
      "wgmma.mma_async.sync.aligned.m64n24k" types " {" WARPWEAVE_TEN() "%10,%11}, %12, %13, add, 1, 1"      \
      majors("%15") ";\n}\n"                                                                                 \
      : WARPWEAVE_ACCUMULATORS(0), WARPWEAVE_ACCUMULATORS_4(8)                                               \
      : "l"(a), "l"(b), "r"(add), "n"(int(kMajorB)))
#define WARPWEAVE_WGMMA_32(types, majors)                                                                    \
  asm volatile(                                                                                              \
      "{\n.reg .pred add;\nsetp.ne.b32 add, %18, 0;\n"                                                       \
      "wgmma.mma_async.sync.aligned.m64n32k" types " {" WARPWEAVE_TEN()                                      \
          "%10,%11,%12,%13,%14,%15}, %16, %17, add, 1, 1" majors("%19") ";\n}\n"                             \
      : WARPWEAVE_ACCUMULATORS(0), WARPWEAVE_ACCUMULATORS(8)                                                 \
      : "l"(a), "l"(b), "r"(add), "n"(int(kMajorB)))
#define WARPWEAVE_WGMMA_40(types, majors)                                                                    \
  asm volatile(                                                                                              \
      "{\n.reg .pred add;\nsetp.ne.b32 add, %22, 0;\n"                                                       \
      "wgmma.mma_async.sync.aligned.m64n40k" types " {" WARPWEAVE_TEN()                                      \
          "%10,%11,%12,%13,%14,%15,%16,%17,%18,%19}, %20, %21, add, 1, 1" majors("%23") ";\n}\n"             \
      : WARPWEAVE_ACCUMULATORS(0), WARPWEAVE_ACCUMULATORS(8), WARPWEAVE_ACCUMULATORS_4(16)                   \
      : "l"(a), "l"(b), "r"(add), "n"(int(kMajorB)))
#define WARPWEAVE_WGMMA_48(types, majors)                                                                    \
  asm volatile(                                                                                              \
      "{\n.reg .pred add;\nsetp.ne.b32 add, %26, 0;\n"                                                       \
      "wgmma.mma_async.sync.aligned.m64n48k" types " {" WARPWEAVE_TEN() WARPWEAVE_TEN(1)                     \
          "%20,%21,%22,%23}, %24, %25, add, 1, 1" majors("%27") ";\n}\n"                                     \
      : WARPWEAVE_ACCUMULATORS(0), WARPWEAVE_ACCUMULATORS(8), WARPWEAVE_ACCUMULATORS(16)                     \
      : "l"(a), "l"(b), "r"(add), "n"(int(kMajorB)))
#define WARPWEAVE_WGMMA_56(types, majors)                                                                    \
  asm volatile(                                                                                              \
      "{\n.reg .pred add;\nsetp.ne.b32 add, %30, 0;\n"                                                       \
      "wgmma.mma_async.sync.aligned.m64n56k" types " {" WARPWEAVE_TEN() WARPWEAVE_TEN(1)                     \
          "%20,%21,%22,%23,%24,%25,%26,%27}, %28, %29, add, 1, 1" majors("%31") ";\n}\n"                     \
      : WARPWEAVE_ACCUMULATORS(0), WARPWEAVE_ACCUMULATORS(8), WARPWEAVE_ACCUMULATORS(16),                    \
        WARPWEAVE_ACCUMULATORS_4(24)                                                                         \
      : "l"(a), "l"(b), "r"(add), "n"(int(kMajorB)))

// N = 64: 32 accumulators, then as above.
#define WARPWEAVE_WGMMA_64(types, majors)                                                                    \
  asm volatile(                                                                                              \
      "{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n"                                                       \
      "wgmma.mma_async.sync.aligned.m64n64k" types " {" WARPWEAVE_TEN() WARPWEAVE_TEN(1)                     \
          WARPWEAVE_TEN(2) "%30,%31}, %32, %33, add, 1, 1" majors("%35") ";\n}\n"                            \
      : WARPWEAVE_ACCUMULATORS_32(0)                                                                         \
      : "l"(a), "l"(b), "r"(add), "n"(int(kMajorB)))

// N = 128: 64 accumulators, then as above.
#define WARPWEAVE_WGMMA_128(types, majors)                                                                   \
  asm volatile(                                                                                              \
      "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"                                                       \
      "wgmma.mma_async.sync.aligned.m64n128k" types " {" WARPWEAVE_TEN() WARPWEAVE_TEN(1)                    \
          WARPWEAVE_TEN(2) WARPWEAVE_TEN(3) WARPWEAVE_TEN(4) WARPWEAVE_TEN(5) "%60,%61,%62,%63},"            \
          " %64, %65, add, 1, 1" majors("%67") ";\n}\n"                                                      \
      : WARPWEAVE_ACCUMULATORS_64(0)                                                                         \
      : "l"(a), "l"(b), "r"(add), "n"(int(kMajorB)))

// N = 256: 128 accumulators, then as above.
#define WARPWEAVE_WGMMA_256(types, majors)                                                                   \
  asm volatile(                                                                                              \
      "{\n.reg .pred add;\nsetp.ne.b32 add, %130, 0;\n"                                                      \
      "wgmma.mma_async.sync.aligned.m64n256k" types " {" WARPWEAVE_TEN() WARPWEAVE_TEN(1)                    \
          WARPWEAVE_TEN(2) WARPWEAVE_TEN(3) WARPWEAVE_TEN(4) WARPWEAVE_TEN(5) WARPWEAVE_TEN(6)               \
              WARPWEAVE_TEN(7) WARPWEAVE_TEN(8) WARPWEAVE_TEN(9) WARPWEAVE_TEN(10) WARPWEAVE_TEN(            \
                  11) "%120,%121,%122,%123,%124,%125,%126,%127}, %128, %129, add, 1, 1" majors(              \
                  "%131") ";\n}\n"                                                                           \
      : WARPWEAVE_ACCUMULATORS_64(0), WARPWEAVE_ACCUMULATORS_64(64)                                          \
      : "l"(a), "l"(b), "r"(add), "n"(int(kMajorB)))

// The majors of types of 16 bits, A being K-major; those of e4m3, which is K-major and says nothing.
#define WARPWEAVE_MAJORS(b) ", 0, " b
#define WARPWEAVE_NO_MAJORS(b) ""
#define WARPWEAVE_WGMMA(n)                                                          \
  if constexpr (std::is_same_v<T, __half>) {                                        \
    WARPWEAVE_WGMMA_##n("16.f32.f16.f16", WARPWEAVE_MAJORS);                        \
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {                          \
    WARPWEAVE_WGMMA_##n("16.f32.bf16.bf16", WARPWEAVE_MAJORS);                      \
  } else {                                                                          \
    static_assert(std::is_same_v<T, __nv_fp8_e4m3> && kMajorB == Major::kK);        \
    WARPWEAVE_WGMMA_##n("32.f32.e4m3.e4m3", WARPWEAVE_NO_MAJORS);                   \
  }

// D += A · B of f16 or bf16 with A in registers, which hold its 64×16 as `mma.sync` has a warp's 16×16, and B
// MN-major. N = 64 and 128.
#define WARPWEAVE_WGMMA_REGISTERS_64(types)                                                  \
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." types " {" WARPWEAVE_TEN()      \
                   WARPWEAVE_TEN(1) WARPWEAVE_TEN(2) "%30,%31}, {%32,%33,%34,%35}, %36, 1, " \
                                                     "1, 1, 1;\n"                            \
               : WARPWEAVE_ACCUMULATORS_32(0)                                                \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define WARPWEAVE_WGMMA_REGISTERS_128(types)                                                          \
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." types " {" WARPWEAVE_TEN()              \
                   WARPWEAVE_TEN(1) WARPWEAVE_TEN(2) WARPWEAVE_TEN(3) WARPWEAVE_TEN(4)                \
                       WARPWEAVE_TEN(5) "%60,%61,%62,%63}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;\n"     \
               : WARPWEAVE_ACCUMULATORS_64(0)                                                         \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define WARPWEAVE_WGMMA_REGISTERS(n)                   \
  if constexpr (std::is_same_v<T, __half>) {           \
    WARPWEAVE_WGMMA_REGISTERS_##n("f16.f16");          \
  } else {                                             \
    static_assert(std::is_same_v<T, __nv_bfloat16>);   \
    WARPWEAVE_WGMMA_REGISTERS_##n("bf16.bf16");        \
  }
template <typename T>
__device__ __forceinline__ void wgmma_registers(float (&d)[32], const uint32_t (&a)[4], uint64_t b) {
  WARPWEAVE_WGMMA_REGISTERS(64)
}
template <typename T>
__device__ __forceinline__ void wgmma_registers(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
  WARPWEAVE_WGMMA_REGISTERS(128)
}

// D = A · B, or D += A · B where `add` is not 0. A is K-major.
template <typename T, Major kMajorB>
__device__ __forceinline__ void wgmma(float (&d)[8], uint64_t a, uint64_t b, int32_t add) {
  WARPWEAVE_WGMMA(16)
}
template <typename T, Major kMajorB>
__device__ __forceinline__ void wgmma(float (&d)[12], uint64_t a, uint64_t b, int32_t add) {
  WARPWEAVE_WGMMA(24)
}
template <typename T, Major kMajorB>
__device__ __forceinline__ void wgmma(float (&d)[16], uint64_t a, uint64_t b, int32_t add) {
  WARPWEAVE_WGMMA(32)
}
template <typename T, Major kMajorB>
__device__ __forceinline__ void wgmma(float (&d)[20], uint64_t a, uint64_t b, int32_t add) {
  WARPWEAVE_WGMMA(40)
}
template <typename T, Major kMajorB>
__device__ __forceinline__ void wgmma(float (&d)[24], uint64_t a, uint64_t b, int32_t add) {
  WARPWEAVE_WGMMA(48)
}
template <typename T, Major kMajorB>
__device__ __forceinline__ void wgmma(float (&d)[28], uint64_t a, uint64_t b, int32_t add) {
  WARPWEAVE_WGMMA(56)
}
template <typename T, Major kMajorB>
__device__ __forceinline__ void wgmma(float (&d)[32], uint64_t a, uint64_t b, int32_t add) {
  WARPWEAVE_WGMMA(64)
}
template <typename T, Major kMajorB>
__device__ __forceinline__ void wgmma(float (&d)[64], uint64_t a, uint64_t b, int32_t add) {
  WARPWEAVE_WGMMA(128)
}
template <typename T, Major kMajorB>
__device__ __forceinline__ void wgmma(float (&d)[128], uint64_t a, uint64_t b, int32_t add) {
  WARPWEAVE_WGMMA(256)
}

#undef WARPWEAVE_WGMMA_REGISTERS
#undef WARPWEAVE_WGMMA_REGISTERS_128
#undef WARPWEAVE_WGMMA_REGISTERS_64
#undef WARPWEAVE_WGMMA
#undef WARPWEAVE_NO_MAJORS
#undef WARPWEAVE_MAJORS
#undef WARPWEAVE_WGMMA_256
#undef WARPWEAVE_WGMMA_128
#undef WARPWEAVE_WGMMA_64
#undef WARPWEAVE_WGMMA_48
#undef WARPWEAVE_WGMMA_32
#undef WARPWEAVE_WGMMA_24
#undef WARPWEAVE_WGMMA_16
#undef WARPWEAVE_ACCUMULATORS_64
#undef WARPWEAVE_ACCUMULATORS_32
#undef WARPWEAVE_ACCUMULATORS
#undef WARPWEAVE_ACCUMULATORS_4
#undef WARPWEAVE_TEN

// This warpgroup releases its registers but `kRegisters` a thread. All its warps.
template <int kRegisters>
__device__ __forceinline__ void release_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// This warpgroup waits until it has `kRegisters` a thread. All its warps.
template <int kRegisters>
__device__ __forceinline__ void acquire_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace warpweave
