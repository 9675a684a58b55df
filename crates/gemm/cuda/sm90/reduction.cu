// GEMM + reduction in one launch: GEMMs whose K is sharded over the ranks, and the reduction of their
// results. Tensor cores and links work at once.
//
// Each rank computes a partial of all of C. The rows of C are sharded; the owner of a row reduces it
// (reduce-scatter). For an all-reduce the others pull the result.
//
//   warp 0      one thread loads tiles by TMA, as in `gemm.cuh`. After the operands of an own tile it loads
//               the partials that were pulled from the other ranks, when they are here. Then it acquires a
//               stage for the epilogue
//   consumers   wgmma; of an own tile the reduction of all partials in f32, in the order of ranks;
//               accumulators to the epilogue's stage
//   warps 1, 2  the store warps, one for each consumer: one thread stores a partial into staging, a result
//               into C, and where C is local memory another to where the others pull it. It waits until the
//               stores are complete and signals, while the consumer multiplies again
//   warp 3      one thread pulls the block's share of each partial of this rank's rows and, for an
//               all-reduce, of the others' results
//
// Only loads cross the link: a rank writes no memory but its own (see `recv_ring.cuh`).
//
// **Order.** A *group* is some rows of a shard. The blocks take the groups of the other ranks in rounds, that
// of the next rank first, so that at any time every rank pulls from another. For a reduce-scatter own groups
// come last: their partials have arrived by then. For an all-reduce each comes a round after its partials, so
// that the links have work from the first round to the last. `schedule` in `sm90/reduction.rs` makes the
// order. The kernel depends on one property of it: no tile of an own group comes before those of the same
// group of other ranks.
//
// **Signals.** Flags by slot, each signalled once a call:
//   ready + group     to the owner: "my partial of the group may be pulled"
//   reduced + group   for an all-reduce, from the owner to all: "the results of the group may be pulled"
//   done              from every rank to all others: "I have pulled what is yours"; the call ends after all
//                     of them
// The storing threads take tickets, and the last to have seen its stores complete signals: one flag for a
// group, not one for each tile. Counters of this rank, which only grow: for each own group the blocks whose
// pieces are here, once for each partial; and the calls that have ended.
//
// **Memory model**, in the terms of `warpweave/signal.cuh`: from a partial to its reduction, and from a
// result to its copies
//   TMA stores, complete (`bulk_wait`, which implies the proxy fence) → ticket (release, GPU) → last ticket
//   (acquire, GPU) → `ready` or `reduced` (release, system) → puller (acquire, system) → `fence_async` → bulk
//   copies, complete (`bulk_wait`) → counter (release, GPU) → the owner's load thread (acquire, GPU) →
//   `fence_async` → TMA loads
// and back, for the memory to be used again: a puller has loaded everything → ticket (release, GPU) → last
// ticket (acquire, GPU) → `done` (release, system) → the last block to end (acquire, system).
//
// **No cycle of waits.** A puller waits for partials and results in the order of rounds, and has counted all
// pieces of earlier ones; a load thread waits for its own group's partials. So every wait of a round is for
// work of earlier rounds.
//
// **Faults.** After a wait that failed, in this call or an earlier one, nothing more is stored or signalled,
// and a block that could not pull its share takes no ticket of `done`. Every launch ends. Results are left
// out only after a notice on this pad, which the host then finds: the failed wait of another pad keeps this
// rank from signalling, not from ending what it can end.
//
// **Bits.** All partials, scaled if operands are e4m3, are rounded to the element type of C, the owner's too,
// and added in f32 in the order of ranks, from negative zero, then a bias; the result is rounded once. That
// depends neither on time and grid nor on who owns a row: a row has the same bits in every run, at any place
// and in C of any height.
//
// The launch is not programmatic: where ranks share a GPU, blocks of a rank's next call would take SMs that
// blocks of this call still need.

#include "instantiate.cuh"
#include "reduction.cuh"

namespace warpweave {

// The stages of the ring that hold the partials of an own tile. A stage has a box of 64 columns of all rows
// of the tile from `kPartials` other ranks at most, one after the other. One instruction loads a stage: the
// load thread is slow, and an instruction for each rank costs the tile more than the bytes do.
template <class Tile>
struct PartialStages {
  static constexpr uint32_t kBytes = Tile::kM * kSwizzledRow;
  static constexpr uint32_t kPartials = Tile::kStageBytes / kBytes;
  static_assert(kPartials != 0 && sizeof(Stage<Tile>) == Tile::kStageBytes, "contiguous in a stage");

