// Products whose K is sharded over ranks, and the sums of these, in one launch: tensor cores and links work at once.
//
// Each rank computes a partial product of all of C. The rows of C are sharded too; who has a row is its owner and sums it.
//
//   producer    one thread: A and B by TMA into the stages of a ring; behind those of an own tile the parts of it that were
//               fetched from the other ranks, once they are here
//   consumers   each 64 rows of a tile: wgmma from the ring into registers; an own tile adds the parts in f32, in the order
//               of ranks; registers to a stage that the ring lends
//   storers     a warp for each consumer, one thread of which stores: a part into this rank's staging, a sum into C, here or
//               everywhere. It waits until the stores have arrived, and announces them, while its consumer multiplies again
//   fetcher     one thread: of each part of this rank's rows the block's share, from its source's staging to this rank's
//               memory. Where everyone gets the sums, its warp waits in one block until all of C is here
//
// **Order.** A *group* is some rows of a shard. The blocks take the groups in rounds (`Band`): group i of each other rank, that
// of the next rank first, then group i − 1 of their own. So parts are added soon after they came, while L2 may still have
// them, the links have work between the first tile and nearly the last, and at each time every rank receives from one other.
// No order of ranks can deadlock: a sum in round i waits for parts of round i − 1, before which their ranks wait for sums of
// round i − 2 at most.
//
// **Signals.** A group has two words for each pair of ranks, in slots `ready` + group and `over` + group of the pad:
// - `ready`, to the owner: "my part of the group may be fetched". The threads that store draw tickets, and the last to have
//   seen its stores arrive signals: one store crosses the link for a group, not one for each tile, and a word has one epoch a
//   call, as every word of a pad.
// - `over`, from the owner to all: "I have read your part", a credit for the next call's stores; or, where everyone gets the
//   sums, "your C has them". These need no other credit: a call ends when it has all sums, whose owners have read all parts;
//   and an owner writes a peer's C only behind that peer's part of this call, so that the peer's call has begun.
// And there are counters of this rank alone, which only grow: for each own group and source the blocks whose pieces of the part
// are here, and the calls that have ended.
//
// **Memory.** In the terms of signal.cuh, from a part to its sum:
//   stores by TMA, complete (`bulk_wait`, which implies the proxy fence) → draw (release, GPU) → the last draw (acquire, GPU)
//   → `ready` (release, system) → the owner's fetchers (acquire, system) → `fence_async` → bulk copies, complete (`bulk_wait`)
//   → the counter (release, GPU) → the owner's producer (acquire, GPU) → `fence_async` → loads by TMA.
// And back, for the memory to be used again:
//   loads complete (their barrier, seen by the consumer) → named barrier → storer's draw → the last draw → `over` (release,
//   system) → the storer of the next call (acquire, system) → `fence_async` → stores by TMA.
//
// **Faults.** Behind a wait that missed its deadline, in this call or one before, nothing more is stored or announced to other
// ranks, since a rank that is merely slow may still read what it has: it misses a deadline in its turn. Every launch ends.
//
// **Bits.** A part is rounded to the element type when it is sent. The owner's own is not: its f32 sums take its rank's place
// in the sum, which is rounded once. That depends on neither time nor grid, so that every run gives the same bits.
//
// Nothing waits in a circle: a fetcher that waits for a part has counted all pieces before it.
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

// A group in the order of the blocks, walked column by column. A unit is the tile of a cluster.
struct Band {
  // The unit behind its last.
  uint32_t end;
  uint32_t owner;
  // Rows of clusters, counted from the first of the owner's shard.
  uint32_t first;
  uint32_t rows;
};
static_assert(sizeof(Band) == sizeof(uint4), "one load");

// The parameters of a launch. `Reduction` in `sm90/reduction.rs` has the same layout.
struct alignas(128) Reduction {
  TensorMap a;
  TensorMap b;
  // This rank's rows of each rank's C. Where only owners get the sums, that of this rank alone is there.
  TensorMap c[kMaxRanks];
  // For each other rank: this rank's part of its rows, in staging.
  TensorMap outgoing[kMaxRanks];
  // For each other rank: its part of this rank's rows, once fetched.
  TensorMap incoming[kMaxRanks];
  PadView pad;
  // The same parts where they lie, and where they are fetched to.
  const char* from[kMaxRanks];
  char* to[kMaxRanks];
  const Band* bands;
  // [groups][world], and behind them the calls.
  uint32_t* arrived;
  // Rows of A and C before each rank's.
  uint32_t starts[kMaxRanks];
  // Of this rank's shard.
  uint32_t rows;
  uint32_t groups;
  // Of a group, but the last of a shard.
  uint32_t group_rows;
  // Of a part.
  uint32_t row_bytes;
  uint32_t band_count;
  // In tiles of a cluster.
  uint32_t units;
  uint32_t columns;
  // Rows of clusters of a group, but the last of a shard.
  uint32_t band;
  // Steps of K.
  uint32_t steps;
  uint32_t ready;
  uint32_t over;
  // Whether every rank gets the sums.
  uint32_t everyone;

