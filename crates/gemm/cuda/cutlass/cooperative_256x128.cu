// Large products with a narrow or an oddly divided N: the transposed twin of the 128x256 tile.
#include "sm90_gemm.cuh"

namespace warpweave {
namespace {

using Tile = cute::Shape<cute::_256, cute::_128, cute::_64>;
using Cluster = cute::Shape<cute::_2, cute::_1, cute::_1>;

template <class Element>
using Gemm = Sm90Gemm<Element, Tile, Cluster,
                      cutlass::gemm::KernelTmaWarpSpecializedCooperative,
                      cutlass::epilogue::TmaWarpSpecializedCooperative,
                      cutlass::gemm::PersistentScheduler>;

}  // namespace

const Family kCooperative256x128 = {
    {"cooperative_256x128x64_2x1", 256, 128, 64, 2, 1, 1, 0},
    create_for_dtype<Gemm>,
};

}  // namespace warpweave
