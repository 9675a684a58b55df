// The product that is all-reduced in one shot.

#include "kernels.cuh"
#include "one_shot.cuh"

namespace warpweave {

#define WARPWEAVE_ONE_SHOT(name, ...)                                     \
  static_assert(kSharedBytes<Tile<__VA_ARGS__>> == 231424, "as in Rust"); \
  extern "C" __global__ void __launch_bounds__(kThreads, 1)               \
      name(const __grid_constant__ OneShot product) {                     \
    const OneShotCall call(product);                                      \
    gemm<Tile<__VA_ARGS__>>(call, OneShotSum<Tile<__VA_ARGS__>>(call));   \
  }

WARPWEAVE_KERNELS(WARPWEAVE_ONE_SHOT, one_shot)

}  // namespace warpweave
