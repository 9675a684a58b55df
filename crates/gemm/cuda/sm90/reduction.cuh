// Products whose K is sharded over ranks, and the sums of these, in one launch: tensor cores and links work at once.
//
// Each rank computes a partial product of all of C. The rows of C are sharded too; who has a row is its owner and sums it.
//
//   producer    one thread: A and B by TMA into the stages of a ring; behind those of an own tile the parts of it that came
//               from the other ranks, once they are here
//   consumers   each 64 rows of a tile: wgmma from the ring into registers; an own tile adds the parts in f32, in the order
//               of ranks; registers to shared memory
//   storers     a warp for each consumer, one thread of which stores: a part into its owner's staging, a sum into C, here or
//               everywhere. It waits until the stores have arrived, and announces them, while its consumer multiplies again
//   awaiter     where everyone gets the sums: one warp of the grid, until all of C is here
//
// **Order.** A *group* is some rows of a shard. The blocks take the groups in rounds (`Band`): group i of each other rank, that
// of the next rank first, then group i − 1 of their own. So parts are added soon after they came, while L2 may still have
// them, the links have work between the first tile and nearly the last, and at each time every rank receives from one other.
// No order of ranks can deadlock: a sum in round i waits for parts of round i − 1, before which their ranks wait for sums of
// round i − 2 at most.
//
// **Signals.** A group has two words for each pair of ranks, in slots `ready` + group and `over` + group of the pad:
// - `ready`, to the owner: "my part of the group is in your staging". The threads that store draw tickets, and the last to
//   have seen its stores arrive signals: one store crosses the link for a group, not one for each tile, and a word has one
//   epoch a call, as every word of a pad.
// - `over`, from the owner to all: "I have read your part", a credit for the next call's stores; or, where everyone gets the
//   sums, "your C has them". These need no other credit: a call ends when it has all sums, whose owners have read all parts;
//   and an owner writes a peer's C only behind that peer's part of this call, so that the peer's call has begun.
//
// **Memory.** In the terms of signal.cuh, from a part to its sum:
//   stores by TMA, complete (`bulk_wait`, which implies the proxy fence) → draw (release, GPU) → the last draw (acquire, GPU)
//   → `ready` (release, system) → the owner's producer (acquire, system) → `fence_async` → loads by TMA.
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
// There is no programmatic launch: where ranks share a GPU, blocks of a rank's next call would take multiprocessors that the
// blocks for which the call before waits have not got yet.
#pragma once

#include "gemm.cuh"
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
  // For each other rank: where this rank's part of its rows goes.
  TensorMap outgoing[kMaxRanks];
  // For each other rank: where its part of this rank's rows comes.
  TensorMap incoming[kMaxRanks];
  PadView pad;
  const Band* bands;
  // Rows of A and C before each rank's.
  uint32_t starts[kMaxRanks];
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
};
static_assert(sizeof(Reduction) == 3584, "as in Rust");

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
  static_assert((kMaxRanks - 1 + kParts - 1) / kParts <= Tile::kStages, "the ring holds those of all ranks");

  __device__ __forceinline__ static char* at(Memory<Tile>& memory, uint32_t stage, uint32_t part) {
    return part == 0 ? memory.a[stage] : memory.b[stage] + (part - 1) * kBytes;
  }
};