  // Stages of a box of 64 columns.
  __device__ __forceinline__ static uint32_t count(const PadView& pad) {
    return (pad.world - 1 + kPartials - 1) / kPartials;
  }
};

// One thread: waits until all partials of an own group are here, group by group.
class PartialWaits {
 public:
  __device__ __forceinline__ explicit PartialWaits(const ReductionParams& p)
      : p_(p), call_(p.calls().current()) {}

  // Notes whether the group is here.
  __device__ __forceinline__ void poll(uint32_t group) {
    if (group != here_ && reached(load_acquire_gpu(&p_.arrived[group]), expected(group))) note(group);
  }

  // If a rank misses the deadline, the old contents of its partial are added, and nobody reads the result.
  __device__ __forceinline__ void wait(uint32_t group) {
    if (group == here_) return;
    const PadView& pad = p_.pad;
    const uint32_t next = (pad.rank + 1) % pad.world;
    wait_after_waits(pad, &p_.arrived[group], p_.ready + group, next, expected(group));
    note(group);
  }

 private:
  __device__ __forceinline__ uint32_t expected(uint32_t group) const {
    return call_ * (p_.pad.world - 1) * min(p_.partial(group).pieces(), gridDim.x);
  }

  __device__ __forceinline__ void note(uint32_t group) {
    fence_async();
    here_ = group;
  }

  const ReductionParams& p_;
  const uint32_t call_;
  uint32_t here_ = UINT32_MAX;
};

// One thread: loads the partials of 64 columns of an own tile from the other ranks, which are here.
template <class Tile>
__device__ __forceinline__ void load_partials(const ReductionParams& p, const GroupTile& tile, uint32_t box,
                                              const Pipeline<Tile>& pipeline,
                                              typename Pipeline<Tile>::Cursor& at) {
  using Stages = PartialStages<Tile>;
  const uint32_t others = p.pad.world - 1;
  const uint32_t bytes = min(others, Stages::kPartials) * Stages::kBytes;
  for (uint32_t first = 0; first < others; first += Stages::kPartials, at.advance()) {
    uint64_t* full = pipeline.acquire(at, bytes);
    load_box(pipeline.memory.stages[at.stage].a, &p.incoming, int32_t(tile.column + box * kBox),
             int32_t(tile.row), int32_t(first), full);
  }
}

// A warpgroup: replaces its accumulators of 64 columns, this rank's partial, by the reduction of the
// partials of all ranks, in their order. Negative zero is the neutral element.
template <class Tile>
__device__ __forceinline__ void reduce_partials(const PadView& pad, const Pipeline<Tile>& pipeline,
                                                typename Pipeline<Tile>::Cursor& at, uint32_t consumer,
                                                float (&accumulators)[kBox / 2]) {
  using Output = typename Tile::Output;
  using Stages = PartialStages<Tile>;
  const MatrixLane lane;
  const uint32_t others = pad.world - 1;
  // This rank's, rounded as the others' are.
  uint32_t own[kBox / 4];
#pragma unroll
  for (uint32_t i = 0; i < kBox / 4; ++i) {
    own[i] = round_pair<Output>(accumulators[2 * i], accumulators[2 * i + 1]);
  }
#pragma unroll
  for (float& sum : accumulators) sum = -0.0f;
  const auto add_own = [&] {
#pragma unroll
    for (uint32_t i = 0; i < kBox / 4; ++i) {
      const float2 pair = widen_pair<Output>(own[i]);
      accumulators[2 * i] += pair.x;
      accumulators[2 * i + 1] += pair.y;
    }
  };
  // Ranks before this one whose partials have not been added.
  uint32_t before = pad.rank;
#pragma unroll 1
  for (uint32_t first = 0; first < others; first += Stages::kPartials, at.advance()) {
    pipeline.wait_full(at);
    const char* box = pipeline.memory.stages[at.stage].a + consumer * 64 * kSwizzledRow;
#pragma unroll 1
    for (uint32_t left = min(others - first, Stages::kPartials); left != 0; --left, box += Stages::kBytes) {
      if (before-- == 0) add_own();
#pragma unroll
      for (uint32_t column = 0; column < kBox; column += 16) {
        uint32_t matrices[4];
        load_matrices(lane.at(box, column), matrices);
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
          const float2 pair = widen_pair<Output>(matrices[i]);
          accumulators[column / 2 + 2 * i] += pair.x;
          accumulators[column / 2 + 2 * i + 1] += pair.y;
        }
      }
    }
    // What has been added has been read.
    fence_accumulators(accumulators);
    __syncwarp();
    pipeline.release(at.stage);
  }
  if (before == 0) add_own();
}

