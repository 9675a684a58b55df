// For large problems: two warpgroups share a tile of 128 × 256, or of 256 × 128 where N is narrow or oddly
// divided. Pairs of blocks multicast B.
#include "sm90_gemm.cuh"

namespace warpweave {
namespace {

using Cluster = cute::Shape<cute::_2, cute::_1, cute::_1>;

template <class Element, class Tile>
using Cooperative =
    Sm90Gemm<Element, Tile, Cluster, cutlass::gemm::KernelTmaWarpSpecializedCooperative,
             cutlass::epilogue::TmaWarpSpecializedCooperative, cutlass::gemm::PersistentScheduler>;

template <class Element>
using Gemm128x256 = Cooperative<Element, cute::Shape<cute::_128, cute::_256, cute::_64>>;
template <class Element>
using Gemm256x128 = Cooperative<Element, cute::Shape<cute::_256, cute::_128, cute::_64>>;

}  // namespace

const Family kCooperative128x256 = {
    {"cooperative_128x256x64_2x1", 128, 256, 64, 2, 1, 1, 0},
    create_for_dtype<Gemm128x256>,
};

const Family kCooperative256x128 = {
    {"cooperative_256x128x64_2x1", 256, 128, 64, 2, 1, 1, 0},
    WARPWEAVE_SECOND_TILE(create_for_dtype<Gemm256x128>),
};

}  // namespace warpweave
