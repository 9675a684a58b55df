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
// group, not one for each tile. And there are counters of this rank alone, which only grow: for each own group and source the
// blocks whose pieces of the part are here, and the calls that have ended.
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
// **Faults.** Behind a wait that missed its deadline, in this call or one before, nothing more is stored or announced, but that
// everything was fetched. Every launch ends.
//
// **Bits.** A part is rounded to the element type when it is stored. The owner's own is not: its f32 sums take its rank's
// place in the sum, which is rounded once. That depends on neither time nor grid, so that every run gives the same bits.
//
// There is no programmatic launch: where ranks share a GPU, blocks of a rank's next call would take multiprocessors that the
// blocks for which the call before waits have not got yet.
#pragma once

#include "gemm.cuh"
#include "inbox.cuh"
#include "warpweave/signal.cuh"

namespace warpweave {

// `MAX_WORLD` in `sm90/reduction.rs`.
constexpr uint32_t kMaxRanks = 8;

// A tile of a cluster in the order of the blocks. `Unit` in `sm90/reduction.rs`.
struct Unit {
  // Whose rows they are, and which group of them.
  uint16_t owner;
  uint16_t group;
  // In tiles of a cluster, in the shard.
  uint32_t row;
  uint32_t column;
  // Units of the group.
  uint32_t of;
};
static_assert(sizeof(Unit) == sizeof(uint4), "one load");

// The parameters of a launch. `Reduction` in `sm90/reduction.rs` has the same layout.
struct alignas(128) Reduction {
  TensorMap a;
  TensorMap b;
  // This rank's rows of C.
  TensorMap c;
  // For each other rank: this rank's part of its rows, in staging.
  TensorMap outgoing[kMaxRanks];
  // For each other rank: its part of this rank's rows, once fetched.
  TensorMap incoming[kMaxRanks];
  PadView pad;
  // For each other rank: where its part lies, and where it is fetched to.
  const char* from[kMaxRanks];
  char* to[kMaxRanks];
  // Row 0 of each rank's C, where everyone gets the sums.
  char* sums[kMaxRanks];
  const Unit* units;
  // By own group, and behind them the calls.
  uint32_t* arrived;
  // Of A and C, by rank: the rows before its shard, and those of it.
  uint32_t starts[kMaxRanks];
  uint32_t rows[kMaxRanks];
  // Of a group, but the last of a shard.
  uint32_t group_rows;
  // Of the largest shard.
  uint32_t groups;
  // From a row of C or a part to the next, and of a row of C.
  uint32_t row_stride;
  uint32_t row_bytes;
  uint32_t unit_count;
  // Steps of K.
  uint32_t steps;
  uint32_t ready;
  uint32_t summed;
  uint32_t done;
  // Whether every rank gets the sums.
  uint32_t everyone;

  __device__ __forceinline__ uint32_t* calls() const { return &arrived[groups]; }

  // Rows of a group; 0 behind the last of the shard.
  __device__ __forceinline__ uint32_t height(uint32_t owner, uint32_t group) const {
    const uint32_t first = group * group_rows;
    return first < rows[owner] ? min(group_rows, rows[owner] - first) : 0;
  }
  __device__ __forceinline__ Lines part(uint32_t group) const {
    return {1, uint64_t(height(pad.rank, group)) * row_stride, 0};
  }
  // Rows that lie behind each other are one line.
  __device__ __forceinline__ Lines sum(uint32_t owner, uint32_t group) const {
    const uint32_t count = height(owner, group);
    return row_bytes == row_stride ? Lines{1, uint64_t(count) * row_bytes, 0} : Lines{count, row_bytes, row_stride};
  }
};
static_assert(sizeof(Reduction) == 2816, "as in Rust");

// A tile of the shard of `owner`, by its first row there and its first column.
struct Part {
  uint32_t owner;
  uint32_t group;
  uint32_t row;
  uint32_t column;
  // Stores of the group by this rank: one by each consumer of each of its tiles.
  uint32_t draws;
};

__device__ __forceinline__ Unit unit_at(const Unit* from) {
  const uint4 unit = __ldg(reinterpret_cast<const uint4*>(from));
  return {uint16_t(unit.x), uint16_t(unit.x >> 16), unit.y, unit.z, unit.w};
}

// The walk of this block's cluster over the tiles: `visit(part)` for each.
template <class Tile, class Visit>
__device__ __forceinline__ void for_each_part(const Reduction& reduction, Visit&& visit) {
  const uint32_t stride = gridDim.x / Tile::kCluster;
  for (uint32_t i = blockIdx.x / Tile::kCluster; i < reduction.unit_count; i += stride) {
    const Unit unit = unit_at(reduction.units + i);
    const Corner corner = corner_of<Tile>({unit.row, unit.column});
    visit(Part{unit.owner, unit.group, corner.row, corner.column, unit.of * Tile::kCluster * kConsumers});
  }
}

// How the stages of the ring hold the parts of an own tile: each has boxes of 64 columns of all rows of the tile,
// one for each of `kParts` ranks at most. The boxes of all other ranks are taken together, so that the sum of an element is
// taken in the order of ranks.
template <class Tile>
struct Parts {
  static constexpr uint32_t kBytes = Tile::kM * kSwizzledRow;
  static constexpr uint32_t kParts = Tile::kStageBytes / kBytes;
  static_assert(Tile::kBytesA == kBytes && Tile::kBytesB % kBytes == 0, "one in A's place, the others in B's");

