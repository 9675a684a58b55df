// The attention of a prompt, after `keep` (transformer.cu): 128 rows of a query head a block.
//
//   warps 0 to 3, 4 to 7   64 rows each, by `wgmma`
//   warp 8                 one thread loads keys and values of 128 tokens at a time by TMA
//
// Scores are computed tile by tile, and what has been added up is scaled down when a larger score comes
// (FlashAttention: Dao, 2023). The tensor cores compute the scores of the next tile and add up the values of
// this one while the weights of the next are found (FlashAttention-3: Shah and others, 2024). The bits of a
// row depend on its own query and the tokens that it sees: tiles begin at multiples of 128 tokens, and one
// that a row does not see adds zeros and scales by one.

#include "attention.cuh"
#include "warpweave/dependent.cuh"
#include "warpweave/tma.cuh"
#include "warpweave/wgmma.cuh"

namespace {

// `src/fused.rs` has the same layout.
struct alignas(128) Prompt {
  // [key heads, capacity, head]. Tokens that are not there yet are finite.
  TensorMap keys;
  TensorMap values;
  Attention attention;
};

// Rows of a block, and tokens of a tile.
constexpr uint32_t kRows = 128;
constexpr uint32_t kTokens = 128;
constexpr uint32_t kConsumers = 2;
constexpr uint32_t kWarpgroup = 128;
constexpr uint32_t kThreads = (1 + kConsumers) * kWarpgroup;
// Registers of a thread that loads, and of a consumer's.
constexpr int kFewRegisters = 40;
constexpr int kManyRegisters = 232;
// Elements of a swizzled row.
constexpr uint32_t kBox = kSwizzledRow / 2;
// Tiles of keys, and of values, that a block has room for.
constexpr uint32_t kSlots = 2;

// A ring of tiles, of keys or of values.
template <uint32_t kBytes>
struct Ring {
  char* tiles;
  uint64_t* full;
  uint64_t* empty;

  __device__ __forceinline__ void init() const {
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      init_barrier(&full[slot], 1);
      init_barrier(&empty[slot], kConsumers * kWarpgroup / 32);
    }
  }
  // The thread that loads.
  __device__ __forceinline__ void load(const TensorMap& map, uint32_t tile, uint32_t head) const {
    const uint32_t slot = tile % kSlots;
    wait_phase(&empty[slot], tile / kSlots % 2 ^ 1);
    arrive_expecting(&full[slot], kBytes);
#pragma unroll
    for (uint32_t box = 0; box < kBytes / (kTokens * kSwizzledRow); ++box) {
      load_box(tiles + slot * kBytes + box * kTokens * kSwizzledRow, &map, int32_t(box * kBox),
               int32_t(tile * kTokens), int32_t(head), &full[slot]);
    }
  }
  // A consumer: the address of a tile, when it is there.
  __device__ __forceinline__ uint32_t await(uint32_t tile) const {
    wait_phase(&full[tile % kSlots], tile / kSlots % 2);
    return shared_address(tiles) + tile % kSlots * kBytes;
  }
  __device__ __forceinline__ void release(uint32_t tile) const {
    if (threadIdx.x % 32 == 0) arrive(&empty[tile % kSlots]);
  }
};

