// For problems whose last wave would be nearly empty: its tiles are split along K and reduced in a fixed
// order.

// The stream-K scheduler of CUTLASS 4.2 does not compile with programmatic dependent launch. The memset
// before it would prevent an early start anyway.
#undef CUTLASS_ENABLE_GDC_FOR_SM90

#include "sm90_gemm.cuh"

namespace warpweave {
namespace {

using Tile = cute::Shape<cute::_128, cute::_256, cute::_64>;
using Cluster = cute::Shape<cute::_2, cute::_1, cute::_1>;

template <class Element>
using Gemm = Sm90Gemm<Element, Tile, Cluster, cutlass::gemm::KernelTmaWarpSpecializedCooperative,
                      cutlass::epilogue::TmaWarpSpecializedCooperative, cutlass::gemm::StreamKScheduler>;

}  // namespace

const Family kStreamK128x256 = {
    {"stream_k_128x256x64_2x1", 128, 256, 64, 2, 1, 1, 1},
    create_for_dtype<Gemm>,
};

}  // namespace warpweave
