// Transfers by loads and stores of SMs, and the signals of transfers by copy engines.

#include <cstdint>

#include "transfer.cuh"
#include "warpweave/range.cuh"

namespace {

// As in `p2p/cuda/grid.rs`.
constexpr uint32_t kCopyThreads = 512;

}  // namespace

extern "C" __global__ void __launch_bounds__(kCopyThreads)
    transfer_sm(const __grid_constant__ warpweave::Transfer p) {
  using namespace warpweave;
  __shared__ bool granted;
  Grant grant = {};
  if (threadIdx.x == 0) {
    grant = begin_transfer(p);
    granted = grant.granted;
  }
  __syncthreads();
  if (granted) {
    copy_range(p.to, p.from, p.bytes, blockIdx.x * kCopyThreads + threadIdx.x, gridDim.x * kCopyThreads);
  }
  __syncthreads();
  if (threadIdx.x == 0) end_transfer(p, grant);
}

// Signals `peer` in `slot`, unless a wait has failed: the copy may not have happened then.
extern "C" __global__ void transfer_signal(const __grid_constant__ warpweave::PadView pad, uint32_t slot,
                                           uint32_t peer) {
  if (!warpweave::noticed(pad) && !warpweave::signal_peer(pad, slot, peer)) {
    warpweave::withhold_signal(pad, slot, peer);
  }
}
