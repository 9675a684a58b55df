// For medium and small problems: a tile for each warpgroup; one is in its epilogue while the other
// multiplies. The small tiles give every SM one of a 1024 × 1024 output, and their long K steps amortise
// barriers.
#include "sm90_gemm.cuh"

namespace warpweave {
namespace {

template <class Element, class Tile, class Cluster>
using Pingpong = Sm90Gemm<Element, Tile, Cluster, cutlass::gemm::KernelTmaWarpSpecializedPingpong,
                          cutlass::epilogue::TmaWarpSpecialized, cutlass::gemm::PersistentScheduler>;

template <class Element>
using Gemm128x128 = Pingpong<Element, cute::Shape<cute::_128, cute::_128, cute::_64>,
                             cute::Shape<cute::_2, cute::_1, cute::_1>>;
template <class Element>
using Gemm64x128 = Pingpong<Element, cute::Shape<cute::_64, cute::_128, cute::_128>,
                            cute::Shape<cute::_1, cute::_1, cute::_1>>;

}  // namespace

const Family kPingpong128x128 = {
    {"pingpong_128x128x64_2x1", 128, 128, 64, 2, 1, 0, 0},
    create_for_dtype<Gemm128x128>,
};

const Family kPingpong64x128 = {
    {"pingpong_64x128x128_1x1", 64, 128, 128, 1, 1, 0, 0},
    WARPWEAVE_SECOND_TILE(create_for_dtype<Gemm64x128>),
};

}  // namespace warpweave
