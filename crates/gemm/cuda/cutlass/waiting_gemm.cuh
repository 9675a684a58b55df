// The product of `sm90_gemm.cuh` that waits for rows of A, behind the plan interface.
#pragma once

// What a peer's rows hang on needs the multiprocessors that this product leaves free, and a kernel that starts early would
// sit on them until the product ends. Ping-pong lets the next kernel in before its last tiles have their rows, so neither
// does this product let others in nor does it start early itself. Ahead of all of CUTLASS, which asks for it.
#undef CUTLASS_ENABLE_GDC_FOR_SM90

#include "arrivals.cuh"
#include "sm90_gemm.cuh"

namespace warpweave {

template <class Element, class Tile, class Cluster, class Mainloop, class Epilogue>
struct WaitingGemm {
  using Plain = Sm90Gemm<Element, Tile, Cluster, Mainloop, Epilogue, cutlass::gemm::PersistentScheduler>;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>,
                                                      ArrivalMainloop<typename Plain::CollectiveMainloop>,
                                                      typename Plain::CollectiveEpilogue, ArrivalOrder>;
  using Device = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;
};

template <class Gemm>
class WaitingPlan final : public Sm90Plan<Gemm> {
  using Element = typename Gemm::Kernel::ElementA;

 public:
  explicit WaitingPlan(ww_cutlass_problem const& problem) : Sm90Plan<Gemm>(problem) {}

  static int32_t create(ww_cutlass_problem const& problem, ww_cutlass_plan** out) {
    return Sm90Plan<Gemm>::template create<WaitingPlan>(problem, out);
  }

  int32_t await(ww_cutlass_arrivals const& arrivals) override {
    auto& mainloop = this->arguments_.mainloop;
    mainloop.ptr_own = reinterpret_cast<Element const*>(arrivals.own);
    mainloop.own_end = arrivals.own_end;
    mainloop.arrivals = {*static_cast<PadView const*>(arrivals.pad), reinterpret_cast<uint2 const*>(arrivals.tiles),
                         reinterpret_cast<uint2 const*>(arrivals.waits),
                         reinterpret_cast<uint32_t const*>(arrivals.signals), arrivals.slot};
    this->arguments_.scheduler.bands = reinterpret_cast<Band const*>(arrivals.bands);
    return 0;
  }
};

}  // namespace warpweave
