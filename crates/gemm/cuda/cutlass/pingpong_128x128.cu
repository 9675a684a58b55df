// Middling products: a tile for each warp group, one in its epilogue while the other multiplies.
#include "sm90_gemm.cuh"

namespace warpweave {
namespace {

using Tile = cute::Shape<cute::_128, cute::_128, cute::_64>;
using Cluster = cute::Shape<cute::_2, cute::_1, cute::_1>;

template <class Element>
using Gemm = Sm90Gemm<Element, Tile, Cluster,
                      cutlass::gemm::KernelTmaWarpSpecializedPingpong,
                      cutlass::epilogue::TmaWarpSpecialized,
                      cutlass::gemm::PersistentScheduler>;

}  // namespace

const Family kPingpong128x128 = {
    {"pingpong_128x128x64_2x1", 128, 128, 64, 2, 1, 0, 0},
    create_for_dtype<Gemm>,
};

}  // namespace warpweave