template <typename T, uint32_t kHead>
__device__ __forceinline__ void prompt(const Prompt& prompt) {
  const Attention& p = prompt.attention;
  constexpr uint32_t kHalf = kHead / 16, kVectors = kHead / 8;
  constexpr uint32_t kBoxBytes = kTokens * kSwizzledRow, kBytes = kHead / kBox * kBoxBytes;
  extern __shared__ char shared[];
  __shared__ uint64_t barriers[4 * kSlots];
  const uint32_t beyond = shared_address(shared) % kSwizzleAlignment;
  char* const queries = shared + (kSwizzleAlignment - beyond) % kSwizzleAlignment;
  const Ring<kBytes> keys{queries + kBytes, barriers, barriers + kSlots};
  const Ring<kBytes> values{queries + (1 + kSlots) * kBytes, barriers + 2 * kSlots, barriers + 3 * kSlots};
  if (threadIdx.x == 0) {
    prefetch_map(&prompt.keys), prefetch_map(&prompt.values);
    keys.init(), values.init();
    publish_barriers();
  }
  __syncthreads();
  wait_for_prerequisites();

  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, consumer = warp / 4;
  const uint32_t query_head = blockIdx.x, query_heads = gridDim.x;
  // The longest rows first.
  const uint32_t first = (gridDim.y - 1 - blockIdx.y) * kRows;
  const uint32_t past = p.positions[0];
  // Of the tokens that any row of the block sees.
  const uint32_t tiles = (past + min(first + kRows, p.rows) + kTokens - 1) / kTokens;
  if (consumer == kConsumers) {
    release_registers<kFewRegisters>();
    if (threadIdx.x != kConsumers * kWarpgroup) return;
    for (uint32_t tile = 0; tile < tiles; ++tile) {
      keys.load(prompt.keys, tile, query_head / p.groups);
      values.load(prompt.values, tile, query_head / p.groups);
    }
    return;
  }
  acquire_registers<kManyRegisters>();

  const uint4* qkv = static_cast<const uint4*>(p.qkv) + query_head * kVectors;
  const uint64_t pitch = uint64_t(query_heads + 2 * p.key_heads) * kVectors;
  for (uint32_t i = threadIdx.x % kWarpgroup; i < kRows / kConsumers * kHalf; i += kWarpgroup) {
    const uint32_t within = consumer * (kRows / kConsumers) + i / kHalf, row = first + within;
    uint4 turned[2] = {};
    if (row < p.rows) rotated<T, kHead>(p, qkv + row * pitch, past + row, i % kHalf, turned);
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      const uint32_t vector = i % kHalf + half * kHalf;
      store_shared(shared_address(queries) + vector / 8 * kBoxBytes + swizzled(within, vector % 8 * 16),
                   turned[half]);
    }
  }
  fence_async_shared();
  asm volatile("bar.sync %0, %1;" ::"r"(1 + consumer), "n"(kWarpgroup) : "memory");

  // This thread has two rows, eight apart. They see the tokens before these.
  const uint32_t row = first + consumer * (kRows / kConsumers) + warp % 4 * 16 + lane / 4;
  const int32_t seen[2] = {int32_t(past + row + 1), int32_t(past + row + 9)};
  float scores[kTokens / 2], out[kHead / 2] = {};
  uint32_t weights[kTokens / 16][4];
  float most[2] = {kNothing, kNothing}, sum[2] = {}, factor[2];

  // Begins the scores of a tile.
  const auto multiply_keys = [&](uint32_t tile) {
    const uint32_t at_queries = shared_address(queries) + consumer * (kRows / kConsumers) * kSwizzledRow;
    const uint32_t at_keys = keys.await(tile);
    fence_accumulators(scores);
    wgmma_fence();
#pragma unroll
    for (uint32_t k = 0; k < kHead / kWgmmaDepth; ++k) {
      const uint32_t offset = k / 4 * kBoxBytes + k % 4 * kWgmmaBytes;
      wgmma<T, Major::kK>(scores, wgmma_descriptor<Major::kK>(at_queries + offset, 0),
                          wgmma_descriptor<Major::kK>(at_keys + offset, 0), k != 0);
    }
    wgmma_commit();
  };
  // Begins to add the values of a tile, by their weights.
  const auto multiply_values = [&](uint32_t tile) {
    const uint64_t at_values = wgmma_descriptor<Major::kMN>(values.await(tile), kBoxBytes);
    fence_accumulators(out);
    wgmma_fence();
#pragma unroll
    for (uint32_t k = 0; k < kTokens / kWgmmaDepth; ++k) {
      wgmma_registers<T>(out, weights[k], at_values + k * kDescriptorStep<Major::kMN>);
    }
    wgmma_commit();
  };
  // Scores become weights, in f32, and `factor` what the sums so far are scaled by.
  const auto weigh = [&](uint32_t tile) {
    const int32_t before = tile * kTokens;
    if (seen[0] - before < int32_t(kTokens)) {
#pragma unroll
      for (uint32_t i = 0; i < kTokens / 2; ++i) {
        const int32_t token = before + i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (token >= seen[i / 2 % 2]) scores[i] = kNothing;
      }
    }
    const float scale = score_scale<kHead>();
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      float largest = kNothing;
#pragma unroll
      for (uint32_t i = 2 * half; i < kTokens / 2; i += 4) {
        largest = fmaxf(largest, fmaxf(scores[i], scores[i + 1]));
      }
      largest = fmaxf(most[half], most_of_row(largest) * scale);
      // Every row sees a token of the first tile.
      factor[half] = two_to(most[half] - largest);
      most[half] = largest;
      float added = 0;
#pragma unroll
      for (uint32_t i = 2 * half; i < kTokens / 2; i += 4) {
        scores[i] = two_to(scores[i] * scale - largest);
        scores[i + 1] = two_to(scores[i + 1] * scale - largest);
        added += scores[i] + scores[i + 1];
      }
      sum[half] = sum[half] * factor[half] + added;
    }
  };
  // Weights become operands.
  const auto round_weights = [&] {
#pragma unroll
    for (uint32_t i = 0; i < kTokens / 4; ++i) {
      weights[i / 4][i % 4] = round_pair<T>(scores[2 * i], scores[2 * i + 1]);
    }
  };

  multiply_keys(0);
  wgmma_wait<0>();
  fence_accumulators(scores);
  keys.release(0);
  weigh(0);
  round_weights();
  for (uint32_t tile = 1; tile < tiles; ++tile) {
    multiply_keys(tile);
    multiply_values(tile - 1);
    wgmma_wait<1>();
    fence_accumulators(scores);
    keys.release(tile);
    weigh(tile);
    wgmma_wait<0>();
    fence_accumulators(out);
    values.release(tile - 1);
#pragma unroll
    for (uint32_t i = 0; i < kHead / 2; ++i) out[i] *= factor[i / 2 % 2];
    round_weights();
  }
  multiply_values(tiles - 1);
  wgmma_wait<0>();
  fence_accumulators(out);

#pragma unroll
  for (uint32_t half = 0; half < 2; ++half) {
    const float inverse = 1.0f / sum_of_row(sum[half]);
    if (row + 8 * half >= p.rows) continue;
    uint32_t* to =
        static_cast<uint32_t*>(p.out) + (uint64_t(row + 8 * half) * query_heads + query_head) * (kHead / 2);
#pragma unroll
    for (uint32_t i = 0; i < kHead / 8; ++i) {
      const float* of_row = &out[4 * i + 2 * half];
      to[i * 4 + lane % 4] = round_pair<T>(of_row[0] * inverse, of_row[1] * inverse);
    }
  }
}

}  // namespace

#define WARPWEAVE_PROMPT(name, T, head)                                                               \
  extern "C" __global__ void __launch_bounds__(kThreads, 1)                                           \
      prompt_##name(const __grid_constant__ Prompt p) {                                               \
    prompt<T, head>(p);                                                                               \
  }
WARPWEAVE_PROMPT(bf16_64, __nv_bfloat16, 64)
WARPWEAVE_PROMPT(bf16_128, __nv_bfloat16, 128)
WARPWEAVE_PROMPT(f16_64, __half, 64)
WARPWEAVE_PROMPT(f16_128, __half, 128)