  // Those of a box of 64 columns.
  __device__ __forceinline__ static uint32_t stages(const PadView& pad) { return (pad.world - 1 + kParts - 1) / kParts; }

  __device__ __forceinline__ static char* at(Memory<Tile>& memory, uint32_t stage, uint32_t part) {
    return part == 0 ? memory.a[stage] : memory.b[stage] + (part - 1) * kBytes;
  }
};

// One thread: whether all parts of own groups are here, group by group.
class Arrivals {
 public:
  __device__ __forceinline__ explicit Arrivals(const Reduction& reduction)
      : reduction_(reduction), call_(load_counter(reduction.calls()) + 1) {}

  // Takes note of a group that is here.
  __device__ __forceinline__ void look(uint32_t group) {
    if (group != met_ && reached(load_acquire_gpu(&reduction_.arrived[group]), wanted(group))) meet(group);
  }

  // Where a rank misses the deadline, what lies in the place of its part is added, for nobody to read.
  __device__ __forceinline__ void await(uint32_t group) {
    if (group == met_) return;
    const PadView& pad = reduction_.pad;
    const uint32_t next = (pad.rank + 1) % pad.world;
    wait_behind_waits(pad, &reduction_.arrived[group], reduction_.ready + group, next, wanted(group));
    meet(group);
  }

 private:
  __device__ __forceinline__ uint32_t wanted(uint32_t group) const {
    return call_ * (reduction_.pad.world - 1) * min(reduction_.part(group).pieces(), gridDim.x);
  }

  __device__ __forceinline__ void meet(uint32_t group) {
    fence_async();
    met_ = group;
  }

  const Reduction& reduction_;
  const uint32_t call_;
  uint32_t met_ = UINT32_MAX;
};

// One thread of each block: what this rank fetches, in the order in which it comes: the sums of a group follow the parts of the
// group behind it. At each time every rank fetches from another, where all are equally quick.
class PartFetcher {
 public:
  __device__ __forceinline__ PartFetcher(const Reduction& reduction, Inbox& inbox, uint32_t epoch)
      : reduction_(reduction), fetcher_(inbox), epoch_(epoch) {}

  __device__ __forceinline__ void fetch() {
    const uint32_t peers = reduction_.pad.world - 1;
    for (uint32_t group = 0; group <= reduction_.groups; ++group) {
      for (uint32_t i = 0; group < reduction_.groups && i < peers; ++i) share(group * peers + i, false);
      for (uint32_t i = 0; reduction_.everyone && group > 0 && i < peers; ++i) share((group - 1) * peers + i, true);
    }
    fetcher_.drain();
  }

 private:
  __device__ __forceinline__ uint32_t group_of(uint32_t item) const { return item / (reduction_.pad.world - 1); }
  __device__ __forceinline__ uint32_t peer_of(uint32_t item) const {
    const uint32_t world = reduction_.pad.world;
    return (reduction_.pad.rank + world - 1 - item % (world - 1)) % world;
  }
  // The blocks' turns follow each other from item to item.
  __device__ __forceinline__ uint32_t turn(uint32_t item, const Lines& lines) const {
    return (blockIdx.x + gridDim.x - uint32_t(uint64_t(item) * lines.pieces() % gridDim.x)) % gridDim.x;
  }

