// Large products whose rows of A arrive while it runs: the tile of `cooperative_128x256.cu`.
#include "waiting_gemm.cuh"

namespace warpweave {
namespace {

using Tile = cute::Shape<cute::_128, cute::_256, cute::_64>;
using Cluster = cute::Shape<cute::_2, cute::_1, cute::_1>;

template <class Element>
using Gemm = WaitingGemm<Element, Tile, Cluster,
                         cutlass::gemm::KernelTmaWarpSpecializedCooperative,
                         cutlass::epilogue::TmaWarpSpecializedCooperative>;

}  // namespace

const Family kWaiting128x256 = {
    {"waiting_cooperative_128x256x64_2x1", 128, 256, 64, 2, 1, 1, 0},
    create_for_dtype<Gemm, WaitingPlan>,
};

}  // namespace warpweave
