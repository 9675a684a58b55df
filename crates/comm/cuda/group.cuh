// Where the ranks of a collective meet: the twin of `collective/launch.rs`.
//
// A collective is one or more launches, and every launch here makes each rank hear from every other. Two things follow:
// - Whoever has ended a launch knows that all peers have ended the one before it.
// - A counter that each block keeps for itself, one higher with every launch, is the same on all ranks. It needs no atomic
//   and no host, and a captured graph goes on counting.
//
// A rank that gave up has not ended its launch: it sends, copies and publishes nothing more, so that what the others conclude
// from hearing of it stays true (`pad/fault.rs` in symm-mem).
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
  PadView pad;        // slots: [phase][block], then those of other protocols
  Addresses words;    // the words of every rank's pad
  uint32_t* epochs;   // [kMaxBlocks], each block's own
  uint64_t reserved;
};
static_assert(sizeof(Group) == sizeof(PadView) + 64 + 16, "as in Rust");

enum Phase : uint32_t { kEnter = 0, kLeave = 1 };

// Slots behind those of the meetings: for each slice of a block.
constexpr uint32_t kSliceSlot = 2 * kMaxBlocks;
constexpr uint32_t kMaxSlices = 8;

// The epoch of this launch.
__device__ __forceinline__ uint32_t epoch_of(const Group& group) { return load_counter(group.epochs + blockIdx.x) + 1; }

// Makes the next launch's epoch one higher, for the blocks that only a larger grid has as well. By all threads of a block,
// of which all have read the epoch.
__device__ __forceinline__ void advance_epoch(const Group& group, uint32_t epoch) {
  for (uint32_t block = blockIdx.x + threadIdx.x * gridDim.x; block < kMaxBlocks; block += blockDim.x * gridDim.x)
    group.epochs[block] = epoch;
}

// The epoch of this launch, and the next launch's is one higher. By all threads of a block; a barrier.
__device__ __forceinline__ uint32_t next_epoch_of(const Group& group) {
  const uint32_t epoch = epoch_of(group);
  __syncthreads();
  advance_epoch(group, epoch);
  return epoch;
}

// As `next_epoch_of`, for a launch that sends before it waits: `sound` if it may, since neither this rank nor a peer has given
// up. The loads overlap that of the epoch.
__device__ __forceinline__ uint32_t next_epoch_of(const Group& group, bool& sound) {
  const bool failed = faulted(group.pad);
  const uint32_t epoch = epoch_of(group);
  sound = !__syncthreads_or(failed);
  if (!sound && threadIdx.x == 0)
    record_fault(group.pad, blockIdx.x, (group.pad.rank + 1) % group.pad.world, epoch, 0, 0);
  advance_epoch(group, epoch);
  return epoch;
}

// The word that `source` writes on `owner` for a block of this number in `phase`.
__device__ __forceinline__ uint32_t* meeting_word(const Group& group, uint32_t owner, uint32_t phase, uint32_t block,
                                                  uint32_t source) {
  const uint64_t index = counter_index(group.pad, phase * kMaxBlocks + block, source);
  return reinterpret_cast<uint32_t*>(group.words.of[owner] + index * kWordStride);
}

// The slot of a slice of this block, and the word that `source` writes in it on `owner`.
__device__ __forceinline__ uint32_t slice_slot(uint32_t index) { return kSliceSlot + index * kMaxBlocks + blockIdx.x; }
__device__ __forceinline__ uint32_t* slice_word(const Group& group, uint32_t owner, uint32_t index, uint32_t source) {
  const uint64_t word = counter_index(group.pad, slice_slot(index), source);
  return reinterpret_cast<uint32_t*>(group.words.of[owner] + word * kWordStride);
}

// Every block meets the block of its number on each peer: what the peers' blocks did before is visible to this one
// afterwards. False on all threads if a peer did not come in time, or if this rank or a peer has given up. By all threads; a
// barrier.
__device__ __forceinline__ bool meet(const Group& group, Phase phase, uint32_t epoch) {
  const uint32_t peer = threadIdx.x, slot = phase * kMaxBlocks + blockIdx.x;
  const bool theirs = peer < group.pad.world && peer != group.pad.rank;
  // Its load overlaps that of the epoch, or the stores that the barrier waits for.
  bool arrived = !theirs || !stopped(group.pad);
  __syncthreads();
  if (theirs && arrived) {
    store_release_sys(meeting_word(group, peer, phase, blockIdx.x, group.pad.rank), epoch);
    // A word that is left alone for 2^31 launches would look as if it were ahead: those of the blocks that this grid lacks
    // take their turns, one a launch.
    const uint32_t absent = kMaxBlocks - gridDim.x;
    if (blockIdx.x == 0 && absent > 0)
      store_relaxed_sys(meeting_word(group, peer, phase, gridDim.x + epoch % absent, group.pad.rank), epoch);
    arrived = wait_word(group.pad, meeting_word(group, group.pad.rank, phase, blockIdx.x, peer), slot, peer, epoch);
  } else if (theirs) {
    record_fault(group.pad, slot, peer, epoch, 0, 0);
  }
  return __syncthreads_and(arrived);
}

}  // namespace warpweave
