// A transfer between two ranks in one launch: wait for the peer's flag, copy, signal the peer. The twin of
// `p2p/protocol.rs`.
//
// Any number of blocks copy. Each waits for itself, and the block with the last ticket signals for all. A
// block whose wait failed, or that finds that this rank or the peer has given up, copies nothing and takes no
// ticket: nobody signals then, and the peer finds the notice. `recover` resets tickets and counters.
#pragma once

#include <cstdint>

#include "warpweave/signal.cuh"

namespace warpweave {

// `crates/comm/src/p2p/cuda/parameters.rs` has the same layout.
struct Transfer {
  void* to;
  const void* from;
  uint64_t bytes;
  const uint32_t* awaited;  // the flag that the peer writes in this rank's pad, in slot `wait`
  uint32_t* signalled;      // the flag that this rank writes in the peer's pad, in slot `signal`
  PadView pad;
  uint32_t peer;
  uint32_t wait;
  uint32_t signal;
  uint32_t chunk;   // bulk copies: bytes of a stage, a multiple of 16
  uint32_t stages;  // bulk copies: stages of the ring
  uint32_t reserved;
};
static_assert(sizeof(Transfer) == 5 * 8 + sizeof(PadView) + 6 * 4, "as in Rust");

// What one thread of a block knows of the flags.
struct Grant {
  uint32_t expected;
  uint32_t sent;
  bool granted;
};

// Waits until the peer grants this transfer. One thread of each block.
__device__ __forceinline__ Grant begin_transfer(const Transfer& p) {
  const PadView& pad = p.pad;
  // The loads overlap. No block changes a counter before all have taken their tickets.
  Grant grant;
  grant.expected = load_counter(pad.expected + counter_index(pad, p.wait, p.peer)) + 1;
  grant.sent = load_counter(pad.sent + counter_index(pad, p.signal, p.peer)) + 1;
  const bool broken = faulted(pad);
  const bool arrived = wait_flag(pad, p.awaited, p.wait, p.peer, grant.expected);
  grant.granted = arrived && !broken;
  if (arrived && broken) withhold_signal(pad, p.signal, p.peer);
  return grant;
}

// Signals the peer that the transfer has ended. The thread of `begin_transfer`, after a barrier of its block
// and when its own copies are complete.
__device__ __forceinline__ void end_transfer(const Transfer& p, const Grant& grant) {
  const PadView& pad = p.pad;
  if (!grant.granted) return;
  if (gridDim.x > 1 && !take_last_ticket(pad, p.wait, p.peer, gridDim.x)) return;
  // In this order: a release waits for earlier stores.
  store_release_sys(p.signalled, grant.sent);
  pad.sent[counter_index(pad, p.signal, p.peer)] = grant.sent;
  advance_expected(pad, p.wait, p.peer, grant.expected);
}

}  // namespace warpweave
