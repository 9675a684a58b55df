// All-reduce along two binary trees by packets, one launch. The double binary tree is that of NCCL, after
// Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (Parallel
// Computing 35, 2009): each tree carries half of the message, and an inner node of one is a leaf of the
// other, so that every rank sends and receives the message about twice, whatever the number of ranks.
// `collective/tree.rs` builds the trees.
//
// The message is cut into units of 12 bytes. Warps alternate between the trees, and every thread has its
// units. Partials go up in f32: this rank's elements, plus those of the first child, plus those of the
// second. The root rounds once and the result goes down unchanged, so that it is the same on every rank and
// in every run. The order is not that of ranks: the last bits may differ from those of other variants.
//
// Pipelining needs no credits. A section has room for every packet of the call: threads send all their
// partials before they wait for results, and results go down while other partials still go up. Between two
// ranks a tree has one edge at most, so packets up and down of a unit share its room.
//
// Why sections may be used again (group.cuh and packet.cuh require that every rank receives from every other
// in each launch): the result of the first unit contains what every rank has sent in this launch, after its
// last one. A rank that has ended a launch has therefore heard from all, through the root, that they had
// ended the launch before, and with it all their reads of the sections that it may write next. The first warp
// serves the first tree, so that there is always a first unit.

#include "accumulator.cuh"
#include "packet.cuh"

namespace {

using warpweave::Packets;
using warpweave::Sections;

constexpr uint32_t kNone = 0xffffffff;

// The layout of `Tree` in `launch.rs`.
struct Tree {
  Packets packets;
  uint32_t parent[2];
  uint32_t children[2][2];
};
static_assert(sizeof(Tree) == sizeof(Packets) + 24, "as in Rust");

// A message of elements of type T as one thread sees it.
template <typename T>
struct Thread {
  // Packets of the partials of a unit, and the unit's packets in a section.
  static constexpr uint32_t kPlaces = warpweave::Word<T>::kElements;
  using Accumulator = warpweave::Accumulator<T, 3>;

  const Tree& t;
  const Packets& p;
  const Sections sections;
  const uint32_t units;
  const uint32_t first;
  const uint32_t stride;  // a multiple of 64: a thread stays with its tree
  const uint32_t tree;

  __device__ __forceinline__ explicit Thread(const Tree& t)
      : t(t),
        p(t.packets),
        sections(p),
        units(warpweave::packets_of(p.bytes)),
        first(blockIdx.x * blockDim.x + threadIdx.x),
        stride(gridDim.x * blockDim.x),
        tree(tree_of(first)) {}

  static __device__ __forceinline__ uint32_t tree_of(uint32_t unit) { return unit / 32 & 1; }

  __device__ __forceinline__ uint64_t offset(uint32_t unit) const {
    return uint64_t(unit) * warpweave::kPayload;
  }
  __device__ __forceinline__ void store(uint32_t unit, const uint32_t (&words)[3]) const {
    warpweave::store_payload(p.output + offset(unit), words, p.bytes - offset(unit), p.aligned);
  }
  __device__ __forceinline__ void send(uint32_t peer, uint32_t index, const uint32_t (&words)[3]) const {
    sections.send(warpweave::step_to(p.group.pad.rank, p.group.pad.world, peer), index, words);
  }
  __device__ __forceinline__ void send_down(uint32_t unit, const uint32_t (&words)[3]) const {
#pragma unroll
    for (int child = 0; child < 2; ++child)
      if (t.children[tree][child] != kNone) send(t.children[tree][child], unit * kPlaces, words);
  }
  // Adds the children's partials. False if one timed out.
  __device__ __forceinline__ bool add_children(uint32_t unit, Accumulator& accumulator) const {
    constexpr uint32_t kEach = (1u << kPlaces) - 1;
    const bool left = t.children[tree][0] != kNone, right = t.children[tree][1] != kNone;
    const auto source = [&](uint32_t i) { return t.children[tree][i / kPlaces]; };
    const auto place = [&](uint32_t i) { return sections.at(source(i), unit * kPlaces + i % kPlaces); };
    uint32_t data[2 * kPlaces][3];
    if (!sections.take((left ? kEach : 0) | (right ? kEach << kPlaces : 0), data, place, source))
      return false;
#pragma unroll
    for (int child = 0; child < 2; ++child) {
      if (!(child == 0 ? left : right)) continue;
#pragma unroll
      for (int i = 0; i < 3 * kPlaces; ++i)
        accumulator.values[i] += __uint_as_float(data[child * kPlaces + i / 3][i % 3]);
    }
    return true;
  }
  // Sends partials to the parent; the root's are the result. False if a child's timed out: nothing more is
  // forwarded then.
  __device__ __forceinline__ bool send_up() const {
    const uint32_t parent = t.parent[tree];
    for (uint32_t unit = first; unit < units; unit += stride) {
      uint32_t words[3];
      warpweave::load_payload(words, p.input + offset(unit), p.bytes - offset(unit), p.aligned);
      Accumulator accumulator;
      accumulator.clear();
      accumulator.add(words);
      if (!add_children(unit, accumulator)) return false;
      if (parent == kNone) {
        accumulator.pack(words);
        send_down(unit, words);
        store(unit, words);
        continue;
      }
#pragma unroll
      for (int k = 0; k < kPlaces; ++k) {
        const float* values = accumulator.values + 3 * k;
        const uint32_t data[3] = {__float_as_uint(values[0]), __float_as_uint(values[1]),
                                  __float_as_uint(values[2])};
        send(parent, unit * kPlaces + k, data);
      }
    }
    return true;
  }
  __device__ __forceinline__ void receive_down() const {
    const uint32_t parent = t.parent[tree];
    if (parent == kNone) return;
    for (uint32_t unit = first; unit < units; unit += stride) {
      uint32_t words[1][3];
      const auto place = [&](uint32_t) { return sections.at(parent, unit * kPlaces); };
      if (!sections.take(1, words, place, [&](uint32_t) { return parent; })) return;
      send_down(unit, words[0]);
      store(unit, words[0]);
    }
  }
  // As `Sections::scrub`, where each rank uses other packets of its sections.
  __device__ __forceinline__ void scrub() const {
    if (blockIdx.x != 0 || threadIdx.x >= 32) return;
    const uint32_t index = (sections.epoch() / 2 * 32 + threadIdx.x) % p.capacity;
    const uint32_t unit = index / kPlaces, tree = tree_of(unit);
    for (uint32_t source = 0; source < p.group.pad.world; ++source) {
      const bool up = source == t.children[tree][0] || source == t.children[tree][1];
      const bool down = source == t.parent[tree] && index % kPlaces == 0;
      if (unit < units && (up || down)) continue;
      warpweave::store_packet(sections.at(source, index), {{0, 0, 0}, 0});
    }
  }
};

template <typename T>
__device__ __forceinline__ void all_reduce(const Tree& t) {
  const Thread<T> thread(t);
  if (thread.sections.gives_up()) return;
  if (thread.send_up()) thread.receive_down();
  thread.scrub();
  __syncthreads();
  warpweave::advance_epoch(t.packets.group, thread.sections.epoch());
}

}  // namespace

#define KERNEL(name, T) \
  extern "C" __global__ void __launch_bounds__(512) name(const __grid_constant__ Tree t) { all_reduce<T>(t); }

KERNEL(tree_all_reduce_f32, float)
KERNEL(tree_all_reduce_f16, __half)
KERNEL(tree_all_reduce_bf16, __nv_bfloat16)
