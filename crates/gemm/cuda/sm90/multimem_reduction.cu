// GEMM + all-reduce in one launch by NVLink multicast: the switch adds the partials of all ranks that the
// owner of a row loads, and copies the results that it stores to all ranks. In `reduction.cu` the owner pulls
// each partial, and each rank each result.
//
//   warp 0      one thread loads tiles by TMA, as in `gemm.cuh`, and acquires a stage for the epilogue after
//               each tile
//   consumers   wgmma; accumulators to that stage
//   warps 1, 2  the store warps, one for each consumer: one thread stores a tile into this rank's staging,
//               that of own rows too. It waits until the stores are complete and signals, while the consumer
//               multiplies again
//   warp 3      waits for the partials of an own group, and reduces the block's share of the group:
//               `multimem.ld_reduce` from the staging of all ranks, `multimem.st` to C of all ranks
//
// **Order.** Tiles, groups and rounds are those of `reduction.cu`.
//
// **Signals.** Flags by slot, each signalled once a call:
//   ready + group     to the owner, this rank included: "my partial of the group is in my staging"
//   done              from every rank to all others: "I have loaded what is yours, and stored my results to
//                     your C"; the call ends after all of them
// Whoever stores a result to a peer's C has its `ready` of the same call. So the peer's launch has begun, and
// C is its own to write.
//
// **Memory model**, in the terms of `warpweave/signal.cuh`: from a partial to its reduction
//   TMA stores, complete (`bulk_wait`, which implies the proxy fence) → ticket (release, GPU) → last ticket
//   (acquire, GPU) → `ready` (release, system) → a lane of warp 3 (acquire, system) → `__syncwarp` →
//   `fence_alias` → `multimem.ld_reduce`
// and from a result to whoever reads C after the launch
//   `multimem.st` → `fence_alias` → barrier of the block → ticket (release, GPU) → last ticket (acquire, GPU)
//   → `done` (release, system) → the last block to end (acquire, system).
//
// **No cycle of waits.** Storing partials waits for nothing.
//
// **Faults.** After a wait that failed, nothing more is stored or signalled. A launch whose device was
// stopped signals nothing, also not to itself: its own waits fail too. Every launch ends.
//
// **Bits.** All partials, scaled if operands are e4m3, are rounded to the element type of C. The switch adds
// them in f32, in an order of its own, and rounds once: the last bits of a row may differ from those of
// `reduction.cu`, though not between ranks. There is no bias, which would be rounded once more.
//
// All blocks are resident. The launch is not programmatic: it reads the counter first.

#include "instantiate.cuh"
#include "reduction.cuh"
#include "warpweave/multimem.cuh"

