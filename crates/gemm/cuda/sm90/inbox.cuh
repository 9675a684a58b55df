// How one thread of a block fetches pieces of its peers' memory while the rest of the block multiplies: bulk copies from the
// peer to shared memory, and from there to this rank's.
//
//   load     piece i into slot i % kSlots
//   store    piece i - kAhead, once it has come
//   arrive   piece i - kAhead - kLag, where it is counted: once it has been written
//
// Loads, not stores, cross the link: what it holds up then waits in its own place, and nothing else of the multiprocessor
// behind it. The bytes of a piece go through the async proxy alone, so that none of this needs a fence. A group that
// `bulk_wait` has waited for is visible to this thread, and with it to whom this thread's next release reaches.
#pragma once

#include <cstdint>

#include "tile.cuh"
#include "warpweave/bulk.cuh"
#include "warpweave/signal.cuh"

namespace warpweave {

// Bytes of a piece, the most that one instruction moves here.
constexpr uint32_t kPieceBytes = 4096;
// Pieces in shared memory.
constexpr uint32_t kSlots = 4;
// Loads that run ahead of the stores: what they have in flight covers the link's latency.
constexpr uint32_t kAhead = 2;
// Stores that have not been waited for when the next is issued.
constexpr uint32_t kLag = 1;
static_assert(kAhead < kSlots, "a slot is loaded when its store has been read");

struct Inbox {
  // What has to be remembered of a piece from its load to its arrival.
  struct Piece {
    void* to;
    // Counts the block once the piece has arrived; null where more of its kind follow.
    uint32_t* arrived;
    uint32_t bytes;
  };
  static constexpr uint32_t kPieces = 8;
  static_assert(kAhead + 1 + kLag <= kPieces, "none is forgotten too early");

  alignas(128) char slots[kSlots][kPieceBytes];
  Piece pieces[kPieces];
  uint64_t full[kSlots];
  // Where another warp waits for the rows of a tile: they are here; that has been noticed.
  uint64_t here;
  uint64_t noticed;
};

// Behind the memory of a block's tiles, for which one buffer of C for each consumer makes room.
template <typename T, Major kMajorB, uint32_t kN, Common kCommon>
using FetchingTile = Tile<T, kMajorB, kN, kCommon, 1>;

template <class Tile>
constexpr uint32_t kFetchingBytes = kSharedBytes<Tile> + sizeof(Inbox);

template <class Tile>
__device__ __forceinline__ Inbox& inbox_of_block() {
  return *reinterpret_cast<Inbox*>(&memory_of_block<Tile>() + 1);
}

__host__ __device__ constexpr uint32_t pieces_of(uint64_t bytes) { return uint32_t((bytes + kPieceBytes - 1) / kPieceBytes); }

// What lies in lines of `bytes`, each `stride` bytes behind the one before, as pieces.
struct Lines {
  struct Piece {
    uint64_t offset;
    uint32_t bytes;
  };

  uint32_t count;
  uint64_t bytes;
  uint64_t stride;

  __device__ __forceinline__ uint32_t pieces() const { return count * pieces_of(bytes); }

  __device__ __forceinline__ Piece piece(uint32_t index) const {
    const uint32_t each = pieces_of(bytes);
    const uint64_t at = uint64_t(index % each) * kPieceBytes;
    return {index / each * stride + at, uint32_t(min(uint64_t(kPieceBytes), bytes - at))};
  }
};

// The one thread that uses an inbox.
class Fetcher {
 public:
  __device__ __forceinline__ explicit Fetcher(Inbox& inbox) : inbox_(inbox) {
    for (uint64_t& full : inbox_.full) init_barrier(&full, 1);
    publish_barriers();
  }

  // `bytes`, a multiple of 16 and at most `kPieceBytes`.
  __device__ __forceinline__ void fetch(void* to, const void* from, uint32_t bytes, uint32_t* arrived) {
    // Of the stores so far, up to that of piece `loaded_ - 1 - kAhead` at least, the one of piece `loaded_ - kSlots` has been
    // read.
    bulk_wait_read<int(kSlots - 1 - kAhead)>();
    const uint32_t slot = loaded_ % kSlots;
    arrive_expecting(&inbox_.full[slot], bytes);
    bulk_load(inbox_.slots[slot], from, bytes, &inbox_.full[slot]);
    inbox_.pieces[loaded_ % Inbox::kPieces] = {to, arrived, bytes};
    if (++loaded_ - stored_ <= kAhead) return;
    store();
    count();
  }

  // Returns when everything so far has arrived.
  __device__ __forceinline__ void drain() {
    while (stored_ != loaded_) store();
    if (counted_ == stored_) return;
    bulk_wait<0>();
    // One release for all that are left.
    fence_acq_rel_gpu();
    for (; counted_ != stored_; ++counted_) {
      uint32_t* arrived = inbox_.pieces[counted_ % Inbox::kPieces].arrived;
      if (arrived != nullptr) add_relaxed_gpu(arrived, 1);
    }
  }

 private:
  __device__ __forceinline__ void store() {
    const uint32_t slot = stored_ % kSlots;
    const Inbox::Piece& piece = inbox_.pieces[stored_ % Inbox::kPieces];
    wait_phase(&inbox_.full[slot], stored_ / kSlots % 2);
    bulk_store(piece.to, inbox_.slots[slot], piece.bytes);
    bulk_commit();
    ++stored_;
  }

  // All but the last `kLag` that are stored.
  __device__ __forceinline__ void count() {
    if (stored_ - counted_ <= kLag) return;
    uint32_t* arrived = inbox_.pieces[counted_++ % Inbox::kPieces].arrived;
    if (arrived == nullptr) return;
    bulk_wait<int(kLag)>();
    add_release_gpu(arrived, 1);
  }

  Inbox& inbox_;
  uint32_t loaded_ = 0;
  uint32_t stored_ = 0;
  uint32_t counted_ = 0;
};

}  // namespace warpweave
