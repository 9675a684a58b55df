// A warp-specialised TMA GEMM for SM90 from CUTLASS's collective builder, as a plan.
//
// A, B and C are row-major with f32 accumulators, so B reaches the tensor cores N-major. There is no source
// operand: the epilogue stores alpha * accumulator and never reads C.
#pragma once

#include <new>

#include "cute/tensor.hpp"
#include "cutlass/cutlass.h"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
#include "cutlass/kernel_hardware_info.h"

#include "plan.hpp"

namespace warpweave {

// TMA needs 16-byte rows: 8 elements of 16 bits.
constexpr int kAlignment = 8;

template <class Element, class Tile, class Cluster, class Mainloop, class Epilogue, class Scheduler>
struct Sm90Gemm {
  using RowMajor = cutlass::layout::RowMajor;
  using CollectiveEpilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, void, RowMajor, kAlignment, Element,
      RowMajor, kAlignment, Epilogue>::CollectiveOp;
  // As many stages as fit with the epilogue's shared memory.
  using Stages = cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
      sizeof(typename CollectiveEpilogue::SharedStorage))>;
  using CollectiveMainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, RowMajor, kAlignment, Element, RowMajor,
      kAlignment, float, Tile, Cluster, Stages, Mainloop>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, CollectiveMainloop,
                                                      CollectiveEpilogue, Scheduler>;
  using Device = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;
};

inline int32_t failed(cutlass::Status status) { return -static_cast<int32_t>(status); }

template <class Gemm>
class Sm90Plan : public ww_cutlass_plan {
  using Kernel = typename Gemm::Kernel;
  using Device = typename Gemm::Device;
  using Arguments = typename Device::Arguments;
  static constexpr bool kStreamK =
      cute::is_same_v<typename Kernel::TileSchedulerTag, cutlass::gemm::StreamKScheduler>;

 public:
  // As a `Plan`: this class or one that adds to it.
  template <class Plan = Sm90Plan>
  static int32_t create(ww_cutlass_problem const& problem, ww_cutlass_plan** out) {
    auto* plan = new (std::nothrow) Plan(problem);
    if (plan == nullptr) return failed(cutlass::Status::kErrorMemoryAllocation);
    if (int32_t status = plan->prepare(); status != 0) {
      delete plan;
      return status;
    }
    *out = plan;
    return 0;
  }

  size_t workspace() const override { return Kernel::get_workspace_size(arguments_); }

  int32_t bind(uint64_t a, uint64_t b, uint64_t c, uint64_t workspace) override {
    using ElementA = typename Kernel::ElementA;
    using ElementD = typename Kernel::ElementD;
    arguments_.mainloop.ptr_A = reinterpret_cast<ElementA const*>(a);
    arguments_.mainloop.ptr_B = reinterpret_cast<ElementA const*>(b);
    arguments_.epilogue.ptr_D = reinterpret_cast<ElementD*>(c);
    workspace_ = reinterpret_cast<void*>(workspace);
    params_ = Kernel::to_underlying_arguments(arguments_, workspace_);
    bound_ = true;
    return 0;
  }

  int32_t run(void* stream) override {
    if (!bound_) return failed(cutlass::Status::kErrorInvalidProblem);
    auto cuda_stream = static_cast<cudaStream_t>(stream);
    if constexpr (kStreamK) {
      // The scheduler's tile locks count up during a launch and must start at zero in each.
      cutlass::Status status = Kernel::initialize_workspace(arguments_, workspace_, cuda_stream);
      if (status != cutlass::Status::kSuccess) return failed(status);
    }
    // A programmatic dependent launch: the prologue overlaps the end of the previous kernel of the stream, if
    // that one admits dependents. The kernel waits for its end before it reads an operand. Stream-K follows a
    // memset, which admits none.
#ifdef CUTLASS_ENABLE_GDC_FOR_SM90
    constexpr bool kEarlyStart = !kStreamK;
#else
    constexpr bool kEarlyStart = false;  // The kernel has no wait for the end.
#endif
    cutlass::Status status = Device::run(params_, cuda_stream, nullptr, kEarlyStart);
    return status == cutlass::Status::kSuccess ? 0 : failed(status);
  }