// One thread, after its stores of a tile: the last of the group signals those who pull it.
__device__ __forceinline__ void signal_group(const ReductionParams& p, const GroupTile& tile,
                                             uint32_t epoch) {
  const PadView& pad = p.pad;
  const bool own = tile.owner == pad.rank;
  if (own && !p.all_reduce) return;
  const uint32_t slot = (own ? p.reduced : p.ready) + tile.group;
  // The load overlaps the ticket. A thread that found a notice has stored nothing and takes no ticket: nobody
  // is the last.
  const bool silent = stopped(pad);
  if (!take_last_ticket(pad, slot, tile.owner, tile.stores) || silent) return;
  if (!own) return store_release_sys(flag_at(pad, tile.owner, slot, pad.rank), epoch);
  signal_peers(pad, slot, epoch);
}

// One thread of each block: pulls its share of the partials and, for an all-reduce, of the results, in the
// order in which they become ready: the results of a group after the partials of the next. At any time every
// rank pulls from another, if all are equally fast.
class SharePuller {
 public:
  __device__ __forceinline__ SharePuller(const ReductionParams& p, RecvRing& ring, uint32_t epoch)
      : p_(p), puller_(ring), epoch_(epoch) {
    puller_.begin();
  }

  // False if something did not arrive.
  __device__ __forceinline__ bool pull_all() {
    const uint32_t peers = p_.pad.world - 1, kinds = p_.all_reduce ? 2 : 1;
    for (uint32_t group = 0; group <= p_.groups; ++group) {
#pragma unroll 1
      for (uint32_t i = 0; i < kinds * peers; ++i) {
        const bool result = i >= peers;
        if (group == (result ? 0 : p_.groups)) continue;
        pull(result ? (group - 1) * peers + i - peers : group * peers + i, result);
      }
    }
    puller_.drain();
    return !missed_;
  }

 private:
  __device__ __forceinline__ uint32_t group_of(uint32_t item) const { return item / (p_.pad.world - 1); }
  __device__ __forceinline__ uint32_t peer_of(uint32_t item) const {
    const uint32_t world = p_.pad.world;
    return (p_.pad.rank + world - 1 - item % (world - 1)) % world;
  }
  // This block's first piece. The pieces of all items are dealt to the blocks one by one.
  __device__ __forceinline__ uint32_t first_piece(uint32_t item, uint32_t pieces) const {
    return (blockIdx.x + gridDim.x - uint32_t(uint64_t(item) * pieces % gridDim.x)) % gridDim.x;
  }

  // This block's pieces of a partial or of results, when the flag is there.
  __device__ __forceinline__ void pull(uint32_t item, bool result) {
    const uint32_t peer = peer_of(item), group = group_of(item);
    const StridedRows rows = result ? p_.result(peer, group) : p_.partial(group);
    const uint32_t pieces = rows.pieces(), first = first_piece(item, pieces);
    uint32_t* const arrived = result ? nullptr : &p_.arrived[group];
    if (first >= pieces) return;
    if (!wait(peer, (result ? p_.reduced : p_.ready) + group)) {
      missed_ = true;
      // The counters are complete after the call all the same.
      if (arrived != nullptr) add_release_gpu(arrived, 1);
      return;
    }
    const uint64_t row = uint64_t(group) * p_.group_rows + (result ? p_.starts[peer] : 0);
    const uint64_t above = row * p_.row_stride;
    char* const to = (result ? p_.results[p_.pad.rank] : p_.to[peer]) + above;
    const char* const from = (result ? p_.results[peer] : p_.from[peer]) + above;
    for (uint32_t i = first; i < pieces; i += gridDim.x) {
      const StridedRows::Piece piece = rows.piece(i);
      puller_.pull(to + piece.offset, from + piece.offset, piece.bytes);
    }
    if (arrived != nullptr) puller_.count(arrived);
  }

  __device__ __forceinline__ bool wait(uint32_t peer, uint32_t slot) {
    const PadView& pad = p_.pad;
    bool here = has_call(pad, slot, peer, epoch_);
    if (!here) {
      // Nobody waits for pieces of this thread while it waits itself.
      puller_.drain();
      here = wait_call(pad, slot, peer, epoch_);
    }
    fence_async();
    return here;
  }

  const ReductionParams& p_;
  Puller puller_;
  const uint32_t epoch_;
  bool missed_ = false;
};

