// What the dispatcher and the kernel families share: the plan's interface and the family entry points.
#pragma once

#include <driver_types.h>

#include "warpweave_cutlass.h"

// Opaque to C. One subclass for each instantiated kernel.
struct ww_cutlass_plan {
  virtual ~ww_cutlass_plan() = default;
  virtual size_t workspace() const = 0;
  virtual int32_t bind(uint64_t a, uint64_t b, uint64_t c, uint64_t workspace) = 0;
  virtual int32_t run(void* stream) = 0;
  // The plans of waiting families need it before `bind`; the others do not wait.
  virtual int32_t await(ww_cutlass_arrivals const&) { return cudaErrorNotSupported; }
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

// Products that wait for rows of A.
extern const Family kWaiting128x256;
extern const Family kWaiting128x128;

}  // namespace warpweave
