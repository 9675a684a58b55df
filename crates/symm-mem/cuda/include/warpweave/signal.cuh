// Signals between ranks: the device half of `pad.rs`, which defines the memory model.
//
// - A signal is a release at system scope after the data. Everything that the signalling thread did or has
//   seen done (by a barrier, a ticket, an earlier kernel of the stream) is visible to whoever acquires the
//   epoch.
// - A wait is an acquire at system scope before the data. If the async proxy (TMA, bulk copies) reads the
//   data next, `fence_async` follows the wait.
// - A wait that fails stops this device and gives notice to all ranks before its kernel ends, in the order
//   that `pad/fault.rs` argues for. Every later wait finds the notice and fails too, and this rank publishes
//   nothing more.
// - Counters (`sent`, `expected`, `tickets`) belong to this rank. One thread of a grid advances a counter;
//   other threads read it before the last ticket of the grid is taken.
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
  uint32_t missing[2];  // ranks that missed a deadline, one bit each
  uint32_t reserved[4];
};
static_assert(sizeof(FaultRecord) == 64, "as in Rust");

enum FaultCause : uint32_t { kDeadline = 0, kNotice = 1, kStopped = 2, kStoppedByHost = 3 };

// The host stores this value to stop the waits of its device.
constexpr uint32_t kByHost = 2;

// The layout of `PadView` in `pad/view.rs` and of `Pad` in the fake driver. First what every launch reads.
struct PadView {
  FaultRecord* fault;         // follows this rank's flags; a peer's follows the peer's flags
  uint32_t* stopped;          // of this device: nonzero once a wait on any pad has failed
  uint32_t* stopped_on_host;  // in host memory: 1 once a wait has failed, 2 once the host stops waits
  uint64_t timeout_ns;
  uint32_t rank;
  uint32_t world;
  uint32_t slots;
  uint32_t reserved;
  const uint64_t* peers;  // [world] addresses of every rank's flags, as mapped here
  uint32_t* sent;         // [slots][world]
  uint32_t* expected;     // [slots][world]
  uint32_t* tickets;      // [slots][world], zero between kernels
};
static_assert(sizeof(PadView) == 80, "as in Rust");

// Bytes from one flag to the next: `FLAG_STRIDE` in `pad.rs`.
constexpr uint32_t kFlagStride = 32;

__device__ __forceinline__ uint32_t counter_index(const PadView& pad, uint32_t slot, uint32_t peer) {
  return slot * pad.world + peer;
}

// The flag that `source` writes in `slot` of `owner`'s pad.
__device__ __forceinline__ uint32_t* flag_at(const PadView& pad, uint32_t owner, uint32_t slot,
                                             uint32_t source) {
  return reinterpret_cast<uint32_t*>(pad.peers[owner] +
                                     uint64_t(counter_index(pad, slot, source)) * kFlagStride);
}

// Whether the epoch `seen` has reached `wanted`, compared cyclically.
__device__ __forceinline__ bool reached(uint32_t seen, uint32_t wanted) {
  return int32_t(seen - wanted) >= 0;
}

// The same of a flag that carries the number of a call, in which no peer is more than one ahead: one that
// seems to be was last written 2^31 calls ago.
__device__ __forceinline__ bool reached_call(uint32_t seen, uint32_t wanted) { return seen - wanted <= 1; }

__device__ __forceinline__ void store_release_sys(uint32_t* to, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

__device__ __forceinline__ void store_release_sys(uint64_t* to, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

// Orders nothing before it.
__device__ __forceinline__ void store_relaxed_sys(uint32_t* to, uint32_t value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

__device__ __forceinline__ uint32_t load_acquire_sys(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

__device__ __forceinline__ uint64_t load_acquire_sys(const uint64_t* from) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}

// Orders nothing after it.
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

// Loads a counter of this rank. Bypasses L1, which may hold the value of an earlier kernel.
__device__ __forceinline__ uint32_t load_counter(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

// Increments a counter of this rank, which wraps to 0 after `last`, and returns the old value. An acquire and
// a release among the blocks of this GPU.
__device__ __forceinline__ uint32_t increment_acq_rel_gpu(uint32_t* counter, uint32_t last) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(counter), "r"(last)
               : "memory");
  return before;
}

// Adds to a counter of this rank; a release to the blocks of this GPU.
__device__ __forceinline__ void add_release_gpu(uint32_t* counter, uint32_t value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(value) : "memory");
}

// Orders what this thread did and saw before what it does next, for the blocks of this GPU.
__device__ __forceinline__ void fence_acq_rel_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// Adds to a counter of this rank. A release if it follows `fence_acq_rel_gpu`.
__device__ __forceinline__ void add_relaxed_gpu(uint32_t* counter, uint32_t value) {
  asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(value) : "memory");
}

