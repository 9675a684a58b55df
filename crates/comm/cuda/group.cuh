// The process group of a collective, its epochs and its barrier. `collective/launch.rs` has the same layouts.
//
// A collective is one or more launches, and in every launch each rank receives from every other. Two things
// follow:
// - A rank that has ended a launch knows that all peers have ended the one before.
// - A counter that each block keeps, one higher with every launch, is the same on all ranks. It needs no
//   atomic and no host, and a captured graph goes on counting.
//
// Flags, and packets, carry the signature of their call: in one access with the epoch, so that it costs
// nothing. A rank that makes another call than its peers is found by that at the first flag that it waits
// for, and accesses nobody's memory after it.
//
// A rank that gave up has not ended its launch: it sends, copies and publishes nothing more, so that the
// peers' conclusions stay true (`pad/fault.rs` in symm-mem).
#pragma once

#include "warpweave/signal.cuh"

namespace warpweave {

constexpr uint32_t kMaxWorld = 16;
constexpr uint32_t kMaxBlocks = 128;

// Kernels are compiled for up to two, four, eight and sixteen ranks; to check the device code, not to run it,
// for sixteen.
#ifndef WARPWEAVE_FEW_INSTANCES
#define WARPWEAVE_WORLDS(FOR) FOR(2) FOR(4) FOR(8) FOR(16)
#else
#define WARPWEAVE_WORLDS(FOR) FOR(16)
#endif

// Vectors or packets that a thread has in flight for each of `W` ranks, as many as registers hold.
template <int W>
constexpr int kUnrolled = W > 8 ? 1 : W > 4 ? 2 : 4;

// Addresses by rank, by value: a table in memory would cost its latency at the start of every launch.
struct Addresses {
  uint64_t of[kMaxWorld];
};

// The layout of `Group` in `launch.rs`.
struct Group {
  uint32_t* epochs;  // [kMaxBlocks], one of each block
  uint32_t signature;
  uint32_t reserved;
  PadView pad;      // slots: [phase][block], followed by those of other protocols
  Addresses flags;  // the flags of every rank's pad
};
static_assert(sizeof(Group) == sizeof(PadView) + sizeof(Addresses) + 16, "as in Rust");

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

// What a flag holds: the epoch, and the signature in its upper half.
__device__ __forceinline__ uint64_t signed_epoch(const Group& group, uint32_t epoch) {
  return uint64_t(group.signature) << 32 | epoch;
}

// What a fault record has for the epoch seen, if it was the expected one with another signature: as far ahead
// as no epoch is. `of_other_call` in `host/group.rs` too.
__device__ __forceinline__ uint32_t of_other_call(uint32_t expected) { return expected ^ 1u << 31; }

// The flag that `source` writes in `slot` of `owner`.
__device__ __forceinline__ uint64_t* signed_flag(const Group& group, uint32_t owner, uint32_t slot,
                                                 uint32_t source) {
  const uint64_t index = counter_index(group.pad, slot, source);
  return reinterpret_cast<uint64_t*>(group.flags.of[owner] + index * kFlagStride);
}

// Waits until `is_enough` accepts the epoch of the flag that `peer` writes in `slot` of this rank. False if
// it timed out, if the peer makes another call, or if this rank or a peer has given up. A flag that has gone
// on to a later epoch is of a peer that found this rank's signature to be its own.
template <typename IsEnough>
__device__ __forceinline__ bool wait_signed(const Group& group, uint32_t slot, uint32_t peer, uint32_t epoch,
                                            IsEnough is_enough) {
  const uint64_t* flag = signed_flag(group, group.pad.rank, slot, peer);
  uint64_t last = 0;
  const auto accept = [&](uint64_t seen) {
    last = seen;
    return is_enough(uint32_t(seen));
  };
  if (!wait_until<FaultCode::kCalled, 1>(group.pad, flag, slot, peer, epoch, accept)) return false;
  if (uint32_t(last) != epoch || last == signed_epoch(group, epoch)) return true;
  record_fault(group.pad, slot, peer, epoch, of_other_call(epoch), 1);
  return false;
}

// The slot of a slice of this block.
__device__ __forceinline__ uint32_t slice_slot(uint32_t index) {
  return kSliceSlot + index * kMaxBlocks + blockIdx.x;
}

// Signals `peer` that a slice of this block is there, after what this thread did or saw done.
__device__ __forceinline__ void signal_slice(const Group& group, uint32_t index, uint32_t peer,
                                             uint32_t epoch) {
  uint64_t* flag = signed_flag(group, peer, slice_slot(index), group.pad.rank);
  store_release_sys(flag, signed_epoch(group, epoch));
}

// Waits for a slice of `peer`. Its flag is compared for equality: the peer writes it again only in a later
// launch, which it cannot begin before this rank has left this one.
__device__ __forceinline__ bool wait_slice(const Group& group, uint32_t index, uint32_t peer,
                                           uint32_t epoch) {
  return wait_signed(group, slice_slot(index), peer, epoch, [&](uint32_t seen) { return seen == epoch; });
}

// The half of a barrier that signals `peer`: releases what this thread did or saw done. `slot` is this
// block's.
__device__ __forceinline__ void arrive(const Group& group, uint32_t slot, uint32_t peer, uint32_t epoch) {
  store_release_sys(signed_flag(group, peer, slot, group.pad.rank), signed_epoch(group, epoch));
}

// The other half: waits for `peer`. False as of `wait_signed`. Launches without barriers, or of fewer blocks,
// leave the flag as it is.
__device__ __forceinline__ bool wait_for(const Group& group, uint32_t slot, uint32_t peer, uint32_t epoch) {
  return wait_signed(group, slot, peer, epoch, [&](uint32_t seen) { return reached_call(seen, epoch); });
}

// A barrier of the blocks of this number on all ranks: afterwards this block sees what the peers' blocks did
// before. False on all threads if a peer timed out or makes another call, or if this rank or a peer has given
// up. All threads of a block.
__device__ __forceinline__ bool group_barrier(const Group& group, Phase phase, uint32_t epoch) {
  const uint32_t peer = threadIdx.x, slot = phase * kMaxBlocks + blockIdx.x;
  const bool theirs = peer < group.pad.world && peer != group.pad.rank;
  // The load overlaps that of the epoch, or the stores that the barrier waits for.
  bool arrived = !theirs || !stopped(group.pad);
  __syncthreads();
  if (theirs && arrived) {
    arrive(group, slot, peer, epoch);
    arrived = wait_for(group, slot, peer, epoch);
  } else if (theirs) {
    record_fault(group.pad, slot, peer, epoch, 0, 0);
  }
  return __syncthreads_and(arrived);
}

}  // namespace warpweave
