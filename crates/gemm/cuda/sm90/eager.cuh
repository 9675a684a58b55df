// All-gather and product in one launch for shards so small that words and ways cost more than bytes: each rank writes its rows into
// staging of its peers without asking, as message passing does *eagerly*. `all_gather.cuh` has the other protocol.
//
//   warp 0      one thread: the producer of `gemm.cuh`, which waits for the rows of its tile
//   warp 1      one thread writes the block's chunks of this rank's shard to all peers; a lane for each peer then says so
//   warp 2      watches the words of the rows that the producer needs next, a lane for each chunk
//   warp 3      draws for the block, and in the last block ends the call
//   consumers   as in `gemm.cuh`
//
// A word of the pad for each chunk of a shard, slots `slot` and behind it, is given once a call to every peer: "chunk i of my shard
// is in your staging". The words carry the number of the call. Who has no rows gives the first all the same.
//
// **Two stagings.** Calls take them in turn, by the parity of their number, and that takes the place of every other word. Rank s
// overwrites in call e what r has read in call e - 2. That has ended: s has begun call e behind its call e - 1, in which
// it has seen a word of r, given in r's call e - 1, behind the end of r's call e - 2. `comm` sends its packets by the same rule.
//
// **The memory model**, from a row on rank s to the tile on rank r, in the terms of `warpweave/signal.cuh`:
//   1. It was written before the launch on s. One thread loads it by bulk copies, stores it into r's staging by others, and waits for
//      these in full (`bulk_wait`). Its warp meets, and a lane stores the word: a release to the system.
//   2. A lane of the watching warp of r acquires it, and the warp meets. One thread arrives at a barrier: a release in the block.
//   3. The producer's thread sees the phase end, fences the async proxy, and loads by TMA. (A block of a cluster that loads for both
//      has waited itself.)
//
// **The end.** A call is over when its tiles are: nobody is waited for. The number of the call lies in a counter that all threads
// read when they begin; a block draws once they have, and the last to draw advances it, beside the product.
//
// **Faults.** After a wait that failed the launch ends with worthless rows in C, and this rank writes and signals nothing to a peer any
// more, which may still be reading what it got two calls before, so that no rank takes rows of a wrong call.
//
// All blocks are to be resident at once, since each writes a share that others wait for. Nothing waits in a circle: writing waits
// for nothing. The launch is not programmatic: it looks at the counter before anything else.
#pragma once

#include "inbox.cuh"
#include "walk.cuh"
#include "warpweave/signal.cuh"

namespace warpweave {

// The parameters of a launch. `Eager` in `sm90/all_gather/parameters.rs` has the same layout.
struct alignas(128) Eager {
  // By staging and shard; this rank's lies where it is in both. Those of an empty shard are never used.
  TensorMap a[2][kMostRanks];
  TensorMap last_a[2][kMostRanks];
  TensorMap c[kMostRanks];
  TensorMap b;
  PadView pad;
  // This rank's shard, and by rank the place of it in that rank's first staging.
  const char* from;
  char* to[kMostRanks];
  // From a place in the first staging to that in the second.
  uint64_t stagings;
  Walk walk;
  // Rows of each shard.
  uint32_t rows[kMostRanks];
  // Steps of K.
  uint32_t steps;
  // From a row of A to the next, and of K.
  uint32_t row_stride;
  uint32_t row_bytes;
  uint32_t chunk_rows;
  // Of the first chunk.
  uint32_t slot;
  Bias bias;

  __device__ __forceinline__ uint32_t* calls() const { return pad.expected + counter_index(pad, slot, pad.rank); }
};
// More than the 4096 bytes that drivers before CUDA 12.1 take.
static_assert(sizeof(Eager) == 5504, "as in Rust");

// What the tiles of a call are computed from.
struct EagerCall {
  const Eager& product;
  const uint32_t epoch;
  const uint32_t steps;
  const TensorMap& b;
  const Bias& bias;

  __device__ __forceinline__ EagerCall(const Eager& product)
      : product(product), epoch(load_counter(product.calls()) + 1), steps(product.steps), b(product.b), bias(product.bias) {}

