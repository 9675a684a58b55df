// How one thread of a block sends pieces of this rank's memory to its peers while the rest of the block multiplies: bulk
// copies from global to shared memory and from there to the peer.
//
//   load     piece i into slot i % kSlots, `kAhead` pieces before it is stored
//   store    piece i to the peer, as a group of its own
//   arrive   piece i - kLag has been written, as this thread has waited for: whoever announces may count it
//
// The bytes of a piece go through the async proxy alone, so that none of this needs a fence. A group that `bulk_wait` has
// waited for is visible to this thread, and with it to whom this thread's next release reaches.
#pragma once

#include <cstdint>

#include "warpweave/bulk.cuh"

namespace warpweave {

// Bytes of a piece, the most that one instruction moves here.
constexpr uint32_t kPieceBytes = 4096;
// Pieces in shared memory.
constexpr uint32_t kSlots = 4;
// Loads that run ahead of the stores.
constexpr uint32_t kAhead = 2;
// Stores that have not been waited for when the next is issued: what they have in flight covers the link's latency, and what
// is announced is announced so many pieces late.
constexpr uint32_t kLag = 2;
static_assert(kAhead < kSlots, "a slot is loaded when its store has been read");

struct Outbox {
  // What a piece belongs to, where it is the last that this block sends of it.
  struct Last {
    uint32_t chunk;
    uint32_t peer;
    // Blocks that send some of it; 0 where more of this block's pieces follow.
    uint32_t blocks;
  };
  // What has to be remembered of a piece from its load to its arrival.
  struct Piece {
    void* to;
    uint32_t bytes;
    Last last;
  };
  // From the piece that is loaded back to the one that arrives.
  static constexpr uint32_t kPieces = 8;
  static_assert(kAhead + kLag < kPieces, "none is forgotten too early");

  alignas(128) char slots[kSlots][kPieceBytes];
  Piece pieces[kPieces];
  uint64_t full[kSlots];
};

// The one thread that uses an outbox. `Arrive` is called with `Last` of each piece that has one, in order.
template <class Arrive>
class Sender {
 public:
  __device__ __forceinline__ Sender(Outbox& outbox, Arrive arrive) : outbox_(outbox), arrive_(arrive) {
    for (uint64_t& full : outbox_.full) init_barrier(&full, 1);
    publish_barriers();
  }

  // `bytes`, a multiple of 16 and at most `kPieceBytes`.
  __device__ __forceinline__ void send(void* to, const void* from, uint32_t bytes, Outbox::Last last) {
    // Of the stores so far, up to that of piece `loaded_ - 1 - kAhead`, the one of piece `loaded_ - kSlots` has been read.
    bulk_wait_read<int(kSlots - 1 - kAhead)>();
    const uint32_t slot = loaded_ % kSlots;
    arrive_expecting(&outbox_.full[slot], bytes);
    bulk_load(outbox_.slots[slot], from, bytes, &outbox_.full[slot]);
    outbox_.pieces[loaded_ % Outbox::kPieces] = {to, bytes, last};
    ++loaded_;
    if (loaded_ > kAhead) store(loaded_ - 1 - kAhead);
  }

  // Returns when everything has arrived.
  __device__ __forceinline__ void drain() {
    for (uint32_t i = loaded_ > kAhead ? loaded_ - kAhead : 0; i < loaded_; ++i) store(i);
    bulk_wait<0>();
    for (uint32_t i = loaded_ > kLag ? loaded_ - kLag : 0; i < loaded_; ++i) arrive(i);
  }

 private:
  __device__ __forceinline__ void store(uint32_t i) {
    const uint32_t slot = i % kSlots;
    const Outbox::Piece& piece = outbox_.pieces[i % Outbox::kPieces];
    wait_phase(&outbox_.full[slot], i / kSlots % 2);
    bulk_store(piece.to, outbox_.slots[slot], piece.bytes);
    bulk_commit();
    if (i >= kLag) {
      bulk_wait<int(kLag)>();
      arrive(i - kLag);
    }
  }

  __device__ __forceinline__ void arrive(uint32_t i) {
    const Outbox::Last& last = outbox_.pieces[i % Outbox::kPieces].last;
    if (last.blocks != 0) arrive_(last);
  }

  Outbox& outbox_;
  Arrive arrive_;
  uint32_t loaded_ = 0;
};

}  // namespace warpweave
