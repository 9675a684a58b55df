// What a layer of a transformer does besides its GEMMs and norms, each in one launch where candle takes many:
//
//   keep      a prompt: rotates its keys into the cache and copies its values there. `prompt.cu` attends
//   decode    one new token for each request: rotates, keeps and attends. Its query heads that share a key
//             head are a cluster's, which divides the tokens into up to eight parts
//   swiglu    silu(gate) · up
//   choose    the most probable token of each row, if its logits are finite
//
// Scores, their maxima and all sums are f32. Scores are computed tile by tile of 64 tokens, and what has been
// added up is scaled down when a larger score comes (FlashAttention: Dao, 2023), so that no score leaves the
// SM. The bits of a row depend on its own queries and on the tokens that it sees: a tile that it does not see
// adds zeros and scales by one, and the parts of `decode` do not depend on how many blocks share them.
//
// PTX ISA: "cp.async".

#include "attention.cuh"
#include "warpweave/cluster.cuh"
#include "warpweave/dependent.cuh"
#include "warpweave/mma.cuh"

namespace {

constexpr uint32_t kTokens = 64;
constexpr uint32_t kWarps = 4;
constexpr uint32_t kThreads = kWarps * 32;
// The most parts of the tokens of a request in `decode`, and tiles of a part while there are fewer.
constexpr uint32_t kParts = 8;
constexpr uint32_t kPartTiles = 3;
// Rows that a warp has at a time. `decode` uses the first half of them, a query head each.
constexpr uint32_t kRows = 16;

// Copies a vector to shared memory, or zeros where it does not exist.
__device__ __forceinline__ void copy_async(uint32_t to, const uint4* from, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(exists ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

template <typename T, uint32_t kHead>
struct Heads {
  // Vectors of a head, and bytes of the rows of a tile.
  static constexpr uint32_t kVectors = kHead / 8;
  static constexpr uint32_t kTileBytes = kTokens * kHead * 2;

  // Keys or values of `kTokens` tokens, or queries, in shared memory: the vectors of a row are exchanged so
  // that eight rows of a column are in different banks.
  static __device__ __forceinline__ uint32_t at(uint32_t tile, uint32_t row, uint32_t vector) {
    return tile + row * kHead * 2 + (vector ^ row % 8) * 16;
  }

  // What a warp has of 16 rows. A lane has rows `lane / 4` and `lane / 4 + 8`.
  struct Rows {
    uint32_t queries[kHead / 16][4];
    float out[kHead / 8][4];
    float most[2];
    // Of this lane's scores.
    float sum[2];

    // From 16 rows of a tile of queries.
    __device__ __forceinline__ explicit Rows(uint32_t tile, uint32_t first) {
      const uint32_t lane = threadIdx.x % 32;
#pragma unroll
      for (uint32_t k = 0; k < kHead / 16; ++k) {
        load_matrices(at(tile, first + lane % 16, k * 2 + lane / 16), queries[k]);
      }
#pragma unroll
      for (uint32_t i = 0; i < kHead / 8; ++i) out[i][0] = out[i][1] = out[i][2] = out[i][3] = 0;
      most[0] = most[1] = kNothing;
      sum[0] = sum[1] = 0;
    }

    // Takes in 16 tokens of a tile, from `first` on, of which the two rows see the first `seen`.
    __device__ __forceinline__ void attend(uint32_t keys, uint32_t values, uint32_t first,
                                           const int32_t (&seen)[2], float scale) {
      const uint32_t lane = threadIdx.x % 32;
      float scores[kRows / 8][4] = {};
#pragma unroll
      for (uint32_t k = 0; k < kHead / 16; ++k) {
#pragma unroll
        for (uint32_t n = 0; n < kRows / 16; ++n) {
          uint32_t b[4];
          load_matrices(at(keys, first + n * 16 + lane / 16 * 8 + lane % 8, k * 2 + lane / 8 % 2), b);
          multiply_matrices<T>(scores[2 * n], queries[k], b[0], b[1]);
          multiply_matrices<T>(scores[2 * n + 1], queries[k], b[2], b[3]);
        }
      }
      if (min(seen[0], seen[1]) < int32_t(kRows)) {
#pragma unroll
        for (uint32_t n = 0; n < kRows / 8; ++n) {
#pragma unroll
          for (uint32_t i = 0; i < 4; ++i) {
            if (int32_t(n * 8 + lane % 4 * 2 + i % 2) >= seen[i / 2]) scores[n][i] = kNothing;
          }
        }
      }
#pragma unroll
      for (uint32_t row = 0; row < 2; ++row) {
        float largest = kNothing;
#pragma unroll
        for (uint32_t n = 0; n < kRows / 8; ++n) {
          largest = fmaxf(largest, fmaxf(scores[n][2 * row], scores[n][2 * row + 1]));
        }
        largest = fmaxf(most[row], most_of_row(largest) * scale);
        const float base = largest == kNothing ? 0.0f : largest;
        const float factor = rescale(most[row], base);
        most[row] = largest;
        float added = 0;
#pragma unroll
        for (uint32_t n = 0; n < kRows / 8; ++n) {
#pragma unroll
          for (uint32_t i = 2 * row; i < 2 * row + 2; ++i) {
            scores[n][i] = two_to(scores[n][i] * scale - base);
            added += scores[n][i];
          }
        }
        sum[row] = sum[row] * factor + added;
#pragma unroll
        for (uint32_t i = 0; i < kHead / 8; ++i) out[i][2 * row] *= factor, out[i][2 * row + 1] *= factor;
      }
#pragma unroll
      for (uint32_t n = 0; n < kRows / 16; ++n) {
        const float(&low)[4] = scores[2 * n], (&high)[4] = scores[2 * n + 1];
        const uint32_t a[4] = {round_pair<T>(low[0], low[1]), round_pair<T>(low[2], low[3]),
                               round_pair<T>(high[0], high[1]), round_pair<T>(high[2], high[3])};
#pragma unroll
        for (uint32_t i = 0; i < kHead / 16; ++i) {
          uint32_t b[4];
          load_transposed(at(values, first + n * 16 + lane % 16, i * 2 + lane / 16), b);
          multiply_matrices<T>(out[2 * i], a, b[0], b[1]);
          multiply_matrices<T>(out[2 * i + 1], a, b[2], b[3]);
        }
      }
    }
  };
};

// A thread for each pair of vectors of a key head, and as many for the values.
template <typename T, uint32_t kHead>
__device__ __forceinline__ void keep(const Attention& p) {
  using H = Heads<T, kHead>;
  constexpr uint32_t kHalf = H::kVectors / 2;
  wait_for_prerequisites();
  const uint32_t index = blockIdx.x * blockDim.x + threadIdx.x;
  const uint32_t pair = index % kHalf, head = index / kHalf % p.key_heads, row = index / kHalf / p.key_heads;
  if (row >= p.rows) return;
  const uint32_t position = p.positions[row], query_heads = p.key_heads * p.groups;
  const uint4* from = static_cast<const uint4*>(p.qkv) +
                      (uint64_t(row) * (query_heads + 2 * p.key_heads) + query_heads + head) * H::kVectors;
  const uint64_t to = (uint64_t(head) * p.capacity + position) * H::kVectors + pair;
  uint4 turned[2];
  rotated<T, kHead>(p, from, position, pair, turned);
  const uint4* values = from + p.key_heads * H::kVectors + pair;
#pragma unroll
  for (uint32_t half = 0; half < 2; ++half) {
    static_cast<uint4*>(p.keys)[to + half * kHalf] = turned[half];
    static_cast<uint4*>(p.values)[to + half * kHalf] = values[half * kHalf];
  }
}

// A value in the shared memory of a block of the cluster, at the place of `own`.
template <uint32_t kBlocks>
__device__ __forceinline__ float load_of_block(const float& own, uint32_t rank) {
  if constexpr (kBlocks == 1) return own;
  uint32_t address;
  float value;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(&own)), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}

// What a warp, or a whole part, has of a query head.
template <uint32_t kHead>
struct Partial {
  float out[kHead];
  float most;
  float sum;
};

// Adds up an element of `kCount` partials, of which `of(i, member)` gives the maximum, the sum of weights and
// the element: these of the whole.
template <uint32_t kCount, class Of>
__device__ __forceinline__ float3 merged(Of&& of) {
  float most[kCount], largest = kNothing;
#pragma unroll
  for (uint32_t i = 0; i < kCount; ++i) most[i] = of(i, 0), largest = fmaxf(largest, most[i]);
  float out = 0, sum = 0;
#pragma unroll
  for (uint32_t i = 0; i < kCount; ++i) {
    const float factor = rescale(most[i], largest);
    if (factor != 0) sum += factor * of(i, 1), out += factor * of(i, 2);
  }
  return {largest, sum, out};
}

// A tile of a part. A block takes the parts `rank`, `rank + kBlocks` and so on, and of each every tile.
template <uint32_t kBlocks>
struct Place {
  uint32_t part;
  uint32_t tile;

  __device__ __forceinline__ Place next(uint32_t parts, uint32_t tiles) const {
    return tile + parts < tiles ? Place{part, tile + parts} : Place{part + kBlocks, part + kBlocks};
  }
};

// Dynamic shared memory: stages of keys and values, the partials of the warps, those of this block's parts.
// `on_gpu` in `src/fused.rs` has the same.
template <uint32_t kBlocks>
constexpr uint32_t kStages = kBlocks == kParts ? 3 : 2;

template <typename T, uint32_t kHead, uint32_t kBlocks>
__device__ __forceinline__ void decode(const Attention& p) {
  using H = Heads<T, kHead>;
  constexpr uint32_t kHalf = H::kVectors / 2;
  constexpr uint32_t kAhead = kStages<kBlocks> - 1;
  extern __shared__ __align__(128) char shared[];
  __shared__ __align__(128) char query_tile[kRows * kHead * 2];
  const uint32_t memory = shared_address(shared), query_memory = shared_address(query_tile);
  // [warp][group], then [part of this block][group]
  auto* of_warps = reinterpret_cast<Partial<kHead>*>(shared + kStages<kBlocks> * 2 * H::kTileBytes);
  Partial<kHead>* of_parts = of_warps + kWarps * p.groups;
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t rank = kBlocks == 1 ? 0 : cluster_rank();
  const uint32_t request = blockIdx.y / p.key_heads, key_head = blockIdx.y % p.key_heads;
  admit_dependents();
  const uint32_t position = p.positions[request];
  const uint32_t query_heads = p.key_heads * p.groups, first_query = key_head * p.groups;
  const uint4* qkv = static_cast<const uint4*>(p.qkv) +
                     uint64_t(request) * (query_heads + 2 * p.key_heads) * H::kVectors;
  const uint64_t head = uint64_t(blockIdx.y) * p.capacity * H::kVectors;
  uint4* keys = static_cast<uint4*>(p.keys) + head;
  uint4* values = static_cast<uint4*>(p.values) + head;

  const uint32_t tiles = position / kTokens + 1;
  const uint32_t parts = min(kParts, (tiles + kPartTiles - 1) / kPartTiles);
  const auto load = [&](Place<kBlocks> place, uint32_t stage) {
    if (place.part < parts) {
      const uint32_t to = memory + stage * 2 * H::kTileBytes;
      for (uint32_t i = threadIdx.x; i < kTokens * H::kVectors; i += kThreads) {
        const uint32_t row = i / H::kVectors, vector = i % H::kVectors, token = place.tile * kTokens + row;
        // The new token comes from `qkv`.
        if (token == position) continue;
        const uint64_t from = uint64_t(min(token, position)) * H::kVectors + vector;
        copy_async(H::at(to, row, vector), keys + from, token < position);
        copy_async(H::at(to + H::kTileBytes, row, vector), values + from, token < position);
      }
    }
    commit_copies();
  };
  Place<kBlocks> ahead{rank, rank};
  for (uint32_t stage = 0; stage < kAhead; ++stage) {
    load(ahead, stage);
    ahead = ahead.next(parts, tiles);
  }
  // The kernel before computes `qkv`; what has been loaded is older.
  wait_for_prerequisites();

  for (uint32_t i = threadIdx.x; i < kRows * kHalf; i += kThreads) {
    const uint32_t row = i / kHalf, pair = i % kHalf;
    uint4 turned[2] = {};
    if (row < p.groups) rotated<T, kHead>(p, qkv + (first_query + row) * H::kVectors, position, pair, turned);
    store_shared(H::at(query_memory, row, pair), turned[0]);
    store_shared(H::at(query_memory, row, pair + kHalf), turned[1]);
  }
  // Keeps the new token, and puts it into its tile.
  const auto keep_new = [&](uint32_t stage) {
    if (threadIdx.x >= kHalf) return;
    const uint32_t pair = threadIdx.x, row = position % kTokens, tile = memory + stage * 2 * H::kTileBytes;
    const uint4* key = qkv + (query_heads + key_head) * H::kVectors;
    const uint4* value = key + p.key_heads * H::kVectors + pair;
    uint4 turned[2];
    rotated<T, kHead>(p, key, position, pair, turned);
    const uint64_t to = uint64_t(position) * H::kVectors + pair;
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      keys[to + half * kHalf] = turned[half], values[to + half * kHalf] = value[half * kHalf];
      store_shared(H::at(tile, row, pair + half * kHalf), turned[half]);
      store_shared(H::at(tile + H::kTileBytes, row, pair + half * kHalf), value[half * kHalf]);
    }
  };
  // A part has ended: its sums are those of the warps.
  const auto end_part = [&](const typename H::Rows& rows, uint32_t part) {
    const uint32_t row = lane / 4;
    const float sum = sum_of_row(rows.sum[0]);
    if (row < p.groups) {
      Partial<kHead>& own = of_warps[warp * p.groups + row];
#pragma unroll
      for (uint32_t i = 0; i < kHead / 8; ++i) {
        own.out[i * 8 + lane % 4 * 2] = rows.out[i][0], own.out[i * 8 + lane % 4 * 2 + 1] = rows.out[i][1];
      }
      if (lane % 4 == 0) own.most = rows.most[0], own.sum = sum;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < p.groups * kHead; i += kThreads) {
      const uint32_t group = i / kHead, element = i % kHead;
      const float3 all = merged<kWarps>([&](uint32_t warp, uint32_t member) {
        const Partial<kHead>& of_warp = of_warps[warp * p.groups + group];
        return member == 0 ? of_warp.most : member == 1 ? of_warp.sum : of_warp.out[element];
      });
      Partial<kHead>& whole = of_parts[part / kBlocks * p.groups + group];
      whole.out[element] = all.z;
      if (element == 0) whole.most = all.x, whole.sum = all.y;
    }
  };
  __syncthreads();
  uint32_t stage = 0;
  for (Place<kBlocks> place{rank, rank}; place.part < parts;) {
    const uint32_t part = place.part;
    typename H::Rows rows(query_memory, 0);
    while (place.part == part) {
      if (place.tile + 1 == tiles) keep_new(stage);
      wait_copies<kAhead - 1>();
      __syncthreads();
      load(ahead, (stage + kAhead) % kStages<kBlocks>);
      ahead = ahead.next(parts, tiles);
      const uint32_t at = memory + stage * 2 * H::kTileBytes;
      const int32_t seen = int32_t(position + 1) - int32_t(place.tile * kTokens + warp * kRows);
      rows.attend(at, at + H::kTileBytes, warp * kRows, {seen, seen}, score_scale<kHead>());
      stage = (stage + 1) % kStages<kBlocks>;
      place = place.next(parts, tiles);
    }
    end_part(rows, part);
  }

  // All parts, of all blocks of the cluster.
  const auto sync = [] {
    if constexpr (kBlocks == 1) {
      __syncthreads();
    } else {
      sync_cluster();
    }
  };
  sync();
  for (uint32_t i = rank * kThreads + threadIdx.x; i < p.groups * kHead; i += kBlocks * kThreads) {
    const uint32_t group = i / kHead, element = i % kHead;
    const float3 all = merged<kParts>([&](uint32_t part, uint32_t member) {
      if (part >= parts) return kNothing;
      const Partial<kHead>& whole = of_parts[part / kBlocks * p.groups + group];
      const float& own = member == 0 ? whole.most : member == 1 ? whole.sum : whole.out[element];
      return load_of_block<kBlocks>(own, part % kBlocks);
    });
    const uint64_t to = (uint64_t(request) * query_heads + first_query + group) * kHead + element;
    static_cast<T*>(p.out)[to] = round_to<T>(all.z / all.y);
  }
  // Nobody ends while others read its memory.
  if constexpr (kBlocks > 1) sync();
}

// A thread for eight elements of `out`, of `vectors` such; `gate_up` alternates between eight of the gate and
// eight of up.
template <typename T>
__device__ __forceinline__ void swiglu(const uint4* gate_up, uint4* out, uint32_t vectors) {
  admit_dependents();
  wait_for_prerequisites();
  const uint64_t index = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= vectors) return;
  float gate[8], up[8];
  widen_vector<T>(gate_up[2 * index], gate);
  widen_vector<T>(gate_up[2 * index + 1], up);
#pragma unroll
  for (uint32_t i = 0; i < 8; ++i) up[i] *= gate[i] / (1.0f + __expf(-gate[i]));
  out[index] = round_vector<T>(up);
}

