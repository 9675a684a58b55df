// Small products: tiles small enough that 1024x1024 outputs give every SM one, and long K steps to amortise barriers.
#include "sm90_gemm.cuh"

namespace warpweave {
namespace {

using Tile = cute::Shape<cute::_64, cute::_128, cute::_128>;
using Cluster = cute::Shape<cute::_1, cute::_1, cute::_1>;

template <class Element>
using Gemm = Sm90Gemm<Element, Tile, Cluster,
                      cutlass::gemm::KernelTmaWarpSpecializedPingpong,
                      cutlass::epilogue::TmaWarpSpecialized,
                      cutlass::gemm::PersistentScheduler>;

}  // namespace

const Family kPingpong64x128 = {
    {"pingpong_64x128x128_1x1", 64, 128, 128, 1, 1, 0, 0},
    create_for_dtype<Gemm>,
};

}  // namespace warpweave
