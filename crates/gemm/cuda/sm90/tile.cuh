// The shapes of a GEMM: the tile of a block, the boxes that bring its operands, and its shared memory.
#pragma once

#include <cstdint>

#include "warpweave/cluster.cuh"
#include "warpweave/tma.cuh"
#include "warpweave/wgmma.cuh"

namespace warpweave {

// The operand whose tile the two blocks of a cluster share. Each loads one half of it and multicasts it to
// both.
enum class Multicast { kNone, kA, kB };

// What an element of C, a sum of products of e4m3, is multiplied by.
enum class Scaling {
  // Nothing: the operands have 16 bits.
  kNone,
  // A scale of its row of A and one of its column of B, or one of A and one of B.
  kOuter,
  // The sum over each 128 of K: a scale of these of its row of A, and one of their block of 128 columns of B.
  kBlock,
};

// Ranks that fit into the parameters of a launch: `RANKS` in `sm90/mod.rs`.
constexpr uint32_t kMostRanks = 8;

// Elements of 16 bits in a swizzled row.
constexpr uint32_t kBox = kSwizzledRow / 2;
// Consumer warpgroups; each computes 64 rows of the tile.
constexpr uint32_t kConsumers = 2;
constexpr uint32_t kWarpgroup = 128;
// One more warpgroup: the load warp and three auxiliary warps.
constexpr uint32_t kThreads = (1 + kConsumers) * kWarpgroup;
// Registers a thread after `setmaxnreg`. Together they are at most those of the launch.
constexpr int kProducerRegisters = 56;
constexpr int kConsumerRegisters = 224;
static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <= 65536 / kThreads / 8 * 8 * 3,
              "registers of an SM");

// A block computes `kM` × `kN` elements of C in steps of `kK`.
//
// B is stored as rows of K (`Major::kK`, N×K: transposed) or as rows of N (`Major::kMN`, K×N: row-major).
// With two buffers of C a consumer fills one box while the other is being stored; one buffer leaves shared
// memory for a receive ring.
template <typename T, Major kMajorB_, uint32_t kN_, Multicast kMulticast_, typename C = T,
          Scaling kScaling_ = Scaling::kNone, uint32_t kBuffersC_ = 2>
struct Tile {
  using Element = T;
  using Output = C;
  static_assert(sizeof(Output) == 2, "elements of C");
  static constexpr Scaling kScaling = kScaling_;
  static constexpr Major kMajorB = kMajorB_;
  static constexpr Multicast kMulticast = kMulticast_;
  static constexpr uint32_t kM = kConsumers * 64;
  static constexpr uint32_t kN = kN_;
  static constexpr uint32_t kK = kSwizzledRow / sizeof(Element);
  static constexpr uint32_t kCluster = kMulticast == Multicast::kNone ? 1 : 2;
  // Tiles of a cluster.
  static constexpr uint32_t kClusterM = kMulticast == Multicast::kB ? 2 : 1;
  static constexpr uint32_t kClusterN = kMulticast == Multicast::kA ? 2 : 1;

  static constexpr uint32_t kBytesA = kM * kSwizzledRow;
  static constexpr uint32_t kBytesB = kN * kSwizzledRow;
  // Bytes that a stage receives, from both blocks of a cluster.
  static constexpr uint32_t kStageBytes = kBytesA + kBytesB;
  static constexpr uint32_t kStages = 4 * (kSwizzledRow * (128 + 256)) / kStageBytes;

  // Rows of a box of A, except in the last tile, and rows or columns of B: what one block loads.
  static constexpr uint32_t kRowsA = kM / kClusterN;
  static constexpr uint32_t kRowsB = kN / kClusterM;
  static_assert(kRowsA <= 256 && kRowsB <= 256, "the longest side of a box");
  static_assert(kRowsB % kBox == 0, "whole MN-major boxes");
  // Whether a tile can be taken in halves of its columns (`schedule.cuh`). Halves of narrower tiles load as
  // much of A for half of the multiplications, and L2 does not give that.
  static constexpr bool kHasHalves = kN >= 4 * kBox;
  // Whether the code of whole tiles computes halves too: its instructions are those of half a tile.
  static constexpr bool kSkipsHalf = kHasHalves && kScaling != Scaling::kNone;
  // Rows of a K-major box of B, and columns of an MN-major one.
  static constexpr uint32_t kBoxB = kMajorB == Major::kMN ? kBox : kHasHalves ? kN / 2 : kRowsB;

  // An MN-major box of B: 64 columns in each of 64 steps of K.
  static constexpr uint32_t kBoxBytes = kBox * kSwizzledRow;
  // A box of C: 64 columns of the 64 rows of a consumer.
  static constexpr uint32_t kBoxesC = kN / kBox;
  static constexpr uint32_t kBuffersC = kBuffersC_;
};

// The operands of a step of K.
template <class Tile>
struct Stage {
  char a[Tile::kBytesA];
  char b[Tile::kBytesB];
};

// The shared memory of a block. Boxes start at multiples of 1024.
template <class Tile>
struct alignas(kSwizzleAlignment) Memory {
  Stage<Tile> stages[Tile::kStages];
  char c[kConsumers][Tile::kBuffersC][64 * kSwizzledRow];
  // Barriers of a stage: it has been filled; it may be filled.
  uint64_t full[Tile::kStages];
  uint64_t empty[Tile::kStages];
};

// This block's memory, at the first address in dynamic shared memory where boxes may start.
template <class Tile>
__device__ __forceinline__ Memory<Tile>& memory_of_block() {
  extern __shared__ char shared[];
  const uint32_t beyond = shared_address(shared) % kSwizzleAlignment;
  return *reinterpret_cast<Memory<Tile>*>(shared + (kSwizzleAlignment - beyond) % kSwizzleAlignment);
}

// Dynamic shared memory of a launch, with room to align its start: `SHARED_BYTES` in `sm90/config.rs`.
template <class Tile>
constexpr uint32_t kSharedBytes = sizeof(Memory<Tile>) + kSwizzleAlignment;

}  // namespace warpweave
