// The product with its sum over ranks, for each type, storage of B and tile. `kernel` in `sm90/reduction.rs` makes the names.

#include "reduction.cuh"

namespace warpweave {

#define WARPWEAVE_REDUCTION(name, ...)                                                         \
  static_assert(kFetchingBytes<FetchingTile<__VA_ARGS__>> == 231680, "as in Rust");            \
  extern "C" __global__ void __launch_bounds__(kThreads, 1)                                    \
      name(const __grid_constant__ Reduction reduction) {                                      \
    reduce<FetchingTile<__VA_ARGS__>>(reduction);                                              \
  }

#define WARPWEAVE_TILES(name, T, kMajorB)                                       \
  WARPWEAVE_REDUCTION(name##_128x256_share_b, T, kMajorB, 256, Common::kB)      \
  WARPWEAVE_REDUCTION(name##_128x256_alone, T, kMajorB, 256, Common::kNothing)  \
  WARPWEAVE_REDUCTION(name##_128x128_share_b, T, kMajorB, 128, Common::kB)      \
  WARPWEAVE_REDUCTION(name##_128x128_alone, T, kMajorB, 128, Common::kNothing)

WARPWEAVE_TILES(reduce_f16_nn, __half, Major::kMN)
WARPWEAVE_TILES(reduce_f16_nt, __half, Major::kK)
WARPWEAVE_TILES(reduce_bf16_nn, __nv_bfloat16, Major::kMN)
WARPWEAVE_TILES(reduce_bf16_nt, __nv_bfloat16, Major::kK)

}  // namespace warpweave
