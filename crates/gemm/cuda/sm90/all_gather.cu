// The product that gathers its A, for each type, storage of B, tile and cluster: the names of `plain.cu` with another start.

#include "all_gather.cuh"

namespace warpweave {

#define WARPWEAVE_ALL_GATHER(name, ...)                                                          \
  static_assert(kFetchingBytes<FetchingTile<__VA_ARGS__>> == 231680, "as in Rust");              \
  extern "C" __global__ void __launch_bounds__(kThreads, 1)                                      \
      name(const __grid_constant__ Gathering product) {                                          \
    gemm<FetchingTile<__VA_ARGS__>>(product, Gather<FetchingTile<__VA_ARGS__>>(product));        \
  }

#define WARPWEAVE_CLUSTERS(name, ...)                              \
  WARPWEAVE_ALL_GATHER(name##_alone, __VA_ARGS__, Common::kNothing) \
  WARPWEAVE_ALL_GATHER(name##_share_a, __VA_ARGS__, Common::kA)     \
  WARPWEAVE_ALL_GATHER(name##_share_b, __VA_ARGS__, Common::kB)

#define WARPWEAVE_TILES(name, T, kMajorB)               \
  WARPWEAVE_CLUSTERS(name##_128x256, T, kMajorB, 256)   \
  WARPWEAVE_CLUSTERS(name##_128x128, T, kMajorB, 128)   \
  WARPWEAVE_ALL_GATHER(name##_128x64_alone, T, kMajorB, 64, Common::kNothing) \
  WARPWEAVE_ALL_GATHER(name##_128x64_share_a, T, kMajorB, 64, Common::kA)

WARPWEAVE_TILES(all_gather_f16_nn, __half, Major::kMN)
WARPWEAVE_TILES(all_gather_f16_nt, __half, Major::kK)
WARPWEAVE_TILES(all_gather_bf16_nn, __nv_bfloat16, Major::kMN)
WARPWEAVE_TILES(all_gather_bf16_nt, __nv_bfloat16, Major::kK)

}  // namespace warpweave
