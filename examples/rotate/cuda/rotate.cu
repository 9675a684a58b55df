// Each rank puts its block into the receive buffer of its right neighbour, signals it, and copies what came
// from the left: one launch.
//
// One block of threads, so that a barrier is all that the threads need among each other. `src/host.rs` is the
// twin.

#include <cstdint>

#include "warpweave/signal.cuh"

namespace warpweave {

// `src/launch.rs` has the same layout.
struct Rotate {
  const float* block;
  float* receive;
  float* there;  // the right neighbour's receive buffer
  float* out;
  PadView pad;
  uint32_t count;
  uint32_t sent, taken;  // slots
  uint32_t reserved;
};
static_assert(sizeof(Rotate) == 128, "as in Rust");

__device__ __forceinline__ void copy(float* to, const float* from, uint32_t count) {
  for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) to[i] = from[i];
}

}  // namespace warpweave

extern "C" __global__ void __launch_bounds__(512) rotate(const __grid_constant__ warpweave::Rotate p) {
  using namespace warpweave;
  const PadView& pad = p.pad;
  const uint32_t right = pad.rank + 1 < pad.world ? pad.rank + 1 : 0;
  const uint32_t left = pad.rank > 0 ? pad.rank - 1 : pad.world - 1;
  const bool leader = threadIdx.x == 0;
  __shared__ bool arrived;

  // The neighbour emptied its receive buffer in the previous launch. A rank whose wait failed leaves: it
  // writes nobody's memory and signals nothing, and its fault record ends the waits of the peers.
  if (leader) arrived = wait_peer(pad, p.taken, right, 1);
  __syncthreads();
  if (!arrived) return;
  copy(p.there, p.block, p.count);

  // The barrier orders the stores of all threads before the leader's release at system scope, and its acquire
  // before the loads of all threads.
  __syncthreads();
  if (leader) {
    signal_peer(pad, p.sent, right);
    arrived = wait_peer(pad, p.sent, left);
  }
  __syncthreads();
  if (!arrived) return;
  copy(p.out, p.receive, p.count);

  // The receive buffer has been read: the left neighbour may write it again.
  __syncthreads();
  if (leader) signal_peer(pad, p.taken, left);
}
