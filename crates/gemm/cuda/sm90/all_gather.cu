// All-gather + GEMM in one launch: C[M, N] = A[M, K] · B[K, N] on every rank, where each rank has a shard of
// the rows of A.
//
//   warp 0      one thread loads tiles by TMA, as in `gemm.cuh`. It waits for the slices of the chunks that a
//               tile needs
//   warp 1      waits for the peers' `ready`, a lane for each; one thread then pulls the block's share into
//               staging
//   warp 2      in the last block, first of all, signals `ready`, unless chunks are pushed or rows are copied
//   warp 3      of e4m3 with scales by row: waits as warp 1 and pulls the block's share of these
//   consumers   as in `gemm.cuh`
//
// Each shard is a GEMM of its own, with its own maps of A and C. This rank's rows are read where they are,
// the others from staging; no tile has rows of two shards. One schedule holds the tiles of all shards: this
// rank's first, then chunk after chunk in the order of arrival. A chunk arrives in slices of K, so that its
// tiles multiply what is here while the rest is in flight.
//
// Where this rank's rows are in memory that peers do not reach, warp 1 first *copies* the block's share of
// them to where the peers pull them, and that of the last block signals `ready`. This rank's tiles do not
// wait for that: they read the rows where they are.
//
// The first chunks of each shard may be *pushed*: the owner's copy engines write them to its peers' staging.
// Their tiles follow this rank's shard, peer after peer; the pulled chunks come after them.
//
// Flags, each signalled once a call by every rank to every peer:
//   ready   "my shard may be read", and with pushed chunks "they are in your staging"; whoever pushes signals
//           it then
//   done    "I have read your shard", and what was pushed here. The call ends after all of them, so that what
//           follows may write the shard, and push
// Counters of this rank, which only grow:
//   arrived   for each slice of a chunk: the blocks whose pieces of it, of all peers, are in staging
//   scaled    the blocks whose share of the scales of all peers' rows is in staging
//   calls     calls that have ended
//
// Memory model, in the terms of `warpweave/signal.cuh`: from a row of A on rank s to the tile on rank r
//   1. The row was written before the launch on s. A thread of s signals `ready` (release, system). Or: it
//      is copied; bulk copies, complete (`bulk_wait`) → ticket (release, GPU) → last ticket (acquire, GPU) →
//      `ready` (release, system).
//   2. In each block of r a lane of the pull warp acquires the flag (system), and the warp synchronises. One
//      thread fences the async proxy and loads by bulk copies. It stores to staging, waits until the stores
//      are complete (`bulk_wait`, not `_read`), and counts its block (release, GPU).
//   3. The load thread of each block of r that needs the slice acquires the counter (GPU), fences the async
//      proxy, and loads by TMA. (Where a block of a cluster multicasts, it has waited itself.) For pushed
//      chunks it acquires `ready` (system).
// and back, before the row is overwritten
//   4. Each pull warp takes a ticket of `done` when all its loads have arrived. The last one signals the
//      peers, and the last block of s to end acquires that. With pushed chunks the last block of the grid
//      signals, after all loads of tiles.
// The next call in the stream overwrites staging.
//
// The scales of rows take the same way without the async proxy: after 2. the lanes of warp 3 load them from s
// and store them to staging, the warp synchronises, and one thread counts the block (release, GPU). They are
// few, so one counter stands for all of them, and every tile of a peer comes after it: a load thread acquires
// it (GPU) before its first such tile, and then arrives at the barriers of the stages (release, block), which
// consumers acquire before they load scales. In 4. warp 3 takes tickets too.
//
// All blocks are resident: each pulls a share that the others wait for. No cycle of waits: `ready` waits for
// nothing, pulling for `ready`, load threads for pulling, consumers for load threads, the end for the peers'
// reads. The launch is not programmatic: the next call must not touch the counters before this one has ended,
// and its blocks would take SMs from the signals that peers wait for.

#include "gemm.cuh"
#include "instantiate.cuh"
#include "recv_ring.cuh"
#include "warpweave/signal.cuh"

