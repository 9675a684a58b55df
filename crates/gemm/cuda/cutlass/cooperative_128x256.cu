// Large products: two warp groups share a 128x256 tile, pairs of CTAs multicast B to each other.
#include "sm90_gemm.cuh"

namespace warpweave {
namespace {

using Tile = cute::Shape<cute::_128, cute::_256, cute::_64>;
using Cluster = cute::Shape<cute::_2, cute::_1, cute::_1>;

template <class Element>
using Gemm = Sm90Gemm<Element, Tile, Cluster,
                      cutlass::gemm::KernelTmaWarpSpecializedCooperative,
                      cutlass::epilogue::TmaWarpSpecializedCooperative,
                      cutlass::gemm::PersistentScheduler>;

}  // namespace

const Family kCooperative128x256 = {
    {"cooperative_128x256x64_2x1", 128, 256, 64, 2, 1, 1, 0},
    create_for_dtype<Gemm>,
};

}  // namespace warpweave
