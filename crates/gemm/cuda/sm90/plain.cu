// The product alone, for each type, storage of B, tile and cluster. `Config::kernel` in `sm90/config.rs` makes the names:
// `nn` has B row-major, `nt` transposed; a cluster is `alone`, or shares A or B.

#include "gemm.cuh"
#include "proof.cuh"

namespace warpweave {

#define WARPWEAVE_GEMM(name, ...)                                                              \
  static_assert(kSharedBytes<Tile<__VA_ARGS__>> == 231424, "as in Rust");                      \
  extern "C" __global__ void __launch_bounds__(kThreads, 1)                                    \
      name(const __grid_constant__ Product product) {                                          \
    gemm<Tile<__VA_ARGS__>>(product, Alone());                                                 \
  }

#define WARPWEAVE_CLUSTERS(name, ...)                              \
  WARPWEAVE_GEMM(name##_alone, __VA_ARGS__, Common::kNothing)      \
  WARPWEAVE_GEMM(name##_share_a, __VA_ARGS__, Common::kA)          \
  WARPWEAVE_GEMM(name##_share_b, __VA_ARGS__, Common::kB)

#define WARPWEAVE_TILES(name, T, kMajorB)               \
  WARPWEAVE_CLUSTERS(name##_128x256, T, kMajorB, 256)   \
  WARPWEAVE_CLUSTERS(name##_128x128, T, kMajorB, 128)   \
  WARPWEAVE_GEMM(name##_128x64_alone, T, kMajorB, 64, Common::kNothing) \
  WARPWEAVE_GEMM(name##_128x64_share_a, T, kMajorB, 64, Common::kA)

WARPWEAVE_TILES(gemm_f16_nn, __half, Major::kMN)
WARPWEAVE_TILES(gemm_f16_nt, __half, Major::kK)
WARPWEAVE_TILES(gemm_bf16_nn, __nv_bfloat16, Major::kMN)
WARPWEAVE_TILES(gemm_bf16_nt, __nv_bfloat16, Major::kK)

}  // namespace warpweave
