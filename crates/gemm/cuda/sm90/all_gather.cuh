// All-gather and product in one launch: C[M, N] = A[M, K] · B[K, N] on every rank, where each has a shard of the rows of A.
//
//   warp 0      one thread: the producer of `gemm.cuh`, which waits for the slices of the chunk of rows that a tile needs
//   warp 1      waits for the peers' words, a lane for each; one thread then fetches the block's share into staging
//   warp 2      of the first block: tells the peers that they may read, unless chunks are pushed
//   consumers   as in `gemm.cuh`
//
// Each shard is a product of its own, with its own maps of A and C: this rank's rows are read where they lie, the others in
// staging, and no tile has rows of two shards. All shards are one walk over tiles: this rank's first, then chunk after chunk
// as they come. A chunk comes in slices of K, so that its tiles multiply what is here while the rest is on its way.
//
// The first chunks of each shard may be *pushed*: their owner has copy engines write them to its peers' staging. The walk has them
// behind this rank's shard, peer after peer, and what is left of the shards is fetched behind them.
//
// Words of the pad, by slot, each given once a call from every rank to every peer:
//   ready   "my shard may be read", and where chunks are pushed "and those are in your staging"; that is said by who pushes them
//   done    "I have read your shard", and what was pushed here too; the call ends behind all of them, so that whatever follows may
//           write the shard, and push
// And counters of this rank alone, which only grow:
//   arrived   for each slice of a chunk and peer: blocks whose pieces of it lie in staging
//   calls     calls that have ended
//
// The memory model of the words is that of `warpweave/signal.cuh`. In order, from a row of A on rank s to the tile on rank r:
//   1. It was written before the launch on s. A thread of s signals `ready`: a release to the system.
//   2. A lane of the fetching warp of each block of r acquires the word at system scope, and the warp meets. One thread
//      fences the async proxy, and loads by bulk copies. It stores them to staging, waits for the stores in full (`bulk_wait`,
//      not `_read`), and counts itself: a release in this GPU.
//   3. The producer's thread of each block of r that needs the slice acquires the counter, fences the async proxy, and loads
//      by TMA. (A block of a cluster that loads for both has waited itself.)
// And back, before the row is overwritten:
//   4. Each fetching thread draws from the ticket of `done` when all its loads have come. The last signals the peers, and the
//      last block of s to end has acquired that. Where rows are pushed the last block of the grid signals, behind all loads of
//      tiles.
// What is fetched is written to staging by the next call behind this one in the stream. For what is pushed step 3 acquires
// `ready`, at system scope.
//
// All blocks are to be resident at once: each fetches a share that the others wait for. Nothing waits in a circle: `ready` waits
// for nothing, fetching for `ready`, producers for fetching, consumers for producers, the end for the peers' reading. The
// launch is not programmatic: the next call would have to stay off the counters until this one has ended.
#pragma once

#include "inbox.cuh"
#include "walk.cuh"
#include "warpweave/signal.cuh"

namespace warpweave {

// The parameters of a launch. `Gathering` in `sm90/all_gather/parameters.rs` has the same layout.
struct alignas(128) Gathering {
  // By shard. That of an empty one is never used.
  TensorMap a[kMostRanks];
  TensorMap last_a[kMostRanks];
  TensorMap c[kMostRanks];
  TensorMap b;
  PadView pad;
  // By rank: its shard, as mapped here, and the place of that in staging.
  const char* from[kMostRanks];
  char* to[kMostRanks];
  Walk walk;
  // [chunks][slices][world], and behind them the calls.
  uint32_t* arrived;
  // Rows of each shard.
  uint32_t rows[kMostRanks];
  // Steps of K.
  uint32_t steps;
  // From a row of A to the next, and of K.
  uint32_t row_stride;
  uint32_t row_bytes;
  uint32_t chunk_rows;
  // Of the largest shard.
  uint32_t chunks;
  // Of a chunk, and the steps of K of each but the last.
  uint32_t slices;
  uint32_t slice_steps;
  // Slots.
  uint32_t ready;
  uint32_t done;
  // Chunks of each shard, from its first.
  uint32_t pushed;
  Bias bias;

  // Whether a peer says that its shard may be read.
  __device__ __forceinline__ bool opens(uint32_t peer) const { return pushed == 0 || rows[peer] != 0; }

  __device__ __forceinline__ uint32_t* arrivals(uint32_t chunk, uint32_t slice, uint32_t peer) const {
    return &arrived[(chunk * slices + slice) * pad.world + peer];
  }
  __device__ __forceinline__ uint32_t* calls() const { return arrivals(chunks, 0, 0); }