  // This block's pieces of a part or a sum, once the word is there.
  __device__ __forceinline__ void share(uint32_t item, bool sum) {
    const uint32_t peer = peer_of(item), group = group_of(item);
    const Lines lines = sum ? reduction_.sum(peer, group) : reduction_.part(group);
    const uint32_t pieces = lines.pieces(), first = turn(item, lines);
    uint32_t* const arrived = sum ? nullptr : &reduction_.arrived[group];
    if (first >= pieces) return;
    if (!await(peer, (sum ? reduction_.summed : reduction_.ready) + group)) {
      // The counters are whole behind the call all the same.
      if (arrived != nullptr) add_release_gpu(arrived, 1);
      return;
    }
    const uint64_t row = uint64_t(group) * reduction_.group_rows + (sum ? reduction_.starts[peer] : 0);
    const uint64_t above = row * reduction_.row_stride;
    char* const to = (sum ? reduction_.sums[reduction_.pad.rank] : reduction_.to[peer]) + above;
    const char* const from = (sum ? reduction_.sums[peer] : reduction_.from[peer]) + above;
    for (uint32_t i = first; i < pieces; i += gridDim.x) {
      const Lines::Piece piece = lines.piece(i);
      fetcher_.fetch(to + piece.offset, from + piece.offset, piece.bytes, pieces - i > gridDim.x ? nullptr : arrived);
    }
  }

  __device__ __forceinline__ bool await(uint32_t peer, uint32_t slot) {
    const PadView& pad = reduction_.pad;
    bool here = has_epoch(pad, slot, peer, epoch_);
    if (!here) {
      // Nobody is to wait for what this thread has in its hands while it waits itself.
      fetcher_.drain();
      here = wait_epoch(pad, slot, peer, epoch_);
    }
    fence_async();
    return here;
  }

  const Reduction& reduction_;
  Fetcher fetcher_;
  const uint32_t epoch_;
};

// One thread: the parts of an own tile from the other ranks, which are here.
template <class Tile>
__device__ __forceinline__ void load_parts(const Reduction& reduction, const Part& part, const Pipeline<Tile>& pipeline,
                                           typename Pipeline<Tile>::Cursor& at) {
  using Parts = Parts<Tile>;
  const PadView& pad = reduction.pad;
  for (uint32_t box = 0; box < Tile::kBoxesC; ++box) {
    uint32_t left = pad.world - 1, taken = 0;
    uint64_t* full = nullptr;
    for (uint32_t source = 0; source < pad.world; ++source) {
      if (source == pad.rank) continue;
      if (taken == 0) {
        wait_readers(&pipeline.memory.empty[at.stage], at.parity ^ 1);
        full = &pipeline.memory.full[at.stage];
        arrive_expecting(full, min(left, Parts::kParts) * Parts::kBytes);
      }
      load_box(Parts::at(pipeline.memory, at.stage, taken), &reduction.incoming[source],
               int32_t(part.column + box * kBox), int32_t(part.row), full);
      --left;
      if (++taken == Parts::kParts || left == 0) {
        at.advance();
        taken = 0;
      }
    }
  }
}

// A warpgroup: the sums over all ranks of 64 columns, of which `sums` are this rank's.
template <class Tile>
__device__ __forceinline__ void add_parts(const PadView& pad, const Pipeline<Tile>& pipeline,
                                          typename Pipeline<Tile>::Cursor& at, uint32_t consumer, float* sums) {
  using Parts = Parts<Tile>;
  const MatrixLane lane;
  float total[kBox / 2];
#pragma unroll
  for (float& value : total) value = -0.0f;  // The neutral element: positive zero would lose the sign of negative zeros.
  uint32_t left = pad.world - 1, taken = 0;
#pragma unroll 1
  for (uint32_t source = 0; source < pad.world; ++source) {
    if (source == pad.rank) {
#pragma unroll
      for (uint32_t i = 0; i < kBox / 2; ++i) total[i] += sums[i];
      continue;
    }
    if (taken == 0) pipeline.wait_full(at);
    const char* box = Parts::at(pipeline.memory, at.stage, taken) + consumer * 64 * kSwizzledRow;
#pragma unroll
    for (uint32_t column = 0; column < kBox; column += 16) {
      uint32_t matrices[4];
      load_matrices(lane.at(box, column), matrices);
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const float2 pair = widened_pair<typename Tile::Element>(matrices[i]);
        total[column / 2 + 2 * i] += pair.x;
        total[column / 2 + 2 * i + 1] += pair.y;
      }
    }
    --left;
    if (++taken == Parts::kParts || left == 0) {
      // What has been added has been read.
      hold(total);
      __syncwarp();
      pipeline.release(at.stage);
      at.advance();
      taken = 0;
    }
  }
#pragma unroll
  for (uint32_t i = 0; i < kBox / 2; ++i) sums[i] = total[i];
}