template <class Tile>
__device__ __forceinline__ void reduce_gemm(const ReductionParams& p) {
  static_assert(Tile::kCluster == 1, "no clusters");
  const PadView& pad = p.pad;
  const Pipeline<Tile> pipeline{memory_of_block<Tile>()};
  const uint32_t epoch = p.epochs().current();
  begin<Tile>(pipeline, p.a, p.b);

  run_roles(
      // Load warp: operands, partials of own tiles, a stage for the epilogue.
      [&] {
        typename Pipeline<Tile>::Cursor at;
        PartialWaits waits(p);
        p.for_each_tile<Tile>([&](const GroupTile& tile) {
          const bool reduces = tile.owner == pad.rank && pad.world > 1;
          // While the stages are full. If the partials are here by now, their loads need not wait for a flag.
          if (reduces) waits.poll(tile.group);
          const uint32_t row = p.starts[tile.owner] + tile.row;
          load_steps<Tile>(&p.a, &p.b, rows_of_box<Tile>(p.most_rows), row, tile.column, p.steps, pipeline,
                           at);
          if (reduces) waits.wait(tile.group);
          for (uint32_t box = 0; reduces && box < Tile::kBoxesC; ++box)
            load_partials<Tile>(p, tile, box, pipeline, at);
          pipeline.acquire_for_epilogue(at);
        });
      },
      [&](uint32_t warp) {
        // Store warps: a partial into staging, or a result into C; then `ready` or `reduced`.
        if (warp <= kConsumers) {
          const uint32_t consumer = warp - 1;
          const EpilogueStaging<Tile> staging(pipeline, consumer);
          staging.begin();
          // Stages of the ring before the one of the epilogue.
          uint32_t stages = 0;
          p.for_each_tile<Tile>([&](const GroupTile& tile) {
            const bool own = tile.owner == pad.rank;
            stages += p.steps + (own ? Tile::kBoxesC * PartialStages<Tile>::count(pad) : 0);
            const uint32_t stage = stages++ % Tile::kStages;
            const TensorMap* map = own ? &p.c : &p.outgoing[tile.owner];
            // The partials of an own tile have been waited for when the consumer stages it.
            const auto may_store = [&] { return !noticed(pad); };
            const auto store = [&](uint32_t box, const char* place) {
              const int32_t column = tile.column + box * kBox, row = tile.row + consumer * 64;
              store_box(map, column, row, place);
              if (own && p.is_local) store_box(&p.local_c, column, row, place);
            };
            if (!staging.take(stage, may_store, store)) return;
            bulk_wait<0>();
            signal_group(p, tile, epoch);
          });
        } else if (elected()) {
          // Pull warp: waits for `ready` and `reduced`, pulls, signals `done`.
          const bool pulled = SharePuller(p, recv_ring_of_block<Tile>(), epoch).pull_all();
          // The load overlaps the ticket.
          const bool silent = stopped(pad);
          // Nothing of the others will be read any more.
          if (pulled && take_last_ticket(pad, p.done, pad.rank, gridDim.x) && !silent)
            signal_peers(pad, p.done, epoch);
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
          const bool own = tile.owner == pad.rank;
#pragma unroll
          for (uint32_t box = 0; own && box < Tile::kBoxesC; ++box) {
            reduce_partials<Tile>(pad, pipeline, at, consumer, accumulators[box]);
            p.epilogue.add_bias<typename Tile::Output>(tile.column + box * kBox, accumulators[box]);
          }
          staging.put(at, accumulators);
        });
        staging.wait_empty();
      });

  // A block takes its ticket when all its threads have ended. The last block waits for `done` and ends the
  // call.
  __syncwarp();
  __syncthreads();
  if (threadIdx.x >= 32) return;
  const bool last = threadIdx.x == 0 && take_last_ticket(pad, p.ready, pad.rank, gridDim.x);
  if (!__shfl_sync(0xffffffff, last, 0)) return;
  const uint32_t peer = threadIdx.x;
  if (peer < pad.world && peer != pad.rank) wait_call(pad, p.done, peer, epoch);
  __syncwarp();
  if (threadIdx.x != 0) return;
  p.epochs().end(epoch);
  p.calls().end(p.calls().current());
}

#define WARPWEAVE_REDUCTION(name, ...)                                            \
  static_assert(kRingSharedBytes<RingTile<__VA_ARGS__>> == 231680, "as in Rust"); \
  extern "C" __global__ void __launch_bounds__(kThreads, 1)                       \
      name(const __grid_constant__ ReductionParams p) {                           \
    reduce_gemm<RingTile<__VA_ARGS__>>(p);                                        \
  }

WARPWEAVE_KERNELS_ALONE(WARPWEAVE_REDUCTION, reduce)
WARPWEAVE_E4M3_TYPES(WARPWEAVE_TILES_ALONE, WARPWEAVE_REDUCTION, reduce, outer, Scaling::kOuter)

}  // namespace warpweave