// One thread: until the other ranks' parts of an own group are here. Where a rank misses the deadline, what lies in its place
// is added, for nobody to read.
__device__ __forceinline__ void await_parts(const Reduction& reduction, uint32_t group, uint32_t epoch) {
  const PadView& pad = reduction.pad;
  for (uint32_t source = 0; source < pad.world; ++source) {
    if (source != pad.rank) wait_epoch(pad, reduction.ready + group, source, epoch);
  }
  fence_async();
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

// A warpgroup: the sums over all ranks of 64 columns, of which `sums` are this rank's. The stages stay as they are.
template <class Tile>
__device__ __forceinline__ void add_parts(const PadView& pad, const Pipeline<Tile>& pipeline,
                                          typename Pipeline<Tile>::Cursor at, uint32_t consumer, float* sums) {
  using Parts = Parts<Tile>;
  const MatrixLane lane;
  float total[kBox / 2];
#pragma unroll
  for (float& value : total) value = -0.0f;  // The neutral element: positive zero would lose the sign of negative zeros.
  uint32_t taken = 0;
#pragma unroll 1
  for (uint32_t source = 0; source < pad.world; ++source) {
    if (source == pad.rank) {
#pragma unroll
      for (uint32_t i = 0; i < kBox / 2; ++i) total[i] += sums[i];
      continue;
    }
    if (taken == Parts::kParts) {
      at.advance();
      taken = 0;
    }
    if (taken == 0) pipeline.wait_full(at);
    const char* box = Parts::at(pipeline.memory, at.stage, taken++) + consumer * 64 * kSwizzledRow;
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
  }
#pragma unroll
  for (uint32_t i = 0; i < kBox / 2; ++i) sums[i] = total[i];
}

// A buffer of shared memory between a consumer and its storer, each of which waits for the other's arrival.
struct Buffer {
  uint32_t index;

  __device__ __forceinline__ static Buffer of(uint32_t consumer, uint32_t box) { return {consumer * 2 + box % 2}; }

  // The consumer, in the place of the storer's `sync_full`; and so on.
  __device__ __forceinline__ void sync_empty() const { sync(kFirst + 2 * index); }
  __device__ __forceinline__ void arrive_full() const { arrive(kFirst + 2 * index + 1); }
  __device__ __forceinline__ void sync_full() const { sync(kFirst + 2 * index + 1); }
  __device__ __forceinline__ void arrive_empty() const { arrive(kFirst + 2 * index); }

 private:
  // Barrier 0 is that of the block, those behind it the consumers' own.
  static constexpr uint32_t kFirst = 1 + kConsumers;
  static_assert(kFirst + 2 * 2 * kConsumers <= 16, "all that there are");

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
  const uint32_t stages = (pad.world - 1 + Parts<Tile>::kParts - 1) / Parts<Tile>::kParts;
  typename Pipeline<Tile>::Cursor at;
  float sums[Tile::kN / 2];
  for_each_part<Tile>(reduction, [&](const Part& part) {
    multiply<Tile>(pipeline, at, reduction.steps, consumer, sums);
    const bool sum = part.owner == pad.rank && pad.world > 1;
#pragma unroll
    for (uint32_t box = 0; box < Tile::kBoxesC; ++box) {
      const Buffer buffer = Buffer::of(consumer, box);
      if (sum) add_parts<Tile>(pad, pipeline, at, consumer, &sums[box * kBox / 2]);
      buffer.sync_empty();
      round_to_box<typename Tile::Element>(pipeline.memory.c[consumer][box % 2], &sums[box * kBox / 2]);
      fence_async_shared();
      buffer.arrive_full();
      // What was stored depends on all that was read, so that the reads have ended.
      for (uint32_t stage = 0; sum && stage < stages; ++stage, at.advance()) pipeline.release(at.stage);
    }
  });
  // The storer's last arrivals.
  for (uint32_t box = 0; box < 2; ++box) Buffer::of(consumer, box).sync_empty();
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
__device__ __forceinline__ void store_parts(const Reduction& reduction, Memory<Tile>& memory, uint32_t consumer,
                                            uint32_t epoch) {
  const PadView& pad = reduction.pad;
  const bool leader = threadIdx.x % 32 == 0;
  for (uint32_t box = 0; box < 2; ++box) Buffer::of(consumer, box).arrive_empty();
  for_each_part<Tile>(reduction, [&](const Part& part) {
    const bool own = part.owner == pad.rank;
    // While the consumer multiplies. Where everyone gets the sums, the call before ended behind all of them.
    bool sound = true;
    if (leader && !own && !reduction.everyone) {
      sound = wait_epoch(pad, reduction.over + part.group, part.owner, epoch - 1);
      fence_async();
    }
    // Whole warps take part in named barriers.
    __syncwarp();
    const int32_t row = int32_t(part.row + consumer * 64);
    for (uint32_t box = 0; box < Tile::kBoxesC; ++box) {
      Buffer::of(consumer, box).sync_full();
      // The parts of an own tile have been waited for by now.
      if (leader && box == 0) sound = sound && !faulted(pad);
      if (leader && sound) {
        const char* from = memory.c[consumer][box % 2];
        const int32_t column = int32_t(part.column + box * kBox);
        if (own) store_box(&reduction.c[pad.rank], column, row, from);
        if (!own) store_box(&reduction.outgoing[part.owner], column, row, from);
        for (uint32_t step = 1; own && reduction.everyone && step < pad.world; ++step) {
          store_box(&reduction.c[(pad.rank + step) % pad.world], column, row, from);
        }
        bulk_commit();
        bulk_wait_read<1>();
      }
      __syncwarp();
      // The box before has been read.
      if (box != 0) Buffer::of(consumer, box - 1).arrive_empty();
    }
    if (leader) bulk_wait_read<0>();
    __syncwarp();
    Buffer::of(consumer, Tile::kBoxesC - 1).arrive_empty();
    if (leader && sound) {
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
  extern __shared__ char shared[];
  const uint32_t unaligned = shared_address(shared);
  const uint32_t padding = (kSwizzleAlignment - unaligned % kSwizzleAlignment) % kSwizzleAlignment;
  const Pipeline<Tile> pipeline{*reinterpret_cast<Memory<Tile>*>(shared + padding)};
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
          if (part.owner != pad.rank || pad.world == 1) return;
          if (part.group != met) await_parts(reduction, part.group, epoch);
          met = part.group;
          load_parts<Tile>(reduction, part, pipeline, at);
        });
      }
    } else if (warp <= kConsumers) {
      store_parts<Tile>(reduction, pipeline.memory, warp - 1, epoch);
    } else if (reduction.everyone && blockIdx.x == 0) {
      await_sums(reduction, epoch);
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
  if (threadIdx.x == 0 && draw_last(pad, reduction.ready, pad.rank, gridDim.x)) *calls = epoch;
}

}  // namespace warpweave
