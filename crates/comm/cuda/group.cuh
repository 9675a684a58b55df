// The process group of a collective, its epochs and its barrier. `collective/launch.rs` has the same layouts.
//
// A collective is one or more launches, and in every launch each rank receives from every other. Two things
// follow:
// - A rank that has ended a launch knows that all peers have ended the one before.
// - A counter that each block keeps, one higher with every launch, is the same on all ranks. It needs no
//   atomic and no host, and a captured graph goes on counting.
//
// A rank that gave up has not ended its launch: it sends, copies and publishes nothing more, so that the
// peers' conclusions stay true (`pad/fault.rs` in symm-mem).
#pragma once

#include "warpweave/signal.cuh"

namespace warpweave {

constexpr uint32_t kMaxWorld = 8;
constexpr uint32_t kMaxBlocks = 128;

// Addresses by rank, by value: a table in memory would cost its latency at the start of every launch.
struct Addresses {
  uint64_t of[kMaxWorld];
};

// The layout of `Group` in `launch.rs`.
struct Group {
  PadView pad;       // slots: [phase][block], followed by those of other protocols
  Addresses flags;   // the flags of every rank's pad
  uint32_t* epochs;  // [kMaxBlocks], one of each block
  uint64_t reserved;
};
static_assert(sizeof(Group) == sizeof(PadView) + 64 + 16, "as in Rust");

enum Phase : uint32_t { kEnter = 0, kLeave = 1 };

// Slots after those of the barriers: for each slice of a block.
constexpr uint32_t kSliceSlot = 2 * kMaxBlocks;
constexpr uint32_t kMaxSlices = 8;

// The epoch of this launch.
__device__ __forceinline__ uint32_t epoch_of(const Group& group) {
  return CallCounter{group.epochs + blockIdx.x}.current();
}

// Advances the epoch for the next launch, for blocks that only a larger grid has too. All threads of a block,
// when all have read the epoch.
__device__ __forceinline__ void advance_epoch(const Group& group, uint32_t epoch) {
  for (uint32_t block = blockIdx.x + threadIdx.x * gridDim.x; block < kMaxBlocks;
       block += blockDim.x * gridDim.x)
    group.epochs[block] = epoch;
}

// The epoch of this launch; advances it for the next one. All threads of a block; a barrier.
__device__ __forceinline__ uint32_t next_epoch_of(const Group& group) {
  const uint32_t epoch = epoch_of(group);
  __syncthreads();
  advance_epoch(group, epoch);
  return epoch;
}

// As `next_epoch_of`, for a launch that sends before it waits: `may_send` unless this rank or a peer has
// given up. The loads overlap that of the epoch.
__device__ __forceinline__ uint32_t next_epoch_of(const Group& group, bool& may_send) {
  const bool failed = faulted(group.pad);
  const uint32_t epoch = epoch_of(group);
  may_send = !__syncthreads_or(failed);
  if (!may_send && threadIdx.x == 0)
    record_fault(group.pad, blockIdx.x, (group.pad.rank + 1) % group.pad.world, epoch, 0, 0);
  advance_epoch(group, epoch);
  return epoch;
}

// The flag that `source` writes on `owner` for the block of this number in `phase`.
__device__ __forceinline__ uint32_t* barrier_flag(const Group& group, uint32_t owner, uint32_t phase,
                                                  uint32_t block, uint32_t source) {
  const uint64_t index = counter_index(group.pad, phase * kMaxBlocks + block, source);
  return reinterpret_cast<uint32_t*>(group.flags.of[owner] + index * kFlagStride);
}

// The slot of a slice of this block, and the flag that `source` writes in it on `owner`.
__device__ __forceinline__ uint32_t slice_slot(uint32_t index) {
  return kSliceSlot + index * kMaxBlocks + blockIdx.x;
}
__device__ __forceinline__ uint32_t* slice_flag(const Group& group, uint32_t owner, uint32_t index,
                                                uint32_t source) {
  const uint64_t flag = counter_index(group.pad, slice_slot(index), source);
  return reinterpret_cast<uint32_t*>(group.flags.of[owner] + flag * kFlagStride);
}

// A barrier of the blocks of this number on all ranks: afterwards this block sees what the peers' blocks did
// before. False on all threads if a peer timed out, or if this rank or a peer has given up. All threads of a
// block.
__device__ __forceinline__ bool group_barrier(const Group& group, Phase phase, uint32_t epoch) {
  const uint32_t peer = threadIdx.x, slot = phase * kMaxBlocks + blockIdx.x;
  const bool theirs = peer < group.pad.world && peer != group.pad.rank;
  // The load overlaps that of the epoch, or the stores that the barrier waits for.
  bool arrived = !theirs || !stopped(group.pad);
  __syncthreads();
  if (theirs && arrived) {
    store_release_sys(barrier_flag(group, peer, phase, blockIdx.x, group.pad.rank), epoch);
    // A flag that is not written for 2^31 launches would seem to be ahead: each launch writes one of the
    // flags of blocks that this grid lacks.
    const uint32_t absent = kMaxBlocks - gridDim.x;
    if (blockIdx.x == 0 && absent > 0)
      store_relaxed_sys(barrier_flag(group, peer, phase, gridDim.x + epoch % absent, group.pad.rank), epoch);
    arrived =
        wait_flag(group.pad, barrier_flag(group, group.pad.rank, phase, blockIdx.x, peer), slot, peer, epoch);
  } else if (theirs) {
    record_fault(group.pad, slot, peer, epoch, 0, 0);
  }
  return __syncthreads_and(arrived);
}

}  // namespace warpweave