  __device__ __forceinline__ uint32_t group_of(const Band& at) const { return at.first / band; }

  __device__ __forceinline__ uint32_t* arrivals(uint32_t group, uint32_t source) const {
    return &arrived[group * pad.world + source];
  }
  __device__ __forceinline__ uint32_t* calls() const { return arrivals(groups, 0); }

  // Of each part of an own group.
  __device__ __forceinline__ uint64_t part_bytes(uint32_t group) const {
    return uint64_t(min(group_rows, rows - group * group_rows)) * row_bytes;
  }
};
static_assert(sizeof(Reduction) == 3712, "as in Rust");

// A tile of the shard of `owner`, by its first row there and its first column.
struct Part {
  uint32_t owner;
  uint32_t group;
  uint32_t row;
  uint32_t column;
  // Stores of the group by this rank: one by each consumer of each of its tiles.
  uint32_t draws;
};

__device__ __forceinline__ Band band_at(const Band* from) {
  const uint4 band = __ldg(reinterpret_cast<const uint4*>(from));
  return {band.x, band.y, band.z, band.w};
}

// The walk of this block's cluster over the tiles: `visit(part)` for each.
template <class Tile, class Visit>
__device__ __forceinline__ void for_each_part(const Reduction& reduction, Visit&& visit) {
  const Band* next = reduction.bands;
  Band band = band_at(next);
  uint32_t first = 0;
  for (uint32_t unit = blockIdx.x / Tile::kCluster; unit < reduction.units; unit += gridDim.x / Tile::kCluster) {
    // Units only go up, so that the band is this one or a later one.
    while (unit >= band.end) {
      first = band.end;
      band = band_at(++next);
    }
    const uint32_t at = unit - first;
    const Corner corner = corner_of<Tile>({band.first + at % band.rows, at / band.rows});
    const uint32_t draws = band.rows * reduction.columns * Tile::kCluster * kConsumers;
    visit(Part{band.owner, reduction.group_of(band), corner.row, corner.column, draws});
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

// One thread: until the other ranks' parts of an own group are here. Where a rank misses the deadline, what lies in its place
// is added, for nobody to read.
__device__ __forceinline__ void await_parts(const Reduction& reduction, uint32_t group) {
  const PadView& pad = reduction.pad;
  const uint32_t blocks = min(pieces_of(reduction.part_bytes(group)), gridDim.x);
  const uint32_t arrivals = (load_counter(reduction.calls()) + 1) * blocks;
  for (uint32_t source = 0; source < pad.world; ++source) {
    if (source == pad.rank) continue;
    wait_behind_waits(pad, reduction.arrivals(group, source), reduction.ready + group, source, arrivals);
  }
  fence_async();
}

// One thread: of each part of each own group the pieces that are this block's turn, in the order in which the other ranks have
// them, so that at each time every rank fetches from another.
__device__ __forceinline__ void fetch_parts(const Reduction& reduction, Inbox& inbox, uint32_t epoch) {
  const PadView& pad = reduction.pad;
  Fetcher fetcher(inbox);
  // The first piece of the next part that is this block's.
  uint32_t turn = blockIdx.x;
  for (uint32_t group = 0; group < reduction.groups; ++group) {
    const uint64_t bytes = reduction.part_bytes(group);
    const uint64_t above = uint64_t(group) * reduction.group_rows * reduction.row_bytes;
    const uint32_t pieces = pieces_of(bytes);
    for (uint32_t step = 1; step < pad.world; ++step) {
      const uint32_t source = (pad.rank + pad.world - step) % pad.world;
      const uint32_t slot = reduction.ready + group;
      uint32_t* arrived = reduction.arrivals(group, source);
      if (turn < pieces) {
        // Nobody is to wait for what this thread has in its hands while it waits itself.
        if (!has_epoch(pad, slot, source, epoch)) fetcher.drain();
        const bool here = wait_epoch(pad, slot, source, epoch);
        fence_async();
        for (uint32_t piece = turn; here && piece < pieces; piece += gridDim.x) {
          const uint64_t at = uint64_t(piece) * kPieceBytes;
          fetcher.fetch(reduction.to[source] + above + at, reduction.from[source] + above + at,
                        uint32_t(min(uint64_t(kPieceBytes), bytes - at)), pieces - piece > gridDim.x ? nullptr : arrived);
        }
        // The counters are whole behind the call all the same.
        if (!here) add_release_gpu(arrived, 1);
      }
      turn = (turn + gridDim.x - pieces % gridDim.x) % gridDim.x;
    }
  }
  fetcher.drain();
}

// One thread: the parts of an own tile from the other ranks, behind `await_parts`.
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

// One thread, behind its stores of a tile: the last of the group tells those who wait for it.
__device__ __forceinline__ void announce(const Reduction& reduction, const Part& part, uint32_t epoch) {
  const PadView& pad = reduction.pad;
  const bool own = part.owner == pad.rank;
  const uint32_t slot = (own ? reduction.over : reduction.ready) + part.group;
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
    // While the consumer multiplies. Where everyone gets the sums, the call before ended behind all of them.
    bool sound = true;
    if (leader && !own && !reduction.everyone) {
      sound = wait_epoch(pad, reduction.over + part.group, part.owner, epoch - 1);
      fence_async();
    }
    // Whole warps take part in named barriers.
    __syncwarp();
    handover.sync_full();
    // The parts of an own tile have been waited for by now.
    sound = leader && sound && !faulted(pad);
    if (sound) {
      const int32_t row = int32_t(part.row + consumer * 64);
      for (uint32_t box = 0; box < Tile::kBoxesC; ++box) {
        const char* from = handover.at(stage, box);
        const int32_t column = int32_t(part.column + box * kBox);
        if (own) store_box(&reduction.c[pad.rank], column, row, from);
        if (!own) store_box(&reduction.outgoing[part.owner], column, row, from);
        for (uint32_t step = 1; own && reduction.everyone && step < pad.world; ++step) {
          store_box(&reduction.c[(pad.rank + step) % pad.world], column, row, from);
        }
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

// A warp of the grid: until the sums of all other ranks are in this rank's C.
__device__ __forceinline__ void await_sums(const Reduction& reduction, uint32_t epoch) {
  for (uint32_t i = threadIdx.x % 32; i < reduction.band_count; i += 32) {
    const Band band = band_at(reduction.bands + i);
    if (band.owner == reduction.pad.rank) continue;
    wait_epoch(reduction.pad, reduction.over + reduction.group_of(band), band.owner, epoch);
  }
}

template <class Tile>
__device__ __forceinline__ void reduce(const Reduction& reduction) {
  const Pipeline<Tile> pipeline{memory_of_block<Tile>()};
  const PadView& pad = reduction.pad;
  // The number of the call, which all words of the kernel's slots carry: one counter stands for all of them.
  uint32_t* const calls = pad.expected + counter_index(pad, reduction.ready, pad.rank);
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
        // The own group whose parts are here: a block takes several of its tiles one after the other.
        uint32_t met = UINT32_MAX;
        for_each_part<Tile>(reduction, [&](const Part& part) {
          const uint32_t row = reduction.starts[part.owner] + part.row;
          load_steps<Tile>(&reduction.a, &reduction.b, row, part.column, reduction.steps, pipeline, at);
          if (part.owner == pad.rank && pad.world > 1) {
            if (part.group != met) await_parts(reduction, part.group);
            met = part.group;
            load_parts<Tile>(reduction, part, pipeline, at);
          }
          pipeline.lend(at);
        });
      }
    } else if (warp <= kConsumers) {
      store_parts<Tile>(reduction, pipeline, warp - 1, epoch);
    } else {
      if (elected()) fetch_parts(reduction, inbox_of_block<Tile>(), epoch);
      __syncwarp();
      if (reduction.everyone && blockIdx.x == 0) await_sums(reduction, epoch);
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
  if (threadIdx.x != 0 || !draw_last(pad, reduction.ready, pad.rank, gridDim.x)) return;
  *calls = epoch;
  ++*reduction.calls();
}

}  // namespace warpweave
