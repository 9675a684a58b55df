// The product that gathers small shards.

#include "eager.cuh"
#include "kernels.cuh"

namespace warpweave {

#define WARPWEAVE_EAGER(name, ...)                                                       \
  static_assert(kFetchingBytes<FetchingTile<__VA_ARGS__>> == 231680, "as in Rust");      \
  extern "C" __global__ void __launch_bounds__(kThreads, 1)                              \
      name(const __grid_constant__ Eager product) {                                      \
    const EagerCall call(product);                                                       \
    gemm<FetchingTile<__VA_ARGS__>>(call, EagerGather<FetchingTile<__VA_ARGS__>>(call)); \
  }

WARPWEAVE_KERNELS(WARPWEAVE_EAGER, eager)

}  // namespace warpweave
