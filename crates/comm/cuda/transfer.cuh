// One transfer between two ranks: wait for the peer's word, copy, signal the peer; in one launch. The twin of
// `p2p/protocol.rs`.
//
// Any number of blocks copy. Each waits for itself, and the last to draw the ticket speaks for all. A block whose wait
// failed, or that finds that this rank or the peer has given up, copies nothing and draws no ticket: then nobody signals what
// did not happen, and the notice tells the peer. `recover` makes tickets and counters whole.
#pragma once

#include <cstdint>

#include "warpweave/signal.cuh"

namespace warpweave {

// `crates/comm/src/p2p/cuda/parameters.rs` has the same layout.
struct Transfer {
  void* to;
  const void* from;
  uint64_t bytes;
  const uint32_t* awaited;  // the word that the peer writes in our pad, in slot `wait`
  uint32_t* announced;      // the word that we write in the peer's pad, in slot `signal`
  PadView pad;
  uint32_t peer;
  uint32_t wait;
  uint32_t signal;
  uint32_t chunk;   // bulk copies: bytes of a stage, a multiple of 16
  uint32_t stages;  // bulk copies: stages of the ring
  uint32_t reserved;
};
static_assert(sizeof(Transfer) == 5 * 8 + sizeof(PadView) + 6 * 4, "as in Rust");

// What one thread of a block knows of the words.
struct Turn {
  uint32_t expected;
  uint32_t sent;
  bool granted;
};

// Waits until the peer lets this transfer begin. One thread of each block.
__device__ __forceinline__ Turn begin_transfer(const Transfer& p) {
  const PadView& pad = p.pad;
  // Three loads at once: no block changes a counter before all have drawn the ticket.
  Turn turn;
  turn.expected = load_counter(pad.expected + counter_index(pad, p.wait, p.peer)) + 1;
  turn.sent = load_counter(pad.sent + counter_index(pad, p.signal, p.peer)) + 1;
  const bool broken = faulted(pad);
  turn.granted = wait_word(pad, p.awaited, p.wait, p.peer, turn.expected) && !broken;
  return turn;
}

// Tells the peer that the transfer is over. The thread of `begin_transfer`, behind a barrier of its block and behind the
// completion of what it copied itself.
__device__ __forceinline__ void end_transfer(const Transfer& p, const Turn& turn) {
  const PadView& pad = p.pad;
  if (!turn.granted) return;
  if (gridDim.x > 1 && !draw_last(pad, p.wait, p.peer, gridDim.x)) return;
  // In this order: a release waits for the stores before it.
  store_release_sys(p.announced, turn.sent);
  pad.sent[counter_index(pad, p.signal, p.peer)] = turn.sent;
  advance_expected(pad, p.wait, p.peer, turn.expected);
}

}  // namespace warpweave
