// The receive ring: slots in shared memory through which one thread moves bytes between ranks by bulk copies,
// while the rest of the block multiplies. `Puller` uses it to pull from peers; `eager.cu` as the bounce
// buffer of its pushes.
//
// A puller works on three pieces at a time:
//
//   load    piece i into slot i % kSlots
//   store   piece i - kAhead to this rank's memory, when it has arrived
//   count   piece i - kAhead - kLag, if it is the last of what is counted, when it has been written
//
// Loads cross the link, not stores: a slow link then stalls the loads alone and none of the SM's other
// stores. The bytes stay in the async proxy, so that no proxy fence is needed. Groups that `bulk_wait` has
// waited for are visible to this thread, and to whoever acquires its next release.
#pragma once

#include <cstdint>

#include "tile.cuh"
#include "warpweave/bulk.cuh"
#include "warpweave/signal.cuh"
#include "warpweave/tma.cuh"

namespace warpweave {

// The largest piece that is copied at once.
constexpr uint32_t kPieceBytes = 4096;
// Pieces in shared memory.
constexpr uint32_t kSlots = 4;
// Loads in flight ahead of the stores. They cover the link's latency.
constexpr uint32_t kAhead = 2;
// Stores that the next store does not wait for.
constexpr uint32_t kLag = 1;
static_assert(kAhead < kSlots, "a slot is loaded when its store has been read");

struct RecvRing {
  // A piece, from its load until it is counted.
  struct Piece {
    // An address, or the map of a box.
    const void* to;
    // Counts the block when this piece and all before it have arrived; null if more of its pieces follow.
    uint32_t* arrived;
    // 0 of a box.
    uint32_t bytes;
    // Of a box, in the units of its map.
    int32_t column, row;
  };
  static constexpr uint32_t kPieces = 4;
  static_assert(kAhead + 1 + kLag <= kPieces, "room for all pieces in flight");

  alignas(128) char slots[kSlots][kPieceBytes];
  Piece pieces[kPieces];
  uint64_t full[kSlots];
  // Between a warp that waits for the rows of a tile and the load warp: they are here; the load warp knows.
  uint64_t here;
  uint64_t noticed;
};

// A tile that leaves room for the ring: one buffer of C for each consumer.
template <typename T, Major kMajorB, uint32_t kN, Multicast kMulticast, typename C = T,
          Scaling kScaling = Scaling::kNone>
using RingTile = Tile<T, kMajorB, kN, kMulticast, C, kScaling, 1>;

// Dynamic shared memory of a launch with a ring: `FETCHING_BYTES` in `sm90/config.rs`.
template <class Tile>
constexpr uint32_t kRingSharedBytes = kSharedBytes<Tile> + sizeof(RecvRing);

template <class Tile>
__device__ __forceinline__ RecvRing& recv_ring_of_block() {
  return *reinterpret_cast<RecvRing*>(&memory_of_block<Tile>() + 1);
}

__host__ __device__ constexpr uint32_t pieces_of(uint64_t bytes) {
  return uint32_t((bytes + kPieceBytes - 1) / kPieceBytes);
}

// `count` rows of `bytes`, `stride` bytes apart, as pieces.
struct StridedRows {
  struct Piece {
    uint64_t offset;
    uint32_t bytes;
  };

  uint32_t count;
  uint64_t bytes;
  uint64_t stride;

  // Contiguous rows are one. By reference, so that a parameter of the launch is loaded where it is used.
  static __device__ __forceinline__ StridedRows of(const uint32_t& count, const uint32_t& bytes,
                                                   const uint32_t& stride) {
    return bytes == stride ? StridedRows{1, uint64_t(count) * bytes, 0} : StridedRows{count, bytes, stride};
  }

  __device__ __forceinline__ uint32_t pieces() const { return count * pieces_of(bytes); }

  __device__ __forceinline__ Piece piece(uint32_t index) const {
    const uint32_t each = pieces_of(bytes);
    const uint64_t at = uint64_t(index % each) * kPieceBytes;
    return {index / each * stride + at, uint32_t(min(uint64_t(kPieceBytes), bytes - at))};
  }
};

// The one thread of a block that pulls.
class Puller {
 public:
  __device__ __forceinline__ explicit Puller(RecvRing& ring) : ring_(ring) {}

