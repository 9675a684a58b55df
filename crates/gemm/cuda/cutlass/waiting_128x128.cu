// Middling products whose rows of A arrive while it runs: the tile of `pingpong_128x128.cu`.
#include "waiting_gemm.cuh"

namespace warpweave {
namespace {

using Tile = cute::Shape<cute::_128, cute::_128, cute::_64>;
using Cluster = cute::Shape<cute::_2, cute::_1, cute::_1>;

template <class Element>
using Gemm = WaitingGemm<Element, Tile, Cluster,
                         cutlass::gemm::KernelTmaWarpSpecializedPingpong,
                         cutlass::epilogue::TmaWarpSpecialized>;

}  // namespace

const Family kWaiting128x128 = {
    {"waiting_pingpong_128x128x64_2x1", 128, 128, 64, 2, 1, 0, 0},
    create_for_dtype<Gemm, WaitingPlan>,
};

}  // namespace warpweave
