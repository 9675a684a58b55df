// All-gather + GEMM in one launch by the eager protocol, for shards so small that flags and link crossings
// cost more than bytes: each rank pushes its rows into its peers' staging without waiting for them.
// `all_gather.cu` pulls instead.
//
//   warp 0      one thread loads tiles by TMA, as in `gemm.cuh`. It waits until warp 2 has seen the rows of
//               its tile
//   warp 1      one thread pushes the block's chunks of this rank's shard to all peers, and all lanes the
//               scales of their rows; a lane for each peer then signals
//   warp 2      waits for the flags of the rows that the load thread needs next, a lane for each chunk
//   warp 3      takes the block's ticket; in the last block it ends the call
//   consumers   as in `gemm.cuh`
//
// Flags: one for each chunk of a shard, in the slots from `slot` on, signalled once a call to every peer:
// "chunk i of my shard is in your staging". Their epoch is the number of the call. A rank without rows
// signals the first one all the same.
//
// **Two stagings.** Calls alternate between them by the parity of their number. That replaces all other
// flags: rank s overwrites in call e what r has read in call e - 2. That call has ended on r: s begins call e
// after its call e - 1, in which it has acquired a flag that r signalled in call e - 1, after the end of r's
// call e - 2. `comm` sends packets by the same rule.
//
// **Memory model**, in the terms of `warpweave/signal.cuh`, from a row on rank s to the tile on rank r:
//   1. The row was written before the launch on s. One thread loads it by bulk copies, stores it into r's
//      staging by others, and waits until these are complete (`bulk_wait`). Lanes store the scale of the row.
//      The warp synchronises, and a lane signals the flag (release, system).
//   2. A lane of warp 2 of r acquires it, and the warp synchronises. One thread arrives at a barrier
//      (release, block).
//   3. The load thread sees the phase end, fences the async proxy, and loads by TMA. (Where a block of a
//      cluster multicasts, it has waited itself.) It arrives at the barriers of the stages (release, block),
//      which consumers acquire before they load scales, through the generic proxy.
//
// **End.** A call ends with its tiles; it waits for nobody. Its number is in a counter that all threads read
// first. A block takes its ticket after that, and the last one advances the counter while the blocks
// multiply.
//
// **Faults.** After a wait that failed the launch ends with worthless rows in C. This rank writes and signals
// nothing to a peer any more, which may still be reading what it got two calls before, so that no rank takes
// rows of a wrong call.
//
// All blocks are resident, since each pushes a share that others wait for. No cycle of waits: pushing waits
// for nothing. The launch is not programmatic: it reads the counter first.

#include "gemm.cuh"
#include "instantiate.cuh"
#include "recv_ring.cuh"
#include "warpweave/signal.cuh"

namespace warpweave {

// The parameters of a launch. `sm90/all_gather/parameters.rs` has the same layout.
struct alignas(128) EagerParams {
  // By staging and shard; this rank's shard is where it is in both. The maps of an empty shard are never
  // used.
  TensorMap a[2][kMostRanks];
  TensorMap last_a[2][kMostRanks];
  TensorMap c[kMostRanks];
  TensorMap b;
  PadView pad;
  // This rank's shard, and by rank the shard's place in that rank's first staging.
  const char* from;
  char* to[kMostRanks];
  // Bytes from a place in the first staging to that in the second.
  uint64_t stagings;
  TileSchedule schedule;
  // Rows of each shard.
  uint32_t rows[kMostRanks];
  // Steps of K.
  uint32_t steps;
  // Bytes from a row of A to the next, and of a row.
  uint32_t row_stride;
  uint32_t row_bytes;
  uint32_t chunk_rows;
  // Of the first chunk.
  uint32_t slot;
  Epilogue epilogue;
  // Of operands of e4m3. `peers` are the places of this rank's in stagings.
  GatheredScales scales;
  // Elements from a place in the first staging of scales to that in the second.
  uint64_t scale_stagings;