namespace warpweave {

// One thread, after its stores of a tile: the last of the group signals the owner.
__device__ __forceinline__ void signal_owner(const ReductionParams& p, const GroupTile& tile,
                                             uint32_t epoch) {
  const PadView& pad = p.pad;
  const uint32_t slot = p.ready + tile.group;
  // The load overlaps the ticket. A thread that found a notice has stored nothing and takes no ticket: nobody
  // is the last.
  const bool silent = stopped(pad);
  if (!take_last_ticket(pad, slot, tile.owner, tile.stores) || silent) return;
  store_release_sys(flag_at(pad, tile.owner, slot, pad.rank), epoch);
}

// A warp: reduces `bytes` at a multicast address, and stores the result to another.
template <typename T>
__device__ __forceinline__ void reduce_piece(uint64_t to, uint64_t from, uint32_t bytes) {
  // Vectors that a lane has in flight.
  constexpr uint32_t kVectors = 4;
  constexpr uint32_t kWarpBytes = 32 * sizeof(uint4);
  for (uint32_t at = threadIdx.x % 32 * sizeof(uint4); at < bytes; at += kVectors * kWarpBytes) {
    uint4 sums[kVectors];
#pragma unroll
    for (uint32_t i = 0; i < kVectors; ++i) {
      if (at + i * kWarpBytes < bytes) sums[i] = multimem_reduce<T>(from + at + i * kWarpBytes);
    }
#pragma unroll
    for (uint32_t i = 0; i < kVectors; ++i) {
      if (at + i * kWarpBytes < bytes) multimem_store(to + at + i * kWarpBytes, sums[i]);
    }
  }
}

// Warp 3: reduces the block's pieces of all own groups, in the order in which they become ready. The pieces
// are dealt to the blocks one by one.
template <typename T>
__device__ __forceinline__ void reduce_share(const ReductionParams& p, uint32_t epoch) {
  const PadView& pad = p.pad;
  const uint32_t lane = threadIdx.x % 32;
  const uint64_t from = reinterpret_cast<uint64_t>(p.from[pad.rank]);
  const uint64_t to = reinterpret_cast<uint64_t>(p.to[pad.rank]);
  // The block that gets the next piece.
  uint32_t next = 0;
  for (uint32_t group = 0; group < p.groups; ++group) {
    const StridedRows rows = p.result(pad.rank, group);
    const uint32_t pieces = rows.pieces();
    const uint32_t first = (blockIdx.x + gridDim.x - next) % gridDim.x;
    next = (next + pieces % gridDim.x) % gridDim.x;
    if (first >= pieces) continue;
    const bool here = lane >= pad.world || wait_call(pad, p.ready + group, lane, epoch);
    if (!__all_sync(0xffffffff, here)) return;
    __syncwarp();
    fence_alias();
    const uint64_t above = uint64_t(group) * p.group_rows * p.row_stride;
    for (uint32_t i = first; i < pieces; i += gridDim.x) {
      const StridedRows::Piece piece = rows.piece(i);
      reduce_piece<T>(to + above + piece.offset, from + above + piece.offset, piece.bytes);
    }
    fence_alias();
  }
}

template <class Tile>
__device__ __forceinline__ void multimem_reduce_gemm(const ReductionParams& p) {
  static_assert(Tile::kCluster == 1, "no clusters");
  const PadView& pad = p.pad;
  const Pipeline<Tile> pipeline{memory_of_block<Tile>()};
  const uint32_t epoch = p.epochs().current();
  begin<Tile>(pipeline, p.a, p.b);

  run_roles(
      // Load warp: operands, and a stage for the epilogue.
      [&] {
        typename Pipeline<Tile>::Cursor at;
        p.for_each_tile<Tile>([&](const GroupTile& tile) {
          load_steps<Tile>(&p.a, &p.b, rows_of_box<Tile>(p.most_rows), p.starts[tile.owner] + tile.row,
                           tile.column, p.steps, pipeline, at);
          pipeline.acquire_for_epilogue(at);
        });
      },
      [&](uint32_t warp) {
        // Store warps: a partial into staging, then `ready`.
        if (warp <= kConsumers) {
          const uint32_t consumer = warp - 1;
          const EpilogueStaging<Tile> staging(pipeline, consumer);
          staging.begin();
          // Stages of the ring before the one of the epilogue.
          uint32_t stages = 0;
          p.for_each_tile<Tile>([&](const GroupTile& tile) {
            stages += p.steps;
            const uint32_t stage = stages++ % Tile::kStages;
            const auto may_store = [&] { return !noticed(pad); };
            const auto store = [&](uint32_t box, const char* place) {
              store_box(&p.outgoing[tile.owner], int32_t(tile.column + box * kBox),
                        int32_t(tile.row + consumer * 64), place);
            };
            if (!staging.take(stage, may_store, store)) return;
            bulk_wait<0>();
            signal_owner(p, tile, epoch);
          });
        } else {
          // Reducing warp: waits for `ready`, loads what the switch adds, stores it to all ranks.
          reduce_share<typename Tile::Output>(p, epoch);
        }
      },
      // Consumers.
      [&](uint32_t consumer) {
        const EpilogueStaging<Tile> staging(pipeline, consumer);
        typename Pipeline<Tile>::Cursor at;
        Accumulators<Tile> accumulators;
        p.for_each_tile<Tile>([&](const GroupTile& tile) {
          const TileCoord place{p.starts[tile.owner] + tile.row, tile.column};
          multiply_partial<Tile>(pipeline, at, p.steps, p.scales, place, consumer, accumulators);
          staging.put(at, accumulators);
        });
        staging.wait_empty();
      });

  // A block takes its ticket when all its threads have ended. The last block signals `done`, waits for those
  // of the others and ends the call. A block whose wait has failed has stopped the device before its ticket.
  __syncwarp();
  __syncthreads();
  if (threadIdx.x >= 32) return;
  const bool last = threadIdx.x == 0 && take_last_ticket(pad, p.done, pad.rank, gridDim.x);
  if (!__shfl_sync(0xffffffff, last, 0)) return;
  __syncwarp();
  const uint32_t peer = threadIdx.x;
  if (peer < pad.world && peer != pad.rank) {
    store_epoch(pad, p.done, peer, epoch);
    wait_call(pad, p.done, peer, epoch);
  }
  __syncwarp();
  if (threadIdx.x == 0) p.epochs().end(epoch);
}

#define WARPWEAVE_MULTIMEM_REDUCTION(name, ...)                               \
  static_assert(kSharedBytes<Tile<__VA_ARGS__>> == 231424, "as in Rust");     \
  extern "C" __global__ void __launch_bounds__(kThreads, 1)                   \
      name(const __grid_constant__ ReductionParams p) {                       \
    multimem_reduce_gemm<Tile<__VA_ARGS__>>(p);                               \
  }

WARPWEAVE_KERNELS_ALONE(WARPWEAVE_MULTIMEM_REDUCTION, multimem_reduce)
WARPWEAVE_E4M3_TYPES(WARPWEAVE_TILES_ALONE, WARPWEAVE_MULTIMEM_REDUCTION, multimem_reduce, outer,
                     Scaling::kOuter)

}  // namespace warpweave
