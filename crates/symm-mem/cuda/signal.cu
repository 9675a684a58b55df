// The stream operations of a signal pad: one block, a thread for each peer. And copies that end with the
// device's first failed wait.

#include "warpweave/range.cuh"
#include "warpweave/signal.cuh"

namespace {

// The `index`-th set bit of `mask`.
__device__ uint32_t nth_peer(uint64_t mask, uint32_t index) {
  for (; index > 0; --index) mask &= mask - 1;
  return uint32_t(__ffsll(static_cast<long long>(mask))) - 1;
}

}  // namespace

// Signals each peer of `peers` (bit p: rank p) in `slot`. If a wait of this device has failed, it does not:
// a fault of this pad.
extern "C" __global__ void warpweave_signal(const __grid_constant__ warpweave::PadView pad, uint32_t slot,
                                            uint64_t peers) {
  if (threadIdx.x >= __popcll(peers)) return;
  const uint32_t peer = nth_peer(peers, threadIdx.x);
  if (!warpweave::signal_peer(pad, slot, peer)) warpweave::withhold_signal(pad, slot, peer);
}

// Waits for each peer of `peers` in `slot`, less `lag`.
extern "C" __global__ void warpweave_wait(const __grid_constant__ warpweave::PadView pad, uint32_t slot,
                                          uint64_t peers, uint32_t lag) {
  if (threadIdx.x >= __popcll(peers)) return;
  warpweave::wait_peer(pad, slot, nth_peer(peers, threadIdx.x), lag);
}

// Copies `bytes`, unless a wait of this device has failed. The flag is final when the kernel starts: the wait
// that this copy must not outlive comes before it in its stream.
extern "C" __global__ void warpweave_copy(const uint32_t* stopped, void* to, const void* from,
                                          uint64_t bytes) {
  if (warpweave::load_counter(stopped) != 0) return;
  warpweave::copy_range(to, from, bytes, blockIdx.x * blockDim.x + threadIdx.x, gridDim.x * blockDim.x);
}

// Keeps its stream busy for `ns` nanoseconds.
extern "C" __global__ void warpweave_delay(uint64_t ns) {
  const uint64_t start = warpweave::global_time();
  while (warpweave::global_time() - start < ns) __nanosleep(200);
}
