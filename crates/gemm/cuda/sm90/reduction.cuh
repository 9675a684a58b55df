// Products whose K is sharded over ranks, and the sums of these, in one launch: tensor cores and links work at once.
//
// Each rank computes a partial product of all of C. The rows of C are sharded too; who has a row is its owner and sums it.
//
//   producer    one thread: A and B by TMA into the stages of a ring; behind those of an own tile the parts of it that were
//               fetched from the other ranks, once they are here
//   consumers   each 64 rows of a tile: wgmma from the ring into registers; an own tile adds the parts in f32, in the order
//               of ranks; registers to a stage that the ring lends
//   storers     a warp for each consumer, one thread of which stores: a part into staging, a sum into C. It waits until the
//               stores have arrived, and announces them, while its consumer multiplies again
//   fetcher     one thread: of each part of this rank's rows, and of the sums of others where everyone gets them, the block's
//               share
//
// Loads alone cross the link: a rank writes nobody's memory but its own (see `inbox.cuh`).
//
// **Order.** A *group* is some rows of a shard. The blocks take the groups of the other ranks in rounds, that of the next rank
// first, so that at each time every rank fetches from another. Where only owners get the sums, own groups come last: their parts
// have come by then. Where everyone does, each comes a round behind its parts, so that the links have work from the first
// round to the last. `units` in `sm90/reduction.rs` has it; the kernel does not depend on it, but for this: no tile of an own
// group comes before those of the same group of other ranks.
//
// **Signals.** Words of the pad, by slot, each given once a call:
//   ready + group    to the owner: "my part of the group may be fetched"
//   summed + group   where everyone gets the sums, from the owner to all: "the sums of the group may be fetched"
//   done             from every rank to all others: "I have fetched what is yours"; the call ends behind all of them
// The threads that store draw tickets, and the last to have seen its stores arrive signals: one store crosses the link for a
// group, not one for each tile. And there are counters of this rank alone, which only grow: for each own group the blocks whose
// pieces are here, once for each part, and the calls that have ended.
//
// **Memory.** In the terms of signal.cuh, from a part to its sum, and from a sum to its copies:
//   stores by TMA, complete (`bulk_wait`, which implies the proxy fence) → draw (release, GPU) → the last draw (acquire, GPU)
//   → `ready` or `summed` (release, system) → fetchers (acquire, system) → `fence_async` → bulk copies, complete (`bulk_wait`)
//   → the counter (release, GPU) → the owner's producer (acquire, GPU) → `fence_async` → loads by TMA.
// And back, for the memory to be used again: fetchers that have loaded everything → draw (release, GPU) → the last draw
// (acquire, GPU) → `done` (release, system) → the last block to end (acquire, system).
//
// **Nothing waits in a circle.** A fetcher waits for parts and sums in the order of rounds, and has counted all pieces of those
// before; a producer waits for its own group's parts. So whoever waits in a round waits for what came before that round.
//
// **Faults.** After a wait that failed, in this call or one before, nothing more is stored or announced, and a block that could not
// fetch its share does not draw from the ticket of `done`. Every launch ends. Sums are left out after a notice on this pad alone,
// which the host then finds: that another pad's wait failed keeps this rank from announcing, not from ending what it can end.
//
// **Bits.** A part is rounded to the element type when it is stored. The owner's own is not: the others' are added to its f32
// sums, and a bias behind them, and the sum is rounded once. That depends on neither time nor grid, so that every run gives the
// same bits.
//
// There is no programmatic launch: where ranks share a GPU, blocks of a rank's next call would take multiprocessors that the
// blocks for which the call before waits have not got yet.
#pragma once

#include "handover.cuh"
#include "parts.cuh"