 protected:
  explicit Sm90Plan(ww_cutlass_problem const& p) {
    arguments_.mode = cutlass::gemm::GemmUniversalMode::kGemm;
    arguments_.problem_shape = {p.m, p.n, p.k, 1};
    // Strides of (M,K), (N,K) and (M,N), and between the matrices of a batch, of which there is one.
    arguments_.mainloop.dA = {p.lda, cute::_1{}, 0};
    arguments_.mainloop.dB = {cute::_1{}, p.ldb, 0};
    arguments_.epilogue.dD = {p.ldc, cute::_1{}, 0};
    arguments_.epilogue.thread.alpha = 1.0f;
    arguments_.epilogue.thread.beta = 0.0f;
    arguments_.hw_info.device_id = p.device;
    arguments_.hw_info.sm_count = p.sm_count;
    using Raster = decltype(arguments_.scheduler.raster_order);
    arguments_.scheduler.raster_order =
        p.raster == 1 ? Raster::AlongM : (p.raster == 2 ? Raster::AlongN : Raster::Heuristic);
    arguments_.scheduler.max_swizzle_size = p.max_swizzle;
  }

  Arguments arguments_{};

 private:
  int32_t prepare() {
    if (cutlass::Status status = Device::can_implement(arguments_); status != cutlass::Status::kSuccess) {
      return failed(status);
    }
    cudaError_t error =
        cudaFuncSetAttribute(cutlass::device_kernel<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             Kernel::SharedStorageSize);
    if (error != cudaSuccess) {
      // Clears the runtime's last error. The next launch would report it as its own.
      (void)cudaGetLastError();
      return static_cast<int32_t>(error);
    }
    if constexpr (cute::size(typename Kernel::ClusterShape{}) > 1) {
      return count_clusters();
    }
    return 0;
  }

  // How many clusters fit depends on how the SMs of this chip are spread over its GPCs. CUTLASS's own query
  // leaves out the shared memory, which limits them here.
  int32_t count_clusters() {
    using Cluster = typename Kernel::ClusterShape;
    constexpr int kSize = cute::size(Cluster{});
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = cute::size<0>(Cluster{});
    attribute.val.clusterDim.y = cute::size<1>(Cluster{});
    attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(cute::size<0>(Cluster{}), cute::size<1>(Cluster{}), 1);
    config.blockDim = dim3(Kernel::MaxThreadsPerBlock, 1, 1);
    config.dynamicSmemBytes = Kernel::SharedStorageSize;
    config.attrs = &attribute;
    config.numAttrs = 1;
    int clusters = 0;
    cudaError_t error = cudaOccupancyMaxActiveClusters(&clusters, cutlass::device_kernel<Kernel>, &config);
    if (error != cudaSuccess) {
      (void)cudaGetLastError();
      return static_cast<int32_t>(error);
    }
    int const wanted = arguments_.hw_info.sm_count / kSize;
    arguments_.hw_info.max_active_clusters = clusters < wanted ? clusters : wanted;
    return 0;
  }

  typename Kernel::Params params_{};
  void* workspace_ = nullptr;
  bool bound_ = false;
};

// The second tile of a source; to check the device code, not to run it, one is enough.
#ifndef WARPWEAVE_FEW_INSTANCES
#define WARPWEAVE_SECOND_TILE(...) __VA_ARGS__
#else
#define WARPWEAVE_SECOND_TILE(...) nullptr
#endif

// Creates the plan of the problem's element type.
template <template <class> class GemmOf, template <class> class PlanOf = Sm90Plan>
int32_t create_for_dtype(ww_cutlass_problem const& problem, ww_cutlass_plan** out) {
  switch (static_cast<DType>(problem.dtype)) {
#ifndef WARPWEAVE_FEW_INSTANCES  // To check the device code, not to run it.
    case DType::F16:
      return PlanOf<GemmOf<cutlass::half_t>>::create(problem, out);
#endif
    case DType::Bf16:
      return PlanOf<GemmOf<cutlass::bfloat16_t>>::create(problem, out);
  }
  return failed(cutlass::Status::kErrorNotSupported);
}

}  // namespace warpweave