// Where a tile goes from a consumer to its storer: boxes of 64 columns in a stage that the ring lends, and in buffers of C what
// that has no place for. Of two barriers each waits at one and arrives at the other.
template <class Tile>
struct Handover {
  static constexpr uint32_t kBoxBytes = 64 * kSwizzledRow;
  static constexpr uint32_t kLent = Tile::kStageBytes / kBoxBytes / kConsumers;
  static_assert(kLent + Tile::kBuffersC >= Tile::kBoxesC, "a whole tile");

  Memory<Tile>& memory;
  uint32_t consumer;

  __device__ __forceinline__ char* at(uint32_t stage, uint32_t box) const {
    if (box >= kLent) return memory.c[consumer][box - kLent];
    constexpr uint32_t kInA = Tile::kBytesA / kBoxBytes;
    const uint32_t place = consumer * kLent + box;
    return place < kInA ? memory.a[stage] + place * kBoxBytes : memory.b[stage] + (place - kInA) * kBoxBytes;
  }

  // The consumer, in the place of the storer's `sync_full`; and so on.
  __device__ __forceinline__ void sync_empty() const { sync(first()); }
  __device__ __forceinline__ void arrive_full() const { arrive(first() + 1); }
  __device__ __forceinline__ void sync_full() const { sync(first() + 1); }
  __device__ __forceinline__ void arrive_empty() const { arrive(first()); }

 private:
  // Barrier 0 is that of the block, those behind it the consumers' own.
  __device__ __forceinline__ uint32_t first() const { return 1 + kConsumers + 2 * consumer; }

  __device__ __forceinline__ static void sync(uint32_t barrier) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kWarpgroup + 32) : "memory");
  }
  __device__ __forceinline__ static void arrive(uint32_t barrier) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(kWarpgroup + 32) : "memory");
  }
};

// A warpgroup: all sums of rows 64 `consumer` and behind of this block's tiles.
template <class Tile>
__device__ __forceinline__ void consume(const Reduction& reduction, const Pipeline<Tile>& pipeline, uint32_t consumer) {
  const PadView& pad = reduction.pad;
  const Handover<Tile> handover{pipeline.memory, consumer};
  typename Pipeline<Tile>::Cursor at;
  float sums[Tile::kN / 2];
  for_each_part<Tile>(reduction, [&](const Part& part) {
    multiply<Tile>(pipeline, at, reduction.steps, consumer, sums);
    const bool sum = part.owner == pad.rank && pad.world > 1;
#pragma unroll
    for (uint32_t box = 0; sum && box < Tile::kBoxesC; ++box) {
      add_parts<Tile>(pad, pipeline, at, consumer, &sums[box * kBox / 2]);
    }
    pipeline.wait_full(at);
    handover.sync_empty();
#pragma unroll
    for (uint32_t box = 0; box < Tile::kBoxesC; ++box) {
      round_to_box<typename Tile::Element>(handover.at(at.stage, box), &sums[box * kBox / 2]);
    }
    fence_async_shared();
    handover.arrive_full();
    at.advance();
  });
  // The storer's last arrivals.
  handover.sync_empty();
}

// One thread, behind its stores of a tile: the last of the group tells those who fetch it.
__device__ __forceinline__ void announce(const Reduction& reduction, const Part& part, uint32_t epoch) {
  const PadView& pad = reduction.pad;
  const bool own = part.owner == pad.rank;
  if (own && !reduction.everyone) return;
  const uint32_t slot = (own ? reduction.summed : reduction.ready) + part.group;
  if (!draw_last(pad, slot, part.owner, part.draws)) return;
  if (!own) return store_epoch(pad, slot, part.owner, epoch);
  for (uint32_t step = 1; step < pad.world; ++step) store_epoch(pad, slot, (pad.rank + step) % pad.world, epoch);
}

