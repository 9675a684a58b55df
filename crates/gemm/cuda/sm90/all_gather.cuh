// All-gather and product in one launch: C[M, N] = A[M, K] · B[K, N] on every rank, where each has a shard of the rows of A.
//
//   warp 0      one thread: the producer of `gemm.cuh`, which waits for the chunk of rows that a tile needs
//   warp 1      one thread: sends the block's share of this rank's shard to all peers
//   consumers   as in `gemm.cuh`
//
// Each shard is a product of its own, with its own maps of A and C: this rank's rows are read where they lie, the others in
// staging, and no tile has rows of two shards. All shards are one walk over tiles: this rank's first, then chunk after chunk
// as they come.
//
// Words of the pad, by slot:
//   ready + i   from a rank to a peer, once a call: "chunk i of my shard is in your staging"
//   free        from a rank to a peer, once a call: "my call has read your rows"; the sender's credit for its next call
//
// The memory model of the words is that of `warpweave/signal.cuh`. In order, from a row of A on rank s to the tile on rank r:
//   1. Its piece is stored by a bulk copy and waited for in full (`bulk_wait`, not `_read`): written, and visible to the thread.
//   2. The thread draws from the chunk's ticket, acquire and release in this GPU. Whoever draws last has all other blocks'
//      pieces behind it, and signals: a release to the system.
//   3. The producer's thread of each block of r that needs the chunk acquires the word at system scope, fences the async
//      proxy, and loads by TMA. (A block of a cluster that loads for both has waited itself.)
// And back, before the row is overwritten:
//   4. The consumers have seen their loads come, all of a block meet, and a thread draws from the ticket of `free`. The last
//      signals the peers.
//   5. The sending thread acquires that credit, fences, and stores by bulk copies.
//
// All blocks are to be resident at once: each sends a share that the peers wait for. Nothing waits in a circle: senders wait
// for calls that came before, producers for senders, consumers for producers. The launch is not programmatic: the next call
// would have to stay off the pad's counters until this one has ended.
#pragma once

#include "gemm.cuh"
#include "outbox.cuh"
#include "warpweave/signal.cuh"

namespace warpweave {

// Ranks that a launch has place for.
constexpr uint32_t kMostRanks = 8;

// Consecutive rows of clusters' tiles of a shard, walked column after column. `Band` in `all_gather_matmul/table.rs`.
struct Band {
  // The first tile of the walk behind it.
  uint32_t end;
  uint32_t row;
  uint32_t rows;
  uint32_t shard;
};
static_assert(sizeof(Band) == sizeof(uint4), "one load");

// The parameters of a launch. `Gathering` in `sm90/all_gather.rs` has the same layout.
struct alignas(128) Gathering {
  // By shard. That of an empty one is never used.
  TensorMap a[kMostRanks];
  TensorMap c[kMostRanks];
  TensorMap b;
  PadView pad;
  // Where this rank's shard goes, by rank.
  uint64_t to[kMostRanks];
  uint64_t own;
  const Band* bands;
  // Rows of each shard.
  uint32_t rows[kMostRanks];
  // In tiles of a cluster: all of them, and of a row.
  uint32_t tiles;
  uint32_t columns;
  // Steps of K.
  uint32_t steps;
  // Of A.
  uint32_t row_bytes;
  uint32_t chunk_rows;
  // Slots.
  uint32_t ready;
  uint32_t free;

  __device__ __forceinline__ const TensorMap* map_a(Corner corner) const { return &a[corner.part]; }
  __device__ __forceinline__ const TensorMap* map_c(Corner corner) const { return &c[corner.part]; }

  template <class Tile, class Visit>
  __device__ __forceinline__ void for_each_tile(Visit&& visit) const {
    const Band* next = bands;
    for (uint32_t index = blockIdx.x / Tile::kCluster; index < tiles; index += gridDim.x / Tile::kCluster) {
      // The walk only goes on, so that the band is this one or a later one.
      uint4 band = __ldg(reinterpret_cast<const uint4*>(next));
      while (index >= band.x) band = __ldg(reinterpret_cast<const uint4*>(++next));
      const uint32_t within = index - (band.x - band.z * columns);
      visit(corner_of<Tile>({band.y + within % band.z, within / band.z}, band.w));
    }
  }
  __device__ __forceinline__ void prefetch_maps() const {
    prefetch_map(&a[pad.rank]);
    prefetch_map(&b);
    prefetch_map(&c[pad.rank]);
  }
};
static_assert(sizeof(Gathering) == 2432, "as in Rust");

// The tile of a block that also sends: one buffer of C for each consumer makes room for the outbox.
template <typename T, Major kMajorB, uint32_t kN, Common kCommon>
using SendingTile = Tile<T, kMajorB, kN, kCommon, 1>;

template <class Tile>
constexpr uint32_t kSendingBytes = kSharedBytes<Tile> + sizeof(Outbox);

template <class Tile>
class Gather {
 public:
  __device__ __forceinline__ explicit Gather(const Gathering& product) : product_(product) {}