// Nanoseconds, by a clock that all SMs share.
__device__ __forceinline__ uint64_t global_time() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
  return ns;
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
// Makes what this thread acquired through the generic proxy visible to its async proxy, in global memory too.
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async;" ::: "memory"); }
#endif

// True once a wait of this device has failed: the data that it would signal may be missing. One load from
// this device's memory; it overlaps the load of a counter or an epoch.
__device__ __forceinline__ bool stopped(const PadView& pad) { return load_counter(pad.stopped) != 0; }

// True if this rank or a peer has given up: data read from peers before this may be invalid. One relaxed
// load: earlier reads have ended, and a peer gives its notice before anybody overwrites what they read.
__device__ __forceinline__ bool noticed(const PadView& pad) {
  return load_relaxed_sys(&pad.fault->notice) != 0;
}

// True if a wait would fail.
__device__ __forceinline__ bool faulted(const PadView& pad) {
  const uint32_t notice = load_relaxed_sys(&pad.fault->notice), device = load_counter(pad.stopped);
  return (notice | device) != 0;
}

// Signals `epoch` to `peer`, unless this device was stopped.
__device__ __forceinline__ void store_epoch(const PadView& pad, uint32_t slot, uint32_t peer,
                                            uint32_t epoch) {
  if (!stopped(pad)) store_release_sys(flag_at(pad, peer, slot, pad.rank), epoch);
}

// When a wait looks at the stop flag in host memory. Loads of one address there are served one after the
// other, at microseconds each, and a thread sees nothing else meanwhile: if all that wait looked all the
// time, each would see its flag hundreds of microseconds late. So a wait looks every four milliseconds, for
// the first time after four to eight, each block at a time of its own.
class HostStop {
 public:
  // Whether the host has stopped this device, as far as a wait of so many nanoseconds is to know.
  __device__ __forceinline__ bool seen(const PadView& pad, uint64_t waited) {
    const uint32_t now = uint32_t(waited >> kTick);
    if (int32_t(now - next_) < 0) return false;
    next_ = now + kEvery;
    return load_relaxed_sys(pad.stopped_on_host) != 0;
  }

 private:
  // Ticks of 131 microseconds.
  static constexpr uint32_t kTick = 17;
  static constexpr uint32_t kEvery = 32;

  uint32_t next_ = kEvery + blockIdx.x % kEvery;
};

