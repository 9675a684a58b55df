// The product that gathers its A.

#include "all_gather.cuh"
#include "kernels.cuh"

namespace warpweave {

#define WARPWEAVE_ALL_GATHER(name, ...)                                                   \
  static_assert(kFetchingBytes<FetchingTile<__VA_ARGS__>> == 231680, "as in Rust");       \
  extern "C" __global__ void __launch_bounds__(kThreads, 1)                               \
      name(const __grid_constant__ Gathering product) {                                   \
    gemm<FetchingTile<__VA_ARGS__>>(product, Gather<FetchingTile<__VA_ARGS__>>(product)); \
  }

WARPWEAVE_KERNELS(WARPWEAVE_ALL_GATHER, all_gather)

}  // namespace warpweave