  // Once, before the first piece.
  __device__ __forceinline__ void begin() const {
    for (uint64_t& full : ring_.full) init_barrier(&full, 1);
    publish_barriers();
  }

  // Copies `bytes`, a multiple of 16 and at most `kPieceBytes`.
  __device__ __forceinline__ void pull(void* to, const void* from, uint32_t bytes) {
    const uint32_t slot = next_slot(bytes);
    bulk_load(ring_.slots[slot], from, bytes, &ring_.full[slot]);
    loading({to, nullptr, bytes, 0, 0});
  }

  // Copies a box of `bytes`, at most `kPieceBytes`, from the matrix of one map to that of another. Both have
  // the same boxes, without swizzle; what lies beyond a matrix is not copied.
  __device__ __forceinline__ void pull_box(const TensorMap* to, const TensorMap* from, int32_t column,
                                           int32_t row, uint32_t bytes) {
    const uint32_t slot = next_slot(bytes);
    load_box(ring_.slots[slot], from, column, row, &ring_.full[slot]);
    loading({to, nullptr, 0, column, row});
  }

  // Adds one to a counter when everything so far has arrived.
  __device__ __forceinline__ void count(uint32_t* arrived) {
    if (counted_ != loaded_) {
      // The newest piece, which has not been stored.
      uint32_t*& of_newest = ring_.pieces[(loaded_ - 1) % RecvRing::kPieces].arrived;
      if (of_newest == nullptr) {
        of_newest = arrived;
        return;
      }
      // Nothing was pulled since it was counted.
      drain();
    }
    add_release_gpu(arrived, 1);
  }

  // Returns when everything so far has arrived and been counted.
  __device__ __forceinline__ void drain() {
    while (stored_ != loaded_) store();
    if (counted_ == stored_) return;
    bulk_wait<0>();
    // One release for all that are left.
    fence_acq_rel_gpu();
    for (; counted_ != stored_; ++counted_) {
      uint32_t* arrived = ring_.pieces[counted_ % RecvRing::kPieces].arrived;
      if (arrived != nullptr) add_relaxed_gpu(arrived, 1);
    }
  }

 private:
  // A slot that expects `bytes`.
  __device__ __forceinline__ uint32_t next_slot(uint32_t bytes) const {
    // The newest store is at least that of piece `loaded_ - 1 - kAhead`: the store of piece `loaded_ -
    // kSlots` has been read then.
    bulk_wait_read<int(kSlots - 1 - kAhead)>();
    const uint32_t slot = loaded_ % kSlots;
    arrive_expecting(&ring_.full[slot], bytes);
    return slot;
  }

  __device__ __forceinline__ void loading(const RecvRing::Piece& piece) {
    ring_.pieces[loaded_ % RecvRing::kPieces] = piece;
    if (++loaded_ - stored_ <= kAhead) return;
    store();
    count_stored();
  }

  __device__ __forceinline__ void store() {
    const uint32_t slot = stored_ % kSlots;
    const RecvRing::Piece& piece = ring_.pieces[stored_ % RecvRing::kPieces];
    wait_phase(&ring_.full[slot], stored_ / kSlots % 2);
    if (piece.bytes == 0) {
      store_box(static_cast<const TensorMap*>(piece.to), piece.column, piece.row, ring_.slots[slot]);
    } else {
      bulk_store(const_cast<void*>(piece.to), ring_.slots[slot], piece.bytes);
    }
    bulk_commit();
    ++stored_;
  }

  // All but the last `kLag` that are stored.
  __device__ __forceinline__ void count_stored() {
    if (stored_ - counted_ <= kLag) return;
    uint32_t* arrived = ring_.pieces[counted_++ % RecvRing::kPieces].arrived;
    if (arrived == nullptr) return;
    bulk_wait<int(kLag)>();
    add_release_gpu(arrived, 1);
  }

  RecvRing& ring_;
  uint32_t loaded_ = 0;
  uint32_t stored_ = 0;
  uint32_t counted_ = 0;
};

}  // namespace warpweave
