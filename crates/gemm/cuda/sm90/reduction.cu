// The product with its sums over ranks.

#include "kernels.cuh"
#include "reduction.cuh"

namespace warpweave {

#define WARPWEAVE_REDUCTION(name, ...)                                               \
  static_assert(kFetchingBytes<FetchingTile<__VA_ARGS__>> == 231680, "as in Rust");  \
  extern "C" __global__ void __launch_bounds__(kThreads, 1)                          \
      name(const __grid_constant__ Reduction reduction) {                            \
    reduce<FetchingTile<__VA_ARGS__>>(reduction);                                    \
  }

WARPWEAVE_KERNELS_ALONE(WARPWEAVE_REDUCTION, reduce)

}  // namespace warpweave
