// The entry points of a kernel: `KERNEL(name, tile arguments)` for each element type, storage of B, tile and
// multicast operand. `kernel` in `sm90/config.rs` makes the names: `nn` has B row-major, `nt` transposed;
// `share_a` and `share_b` are clusters of two that multicast A or B, `alone` is no cluster.
#pragma once

#define WARPWEAVE_TILES_ALONE(KERNEL, name, T, kMajorB, ...)                     \
  KERNEL(name##_128x256_alone, T, kMajorB, 256, Multicast::kNone, ##__VA_ARGS__) \
  KERNEL(name##_128x128_alone, T, kMajorB, 128, Multicast::kNone, ##__VA_ARGS__) \
  KERNEL(name##_128x64_alone, T, kMajorB, 64, Multicast::kNone, ##__VA_ARGS__)

#ifndef WARPWEAVE_FEW_INSTANCES

#define WARPWEAVE_TILES(KERNEL, name, T, kMajorB, ...)                          \
  WARPWEAVE_TILES_ALONE(KERNEL, name, T, kMajorB, ##__VA_ARGS__)                \
  KERNEL(name##_128x256_share_a, T, kMajorB, 256, Multicast::kA, ##__VA_ARGS__) \
  KERNEL(name##_128x256_share_b, T, kMajorB, 256, Multicast::kB, ##__VA_ARGS__) \
  KERNEL(name##_128x128_share_a, T, kMajorB, 128, Multicast::kA, ##__VA_ARGS__) \
  KERNEL(name##_128x128_share_b, T, kMajorB, 128, Multicast::kB, ##__VA_ARGS__)

#define WARPWEAVE_TYPES(TILES, KERNEL, family)               \
  TILES(KERNEL, family##_f16_nn, __half, Major::kMN)         \
  TILES(KERNEL, family##_f16_nt, __half, Major::kK)          \
  TILES(KERNEL, family##_bf16_nn, __nv_bfloat16, Major::kMN) \
  TILES(KERNEL, family##_bf16_nt, __nv_bfloat16, Major::kK)

// Operands of e4m3, both K-major; the type of C and the scales are named.
#define WARPWEAVE_E4M3_TYPES(TILES, KERNEL, family, scales, kScaling)                             \
  TILES(KERNEL, family##_e4m3_f16_##scales##_nt, __nv_fp8_e4m3, Major::kK, __half, kScaling)      \
  TILES(KERNEL, family##_e4m3_bf16_##scales##_nt, __nv_fp8_e4m3, Major::kK, __nv_bfloat16, kScaling)

#else  // To check the device code, not to run it: each type, storage, width and multicast once or more.

#define WARPWEAVE_TILES(KERNEL, name, T, kMajorB, ...)                          \
  KERNEL(name##_128x256_share_a, T, kMajorB, 256, Multicast::kA, ##__VA_ARGS__) \
  KERNEL(name##_128x128_share_b, T, kMajorB, 128, Multicast::kB, ##__VA_ARGS__) \
  KERNEL(name##_128x64_alone, T, kMajorB, 64, Multicast::kNone, ##__VA_ARGS__)

#define WARPWEAVE_TYPES(TILES, KERNEL, family)       \
  TILES(KERNEL, family##_f16_nn, __half, Major::kMN) \
  TILES(KERNEL, family##_bf16_nt, __nv_bfloat16, Major::kK)

#define WARPWEAVE_E4M3_TYPES(TILES, KERNEL, family, scales, kScaling) \
  TILES(KERNEL, family##_e4m3_bf16_##scales##_nt, __nv_fp8_e4m3, Major::kK, __nv_bfloat16, kScaling)

#endif

// All tiles, or those without clusters.
#define WARPWEAVE_KERNELS(KERNEL, family) WARPWEAVE_TYPES(WARPWEAVE_TILES, KERNEL, family)
#define WARPWEAVE_KERNELS_ALONE(KERNEL, family) WARPWEAVE_TYPES(WARPWEAVE_TILES_ALONE, KERNEL, family)
