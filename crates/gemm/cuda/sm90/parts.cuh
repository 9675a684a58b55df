// How the parts of an own tile come from the other ranks and are added, for `reduction.cuh`: the share of a block in what is
// fetched, whether everything of a group is here, loads into the ring, and the sum.
#pragma once

#include "shards.cuh"

namespace warpweave {

// How the stages of the ring hold the parts of an own tile: each has a box of 64 columns of all rows of the tile from `kParts`
// other ranks at most, one behind the other. One instruction loads a stage: the producer's thread is slow, and whatever it does
// for each rank costs the tile more than the bytes do.
template <class Tile>
struct Parts {
  static constexpr uint32_t kBytes = Tile::kM * kSwizzledRow;
  static constexpr uint32_t kParts = Tile::kStageBytes / kBytes;
  static_assert(kParts != 0 && sizeof(Stage<Tile>) == Tile::kStageBytes, "behind each other in a stage");

  // Those of a box of 64 columns.
  __device__ __forceinline__ static uint32_t stages(const PadView& pad) { return (pad.world - 1 + kParts - 1) / kParts; }
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

  // False if something did not come.
  __device__ __forceinline__ bool fetch() {
    const uint32_t peers = reduction_.pad.world - 1;
    for (uint32_t group = 0; group <= reduction_.groups; ++group) {
      for (uint32_t i = 0; group < reduction_.groups && i < peers; ++i) share(group * peers + i, false);
      for (uint32_t i = 0; reduction_.everyone && group > 0 && i < peers; ++i) share((group - 1) * peers + i, true);
    }
    fetcher_.drain();
    return !missed_;
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
      missed_ = true;
      // The counters are whole after the call all the same.
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
  bool missed_ = false;
};

// One thread: the parts of 64 columns of an own tile from the other ranks, which are here.
template <class Tile>
__device__ __forceinline__ void load_parts(const Reduction& reduction, const Part& part, uint32_t box,
                                           const Pipeline<Tile>& pipeline, typename Pipeline<Tile>::Cursor& at) {
  using Parts = Parts<Tile>;
  const uint32_t others = reduction.pad.world - 1;
  const uint32_t bytes = min(others, Parts::kParts) * Parts::kBytes;
  for (uint32_t first = 0; first < others; first += Parts::kParts, at.advance()) {
    uint64_t* full = pipeline.fill(at, bytes);
    load_box(pipeline.memory.stages[at.stage].a, &reduction.incoming, int32_t(part.column + box * kBox), int32_t(part.row),
             int32_t(first), full);
  }
}

// A warpgroup: adds the parts of 64 columns to this rank's sums, in the order of ranks.
template <class Tile>
__device__ __forceinline__ void add_parts(const PadView& pad, const Pipeline<Tile>& pipeline,
                                          typename Pipeline<Tile>::Cursor& at, uint32_t consumer, float (&sums)[kBox / 2]) {
  using Parts = Parts<Tile>;
  const MatrixLane lane;
  const uint32_t others = pad.world - 1;
#pragma unroll 1
  for (uint32_t first = 0; first < others; first += Parts::kParts, at.advance()) {
    pipeline.wait_full(at);
    const char* box = pipeline.memory.stages[at.stage].a + consumer * 64 * kSwizzledRow;
#pragma unroll 1
    for (uint32_t left = min(others - first, Parts::kParts); left != 0; --left, box += Parts::kBytes) {
#pragma unroll
      for (uint32_t column = 0; column < kBox; column += 16) {
        uint32_t matrices[4];
        load_matrices(lane.at(box, column), matrices);
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
          const float2 pair = widened_pair<typename Tile::Element>(matrices[i]);
          sums[column / 2 + 2 * i] += pair.x;
          sums[column / 2 + 2 * i + 1] += pair.y;
        }
      }
    }
    // What has been added has been read.
    hold(sums);
    __syncwarp();
    pipeline.release(at.stage);
  }
}

}  // namespace warpweave