// A number for a score and its column that is larger for a larger score and, of equals, for an earlier one:
// the largest for NaN and ∞, the smallest for −∞, whatever the column. These are of column 2³² − 1, which is
// none.
__device__ __forceinline__ uint64_t ranked(float score, uint32_t column) {
  constexpr uint32_t kInfinity = 0x7f800000, kSign = 1u << 31;
  const uint32_t bits = __float_as_uint(score);
  if (bits == (kSign | kInfinity)) return 0;
  if ((bits & ~kSign) >= kInfinity) return uint64_t(~0u) << 32;
  return uint64_t(bits & kSign ? ~bits : bits | kSign) << 32 | ~column;
}

// A block for a row of `scores`, [rows, width] in vectors.
template <typename T>
__device__ __forceinline__ void choose(const uint4* scores, uint32_t* columns, uint32_t width) {
  __shared__ uint64_t of_warps[32];
  wait_for_prerequisites();
  const uint4* row = scores + uint64_t(blockIdx.x) * width;
  uint64_t best = 0;
  for (uint32_t i = threadIdx.x; i < width; i += blockDim.x) {
    float wide[8];
    widen_vector<T>(row[i], wide);
#pragma unroll
    for (uint32_t j = 0; j < 8; ++j) best = max(best, ranked(wide[j], i * 8 + j));
  }
  const auto best_of_warp = [](uint64_t best) {
    for (uint32_t lanes = 16; lanes > 0; lanes /= 2) {
      best = max(best, uint64_t(__shfl_xor_sync(0xffffffff, best, lanes)));
    }
    return best;
  };
  best = best_of_warp(best);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  best = best_of_warp(of_warps[threadIdx.x]);
  if (threadIdx.x == 0) columns[blockIdx.x] = ~uint32_t(best);
}

}  // namespace

