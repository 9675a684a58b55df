// The GEMM without communication.

#include "gemm.cuh"
#include "instantiate.cuh"
#include "proof.cuh"
#include "warpweave/dependent.cuh"

namespace warpweave {

// The parameters of a launch. `sm90/prepared.rs` has the same layout.
struct alignas(128) PlainParams {
  TensorMap a;
  TensorMap last_a;
  TensorMap b;
  TensorMap c;
  Raster raster;
  // Steps of K.
  uint32_t steps;
  // Rows of A.
  uint32_t rows;
  Epilogue epilogue;
  // Of operands of e4m3.
  Scales scales;
};
static_assert(sizeof(PlainParams) == 640, "as in Rust");

template <class Tile>
__device__ __forceinline__ void plain_gemm(const PlainParams& p) {
  const Pipeline<Tile> pipeline{memory_of_block<Tile>()};
  begin<Tile>(pipeline, p.a, p.b, p.c);
  wait_for_prerequisites();

  run_roles(
      // Load warp.
      [&] {
        typename Pipeline<Tile>::Cursor at;
        p.raster.for_each_part<Tile>([&](TileCoord tile) {
          load_tile<Tile>({p.a, p.last_a, p.rows}, p.b, tile, p.steps, pipeline, at);
        });
        admit_dependents();
      },
      // Auxiliary warps: nothing.
      [](uint32_t) {},
      // Consumers.
      [&](uint32_t consumer) {
        multiply_and_store<Tile>(p.raster, pipeline, p.steps, p.epilogue, consumer,
                                 [&](TileCoord) -> const TensorMap& { return p.c; },
                                 [&](TileCoord) -> const Scales& { return p.scales; });
      });

  // No block ends while the other may still arrive at its barriers.
  if constexpr (Tile::kCluster != 1) sync_cluster();
}

#define WARPWEAVE_PLAIN(name, ...)                                                                        \
  static_assert(kSharedBytes<Tile<__VA_ARGS__>> == 231424, "as in Rust");                                 \
  extern "C" __global__ void __launch_bounds__(kThreads, 1) name(const __grid_constant__ PlainParams p) { \
    plain_gemm<Tile<__VA_ARGS__>>(p);                                                                     \
  }

WARPWEAVE_KERNELS(WARPWEAVE_PLAIN, gemm)

WARPWEAVE_E4M3_TYPES(WARPWEAVE_TILES, WARPWEAVE_PLAIN, gemm, outer, Scaling::kOuter)
WARPWEAVE_E4M3_TYPES(WARPWEAVE_TILES, WARPWEAVE_PLAIN, gemm, block, Scaling::kBlock)

}  // namespace warpweave
