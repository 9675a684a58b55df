// The GEMM of `sm90_gemm.cuh` that waits per chunk of A, as a plan.
#pragma once

// The kernels that bring a peer's rows need the SMs that this GEMM leaves free, and a kernel that starts
// early would occupy them until this GEMM ends. Ping-pong admits the next kernel before its last tiles have
// their rows. So this GEMM admits no dependents and does not start early itself. Must come before all CUTLASS
// headers, which test the macro.
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

  int32_t wait_for(ww_cutlass_arrivals const& arrivals) override {
    auto& mainloop = this->arguments_.mainloop;
    mainloop.ptr_own = reinterpret_cast<Element const*>(arrivals.own);
    mainloop.own_end = arrivals.own_end;
    mainloop.arrivals = {*static_cast<PadView const*>(arrivals.pad),
                         reinterpret_cast<uint2 const*>(arrivals.tiles),
                         reinterpret_cast<uint2 const*>(arrivals.waits),
                         reinterpret_cast<uint32_t const*>(arrivals.signals), arrivals.slot};
    this->arguments_.scheduler.groups = reinterpret_cast<SwizzleGroup const*>(arrivals.groups);
    return 0;
  }
};

}  // namespace warpweave
