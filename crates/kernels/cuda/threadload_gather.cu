// Each rank loads the peers' rows of A and stores them to its own staging; without a GEMM, or followed by it.

#include <cstdint>

#include "gather.cuh"
#include "lane.cuh"
#include "scalar_gemm.cuh"
#include "warpweave/dependent.cuh"

namespace warpweave {

// `crates/kernels/src/cuda/parameters.rs` has the same layout.
struct ThreadloadGather {
  const uint64_t* a_peers;
  void* staging;
  const void* b;
  void* c;
  PadView pad;
  uint32_t m, n, k;
  uint32_t element_size;
  uint32_t ready, done;
  uint32_t neighbours;  // rows of B and C are aligned to four elements
  uint32_t reserved;
};
static_assert(sizeof(ThreadloadGather) == 144, "as in Rust");

// Blocks are dealt to the lanes round robin; the grid is a multiple of the world size. A block does a share
// of one lane: one wait, one round of loads for a small matrix, one ticket.
//
// One warp signals and copies nothing, so that its fences wait for no store of its own: a small lane is
// signalled as read when its loads have ended, while the stores to staging go on.
__device__ __forceinline__ void threadload_gather(const ThreadloadGather& p) {
  const PadView& pad = p.pad;
  const uint32_t lane = blockIdx.x % pad.world, part = blockIdx.x / pad.world, parts = gridDim.x / pad.world;
  const uint32_t owner = lane_owner(pad, lane);
  const Rows rows = shard(p.m, owner, pad.world);
  const size_t row_bytes = size_t(p.k) * p.element_size;
  char* to = static_cast<char*>(p.staging) + rows.first * row_bytes;
  const char* from = entry<const char>(p.a_peers, owner);
  const bool remote = lane > 0, leader = threadIdx.x == kGatherThreads;
  __shared__ bool here;

  admit_dependents();
  // Ahead of time, so that no counter is waited for later. Only this lane changes them, after the last
  // ticket.
  uint32_t ready = 0, done = 0, done_sent = 0;
  uint32_t* done_flag = nullptr;
  if (remote && leader) {
    done_flag = flag_at(pad, owner, p.done, pad.rank);
    ready = next_epoch(pad, p.ready, owner);
    done = next_epoch(pad, p.done, owner);
    done_sent = load_counter(pad.sent + counter_index(pad, p.done, owner)) + 1;
    here = wait_epoch(pad, p.ready, owner, ready);
  } else if (remote && part == 0 && threadIdx.x == 0) {
    signal_peer(pad, p.ready, owner);
  }
  __syncthreads();
  const bool read = !remote || here;

  const size_t bytes = rows.count * row_bytes;
  const uint32_t thread = part * kGatherThreads + threadIdx.x, threads = parts * kGatherThreads;
  const bool copies = threadIdx.x < kGatherThreads;
  if (is_one_round(to, from, bytes, threads)) {
    Round round;
    if (copies && read) round.load(from, bytes, thread, threads);
    // The barrier needs what was loaded: the loads have ended then.
    __syncthreads_or(round.arrived());
    if (copies && read) round.store(to, bytes, thread, threads);
  } else {
    if (copies && read) copy_range(to, from, bytes, thread, threads);
    __syncthreads();
  }
  if (!remote || !leader) return;
  // The load overlaps the ticket. A block whose wait failed takes no ticket, so that nobody signals that it
  // has read.
  const bool silent = stopped(pad);
  if (here && take_last_ticket(pad, p.ready, owner, parts)) {
    if (!silent) {
      store_release_sys(done_flag, done_sent);
      pad.sent[counter_index(pad, p.done, owner)] = done_sent;
    }
    advance_expected(pad, p.ready, owner, ready);
    wait_epoch(pad, p.done, owner, done);
    advance_expected(pad, p.done, owner, done);
  }
}

// A block takes chunks of `RowCount` rows, its own rank's first: it copies a chunk to staging and multiplies
// it by all of B.
template <typename T, int RowCount>
__device__ __forceinline__ void threadload_gather_matmul(const ThreadloadGather& p) {
  const PadView& pad = p.pad;
  __shared__ alignas(16) float tile[kTileBytes / sizeof(float)];
  __shared__ bool here;
  const bool leader = threadIdx.x == 0;

  // The first blocks open the lanes.
  for (uint32_t lane = blockIdx.x; lane < pad.world; lane += gridDim.x) {
    if (leader && lane > 0) signal_peer(pad, p.ready, lane_owner(pad, lane));
  }

  uint32_t chunk = blockIdx.x;  // among the chunks of this lane and the next ones
  for (uint32_t lane = 0; lane < pad.world; ++lane) {
    const uint32_t owner = lane_owner(pad, lane);
    const Rows rows = shard(p.m, owner, pad.world);
    // A lane without rows has one empty chunk: its owner waits for the signal all the same.
    const uint32_t chunks = max(1u, (rows.count + RowCount - 1) / RowCount);
    const T* shard_of_a = entry<const T>(p.a_peers, owner);
    for (; chunk < chunks; chunk += gridDim.x) {
      uint32_t epoch = 0;
      __syncthreads();
      if (leader) {
        epoch = lane > 0 ? next_epoch(pad, p.ready, owner) : 0;
        here = lane == 0 || wait_epoch(pad, p.ready, owner, epoch);
      }
      __syncthreads();
      const uint32_t first = chunk * RowCount;
      const uint32_t count = min(rows.count - first, uint32_t(RowCount));
      T* staged = static_cast<T*>(p.staging) + size_t(rows.first + first) * p.k;
      if (here) {
        copy_range(staged, shard_of_a + size_t(first) * p.k, size_t(count) * p.k * sizeof(T), threadIdx.x,
                   kGemmThreads);
      }
      __syncthreads();
      if (leader && lane > 0 && take_last_ticket(pad, p.ready, owner, chunks)) {
        signal_peer(pad, p.done, owner);
        advance_expected(pad, p.ready, owner, epoch);
      }
      if (here) {
        const T* b = static_cast<const T*>(p.b);
        T* c = static_cast<T*>(p.c) + size_t(rows.first + first) * p.n;
        if (p.neighbours) {
          multiply<T, RowCount, true>(tile, staged, b, c, count, p.n, p.k);
        } else {
          multiply<T, RowCount, false>(tile, staged, b, c, count, p.n, p.k);
        }
      }
    }
    chunk -= chunks;
  }

  // The blocks that opened a lane wait until it is closed: A may be overwritten when the grid has ended.
  for (uint32_t lane = blockIdx.x; lane < pad.world; lane += gridDim.x) {
    if (leader && lane > 0) wait_peer(pad, p.done, lane_owner(pad, lane));
  }
}

}  // namespace warpweave

extern "C" __global__ void __launch_bounds__(warpweave::kGatherThreads + 32)
    threadload_gather(const __grid_constant__ warpweave::ThreadloadGather p) {
  warpweave::threadload_gather(p);
}

#define WARPWEAVE_KERNEL(name, type, rows)                                                              \
  extern "C" __global__ void __launch_bounds__(warpweave::kGemmThreads, 2)                              \
      threadload_gather_matmul_##name##_##rows(const __grid_constant__ warpweave::ThreadloadGather p) { \
    warpweave::threadload_gather_matmul<type, rows>(p);                                                 \
  }

WARPWEAVE_KERNEL(f32, float, 8)
WARPWEAVE_KERNEL(f32, float, 16)
WARPWEAVE_KERNEL(f16, __half, 8)
WARPWEAVE_KERNEL(f16, __half, 16)
WARPWEAVE_KERNEL(bf16, __nv_bfloat16, 8)
WARPWEAVE_KERNEL(bf16, __nv_bfloat16, 16)