  __device__ __forceinline__ uint32_t slice_start(uint32_t slice) const { return slice * slice_steps * kSwizzledRow; }

  // Rows of a chunk of a peer's shard; 0 behind its last.
  __device__ __forceinline__ uint32_t height(uint32_t chunk, uint32_t peer) const {
    const uint32_t first = chunk * chunk_rows;
    return first < rows[peer] ? min(chunk_rows, rows[peer] - first) : 0;
  }
  // Of a slice of so many rows: one of each row, if it does not have the rows whole.
  __device__ __forceinline__ uint32_t pieces(uint32_t height) const {
    return whole() ? pieces_of(uint64_t(height) * row_bytes) : height;
  }
  __device__ __forceinline__ uint32_t piece_bytes(uint32_t slice, uint32_t height, uint32_t piece) const {
    if (!whole()) return min(slice_start(slice + 1), row_bytes) - slice_start(slice);
    return uint32_t(min(uint64_t(kPieceBytes), uint64_t(height) * row_bytes - uint64_t(piece) * kPieceBytes));
  }
  // Rows that are one behind the other.
  __device__ __forceinline__ bool whole() const { return slices == 1 && row_bytes == row_stride; }

  __device__ __forceinline__ const TensorMap* map_a(Corner corner, bool last) const {
    return last ? &last_a[corner.part] : &a[corner.part];
  }
  __device__ __forceinline__ uint32_t height(Corner corner) const { return rows[corner.part]; }
  __device__ __forceinline__ void store_c(Corner corner, uint32_t column, uint32_t row, const char* box) const {
    store_box(&c[corner.part], int32_t(column), int32_t(row), box);
  }

  template <class Tile, class Visit>
  __device__ __forceinline__ void for_each_tile(Visit&& visit) const {
    walk.for_each_tile<Tile>(visit);
  }
  __device__ __forceinline__ void prefetch_maps() const {
    prefetch_map(&a[pad.rank]);
    prefetch_map(&b);
    prefetch_map(&c[pad.rank]);
  }
};
static_assert(sizeof(Gathering) == 3584, "as in Rust");

template <class Tile>
class Gather {
 public:
  __device__ __forceinline__ explicit Gather(const Gathering& product) : product_(product) {}

  // The producer's thread. Tiles of a row follow each other, so that most need what the one before needed. A peer that misses
  // the deadline has been recorded; its rows are then computed from what lies in staging, for nobody to read.
  __device__ __forceinline__ void before_loads(Corner corner) {
    const uint32_t rows = product_.rows[corner.part];
    waits_ = corner.part == product_.pad.rank || corner.row >= rows ? 0 : product_.slices;
    waited_ = 0;
    if (waits_ == 0) return;
    const uint32_t end = min(corner.row + Tile::kM, rows);
    const uint32_t first = corner.row / product_.chunk_rows, last = (end - 1) / product_.chunk_rows;
    if (corner.part == shard_ && first >= first_ && last <= last_) {
      waits_ = 0;
    } else if (last < product_.pushed) {
      // These come whole.
      waits_ = 1;
    }
    shard_ = corner.part, first_ = first, last_ = last;
  }

  __device__ __forceinline__ void before_step(uint32_t step) {
    if (waited_ == waits_ || step != waited_ * product_.slice_steps) return;
    const PadView& pad = product_.pad;
    if (waited_ == 0 && first_ < product_.pushed) await_ready(shard_);
    const uint32_t call = load_counter(product_.calls()) + 1;
    for (uint32_t chunk = max(first_, product_.pushed); chunk <= last_; ++chunk) {
      const uint32_t blocks = min(product_.pieces(product_.height(chunk, shard_)), gridDim.x);
      wait_behind_waits(pad, product_.arrivals(chunk, waited_, shard_), product_.ready, shard_, call * blocks);
    }
    fence_async();
    ++waited_;
  }

  // The next launch would take multiprocessors from the signals that peers wait for.
  __device__ __forceinline__ void behind_loads() {}

