// The product that is all-reduced in one shot.

#include "kernels.cuh"
#include "one_shot.cuh"

namespace warpweave {

#define WARPWEAVE_ONE_SHOT(name, ...)                                     \
  static_assert(kSharedBytes<Tile<__VA_ARGS__>> == 231424, "as in Rust"); \
  extern "C" __global__ void __launch_bounds__(kThreads, 1)               \
      name(const __grid_constant__ OneShot product) {                     \
    one_shot<Tile<__VA_ARGS__>>(OneShotCall(product));                    \
  }

WARPWEAVE_KERNELS_ALONE(WARPWEAVE_ONE_SHOT, one_shot)

}  // namespace warpweave