namespace warpweave {

// The parameters of a launch. `sm90/all_gather/parameters.rs` has the same layout.
struct alignas(128) AllGatherParams {
  // By shard. The maps of an empty shard are never used.
  TensorMap a[kMostRanks];
  TensorMap last_a[kMostRanks];
  TensorMap c[kMostRanks];
  TensorMap b;
  // By peer: its shard and the shard's place in staging, in boxes that are pieces. Unused where these are of
  // one row.
  TensorMap boxes_from[kMostRanks];
  TensorMap boxes_to[kMostRanks];
  PadView pad;
  // By rank: its shard, as mapped here, and the shard's place in staging.
  const char* from[kMostRanks];
  char* to[kMostRanks];
  TileSchedule schedule;
  // [chunks][slices], followed by the calls and `scaled`.
  uint32_t* arrived;
  // Rows of each shard.
  uint32_t rows[kMostRanks];
  // Steps of K.
  uint32_t steps;
  // Bytes from a row of A to the next, and of a row.
  uint32_t row_stride;
  uint32_t row_bytes;
  uint32_t chunk_rows;
  // Of the largest shard.
  uint32_t chunks;
  // Slices of a chunk, and the steps of K of each but the last.
  uint32_t slices;
  uint32_t slice_steps;
  // Slots.
  uint32_t ready;
  uint32_t done;
  // Chunks of each shard that are pushed, from its first.
  uint32_t pushed;
  // Of the largest shard of a peer.
  uint32_t peer_rows;
  // Rows of a piece, of which a chunk has whole ones, unless it is all of the shard.
  uint32_t piece_rows;
  // Where peers pull this rank's rows, if these are to be copied there from `from`; else null.
  char* copied;
  Epilogue epilogue;
  // Of operands of e4m3. `peers` are those of shards.
  GatheredScales scales;

  // Whether a peer signals `ready`.
  __device__ __forceinline__ bool signals_ready(uint32_t peer) const {
    return pushed == 0 || rows[peer] != 0;
  }

  __device__ __forceinline__ uint32_t* arrivals(uint32_t chunk, uint32_t slice) const {
    return &arrived[chunk * slices + slice];
  }
  __device__ __forceinline__ CallCounter calls() const { return {arrivals(chunks, 0)}; }
  __device__ __forceinline__ uint32_t* scaled() const { return arrivals(chunks, 0) + 1; }

  // Whether scales of rows are pulled.
  template <class Tile>
  __device__ __forceinline__ bool pulls_scales() const {
    return Tile::kScaling == Scaling::kOuter && scales.stride != 0 && pad.world > 1;
  }

  __device__ __forceinline__ uint32_t slice_start(uint32_t slice) const {
    return slice * slice_steps * kSwizzledRow;
  }

  // Rows of a chunk of a shard of so many; 0 after its last.
  __device__ __forceinline__ uint32_t height(uint32_t chunk, uint32_t of) const {
    const uint32_t first = chunk * chunk_rows;
    return first < of ? min(chunk_rows, of - first) : 0;
  }
  // Pieces of a slice of `height` rows.
  __device__ __forceinline__ uint32_t pieces(uint32_t height) const {
    return (height + piece_rows - 1) / piece_rows;
  }
};
// More than the 4096 bytes that drivers before CUDA 12.1 take.
static_assert(sizeof(AllGatherParams) == 5760, "as in Rust");

// Bytes of an element of the maps of boxes.
constexpr uint32_t kBoxUnit = 8;

// Whether this lane stands for a peer.
__device__ __forceinline__ bool is_peer(const PadView& pad, uint32_t lane) {
  return lane < pad.world && lane != pad.rank;
}

// A warp: signals `ready`, unless chunks are pushed or rows are copied.
__device__ __forceinline__ void signal_ready(const AllGatherParams& p) {
  const uint32_t peer = threadIdx.x % 32;
  if (is_peer(p.pad, peer) && p.pushed == 0 && p.copied == nullptr) signal_peer(p.pad, p.ready, peer);
}

// Waits until `peer` has signalled `ready` in this call.
__device__ __forceinline__ bool wait_ready(const AllGatherParams& p, uint32_t peer) {
  return wait_call(p.pad, p.ready, peer, next_epoch(p.pad, p.ready, peer));
}

// The load thread's waits for the rows of A. A peer that misses the deadline has been recorded; its rows are
// then computed from what is in staging, and nobody reads them.
template <class Tile>
class RowWaits {
 public:
  __device__ __forceinline__ explicit RowWaits(const AllGatherParams& p)
      : p_(p), scales_wait_(p.pulls_scales<Tile>()) {}

  __device__ __forceinline__ void begin_tile(TileCoord tile) {
    const bool is_new = need_.template advance<Tile>(tile, p_.pad.rank, p_.rows[tile.shard], p_.chunk_rows);
    waited_ = 0;
    // Pushed chunks are not sliced.
    waits_ = !is_new ? 0 : need_.last < p_.pushed ? 1 : p_.slices;
  }

  __device__ __forceinline__ void before_step(uint32_t step) {
    if (waited_ == waits_ || step != waited_ * p_.slice_steps) return;
    const uint32_t shard = need_.shard;
    if (waited_ == 0 && need_.first < p_.pushed) wait_ready(p_, shard);
    const uint32_t call = p_.calls().current();
    for (uint32_t chunk = max(need_.first, p_.pushed); chunk <= need_.last; ++chunk) {
      const uint32_t blocks = min(p_.pieces(p_.height(chunk, p_.peer_rows)), gridDim.x);
      wait_after_waits(p_.pad, p_.arrivals(chunk, waited_), p_.ready, shard, call * blocks);
    }
    if (scales_wait_) {
      wait_after_waits(p_.pad, p_.scaled(), p_.ready, shard, call * gridDim.x);
      scales_wait_ = false;
    }
    fence_async();
    ++waited_;
  }