  __device__ __forceinline__ CallCounter calls() const { return call_counter(pad, slot); }
  // Whether scales of rows are pushed.
  template <class Tile>
  __device__ __forceinline__ bool pushes_scales() const {
    return Tile::kScaling == Scaling::kOuter && scales.stride != 0;
  }
  // The scales of the tiles of a shard.
  template <class Tile>
  __device__ __forceinline__ Scales scales_of(uint32_t shard, uint32_t staging) const {
    const bool is_staged = pushes_scales<Tile>() && shard != pad.rank;
    return scales.of(shard, rows[shard], is_staged ? staging * scale_stagings : 0);
  }
  // Whether this lane stands for a peer.
  __device__ __forceinline__ bool is_peer(uint32_t lane) const {
    return lane < pad.world && lane != pad.rank;
  }
};
// More than the 4096 bytes that drivers before CUDA 12.1 take.
static_assert(sizeof(EagerParams) == 5760, "as in Rust");

// One thread: pushes a chunk into the staging of all peers, through the slots of the ring. False after a
// fault: nothing is written then. `pushed` counts the pieces of this launch.
__device__ __forceinline__ bool push_chunk(const EagerParams& p, RecvRing& ring, uint32_t staging,
                                           uint32_t chunk, uint32_t& pushed) {
  const PadView& pad = p.pad;
  if (pushed == 0) {
    for (uint64_t& full : ring.full) init_barrier(&full, 1);
    publish_barriers();
    fence_async();
  }
  const uint32_t rows = p.rows[pad.rank], first = chunk * p.chunk_rows;
  const uint32_t height = first < rows ? min(p.chunk_rows, rows - first) : 0;
  const bool contiguous = p.row_bytes == p.row_stride;
  const StridedRows source = contiguous ? StridedRows{1, uint64_t(height) * p.row_bytes, 0}
                                        : StridedRows{height, p.row_bytes, p.row_stride};
  const uint64_t start = uint64_t(first) * p.row_stride;
  const uint32_t pieces = height == 0 ? 0 : source.pieces();
  bool may_write = true;
  for (uint32_t piece = 0; piece == 0 || piece < pieces; piece += kSlots) {
    const uint32_t batch = min(kSlots, pieces - piece);
    bulk_wait_read<0>();
    for (uint32_t i = 0; i < batch; ++i) {
      const StridedRows::Piece each = source.piece(piece + i);
      const uint32_t slot = (pushed + i) % kSlots;
      arrive_expecting(&ring.full[slot], each.bytes);
      bulk_load(ring.slots[slot], p.from + start + each.offset, each.bytes, &ring.full[slot]);
    }
    // Overlaps the loads.
    if (piece == 0) may_write = !faulted(pad);
    for (uint32_t i = 0; i < batch; ++i, ++pushed) {
      const StridedRows::Piece each = source.piece(piece + i);
      const uint32_t slot = pushed % kSlots;
      wait_phase(&ring.full[slot], pushed / kSlots % 2);
      for (uint32_t step = 1; may_write && step < pad.world; ++step) {
        const uint32_t peer = (pad.rank + step) % pad.world;
        char* to = p.to[peer] + staging * p.stagings + start + each.offset;
        bulk_store(to, ring.slots[slot], each.bytes);
      }
    }
    bulk_commit();
  }
  bulk_wait<0>();
  return may_write;
}

// A warp: pushes the scales of a chunk into the staging of all peers.
__device__ __forceinline__ void push_scales(const EagerParams& p, uint32_t staging, uint32_t chunk) {
  const PadView& pad = p.pad;
  const uint32_t first = chunk * p.chunk_rows, end = min(first + p.chunk_rows, p.rows[pad.rank]);
  for (uint32_t row = first + threadIdx.x % 32; row < end; row += 32) {
    const float scale = p.scales.a[pad.rank][row];
    for (uint32_t step = 1; step < pad.world; ++step) {
      p.scales.peers[(pad.rank + step) % pad.world][staging * p.scale_stagings + row] = scale;
    }
  }
}

template <class Tile>
__device__ __forceinline__ void eager_gemm(const EagerParams& p) {
  const PadView& pad = p.pad;
  const uint32_t call = p.calls().current(), staging = call & 1;
  const Pipeline<Tile> pipeline{memory_of_block<Tile>()};
  RecvRing& ring = recv_ring_of_block<Tile>();
  if (threadIdx.x == 0) {
    init_barrier(&ring.here, 1);
    init_barrier(&ring.noticed, 1);
  }
  begin<Tile>(pipeline, p.a[0][pad.rank], p.b, p.c[pad.rank]);
  // Whether the tile needs chunks that the one before did not.
  const auto needs_new = [&](ChunkNeed& need, TileCoord tile) {
    return need.template advance<Tile>(tile, pad.rank, p.rows[tile.shard], p.chunk_rows);
  };

  run_roles(
      // Load warp: waits for warp 2, loads tiles.
      [&] {
        typename Pipeline<Tile>::Cursor at;
        ChunkNeed need;
        uint32_t waits = 0;
        p.schedule.for_each_part<Tile>([&](TileCoord tile) {
          if (needs_new(need, tile)) {
            wait_phase(&ring.here, waits++ % 2);
            arrive(&ring.noticed);
            fence_async();
          }
          const uint32_t shard = tile.shard;
          load_tile<Tile>({p.a[staging][shard], p.last_a[staging][shard], p.rows[shard]}, p.b, tile, p.steps,
                          pipeline, at);
        });
      },
      [&](uint32_t warp) {
        const uint32_t lane = threadIdx.x % 32;
        if (pad.world == 1) return;
        // Push warp: a chunk to all peers, then its flag.
        if (warp == 1) {
          const uint32_t rows = p.rows[pad.rank];
          uint32_t pushed = 0;
          for (uint32_t chunk = blockIdx.x; chunk == 0 || uint64_t(chunk) * p.chunk_rows < rows;
               chunk += gridDim.x) {
            bool may_signal = true;
            if (elected()) may_signal = push_chunk(p, ring, staging, chunk, pushed);
            may_signal = __all_sync(0xffffffff, may_signal);
            if (may_signal && p.pushes_scales<Tile>()) push_scales(p, staging, chunk);
            __syncwarp();
            // `push_chunk` has looked for faults.
            const uint32_t slot = p.slot + chunk;
            if (may_signal && p.is_peer(lane)) store_release_sys(flag_at(pad, lane, slot, pad.rank), call);
          }
        }
        // Wait warp: the flags of the chunks that the load warp needs next.
        if (warp == 2) {
          ChunkNeed need;
          uint32_t waits = 0;
          p.schedule.for_each_part<Tile>([&](TileCoord tile) {
            if (!needs_new(need, tile)) return;
            for (uint32_t chunk = need.first + lane; chunk <= need.last; chunk += 32) {
              wait_call(pad, p.slot + chunk, need.shard, call);
            }
            __syncwarp();
            if (lane == 0) {
              // A phase of `here` ends only when the load thread has seen the one before: parities tell no
              // more than two phases apart. One thread waits; a later one might miss its phase.
              if (waits != 0) wait_phase(&ring.noticed, (waits - 1) % 2);
              arrive(&ring.here);
            }
            ++waits;
          });
        }
        // In the last block: ends the call.
        if (warp == 3) {
          const bool last = lane == 0 && take_last_ticket(pad, p.slot, pad.rank, gridDim.x);
          if (!__shfl_sync(0xffffffff, last, 0)) return;
          // Tiles wait for the peers that have rows.
          if (p.is_peer(lane) && p.rows[lane] == 0) wait_call(pad, p.slot, lane, call);
          __syncwarp();
          if (last) p.calls().end(call);
        }
      },
      // Consumers.
      [&](uint32_t consumer) {
        multiply_and_store<Tile>(p.schedule, pipeline, p.steps, p.epilogue, consumer,
                                 [&](TileCoord tile) -> const TensorMap& { return p.c[tile.shard]; },
                                 [&](TileCoord tile) { return p.scales_of<Tile>(tile.shard, staging); });
      });

  // No block of a cluster ends while the other may still arrive at its barriers.
  if constexpr (Tile::kCluster != 1) sync_cluster();
}

#define WARPWEAVE_EAGER(name, ...)                                                                        \
  static_assert(kRingSharedBytes<RingTile<__VA_ARGS__>> == 231680, "as in Rust");                         \
  extern "C" __global__ void __launch_bounds__(kThreads, 1) name(const __grid_constant__ EagerParams p) { \
    eager_gemm<RingTile<__VA_ARGS__>>(p);                                                                 \
  }

WARPWEAVE_KERNELS(WARPWEAVE_EAGER, eager)
WARPWEAVE_E4M3_TYPES(WARPWEAVE_TILES, WARPWEAVE_EAGER, eager, outer, Scaling::kOuter)

}  // namespace warpweave