  __device__ __forceinline__ void beside(uint32_t warp) {
    const PadView& pad = product_.pad;
    // A lane for each peer.
    const uint32_t peer = threadIdx.x % 32;
    const bool theirs = peer < pad.world && peer != pad.rank;
    if (warp == 1) {
      const bool opened = !theirs || !product_.opens(peer) || await_ready(peer);
      const uint32_t absent = __ballot_sync(0xffffffff, !opened);
      __syncwarp();
      bool last = false;
      if (elected()) {
        fetch(absent);
        last = product_.pushed == 0 && draw_last(pad, product_.done, pad.rank, gridDim.x);
      }
      last = __any_sync(0xffffffff, last);
      __syncwarp();
      // Nothing of the peers will be read any more.
      if (last && theirs) signal_peer(pad, product_.done, peer);
    }
    if (warp == 2 && blockIdx.x == 0 && theirs && product_.pushed == 0) signal_peer(pad, product_.ready, peer);
  }

  // The block has fetched its share, waited for what it needs, and read it all. The last block of the grid ends the call.
  __device__ __forceinline__ void behind_all() {
    if constexpr (Tile::kCluster == 1) __syncthreads();
    if (threadIdx.x >= 32) return;
    const PadView& pad = product_.pad;
    const uint32_t peer = threadIdx.x;
    const bool last = peer == 0 && draw_last(pad, product_.ready, pad.rank, gridDim.x);
    if (!__any_sync(0xffffffff, last)) return;
    __syncwarp();
    if (peer == 0) ++*product_.calls();
    if (peer >= pad.world || peer == pad.rank) return;
    if (product_.pushed != 0) signal_peer(pad, product_.done, peer);
    if (product_.opens(peer)) advance_expected(pad, product_.ready, peer, next_epoch(pad, product_.ready, peer));
    await_peer(pad, product_.done, peer);
  }

 private:
  __device__ __forceinline__ bool await_ready(uint32_t peer) const {
    const PadView& pad = product_.pad;
    return wait_epoch(pad, product_.ready, peer, next_epoch(pad, product_.ready, peer));
  }

  // One thread: of each chunk of each peer the pieces that are this block's turn. Slice after slice, and of a slice a piece of
  // each peer in turn, so that every rank reads from all others at once and each of their links is as busy as the next. Nothing
  // is fetched of those who are `absent`, a bit each.
  __device__ __forceinline__ void fetch(uint32_t absent) {
    const PadView& pad = product_.pad;
    const uint32_t peers = pad.world - 1;
    if (peers == 0) return;
    fence_async();
    Fetcher fetcher(inbox_of_block<Tile>());
    const uint32_t most = product_.pieces(product_.chunk_rows);
    const uint32_t pitch = product_.whole() ? kPieceBytes : product_.row_stride;
    // The first piece of the next slice that is this block's.
    uint32_t turn = blockIdx.x;
    // Each block begins with another.
    uint32_t peer = (pad.rank + 1 + blockIdx.x % peers) % pad.world;
    for (uint32_t chunk = product_.pushed; chunk < product_.chunks; ++chunk) {
      for (uint32_t slice = 0; slice < product_.slices; ++slice) {
        const uint64_t start = uint64_t(chunk) * product_.chunk_rows * product_.row_stride + product_.slice_start(slice);
        uint32_t first = turn;
        for (; first < most; first += gridDim.x) {
          const uint64_t offset = start + uint64_t(first) * pitch;
#pragma unroll 1
          for (uint32_t i = 0; i < peers; ++i) {
            fetch(fetcher, absent, chunk, slice, peer, first, offset);
            do {
              peer = (peer == 0 ? pad.world : peer) - 1;
            } while (peer == pad.rank);
          }
        }
        turn = first - most;
      }
    }
    fetcher.drain();
  }

  // A piece of a peer's slice, if it has so many.
  __device__ __forceinline__ void fetch(Fetcher& fetcher, uint32_t absent, uint32_t chunk, uint32_t slice, uint32_t peer,
                                        uint32_t piece, uint64_t offset) {
    const uint32_t height = product_.height(chunk, peer), pieces = product_.pieces(height);
    if (piece >= pieces) return;
    uint32_t* arrived = pieces - piece > gridDim.x ? nullptr : product_.arrivals(chunk, slice, peer);
    if (absent >> peer & 1) {
      // The counters are whole behind the call all the same.
      if (arrived != nullptr) add_release_gpu(arrived, 1);
      return;
    }
    fetcher.fetch(product_.to[peer] + offset, product_.from[peer] + offset, product_.piece_bytes(slice, height, piece), arrived);
  }

  const Gathering& product_;
  // The tile's shard and chunks, for how many slices of these it waits, and for how many it has.
  uint32_t shard_ = ~0u;
  uint32_t first_ = 0;
  uint32_t last_ = 0;
  uint32_t waits_ = 0;
  uint32_t waited_ = 0;
};

}  // namespace warpweave