 private:
  const AllGatherParams& p_;
  ChunkNeed need_;
  // The slices that this tile waits for, and those that it has waited for.
  uint32_t waits_ = 0;
  uint32_t waited_ = 0;
  // Whether the scales of peers' rows have not been waited for.
  bool scales_wait_;
};

// Pulls a piece of a peer's slice, if the slice has so many.
__device__ __forceinline__ void pull_piece(const AllGatherParams& p, Puller& puller, uint32_t absent,
                                           uint32_t chunk, uint32_t slice, uint32_t peer, uint32_t piece) {
  if (piece >= p.pieces(p.height(chunk, p.rows[peer])) || (absent >> peer & 1)) return;
  const uint32_t row = chunk * p.chunk_rows + piece * p.piece_rows, start = p.slice_start(slice);
  if (p.piece_rows == 1) {
    const uint64_t offset = uint64_t(row) * p.row_stride + start;
    puller.pull(p.to[peer] + offset, p.from[peer] + offset, min(p.slice_start(1), p.row_bytes - start));
  } else {
    puller.pull_box(&p.boxes_to[peer], &p.boxes_from[peer], start / kBoxUnit, row,
                    p.piece_rows * p.slice_start(1));
  }
}

// One thread: copies this block's share of this rank's rows to where peers pull them.
__device__ __forceinline__ void copy_share(const AllGatherParams& p, Puller& puller) {
  const uint32_t own = p.pad.rank;
  const StridedRows rows = StridedRows::of(p.rows[own], p.row_bytes, p.row_stride);
  const uint32_t pieces = rows.pieces();
  for (uint32_t i = blockIdx.x; i < pieces; i += gridDim.x) {
    const StridedRows::Piece piece = rows.piece(i);
    puller.pull(p.copied + piece.offset, p.from[own] + piece.offset, piece.bytes);
  }
  puller.drain();
}

// One thread: pulls this block's pieces of each chunk of each peer. Slice after slice, and within a slice a
// piece of each peer, so that every rank reads from all others at once and all its links are equally
// busy. Nothing is pulled from peers that are `absent`, a bit each; slices are counted all the same.
__device__ __forceinline__ void pull_share(const AllGatherParams& p, uint32_t absent, Puller& puller) {
  const PadView& pad = p.pad;
  const uint32_t peers = pad.world - 1;
  if (peers == 0) return;
  fence_async();
  const uint32_t most = p.pieces(p.chunk_rows);
  // This block's first piece of the next slice.
  uint32_t next = blockIdx.x;
  // Each block begins with another peer.
  uint32_t peer = (pad.rank + 1 + blockIdx.x % peers) % pad.world;
  for (uint32_t chunk = p.pushed; chunk < p.chunks; ++chunk) {
    const uint32_t pieces = p.pieces(p.height(chunk, p.peer_rows));
    for (uint32_t slice = 0; slice < p.slices; ++slice) {
      uint32_t piece = next;
      for (; piece < most; piece += gridDim.x) {
#pragma unroll 1
        for (uint32_t i = 0; i < peers; ++i) {
          pull_piece(p, puller, absent, chunk, slice, peer, piece);
          do {
            peer = (peer == 0 ? pad.world : peer) - 1;
          } while (peer == pad.rank);
        }
      }
      if (next < pieces) puller.count(p.arrivals(chunk, slice));
      next = piece - most;
    }
  }
  puller.drain();
}

// A warp: pulls this block's share of the scales of all peers' rows, but of those that are `absent`.
__device__ __forceinline__ void pull_scales(const AllGatherParams& p, uint32_t absent) {
  const PadView& pad = p.pad;
  for (uint32_t step = 1; step < pad.world; ++step) {
    const uint32_t peer = (pad.rank + step) % pad.world;
    if (absent >> peer & 1) continue;
    for (uint32_t row = blockIdx.x * 32 + threadIdx.x % 32; row < p.rows[peer]; row += gridDim.x * 32) {
      // Bypasses L1, which does not see what others write.
      p.scales.a[peer][row] = __ldcg(&p.scales.peers[peer][row]);
    }
  }
  __syncwarp();
}

template <class Tile>
__device__ __forceinline__ void all_gather_gemm(const AllGatherParams& p) {
  const PadView& pad = p.pad;
  if (blockIdx.x == gridDim.x - 1 && threadIdx.x / 32 == 2) signal_ready(p);
  const Pipeline<Tile> pipeline{memory_of_block<Tile>()};
  begin<Tile>(pipeline, p.a[pad.rank], p.b, p.c[pad.rank]);

  run_roles(
      // Load warp: waits for slices of A, loads tiles.
      [&] {
        typename Pipeline<Tile>::Cursor at;
        RowWaits<Tile> waits(p);
        p.schedule.for_each_part<Tile>([&](TileCoord tile) {
          waits.begin_tile(tile);
          const uint32_t shard = tile.shard;
          load_tile<Tile>({p.a[shard], p.last_a[shard], p.rows[shard]}, p.b, tile, p.steps, pipeline, at,
                          [&](uint32_t step) { waits.before_step(step); });
        });
      },
      [&](uint32_t warp) {
        // A lane for each peer.
        const uint32_t peer = threadIdx.x % 32;
        const bool theirs = is_peer(pad, peer);
        const bool pulls_scales = p.pulls_scales<Tile>();
        // The first lane of warp 1 copies and pulls.
        const bool leads = threadIdx.x % 32 == 0;
        Puller puller(recv_ring_of_block<Tile>());
        if (warp == 1 && leads) puller.begin();
        if (warp == 1 && theirs && p.piece_rows != 1) {
          prefetch_map(&p.boxes_from[peer]);
          prefetch_map(&p.boxes_to[peer]);
        }
        if (warp == 1 && p.copied != nullptr) {
          bool last = false;
          if (leads) {
            copy_share(p, puller);
            last = take_last_ticket(pad, p.ready, (pad.rank + 1) % pad.world, gridDim.x);
          }
          last = __any_sync(0xffffffff, last);
          __syncwarp();
          if (last && theirs) signal_peer(pad, p.ready, peer);
        }
        // Pull warps: wait for `ready`, pull, signal `done`.
        if (warp == 1 || (warp == 3 && pulls_scales)) {
          const bool opened = !theirs || !p.signals_ready(peer) || wait_ready(p, peer);
          const uint32_t absent = __ballot_sync(0xffffffff, !opened);
          __syncwarp();
          if (warp == 3) pull_scales(p, absent);
          bool last = false;
          if (leads) {
            if (warp == 1) {
              pull_share(p, absent, puller);
            } else {
              add_release_gpu(p.scaled(), 1);
            }
            const uint32_t tickets = gridDim.x * (pulls_scales ? 2 : 1);
            last = p.pushed == 0 && take_last_ticket(pad, p.done, pad.rank, tickets);
          }
          last = __any_sync(0xffffffff, last);
          __syncwarp();
          // Nothing of the peers will be read any more.
          if (last && theirs) signal_peer(pad, p.done, peer);
        }
      },
      // Consumers.
      [&](uint32_t consumer) {
        multiply_and_store<Tile>(p.schedule, pipeline, p.steps, p.epilogue, consumer,
                                 [&](TileCoord tile) -> const TensorMap& { return p.c[tile.shard]; },
                                 [&](TileCoord tile) { return p.scales.of(tile.shard, p.rows[tile.shard]); });
      });

  // The block has pulled its share and read all its rows. (No block of a cluster ends while the other may
  // still arrive at its barriers.) The last block of the grid ends the call.
  if constexpr (Tile::kCluster == 1) {
    __syncthreads();
  } else {
    sync_cluster();
  }
  if (threadIdx.x >= 32) return;
  const uint32_t peer = threadIdx.x;
  const bool last = peer == 0 && take_last_ticket(pad, p.ready, pad.rank, gridDim.x);
  if (!__any_sync(0xffffffff, last)) return;
  __syncwarp();
  if (peer == 0) p.calls().end(p.calls().current());
  if (!is_peer(pad, peer)) return;
  if (p.pushed != 0) signal_peer(pad, p.done, peer);
  if (p.signals_ready(peer)) advance_expected(pad, p.ready, peer, next_epoch(pad, p.ready, peer));
  wait_peer(pad, p.done, peer);
}

#define WARPWEAVE_ALL_GATHER(name, ...)                                           \
  static_assert(kRingSharedBytes<RingTile<__VA_ARGS__>> == 231680, "as in Rust"); \
  extern "C" __global__ void __launch_bounds__(kThreads, 1)                       \
      name(const __grid_constant__ AllGatherParams p) {                           \
    all_gather_gemm<RingTile<__VA_ARGS__>>(p);                                    \
  }

WARPWEAVE_KERNELS(WARPWEAVE_ALL_GATHER, all_gather)
WARPWEAVE_E4M3_TYPES(WARPWEAVE_TILES, WARPWEAVE_ALL_GATHER, all_gather, outer, Scaling::kOuter)

}  // namespace warpweave