// Makes a wait fail: stops this device, gives notice to all ranks, and records who waited for whom, unless
// another wait has. `missed_ns` is how long a wait took that missed its deadline, 0 for a wait that was told
// to end.
__device__ __forceinline__ void record_fault_inline(const PadView& pad, uint32_t slot, uint32_t peer,
                                                    uint32_t wanted, uint32_t seen, uint64_t missed_ns) {
  FaultRecord* fault = pad.fault;
  const bool timed_out = missed_ns != 0;
  uint32_t notice = load_acquire_sys(&fault->notice);
  const uint32_t on_host = load_acquire_sys(pad.stopped_on_host);
  const bool by_host = on_host == kByHost;
  const uint32_t cause = timed_out ? kDeadline : notice != 0 ? kNotice : by_host ? kStoppedByHost : kStopped;
  if (notice == 0) {
    // A wait that was stopped does not know, in the ranks of this pad, which peer the failed wait was for.
    const uint32_t by_loss = cause == kStoppedByHost ? 1u << 30 : 0, culprit = timed_out ? peer : ~0u;
    notice = 1u << 31 | by_loss | (pad.rank & 0x3fffu) << 16 | (culprit & 0xffffu);
  }
  // Taken before the others are stopped: their waits end then, and would record that alone.
  const bool is_first = atomicCAS(&fault->state, 0u, 1u) == 0;
  __threadfence();
  atomicExch(pad.stopped, 1u);
  if (on_host == 0) store_relaxed_sys(pad.stopped_on_host, 1u);
  __threadfence_system();
  const uint64_t offset = uint64_t(pad.slots) * pad.world * kFlagStride;
  for (uint32_t rank = 0; rank < pad.world; ++rank)
    store_release_sys(&reinterpret_cast<FaultRecord*>(pad.peers[rank] + offset)->notice, notice);
  __threadfence_system();
  // Threads that wait for several ranks in one slot reach their deadlines at about the same time.
  const bool same_wait = load_acquire_gpu(&fault->state) == 2 && fault->slot == slot &&
                         fault->expected == wanted && fault->cause == kDeadline;
  if (!reached(seen, wanted) && peer < 64 && (timed_out || same_wait))
    atomicOr(&fault->missing[peer / 32], 1u << (peer % 32));
  if (!is_first) return;
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

inline __device__ __noinline__ void record_fault(const PadView& pad, uint32_t slot, uint32_t peer,
                                                 uint32_t wanted, uint32_t seen, uint64_t missed_ns) {
  record_fault_inline(pad, slot, peer, wanted, seen, missed_ns);
}

// Whether a wait that fails calls `record_fault` or has a copy of it. A call makes the compiler keep what is
// live across it in few registers; a kernel whose registers are all in use spills then.
enum class FaultCode { kCalled, kInline };

// Polls `flag`, an epoch or 64 bits of which the low ones are an epoch, until `is_enough` accepts it. `peer`
// writes the flag in `slot` of this rank's pad.
// False if the epoch did not come within `kDeadlines` deadlines, or if this rank or a peer has given up. The
// fault is then recorded: the caller leaves the peer's data alone and ends as it would have. A notice fails
// the wait even if the epoch is there. The notice is read after everything that the caller read before, and
// its load overlaps that of the flag.
template <FaultCode kFault, uint32_t kDeadlines, typename Flag, typename IsEnough>
__device__ __forceinline__ bool wait_until(const PadView& pad, const Flag* flag, uint32_t slot, uint32_t peer,
                                           uint32_t wanted, IsEnough is_enough) {
  uint32_t notice = load_relaxed_sys(&pad.fault->notice);
  Flag seen = load_acquire_sys(flag);
  if (notice == 0 && is_enough(seen)) return true;
  const uint64_t start = global_time();
  HostStop host;
  for (uint32_t polls = 1;; ++polls) {
    notice = load_relaxed_sys(&pad.fault->notice);
    seen = load_acquire_sys(flag);
    if (notice == 0 && is_enough(seen)) return true;
    // Reads the clock and the stop flags only now and then, so that a poll costs the latency of the flag
    // alone.
    if (notice == 0 && polls % 64 != 0) continue;
    const uint64_t waited = global_time() - start;
    const bool late = waited > kDeadlines * pad.timeout_ns;
    if (late || notice != 0 || stopped(pad) || host.seen(pad, waited)) {
      if constexpr (kFault == FaultCode::kCalled) {
        record_fault(pad, slot, peer, wanted, uint32_t(seen), late ? waited : 0);
      } else {
        record_fault_inline(pad, slot, peer, wanted, uint32_t(seen), late ? waited : 0);
      }
      return false;
    }
    if (waited > 20000) __nanosleep(200);
  }
}

// Waits until `flag` has reached `wanted`.
template <FaultCode kFault = FaultCode::kCalled, uint32_t kDeadlines = 1>
__device__ __forceinline__ bool wait_flag(const PadView& pad, const uint32_t* flag, uint32_t slot,
                                          uint32_t peer, uint32_t wanted) {
  return wait_until<kFault, kDeadlines>(pad, flag, slot, peer, wanted,
                                        [&](uint32_t seen) { return reached(seen, wanted); });
}

// As `wait_flag`, for a counter of this rank that advances only after waits of this rank for `peer`. Two
// deadlines: the other waits fail first, so that the fault names the peer that is late.
__device__ __forceinline__ bool wait_after_waits(const PadView& pad, const uint32_t* counter, uint32_t slot,
                                                 uint32_t peer, uint32_t wanted) {
  return wait_flag<FaultCode::kCalled, 2>(pad, counter, slot, peer, wanted);
}

// As `wait_flag`, for the flag of (`slot`, `peer`).
template <FaultCode kFault = FaultCode::kCalled>
__device__ __forceinline__ bool wait_epoch(const PadView& pad, uint32_t slot, uint32_t peer,
                                           uint32_t wanted) {
  return wait_flag<kFault>(pad, flag_at(pad, pad.rank, slot, peer), slot, peer, wanted);
}

// As `wait_epoch`, for the number of a call.
__device__ __forceinline__ bool wait_call(const PadView& pad, uint32_t slot, uint32_t peer, uint32_t wanted) {
  return wait_until<FaultCode::kCalled, 1>(pad, flag_at(pad, pad.rank, slot, peer), slot, peer, wanted,
                                           [&](uint32_t seen) { return reached_call(seen, wanted); });
}

// Whether `wait_call` would return true at once.
__device__ __forceinline__ bool has_call(const PadView& pad, uint32_t slot, uint32_t peer, uint32_t wanted) {
  const bool failed = noticed(pad);
  return reached_call(load_acquire_sys(flag_at(pad, pad.rank, slot, peer)), wanted) && !failed;
}

// Signals `peer` in `slot` and advances the sent epoch. Returns false and does neither if this device was
// stopped. One thread of the grid.
__device__ __forceinline__ bool signal_peer(const PadView& pad, uint32_t slot, uint32_t peer) {
  uint32_t* sent = pad.sent + counter_index(pad, slot, peer);
  // The two loads overlap.
  const bool silent = stopped(pad);
  const uint32_t epoch = load_counter(sent) + 1;
  if (silent) return false;
  // In this order: a release waits for earlier stores.
  store_release_sys(flag_at(pad, peer, slot, pad.rank), epoch);
  *sent = epoch;
  return true;
}

// Makes a signal that is not sent, since a wait of this device has failed, a fault of this pad, unless it has
// one: a rank that waits for the signal must not take the next one for it.
__device__ __forceinline__ void withhold_signal(const PadView& pad, uint32_t slot, uint32_t peer) {
  if (!noticed(pad)) record_fault(pad, slot, peer, 0, 0, 0);
}

// The epoch that this launch waits for on (`slot`, `peer`).
__device__ __forceinline__ uint32_t next_epoch(const PadView& pad, uint32_t slot, uint32_t peer) {
  return load_counter(pad.expected + counter_index(pad, slot, peer)) + 1;
}

// Makes the next launch wait for the epoch after `epoch`.
__device__ __forceinline__ void advance_expected(const PadView& pad, uint32_t slot, uint32_t peer,
                                                 uint32_t epoch) {
  pad.expected[counter_index(pad, slot, peer)] = epoch;
}

// Waits for `peer` in `slot`, less `lag`, and advances the expected epoch. One thread of the grid.
__device__ __forceinline__ bool wait_peer(const PadView& pad, uint32_t slot, uint32_t peer,
                                          uint32_t lag = 0) {
  const uint32_t epoch = next_epoch(pad, slot, peer);
  const bool arrived = wait_epoch(pad, slot, peer, epoch - lag);
  advance_expected(pad, slot, peer, epoch);
  return arrived;
}

// Takes one of the `all` tickets of (`slot`, `peer`) and returns true for the last: it sees everything that
// the others did before theirs. The counter is zero again then. One thread takes the ticket of a block, after
// a barrier of the block.
__device__ __forceinline__ bool take_last_ticket(const PadView& pad, uint32_t slot, uint32_t peer,
                                                 uint32_t all) {
  return increment_acq_rel_gpu(pad.tickets + counter_index(pad, slot, peer), all - 1) == all - 1;
}

// Counts the calls of a kernel, in memory of this rank. All threads read the number of their call before the
// last ticket of the grid is taken; then one thread ends the call.
struct CallCounter {
  uint32_t* ended;

  __device__ __forceinline__ uint32_t current() const { return load_counter(ended) + 1; }
  __device__ __forceinline__ void end(uint32_t call) const { *ended = call; }
};

// The counter that a kernel keeps in place of this rank's own epoch in `slot`, which nobody else uses.
__device__ __forceinline__ CallCounter call_counter(const PadView& pad, uint32_t slot) {
  return {pad.expected + counter_index(pad, slot, pad.rank)};
}

}  // namespace warpweave