// A warp: all stores of a consumer's tiles.
template <class Tile>
__device__ __forceinline__ void store_parts(const Reduction& reduction, const Pipeline<Tile>& pipeline, uint32_t consumer,
                                            uint32_t epoch) {
  const PadView& pad = reduction.pad;
  const bool leader = threadIdx.x % 32 == 0;
  const Handover<Tile> handover{pipeline.memory, consumer};
  handover.arrive_empty();
  // Stages of the ring before the one that is lent.
  uint32_t stages = 0;
  for_each_part<Tile>(reduction, [&](const Part& part) {
    const bool own = part.owner == pad.rank;
    stages += reduction.steps + (own ? Tile::kBoxesC * Parts<Tile>::stages(pad) : 0);
    const uint32_t stage = stages++ % Tile::kStages;
    // Whole warps take part in named barriers.
    __syncwarp();
    handover.sync_full();
    // The parts of an own tile have been waited for by now.
    const bool sound = leader && !faulted(pad);
    if (sound) {
      const TensorMap* map = own ? &reduction.c : &reduction.outgoing[part.owner];
      const int32_t row = int32_t(part.row + consumer * 64);
      for (uint32_t box = 0; box < Tile::kBoxesC; ++box) {
        store_box(map, int32_t(part.column + box * kBox), row, handover.at(stage, box));
      }
      bulk_commit();
      bulk_wait_read<0>();
    }
    __syncwarp();
    pipeline.give_back(stage);
    handover.arrive_empty();
    if (sound) {
      bulk_wait<0>();
      announce(reduction, part, epoch);
    }
  });
}

template <class Tile>
__device__ __forceinline__ void reduce(const Reduction& reduction) {
  const Pipeline<Tile> pipeline{memory_of_block<Tile>()};
  const PadView& pad = reduction.pad;
  // The number of the call, which all words of the kernel's slots carry: one counter stands for all of them.
  uint32_t* const calls = pad.expected + counter_index(pad, reduction.done, pad.rank);
  const uint32_t epoch = load_counter(calls) + 1;

  if (threadIdx.x == 0) {
    prefetch_map(&reduction.a);
    prefetch_map(&reduction.b);
    pipeline.init();
  }
  // No block loads into or arrives at another before the other's barriers are there.
  if constexpr (Tile::kCluster == 1) {
    __syncthreads();
  } else {
    sync_cluster();
  }

  // The same in all lanes, and the compiler is to know it.
  const uint32_t warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  const uint32_t warpgroup = warp / (kWarpgroup / 32);
  if (warpgroup == 0) {
    give_registers<kProducerRegisters>();
    if (warp == 0) {
      if (elected()) {
        typename Pipeline<Tile>::Cursor at;
        Arrivals arrivals(reduction);
        for_each_part<Tile>(reduction, [&](const Part& part) {
          const bool sum = part.owner == pad.rank && pad.world > 1;
          // While the stages are full: where they have arrived by now, the loads of parts need not wait for the word.
          if (sum) arrivals.look(part.group);
          const uint32_t row = reduction.starts[part.owner] + part.row;
          load_steps<Tile>(&reduction.a, &reduction.b, row, part.column, reduction.steps, pipeline, at);
          if (sum) {
            arrivals.await(part.group);
            load_parts<Tile>(reduction, part, pipeline, at);
          }
          pipeline.lend(at);
        });
      }
    } else if (warp <= kConsumers) {
      store_parts<Tile>(reduction, pipeline, warp - 1, epoch);
    } else if (elected()) {
      PartFetcher(reduction, inbox_of_block<Tile>(), epoch).fetch();
      // Nothing of the others will be read any more.
      if (draw_last(pad, reduction.done, pad.rank, gridDim.x)) {
        for (uint32_t step = 1; step < pad.world; ++step) {
          store_epoch(pad, reduction.done, (pad.rank + step) % pad.world, epoch);
        }
      }
    }
  } else {
    take_registers<kConsumerRegisters>();
    consume<Tile>(reduction, pipeline, warpgroup - 1);
  }

  // No block ends while the other may still arrive at its barriers, and none draws before all its threads have ended.
  __syncwarp();
  if constexpr (Tile::kCluster == 1) {
    __syncthreads();
  } else {
    sync_cluster();
  }
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
