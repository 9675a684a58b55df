// The product alone.

#include "gemm.cuh"
#include "kernels.cuh"
#include "proof.cuh"

namespace warpweave {

#define WARPWEAVE_GEMM(name, ...)                                         \
  static_assert(kSharedBytes<Tile<__VA_ARGS__>> == 231424, "as in Rust"); \
  extern "C" __global__ void __launch_bounds__(kThreads, 1)               \
      name(const __grid_constant__ Product product) {                     \
    gemm<Tile<__VA_ARGS__>>(product, Alone());                            \
  }

WARPWEAVE_KERNELS(WARPWEAVE_GEMM, gemm)

}  // namespace warpweave
