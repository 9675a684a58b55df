// The interface of a plan and the entry points of the kernel families.
#pragma once

#include <driver_types.h>

#include "warpweave_cutlass.h"

// Opaque to C. A subclass for each kernel.
struct ww_cutlass_plan {
  virtual ~ww_cutlass_plan() = default;
  virtual size_t workspace() const = 0;
  virtual int32_t bind(uint64_t a, uint64_t b, uint64_t c, uint64_t workspace) = 0;
  virtual int32_t run(void* stream) = 0;
  // Called before `bind` for families that wait per chunk; the others do not wait.
  virtual int32_t wait_for(ww_cutlass_arrivals const&) { return cudaErrorNotSupported; }
};

namespace warpweave {

enum class DType : int32_t { F16 = 0, Bf16 = 1 };

struct Family {
  ww_cutlass_config config;
  int32_t (*create)(ww_cutlass_problem const&, ww_cutlass_plan**);
};

extern const Family kCooperative128x256;
extern const Family kCooperative256x128;
extern const Family kPingpong128x128;
extern const Family kPingpong64x128;
extern const Family kStreamK128x256;

// GEMMs that wait per chunk of A.
extern const Family kWaiting128x256;
extern const Family kWaiting128x128;

}  // namespace warpweave
