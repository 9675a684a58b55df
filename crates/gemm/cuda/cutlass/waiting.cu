// GEMMs that wait per chunk of A: the large tiles of `cooperative.cu` and the medium ones of `pingpong.cu`.
#include "waiting_gemm.cuh"

namespace warpweave {
namespace {

using Cluster = cute::Shape<cute::_2, cute::_1, cute::_1>;

template <class Element>
using Gemm128x256 = WaitingGemm<Element, cute::Shape<cute::_128, cute::_256, cute::_64>, Cluster,
                                cutlass::gemm::KernelTmaWarpSpecializedCooperative,
                                cutlass::epilogue::TmaWarpSpecializedCooperative>;
template <class Element>
using Gemm128x128 =
    WaitingGemm<Element, cute::Shape<cute::_128, cute::_128, cute::_64>, Cluster,
                cutlass::gemm::KernelTmaWarpSpecializedPingpong, cutlass::epilogue::TmaWarpSpecialized>;

}  // namespace

const Family kWaiting128x256 = {
    {"waiting_cooperative_128x256x64_2x1", 128, 256, 64, 2, 1, 1, 0},
    create_for_dtype<Gemm128x256, WaitingPlan>,
};

const Family kWaiting128x128 = {
    {"waiting_pingpong_128x128x64_2x1", 128, 128, 64, 2, 1, 0, 0},
    WARPWEAVE_SECOND_TILE(create_for_dtype<Gemm128x128, WaitingPlan>),
};

}  // namespace warpweave