  // The producer's thread. Tiles of a row follow each other, so that most need what the one before needed. A peer that misses
  // the deadline has been recorded; its rows are then computed from what lies in staging, for nobody to read.
  __device__ __forceinline__ void before_loads(Corner corner) {
    const PadView& pad = product_.pad;
    const uint32_t rows = product_.rows[corner.part];
    if (corner.part == pad.rank || corner.row >= rows) return;
    const uint32_t end = min(corner.row + Tile::kM, rows);
    const uint32_t first = corner.row / product_.chunk_rows, last = (end - 1) / product_.chunk_rows;
    if (corner.part == met_shard_ && first >= met_first_ && last <= met_last_) return;
    met_shard_ = corner.part, met_first_ = first, met_last_ = last;
    for (uint32_t chunk = first; chunk <= last; ++chunk) {
      const uint32_t slot = product_.ready + chunk;
      wait_epoch(pad, slot, corner.part, next_epoch(pad, slot, corner.part));
    }
    fence_async();
  }

  __device__ __forceinline__ void behind_stores(Corner) {}

  __device__ __forceinline__ void beside(uint32_t warp) {
    if (warp == 1 && elected()) send();
  }

  // The block has sent its share, waited for what it needs, and read it all. The last block of the grid ends the call.
  __device__ __forceinline__ void behind_all() {
    if constexpr (Tile::kCluster == 1) __syncthreads();
    const PadView& pad = product_.pad;
    if (threadIdx.x != 0 || !draw_last(pad, product_.free, pad.rank, gridDim.x)) return;
    for (uint32_t peer = 0; peer < pad.world; ++peer) {
      if (peer == pad.rank) continue;
      for (uint32_t chunk = 0; chunk * product_.chunk_rows < product_.rows[peer]; ++chunk) {
        const uint32_t slot = product_.ready + chunk;
        advance_expected(pad, slot, peer, next_epoch(pad, slot, peer));
      }
      advance_expected(pad, product_.free, peer, next_epoch(pad, product_.free, peer));
      signal_peer(pad, product_.free, peer);
    }
  }

 private:
  // One thread: of each chunk to each peer the pieces that are this block's turn. Chunk after chunk, so that the rows that go
  // to one peer come for the others from L2; and each rank begins with its next, so that no two send to one at a time.
  __device__ __forceinline__ void send() {
    const PadView& pad = product_.pad;
    const uint32_t rows = product_.rows[pad.rank];
    auto announce = [&](const Outbox::Last& last) { arrive(last); };
    Sender<decltype(announce)> sender(*reinterpret_cast<Outbox*>(&memory_of_block<Tile>() + 1), announce);
    // Peers that gave no credit in time: they get nothing.
    uint32_t barred = 0;
    // The first of the next chunk's pieces that is this block's.
    uint32_t turn = blockIdx.x;
    for (uint32_t chunk = 0, row = 0; row < rows; ++chunk, row += product_.chunk_rows) {
      const uint64_t offset = uint64_t(row) * product_.row_bytes;
      const uint64_t bytes = uint64_t(min(product_.chunk_rows, rows - row)) * product_.row_bytes;
      const uint32_t pieces = uint32_t((bytes + kPieceBytes - 1) / kPieceBytes);
      const Outbox::Last last{chunk, 0, min(pieces, gridDim.x)};
      for (uint32_t step = 1; step < pad.world; ++step) {
        const uint32_t peer = (pad.rank + step) % pad.world;
        if (chunk == 0 && !credit(peer)) barred |= 1u << peer;
        if (barred >> peer & 1) {
          // Nothing is sent, and the ticket is drawn all the same: it is whole behind this call.
          if (turn < pieces) arrive({chunk, peer, last.blocks});
        } else {
          for (uint32_t piece = turn; piece < pieces; piece += gridDim.x) {
            const uint64_t at = uint64_t(piece) * kPieceBytes;
            const uint32_t size = uint32_t(min(uint64_t(kPieceBytes), bytes - at));
            const uint32_t blocks = pieces - piece > gridDim.x ? 0 : last.blocks;
            sender.send(reinterpret_cast<char*>(product_.to[peer]) + offset + at,
                        reinterpret_cast<const char*>(product_.own) + offset + at, size, {chunk, peer, blocks});
          }
        }
        turn = (turn + gridDim.x - pieces % gridDim.x) % gridDim.x;
      }
    }
    sender.drain();
  }

  // Waits until the peer's call before this one has read this rank's rows.
  __device__ __forceinline__ bool credit(uint32_t peer) {
    const PadView& pad = product_.pad;
    const bool given = wait_epoch(pad, product_.free, peer, next_epoch(pad, product_.free, peer) - 1);
    fence_async();
    return given;
  }

  // What this block sends of a chunk has arrived. A chunk that some block had no credit for is not announced: the fault was
  // recorded before that block drew.
  __device__ __forceinline__ void arrive(const Outbox::Last& last) {
    const PadView& pad = product_.pad;
    const uint32_t slot = product_.ready + last.chunk;
    if (draw_last(pad, slot, last.peer, last.blocks) && !faulted(pad)) signal_peer(pad, slot, last.peer);
  }

  const Gathering& product_;
  uint32_t met_shard_ = ~0u;
  uint32_t met_first_ = 0;
  uint32_t met_last_ = 0;
};

}  // namespace warpweave
