// Signals between ranks: the device's half of `pad.rs`, whose memory model this is.
//
// A signal is a release at system scope behind the data: everything that the signalling thread did, or that it has seen
// done (a barrier, a ticket, an earlier kernel of the stream), is visible to whoever acquires the epoch. A wait is an
// acquire at system scope before the data. Data that the async proxy (TMA, bulk copies) reads next also needs
// `fence_async` behind the wait.
//
// A wait that fails stops this device and gives notice to all ranks before its kernel ends, in the order that
// `pad/fault.rs` argues for: whoever then waits finds the notice and fails too, and this rank publishes nothing more.
//
// Counters (`sent`, `expected`, `tickets`) are this rank's own. A counter is advanced by one thread of a grid; who else
// needs its value reads it before the grid's last ticket is drawn.
#pragma once

#include <cstdint>

namespace warpweave {

// The layout of `FaultRecord` in `pad/fault.rs`.
struct FaultRecord {
  uint32_t notice;  // `Notice` in `pad/fault.rs`, 0 without a fault. Written by any rank
  uint32_t state;   // 0 none, 1 being written, 2 complete
  uint32_t waiter;
  uint32_t peer;
  uint32_t slot;
  uint32_t expected;
  uint32_t seen;
  uint32_t cause;  // `FaultCause`
  uint32_t waited_us_low;
  uint32_t waited_us_high;
  uint32_t missing[2];  // ranks that missed a deadline, one a bit
  uint32_t reserved[4];
};
static_assert(sizeof(FaultRecord) == 64, "as in Rust");

enum FaultCause : uint32_t { kDeadline = 0, kNotice = 1, kStopped = 2, kStoppedByHost = 3 };

// What the host stores to stop the waits of its device.
constexpr uint32_t kByHost = 2;

// The layout of `PadView` in `pad.rs`.
struct PadView {
  const uint64_t* peers;  // [world] addresses of every rank's words, as mapped here
  uint32_t* sent;         // [slots][world]
  uint32_t* expected;     // [slots][world]
  uint32_t* tickets;      // [slots][world], zero between kernels
  FaultRecord* fault;     // after this rank's words, as a peer's is after the peer's
  uint32_t* stopped;      // of this device: not zero once a wait of any pad has failed
  uint32_t* stopped_on_host;  // in host memory: 1 once a wait has failed, 2 once the host has said so
  uint64_t timeout_ns;
  uint32_t rank;
  uint32_t world;
  uint32_t slots;
  uint32_t reserved;
};
static_assert(sizeof(PadView) == 80, "as in Rust");

// Bytes from one word to the next: `WORD_STRIDE` in `pad.rs`.
constexpr uint32_t kWordStride = 32;

__device__ __forceinline__ uint32_t counter_index(const PadView& pad, uint32_t slot, uint32_t peer) {
  return slot * pad.world + peer;
}

// The word that `source` writes in `slot` of `owner`'s pad.
__device__ __forceinline__ uint32_t* word_at(const PadView& pad, uint32_t owner, uint32_t slot, uint32_t source) {
  return reinterpret_cast<uint32_t*>(pad.peers[owner] + uint64_t(counter_index(pad, slot, source)) * kWordStride);
}

// True once the epoch `seen` has reached `wanted`, compared cyclically.
__device__ __forceinline__ bool reached(uint32_t seen, uint32_t wanted) { return int32_t(seen - wanted) >= 0; }

__device__ __forceinline__ void store_release_sys(uint32_t* to, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

// A value that stands for nothing before it.
__device__ __forceinline__ void store_relaxed_sys(uint32_t* to, uint32_t value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

__device__ __forceinline__ uint32_t load_acquire_sys(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

// A value that is followed by nothing.
__device__ __forceinline__ uint32_t load_relaxed_sys(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

__device__ __forceinline__ uint32_t load_acquire_gpu(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

// A counter of this rank: past the caches of one multiprocessor, which may hold what an earlier kernel left.
__device__ __forceinline__ uint32_t load_counter(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

// Counts a counter of this rank from 0 to `last` and round again; the value before. Orders both ways among the blocks of
// this GPU.
__device__ __forceinline__ uint32_t count_acq_rel_gpu(uint32_t* counter, uint32_t last) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(last) : "memory");
  return before;
}

// Adds to a counter of this rank, a release to the blocks of this GPU.
__device__ __forceinline__ void add_release_gpu(uint32_t* counter, uint32_t value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(value) : "memory");
}

// What this thread did and saw before comes before what it does behind, for the blocks of this GPU.
__device__ __forceinline__ void fence_acq_rel_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// Adds to a counter of this rank. A release behind `fence_acq_rel_gpu`.
__device__ __forceinline__ void add_relaxed_gpu(uint32_t* counter, uint32_t value) {
  asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(value) : "memory");
}

// Nanoseconds, the same clock on all multiprocessors.
__device__ __forceinline__ uint64_t global_time() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
  return ns;
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
// What was acquired through the generic proxy becomes visible to the async proxy of this thread, in global memory too.
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async;" ::: "memory"); }
#endif

// True once a wait of this device has failed: what it would signal may not be so. One load from this device's memory,
// which `sent`'s or an epoch's load can overlap.
__device__ __forceinline__ bool stopped(const PadView& pad) { return load_counter(pad.stopped) != 0; }

// True if this rank or a peer has given up: what was read from peers before this may not be valid. One load, relaxed:
// reads before it have ended, and a peer gives its notice before anybody changes what they read.
__device__ __forceinline__ bool noticed(const PadView& pad) { return load_relaxed_sys(&pad.fault->notice) != 0; }

// True if waiting is pointless.
__device__ __forceinline__ bool faulted(const PadView& pad) {
  const uint32_t notice = load_relaxed_sys(&pad.fault->notice), device = load_counter(pad.stopped);
  return (notice | device) != 0;
}

// Publishes `epoch` to `peer`, unless this device was stopped.
__device__ __forceinline__ void store_epoch(const PadView& pad, uint32_t slot, uint32_t peer, uint32_t epoch) {
  if (!stopped(pad)) store_release_sys(word_at(pad, peer, slot, pad.rank), epoch);
}

// Makes a wait fail: stops this device, gives notice to all ranks, and leaves behind who waited for whom, unless another
// wait has. `missed_ns` is how long a wait took that missed its deadline, 0 for one that was told to end.
inline __device__ __noinline__ void record_fault(const PadView& pad, uint32_t slot, uint32_t peer, uint32_t wanted,
                                                 uint32_t seen, uint64_t missed_ns) {
  FaultRecord* fault = pad.fault;
  const bool timed_out = missed_ns != 0;
  uint32_t notice = load_acquire_sys(&fault->notice);
  const uint32_t on_host = load_acquire_sys(pad.stopped_on_host);
  const bool by_host = on_host == kByHost;
  const uint32_t cause = timed_out ? kDeadline : notice != 0 ? kNotice : by_host ? kStoppedByHost : kStopped;
  if (notice == 0) {
    // Whoever was stopped does not know whom the wait that failed was for, in the ranks of this pad.
    const uint32_t by_loss = cause == kStoppedByHost ? 1u << 30 : 0, culprit = timed_out ? peer : ~0u;
    notice = 1u << 31 | by_loss | (pad.rank & 0x3fffu) << 16 | (culprit & 0xffffu);
  }
  atomicExch(pad.stopped, 1u);
  if (on_host == 0) store_relaxed_sys(pad.stopped_on_host, 1u);
  __threadfence_system();
  const uint64_t offset = uint64_t(pad.slots) * pad.world * kWordStride;
  for (uint32_t rank = 0; rank < pad.world; ++rank)
    store_release_sys(&reinterpret_cast<FaultRecord*>(pad.peers[rank] + offset)->notice, notice);
  __threadfence_system();
  // Those that wait for several ranks in one slot come to their deadlines at about the same time.
  const bool same_wait = load_acquire_gpu(&fault->state) == 2 && fault->slot == slot && fault->expected == wanted &&
                         fault->cause == kDeadline;
  if (!reached(seen, wanted) && peer < 64 && (timed_out || same_wait))
    atomicOr(&fault->missing[peer / 32], 1u << (peer % 32));
  if (atomicCAS(&fault->state, 0u, 1u) != 0) return;
  const uint64_t us = missed_ns / 1000;
  fault->waiter = pad.rank;
  fault->peer = peer;
  fault->slot = slot;
  fault->expected = wanted;
  fault->seen = seen;
  fault->cause = cause;
  fault->waited_us_low = uint32_t(us);
  fault->waited_us_high = uint32_t(us >> 32);
  __threadfence_system();
  atomicExch(&fault->state, 2u);
}

// Looks at `word`, which `peer` writes in `slot` of this rank's pad, until `enough` of its epoch. False if that did not come
// within as many of the deadlines, or if this rank or a peer has given up: the fault is recorded, the caller leaves the
// peer's data alone and ends as it would have. A notice counts even if the epoch is there. It is looked for after what the
// caller read before, and its load overlaps that of the word.
template <uint32_t kDeadlines = 1, typename Enough>
__device__ __forceinline__ bool watch_word(const PadView& pad, const uint32_t* word, uint32_t slot, uint32_t peer,
                                           uint32_t wanted, Enough enough) {
  uint32_t notice = load_relaxed_sys(&pad.fault->notice);
  uint32_t seen = load_acquire_sys(word);
  if (notice == 0 && enough(seen)) return true;
  const uint64_t start = global_time();
  for (uint32_t looks = 1;; ++looks) {
    notice = load_relaxed_sys(&pad.fault->notice);
    seen = load_acquire_sys(word);
    if (notice == 0 && enough(seen)) return true;
    // The clock and the flags are looked at now and then, so that a look at the word costs its own latency alone.
    if (notice == 0 && looks % 64 != 0) continue;
    const uint64_t waited = global_time() - start;
    const bool late = waited > kDeadlines * pad.timeout_ns;
    if (late || notice != 0 || stopped(pad) || load_relaxed_sys(pad.stopped_on_host) != 0) {
      record_fault(pad, slot, peer, wanted, seen, late ? waited : 0);
      return false;
    }
    if (waited > 20000) __nanosleep(200);
  }
}

// Waits until `word` has reached `wanted`.
__device__ __forceinline__ bool wait_word(const PadView& pad, const uint32_t* word, uint32_t slot, uint32_t peer,
                                          uint32_t wanted) {
  return watch_word(pad, word, slot, peer, wanted, [&](uint32_t seen) { return reached(seen, wanted); });
}

// As `wait_word`, for a word that this rank advances behind waits of its own. These end first, so that a peer which is late is
// named and not one that a thread had yet to come to.
__device__ __forceinline__ bool wait_behind_waits(const PadView& pad, const uint32_t* word, uint32_t slot, uint32_t peer,
                                                  uint32_t wanted) {
  return watch_word<2>(pad, word, slot, peer, wanted, [&](uint32_t seen) { return reached(seen, wanted); });
}

// Waits until `word` is `wanted`, where its writer cannot have gone on.
__device__ __forceinline__ bool wait_equal(const PadView& pad, const uint32_t* word, uint32_t slot, uint32_t peer,
                                           uint32_t wanted) {
  return watch_word(pad, word, slot, peer, wanted, [&](uint32_t seen) { return seen == wanted; });
}

// As `wait_word`, for the word of (`slot`, `peer`).
__device__ __forceinline__ bool wait_epoch(const PadView& pad, uint32_t slot, uint32_t peer, uint32_t wanted) {
  return wait_word(pad, word_at(pad, pad.rank, slot, peer), slot, peer, wanted);
}

// Whether that would return true at once.
__device__ __forceinline__ bool has_epoch(const PadView& pad, uint32_t slot, uint32_t peer, uint32_t wanted) {
  const bool failed = noticed(pad);
  return reached(load_acquire_sys(word_at(pad, pad.rank, slot, peer)), wanted) && !failed;
}

// Signals `peer` in `slot` and advances the sent epoch, unless this device was stopped. One thread of the grid.
__device__ __forceinline__ void signal_peer(const PadView& pad, uint32_t slot, uint32_t peer) {
  uint32_t* sent = pad.sent + counter_index(pad, slot, peer);
  // Both loads at once.
  const bool silent = stopped(pad);
  const uint32_t epoch = load_counter(sent) + 1;
  if (silent) return;
  // In this order: a release waits for the stores before it.
  store_release_sys(word_at(pad, peer, slot, pad.rank), epoch);
  *sent = epoch;
}

// The epoch that this launch waits for on (`slot`, `peer`).
__device__ __forceinline__ uint32_t next_epoch(const PadView& pad, uint32_t slot, uint32_t peer) {
  return load_counter(pad.expected + counter_index(pad, slot, peer)) + 1;
}

// Makes the next wait be for the epoch behind `epoch`.
__device__ __forceinline__ void advance_expected(const PadView& pad, uint32_t slot, uint32_t peer, uint32_t epoch) {
  pad.expected[counter_index(pad, slot, peer)] = epoch;
}

// Waits for `peer` in `slot`, less `lag`, and advances the expected epoch. One thread of the grid.
__device__ __forceinline__ bool await_peer(const PadView& pad, uint32_t slot, uint32_t peer, uint32_t lag = 0) {
  const uint32_t epoch = next_epoch(pad, slot, peer);
  const bool arrived = wait_epoch(pad, slot, peer, epoch - lag);
  advance_expected(pad, slot, peer, epoch);
  return arrived;
}

// Draws from the ticket of (`slot`, `peer`), which holds `all` draws: true for the last, behind everything that the others
// did before theirs. The ticket is whole again then. A draw stands for a block if a barrier comes before it.
__device__ __forceinline__ bool draw_last(const PadView& pad, uint32_t slot, uint32_t peer, uint32_t all) {
  return count_acq_rel_gpu(pad.tickets + counter_index(pad, slot, peer), all - 1) == all - 1;
}

}  // namespace warpweave
