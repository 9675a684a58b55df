// Residual addition and RMSNorm of rows: by itself, and after an all-reduce by packets, in one launch.
//
// A thread sends the payloads of its rows as packets, and receives those of the same payloads from the peers.
// So what a row needs arrives where the row is computed, and the sum of the ranks never goes to memory. It
// reads a payload of the input before it writes that of a result, so results may take the input's place.

#include "norm.cuh"
#include "warpweave/dependent.cuh"

namespace {

using warpweave::Exchanged;
using warpweave::for_units;
using warpweave::kLocalThreads;
using warpweave::kNormThreads;
using warpweave::norm_row;
using warpweave::ReducedNorm;
using warpweave::RowCluster;
using warpweave::RowNorm;
using warpweave::Sections;
using warpweave::Units;

// Every rank sends everything to all, reduces everything and computes all rows.
template <typename T, int W, uint32_t kAccess>
__device__ __forceinline__ void reduced(const ReducedNorm& p, RowCluster& cluster) {
  const RowNorm& n = p.norm;
  const Units<T, 1, kAccess> payloads{n};
  const uint32_t units = payloads.count();
  const auto load = [&](uint32_t (&own)[3], uint32_t row, uint32_t unit) {
    payloads.load(own, payloads.row(n.input, row), unit);
  };
  // Its load is in flight when those of `Sections` begin.
  uint32_t first[3] = {};
  if (cluster.index < n.rows && cluster.thread() < units) load(first, cluster.index, cluster.thread());
  Sections sections(p.packets);
  const uint32_t rank = p.packets.group.pad.rank, world = p.packets.group.pad.world;
  bool is_first = true;
  for (uint32_t row = cluster.index; row < n.rows; row += cluster.count) {
    for_units(cluster, units, [&](uint32_t unit) {
      uint32_t own[3] = {first[0], first[1], first[2]};
      if (!is_first) load(own, row, unit);
      is_first = false;
      if (sections.may_send(own)) sections.send_all<W>(row * units + unit, own);
    });
  }
  cluster.arrive_cluster();
  const bool sound = !sections.gives_up();
  sections.prepare_next(n.rows * units);
  cluster.begin();
  for (uint32_t row = cluster.index; row < n.rows; row += cluster.count) {
    norm_row(payloads, cluster, row, [&](uint32_t unit, uint32_t (&x)[3]) {
      if (!sound) return false;
      // A payload of every peer, in the order of ranks, this rank's in its place.
      uint32_t own[3], data[W][3];
      load(own, row, unit);
      if (!sections.receive<W>(row * units + unit, data, [](uint32_t) { return true; })) return false;
      const auto of = [&](int source) -> const uint32_t(&)[3] { return data[source]; };
      warpweave::reduce_words<T, W>(rank, world, of, own, x);
      return true;
    });
  }
}

template <typename T, uint32_t kAccess>
__device__ __forceinline__ void local(const RowNorm& n, RowCluster& cluster) {
  const Units<T, 4, kAccess> units{n};
  cluster.begin();
  for (uint32_t row = cluster.index; row < n.rows; row += cluster.count) {
    norm_row(units, cluster, row, [&](uint32_t unit, uint32_t (&x)[12]) {
      units.load(x, units.row(n.input, row), unit);
      return true;
    });
  }
}

// What a block does while the kernel before still runs.
__device__ __forceinline__ void prologue(const ReducedNorm& p, const RowCluster&) {
  if (p.packets.admits) warpweave::admit_dependents();
}
// It waits for nobody, and has nothing to send before its blocks meet.
__device__ __forceinline__ void prologue(const RowNorm&, const RowCluster& cluster) {
  cluster.arrive_cluster();
  warpweave::admit_dependents();
}

}  // namespace

#define KERNEL(name, Parameter, threads, body)                                                      \
  extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ Parameter p) { \
    __shared__ Exchanged shared;                                                                    \
    RowCluster cluster(shared);                                                                     \
    prologue(p, cluster);                                                                           \
    warpweave::wait_for_prerequisites();                                                            \
    body(p, cluster);                                                                               \
  }

#define FOR_TYPE(T, suffix, W, kAccess)                                                                \
  KERNEL(packet_norm_##suffix##_##W, ReducedNorm, kNormThreads<W>, (reduced<T, W, kAccess>))

// For rows of whole words, and of any number of halves.
#define FOR_WORLD(W)                       \
  FOR_TYPE(float, f32, W, 4)               \
  FOR_TYPE(__half, f16, W, 4)              \
  FOR_TYPE(__nv_bfloat16, bf16, W, 4)      \
  FOR_TYPE(__half, halves_f16, W, 2)       \
  FOR_TYPE(__nv_bfloat16, halves_bf16, W, 2)

WARPWEAVE_WORLDS(FOR_WORLD)

// For rows of whole vectors, and of any number of elements.
KERNEL(add_rms_norm_f32, RowNorm, kLocalThreads, (local<float, 16>))
KERNEL(add_rms_norm_f16, RowNorm, kLocalThreads, (local<__half, 16>))
KERNEL(add_rms_norm_bf16, RowNorm, kLocalThreads, (local<__nv_bfloat16, 16>))
KERNEL(add_rms_norm_elements_f32, RowNorm, kLocalThreads, (local<float, 4>))
KERNEL(add_rms_norm_elements_f16, RowNorm, kLocalThreads, (local<__half, 2>))
KERNEL(add_rms_norm_elements_bf16, RowNorm, kLocalThreads, (local<__nv_bfloat16, 2>))