namespace warpweave {

// A warpgroup: all sums of rows 64 `consumer` and behind of this block's tiles.
template <class Tile>
__device__ __forceinline__ void consume(const Reduction& reduction, const Pipeline<Tile>& pipeline, uint32_t consumer) {
  const PadView& pad = reduction.pad;
  const Handover<Tile> handover(pipeline, consumer);
  typename Pipeline<Tile>::Cursor at;
  Sums<Tile> sums;
  for_each_part<Tile>(reduction, [&](const Part& part) {
    multiply<Tile>(pipeline, at, reduction.steps, consumer, sums);
    const bool own = part.owner == pad.rank;
#pragma unroll
    for (uint32_t box = 0; own && box < Tile::kBoxesC; ++box) {
      add_parts<Tile>(pad, pipeline, at, consumer, sums[box]);
      reduction.bias.template add<typename Tile::Element>(part.column + box * kBox, sums[box]);
    }
    handover.give(at, sums);
  });
  handover.end();
}

__device__ __forceinline__ void signal_others(const PadView& pad, uint32_t slot, uint32_t epoch) {
  for (uint32_t step = 1; step < pad.world; ++step) {
    store_release_sys(word_at(pad, (pad.rank + step) % pad.world, slot, pad.rank), epoch);
  }
}

// One thread, behind its stores of a tile: the last of the group tells those who fetch it.
__device__ __forceinline__ void announce(const Reduction& reduction, const Part& part, uint32_t epoch) {
  const PadView& pad = reduction.pad;
  const bool own = part.owner == pad.rank;
  if (own && !reduction.everyone) return;
  const uint32_t slot = (own ? reduction.summed : reduction.ready) + part.group;
  // Its load overlaps the draw. Who found a notice has stored nothing and does not draw, so that nobody is the last.
  const bool silent = stopped(pad);
  if (!draw_last(pad, slot, part.owner, part.draws) || silent) return;
  if (!own) return store_release_sys(word_at(pad, part.owner, slot, pad.rank), epoch);
  signal_others(pad, slot, epoch);
}

// A warp: all stores of a consumer's tiles.
template <class Tile>
__device__ __forceinline__ void store_parts(const Reduction& reduction, const Pipeline<Tile>& pipeline, uint32_t consumer,
                                            uint32_t epoch) {
  const PadView& pad = reduction.pad;
  const Handover<Tile> handover(pipeline, consumer);
  handover.begin();
  // Stages of the ring before the one that is lent.
  uint32_t stages = 0;
  for_each_part<Tile>(reduction, [&](const Part& part) {
    const bool own = part.owner == pad.rank;
    stages += reduction.steps + (own ? Tile::kBoxesC * Parts<Tile>::stages(pad) : 0);
    const uint32_t stage = stages++ % Tile::kStages;
    const TensorMap* map = own ? &reduction.c : &reduction.outgoing[part.owner];
    // The parts of an own tile have been waited for by the time the consumer leaves it.
    const auto sound = [&] { return !noticed(pad); };
    const auto store = [&](uint32_t box, const char* place) {
      store_box(map, int32_t(part.column + box * kBox), int32_t(part.row + consumer * 64), place);
    };
    if (!handover.take(stage, sound, store)) return;
    bulk_wait<0>();
    announce(reduction, part, epoch);
  });
}

template <class Tile>
__device__ __forceinline__ void reduce(const Reduction& reduction) {
  static_assert(Tile::kCluster == 1, "blocks alone");
  const Pipeline<Tile> pipeline{memory_of_block<Tile>()};
  const PadView& pad = reduction.pad;
  // The number of the call, which all words of the kernel's slots carry: one counter stands for all of them.
  uint32_t* const calls = pad.expected + counter_index(pad, reduction.done, pad.rank);
  const uint32_t epoch = load_counter(calls) + 1;

  begin<Tile>(reduction, pipeline);

  const uint32_t warp = warp_of_block();
  const uint32_t warpgroup = warp / (kWarpgroup / 32);
  if (warpgroup == 0) {
    give_registers<kProducerRegisters>();
    if (warp == 0) {
      if (elected()) {
        typename Pipeline<Tile>::Cursor at;
        Arrivals arrivals(reduction);
        Alone alone;
        for_each_part<Tile>(reduction, [&](const Part& part) {
          const bool sum = part.owner == pad.rank && pad.world > 1;
          // While the stages are full: where they have arrived by now, the loads of parts need not wait for the word.
          if (sum) arrivals.look(part.group);
          const uint32_t row = reduction.starts[part.owner] + part.row;
          const uint32_t rows = rows_of_box<Tile>(reduction.most_rows);
          load_steps<Tile>(&reduction.a, &reduction.b, rows, row, part.column, reduction.steps, pipeline, at, alone);
          if (sum) arrivals.await(part.group);
          for (uint32_t box = 0; sum && box < Tile::kBoxesC; ++box) load_parts<Tile>(reduction, part, box, pipeline, at);
          pipeline.lend(at);
        });
      }
    } else if (warp <= kConsumers) {
      store_parts<Tile>(reduction, pipeline, warp - 1, epoch);
    } else if (elected()) {
      const bool fetched = PartFetcher(reduction, inbox_of_block<Tile>(), epoch).fetch();
      // Its load overlaps the draw.
      const bool silent = stopped(pad);
      // Nothing of the others will be read any more.
      if (fetched && draw_last(pad, reduction.done, pad.rank, gridDim.x) && !silent) {
        signal_others(pad, reduction.done, epoch);
      }
    }
  } else {
    take_registers<kConsumerRegisters>();
    consume<Tile>(reduction, pipeline, warpgroup - 1);
  }

  // No block draws before all its threads have ended.
  __syncwarp();
  __syncthreads();
  if (threadIdx.x >= 32) return;
  const bool last = threadIdx.x == 0 && draw_last(pad, reduction.ready, pad.rank, gridDim.x);
  if (!__shfl_sync(0xffffffff, last, 0)) return;
  if (threadIdx.x < pad.world && threadIdx.x != pad.rank) wait_epoch(pad, reduction.done, threadIdx.x, epoch);
  __syncwarp();
  if (threadIdx.x != 0) return;
  *calls = epoch;
  ++*reduction.calls();
}

}  // namespace warpweave
