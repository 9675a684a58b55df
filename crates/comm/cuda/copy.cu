// Transfers by loads and stores of the multiprocessors, and the signals of those that copy engines do.

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
  Turn turn = {};
  if (threadIdx.x == 0) {
    turn = begin_transfer(p);
    granted = turn.granted;
  }
  __syncthreads();
  if (granted) {
    copy_range_bytes(p.to, p.from, p.bytes, blockIdx.x * kCopyThreads + threadIdx.x, gridDim.x * kCopyThreads);
  }
  __syncthreads();
  if (threadIdx.x == 0) end_transfer(p, turn);
}

// Signals `peer` in `slot`, unless a wait of this pad has failed: what was to be signalled may not have happened then.
extern "C" __global__ void announce(const __grid_constant__ warpweave::PadView pad, uint32_t slot, uint32_t peer) {
  if (!warpweave::faulted(pad)) warpweave::signal_peer(pad, slot, peer);
}