#define WARPWEAVE_DECODE(name, T, head, blocks)                                                       \
  extern "C" __global__ void __cluster_dims__(blocks, 1, 1) __launch_bounds__(kThreads)               \
      decode_##blocks##_##name(const __grid_constant__ Attention p) {                                 \
    decode<T, head, blocks>(p);                                                                       \
  }
#define WARPWEAVE_ATTENTION(name, T, head)                                                            \
  extern "C" __global__ void __launch_bounds__(256)                                                   \
      keep_##name(const __grid_constant__ Attention p) {                                              \
    keep<T, head>(p);                                                                                 \
  }                                                                                                   \
  WARPWEAVE_DECODE(name, T, head, 1)                                                                  \
  WARPWEAVE_DECODE(name, T, head, 2)                                                                  \
  WARPWEAVE_DECODE(name, T, head, 8)
WARPWEAVE_ATTENTION(bf16_64, __nv_bfloat16, 64)
WARPWEAVE_ATTENTION(bf16_128, __nv_bfloat16, 128)
WARPWEAVE_ATTENTION(f16_64, __half, 64)
WARPWEAVE_ATTENTION(f16_128, __half, 128)

#define WARPWEAVE_ROWS(name, T)                                                                       \
  extern "C" __global__ void __launch_bounds__(256)                                                   \
      swiglu_##name(const uint4* gate_up, uint4* out, uint32_t vectors) {                             \
    swiglu<T>(gate_up, out, vectors);                                                                 \
  }                                                                                                   \
  extern "C" __global__ void __launch_bounds__(1024)                                                  \
      choose_##name(const uint4* scores, uint32_t* columns, uint32_t width) {                         \
    choose<T>(scores, columns, width);                                                                \
  }
WARPWEAVE_ROWS(bf16, __nv_bfloat16)
WARPWEAVE_ROWS(f16, __half)