  __device__ __forceinline__ uint32_t staging() const { return epoch & 1; }

  __device__ __forceinline__ const TensorMap* map_a(Corner corner, bool last) const {
    return last ? &product.last_a[staging()][corner.part] : &product.a[staging()][corner.part];
  }
  __device__ __forceinline__ uint32_t height(Corner corner) const { return product.rows[corner.part]; }
  __device__ __forceinline__ void store_c(Corner corner, uint32_t column, uint32_t row, const char* box) const {
    store_box(&product.c[corner.part], int32_t(column), int32_t(row), box);
  }

  template <class Tile, class Visit>
  __device__ __forceinline__ void for_each_tile(Visit&& visit) const {
    product.walk.for_each_tile<Tile>(visit);
  }
  __device__ __forceinline__ void prefetch_maps() const {
    prefetch_map(&product.a[0][product.pad.rank]);
    prefetch_map(&product.b);
    prefetch_map(&product.c[product.pad.rank]);
  }
};

// The chunks of a tile's rows that lie in staging, and whether those of the tile before are others.
class Need {
 public:
  __device__ __forceinline__ explicit Need(const Eager& product) : product_(product) {}

  template <class Tile>
  __device__ __forceinline__ bool is_new(Corner corner) {
    const uint32_t rows = product_.rows[corner.part];
    if (corner.part == product_.pad.rank || corner.row >= rows) return false;
    const uint32_t first = corner.row / product_.chunk_rows;
    const uint32_t last = (min(corner.row + Tile::kM, rows) - 1) / product_.chunk_rows;
    if (corner.part == shard && first >= first_ && last <= last_) return false;
    shard = corner.part, first_ = first, last_ = last;
    return true;
  }

  __device__ __forceinline__ uint32_t first() const { return first_; }
  __device__ __forceinline__ uint32_t last() const { return last_; }

  uint32_t shard = ~0u;

 private:
  const Eager& product_;
  uint32_t first_ = 0;
  uint32_t last_ = 0;
};

template <class Tile>
class EagerGather {
 public:
  // All threads, before the block meets.
  __device__ __forceinline__ explicit EagerGather(const EagerCall& call)
      : call_(call), product_(call.product), need_(call.product) {
    if (threadIdx.x != 0) return;
    Inbox& inbox = inbox_of_block<Tile>();
    init_barrier(&inbox.here, 1);
    init_barrier(&inbox.noticed, 1);
    publish_barriers();
  }

  __device__ __forceinline__ void before_loads(Corner corner) {
    if (!need_.template is_new<Tile>(corner)) return;
    Inbox& inbox = inbox_of_block<Tile>();
    wait_phase(&inbox.here, waits_++ % 2);
    arrive(&inbox.noticed);
    fence_async();
  }
  __device__ __forceinline__ void before_step(uint32_t) {}
  __device__ __forceinline__ void behind_loads() {}

  __device__ __forceinline__ void beside(uint32_t warp) {
    if (product_.pad.world == 1) return;
    if (warp == 1) send();
    if (warp == 2) watch();
    if (warp == 3) end();
  }
  __device__ __forceinline__ void behind_all() {}

 private:
  // The other ranks, a lane for each.
  __device__ __forceinline__ bool is_peer() const {
    const uint32_t lane = threadIdx.x % 32;
    return lane < product_.pad.world && lane != product_.pad.rank;
  }

  __device__ __forceinline__ void send() const {
    const PadView& pad = product_.pad;
    const uint32_t rows = product_.rows[pad.rank];
    uint32_t sent = 0;
    for (uint32_t chunk = blockIdx.x; chunk == 0 || uint64_t(chunk) * product_.chunk_rows < rows; chunk += gridDim.x) {
      bool sound = true;
      if (elected()) sound = write(chunk, sent);
      sound = __all_sync(0xffffffff, sound);
      __syncwarp();
      // Whoever wrote has looked whether it may.
      const uint32_t slot = product_.slot + chunk, peer = threadIdx.x % 32;
      if (sound && is_peer()) store_release_sys(word_at(pad, peer, slot, pad.rank), call_.epoch);
    }
  }

