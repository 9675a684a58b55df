// The table of configurations and the C entry points.
#include <new>

#include <cuda_runtime_api.h>

#include "cutlass/cutlass.h"

#include "plan.hpp"

namespace {

using warpweave::Family;

const Family* const kFamilies[] = {
    &warpweave::kCooperative128x256, &warpweave::kCooperative256x128, &warpweave::kPingpong128x128,
    &warpweave::kPingpong64x128,     &warpweave::kStreamK128x256,
};
constexpr int32_t kFamilyCount = static_cast<int32_t>(sizeof(kFamilies) / sizeof(kFamilies[0]));

const Family* const kWaitingFamilies[] = {&warpweave::kWaiting128x256, &warpweave::kWaiting128x128};
constexpr int32_t kWaitingFamilyCount =
    static_cast<int32_t>(sizeof(kWaitingFamilies) / sizeof(kWaitingFamilies[0]));

int32_t create(const Family* const* families, int32_t count, int32_t config,
               const ww_cutlass_problem* problem, ww_cutlass_plan** plan) {
  if (config < 0 || config >= count || problem == nullptr || plan == nullptr) {
    return -static_cast<int32_t>(cutlass::Status::kErrorInvalidProblem);
  }
  *plan = nullptr;
  return families[config]->create(*problem, plan);
}

}  // namespace

// As in `src/cutlass/linked/chunked.rs`.
static_assert(sizeof(ww_cutlass_arrivals) == 56);

extern "C" {

const char* ww_cutlass_status_text(int32_t status) {
  if (status > 0) return cudaGetErrorString(static_cast<cudaError_t>(status));
  auto cutlass_status = static_cast<cutlass::Status>(-status);
  // A kernel's own check answers this; CUTLASS has no useful text for it.
  if (cutlass_status == cutlass::Status::kInvalid) return "the kernel cannot compute this problem";
  return cutlassGetStatusString(cutlass_status);
}

int32_t ww_cutlass_config_count(void) { return kFamilyCount; }

const ww_cutlass_config* ww_cutlass_config_at(int32_t index) {
  return index < 0 || index >= kFamilyCount ? nullptr : &kFamilies[index]->config;
}

int32_t ww_cutlass_plan_create(int32_t config, const ww_cutlass_problem* problem, ww_cutlass_plan** plan) {
  return create(kFamilies, kFamilyCount, config, problem, plan);
}

int32_t ww_cutlass_waiting_config_count(void) { return kWaitingFamilyCount; }

const ww_cutlass_config* ww_cutlass_waiting_config_at(int32_t index) {
  return index < 0 || index >= kWaitingFamilyCount ? nullptr : &kWaitingFamilies[index]->config;
}

int32_t ww_cutlass_waiting_plan_create(int32_t config, const ww_cutlass_problem* problem,
                                       ww_cutlass_plan** plan) {
  return create(kWaitingFamilies, kWaitingFamilyCount, config, problem, plan);
}

int32_t ww_cutlass_plan_await(ww_cutlass_plan* plan, const ww_cutlass_arrivals* arrivals) {
  return plan->wait_for(*arrivals);
}

size_t ww_cutlass_plan_workspace(const ww_cutlass_plan* plan) { return plan->workspace(); }

int32_t ww_cutlass_plan_bind(ww_cutlass_plan* plan, uint64_t a, uint64_t b, uint64_t c, uint64_t workspace) {
  return plan->bind(a, b, c, workspace);
}

int32_t ww_cutlass_plan_run(ww_cutlass_plan* plan, void* stream) { return plan->run(stream); }

void ww_cutlass_plan_destroy(ww_cutlass_plan* plan) { delete plan; }

}  // extern "C"