  // One thread: a chunk into the staging of all peers. False behind a fault: nothing is written then.
  __device__ __forceinline__ bool write(uint32_t chunk, uint32_t& sent) const {
    const PadView& pad = product_.pad;
    Inbox& inbox = inbox_of_block<Tile>();
    if (sent == 0) {
      for (uint64_t& full : inbox.full) init_barrier(&full, 1);
      publish_barriers();
      fence_async();
    }
    const uint32_t rows = product_.rows[pad.rank], first = chunk * product_.chunk_rows;
    const uint32_t height = first < rows ? min(product_.chunk_rows, rows - first) : 0;
    const bool whole = product_.row_bytes == product_.row_stride;
    const Lines lines = whole ? Lines{1, uint64_t(height) * product_.row_bytes, 0}
                              : Lines{height, product_.row_bytes, product_.row_stride};
    const uint64_t start = uint64_t(first) * product_.row_stride;
    const uint32_t pieces = height == 0 ? 0 : lines.pieces();
    bool sound = true;
    for (uint32_t piece = 0; piece == 0 || piece < pieces; piece += kSlots) {
      const uint32_t batch = min(kSlots, pieces - piece);
      bulk_wait_read<0>();
      for (uint32_t i = 0; i < batch; ++i) {
        const Lines::Piece each = lines.piece(piece + i);
        const uint32_t slot = (sent + i) % kSlots;
        arrive_expecting(&inbox.full[slot], each.bytes);
        bulk_load(inbox.slots[slot], product_.from + start + each.offset, each.bytes, &inbox.full[slot]);
      }
      // While they come.
      if (piece == 0) sound = !faulted(pad);
      for (uint32_t i = 0; i < batch; ++i, ++sent) {
        const Lines::Piece each = lines.piece(piece + i);
        const uint32_t slot = sent % kSlots;
        wait_phase(&inbox.full[slot], sent / kSlots % 2);
        for (uint32_t step = 1; sound && step < pad.world; ++step) {
          const uint32_t peer = (pad.rank + step) % pad.world;
          char* to = product_.to[peer] + call_.staging() * product_.stagings + start + each.offset;
          bulk_store(to, inbox.slots[slot], each.bytes);
        }
      }
      bulk_commit();
    }
    bulk_wait<0>();
    return sound;
  }

  __device__ __forceinline__ void watch() {
    const PadView& pad = product_.pad;
    Inbox& inbox = inbox_of_block<Tile>();
    uint32_t waits = 0;
    product_.walk.for_each_tile<Tile>([&](Corner corner) {
      if (!need_.template is_new<Tile>(corner)) return;
      for (uint32_t chunk = need_.first() + threadIdx.x % 32; chunk <= need_.last(); chunk += 32) {
        wait_epoch(pad, product_.slot + chunk, need_.shard, call_.epoch);
      }
      __syncwarp();
      if (threadIdx.x % 32 == 0) {
        // A phase ends when the one before it has been noticed: their parities are all that tells two of them apart. One thread
        // waits, since another might come too late to see its phase.
        if (waits != 0) wait_phase(&inbox.noticed, (waits - 1) % 2);
        arrive(&inbox.here);
      }
      ++waits;
    });
  }

  __device__ __forceinline__ void end() const {
    const PadView& pad = product_.pad;
    const bool last = threadIdx.x % 32 == 0 && draw_last(pad, product_.slot, pad.rank, gridDim.x);
    if (!__shfl_sync(0xffffffff, last, 0)) return;
    // Tiles wait for those who have rows.
    const uint32_t peer = threadIdx.x % 32;
    if (is_peer() && product_.rows[peer] == 0) wait_epoch(pad, product_.slot, peer, call_.epoch);
    __syncwarp();
    if (last) *product_.calls() = call_.epoch;
  }

  const EagerCall call_;
  const Eager& product_;
  Need need_;
  uint32_t waits_ = 0;
};

}  // namespace warpweave
