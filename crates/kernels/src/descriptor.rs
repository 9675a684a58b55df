//! Launch descriptors: addresses, sizes, the signal pad and its slots.

use warpweave_symm_mem::{DType, DevicePtr, PadView};

use crate::error::{Error, Result};
use crate::shard;

/// C\[M,N\] = A\[M,K\]·B\[K,N\]: one thread computes each element of C and reads its row of A from the rank
/// that owns it (`naiveRemoteRead`).
///
/// All matrices are row-major without gaps. The rows of A are sharded by [`shard`](crate::shard()); B and C
/// are this rank's own.
///
/// For each peer p, a launch signals `ready` to p, waits for `ready` from p, reads p's rows, signals `done`
/// to p and waits for `done` from p. So this rank's shard of A may be overwritten when the launch has ended,
/// and launches back to back need no other synchronisation between the ranks.
#[derive(Clone, Copy, Debug)]
pub struct NaiveRemoteRead {
    /// Device address of a table of `world` addresses (u64): every rank's shard of A as mapped here.
    pub a_peers: DevicePtr,
    /// B, `[k][n]`.
    pub b: DevicePtr,
    /// C, `[m][n]`.
    pub c: DevicePtr,
    /// Rows of A and C over all ranks.
    pub m: usize,
    /// Columns of B and C.
    pub n: usize,
    /// Columns of A, rows of B.
    pub k: usize,
    /// Element type of A, B and C. Accumulates in f32, from k = 0 upwards, and rounds once.
    pub dtype: DType,
    /// The signal pad, which gives rank and world size.
    pub pad: PadView,
    /// Slot for "my A may be read".
    pub ready: usize,
    /// Slot for "I have read your A".
    pub done: usize,
    /// Maximum grid size, for devices that several ranks share. By default, all co-resident blocks.
    pub max_blocks: Option<u32>,
}

/// How [`GatherMatmul`] copies the rows of A to every rank's staging.
#[derive(Clone, Copy, Debug)]
pub enum GatherMode {
    /// Each rank pulls the peers' rows into its own staging with loads and stores.
    ///
    /// For each peer p: signal `ready` to p, wait for `ready` from p, copy p's rows, signal `done` to p, wait
    /// for `done` from p.
    ThreadLoad {
        /// Device address of a table of `world` addresses (u64): every rank's shard of A as mapped here.
        a_peers: DevicePtr,
        /// Slot for "I have read your A".
        done: usize,
    },
    /// Each owner stores its rows to the staging of all ranks at once.
    ///
    /// The owner waits for the credit `free` (lag 1) from all peers, stores, and signals `ready` to all. A
    /// reader waits for `ready` and reads its own staging, never the multicast address.
    Multimem {
        /// Multicast address of staging, with the same layout. [`DevicePtr::NULL`] on the host backend, which
        /// stores to every mapping.
        address: DevicePtr,
        /// Device address of a table of `world` addresses (u64): every rank's staging as mapped here.
        staging_peers: DevicePtr,
        /// Slot for "I have read your rows in my staging".
        free: usize,
        /// Whether this launch signals `free` after reading an owner's rows. If not, the later readers of
        /// staging signal it to all peers, once per launch.
        signal_free: bool,
    },
}

/// Gathers A\[M,K\] into staging and, unless `n` is 0, computes C\[M,N\] = A\[M,K\]·B\[K,N\] from it by
/// scalar arithmetic in the same launch (`threadloadGatherScalarCompute`, `multimemGatherScalarCompute`).
///
/// All matrices are row-major without gaps. The rows of A are sharded by [`shard`](crate::shard()); staging,
/// B and C are this rank's own.
#[derive(Clone, Copy, Debug)]
pub struct GatherMatmul {
    /// How rows are copied.
    pub mode: GatherMode,
    /// This rank's shard of A.
    pub a: DevicePtr,
    /// This rank's staging, `[m][k]`: all rows of A after the launch.
    pub staging: DevicePtr,
    /// B, `[k][n]`; not read if `n` is 0.
    pub b: DevicePtr,
    /// C, `[m][n]`; not written if `n` is 0.
    pub c: DevicePtr,
    /// Rows of A, staging and C over all ranks.
    pub m: usize,
    /// Columns of B and C; 0 to only gather.
    pub n: usize,
    /// Columns of A and staging, rows of B.
    pub k: usize,
    /// Element type of all matrices. Accumulates in f32, from k = 0 upwards, and rounds once.
    pub dtype: DType,
    /// The signal pad, which gives rank and world size.
    pub pad: PadView,
    /// Slot for "my A may be read" or "my rows are in your staging".
    pub ready: usize,
    /// Maximum grid size, for devices that several ranks share. By default, all co-resident blocks. A gather
    /// without a GEMM has at least one block per rank.
    pub max_blocks: Option<u32>,
}

impl NaiveRemoteRead {
    /// The kernel's name, the same on the host and in device code.
    pub const NAME: &'static str = "naive_remote_read";

    /// Checks the descriptor for consistency.
    pub(crate) fn validate(&self) -> Result<()> {
        let check = Check {
            kernel: Self::NAME,
            pad: &self.pad,
        };
        check.pad()?;
        check.slots(&[("ready", self.ready), ("done", self.done)])?;
        check.sizes(self.m, self.n, self.k, self.dtype)?;
        check.blocks(self.max_blocks)?;
        if self.m > 0 {
            check.aligned("a_peers", self.a_peers, 8)?;
        }
        if self.m > 0 && self.n > 0 {
            check.aligned("b", self.b, self.dtype.size())?;
            check.aligned("c", self.c, self.dtype.size())?;
        }
        Ok(())
    }
}

impl GatherMatmul {
    /// The kernel's name, the same on the host and in device code.
    pub const fn name(&self) -> &'static str {
        match (self.mode, self.n) {
            (GatherMode::ThreadLoad { .. }, 0) => "threadload_gather",
            (GatherMode::ThreadLoad { .. }, _) => "threadload_gather_matmul",
            (GatherMode::Multimem { .. }, 0) => "multimem_gather",
            (GatherMode::Multimem { .. }, _) => "multimem_gather_matmul",
        }
    }

    /// Checks the descriptor for consistency.
    pub(crate) fn validate(&self) -> Result<()> {
        let check = Check {
            kernel: self.name(),
            pad: &self.pad,
        };
        check.pad()?;
        match self.mode {
            GatherMode::ThreadLoad { a_peers, done } => {
                check.slots(&[("ready", self.ready), ("done", done)])?;
                check.aligned("a_peers", a_peers, 8)?;
            }
            GatherMode::Multimem {
                signal_free: true, ..
            } if self.n == 0 => {
                let why =
                    "a gather alone reads nothing: the later reader of staging signals `free`";
                return check.refuse("signal_free", why.into());
            }
            GatherMode::Multimem {
                staging_peers,
                free,
                ..
            } => {
                check.slots(&[("ready", self.ready), ("free", free)])?;
                check.aligned("staging_peers", staging_peers, 8)?;
            }
        }
        check.sizes(self.m, self.n, self.k, self.dtype)?;
        check.blocks(self.max_blocks)?;
        let size = self.dtype.size();
        if self.m > 0 && self.k > 0 {
            check.aligned("staging", self.staging, size)?;
            let (rank, world) = (self.pad.rank as usize, self.pad.world as usize);
            if !shard(self.m, rank, world).is_empty() {
                check.aligned("a", self.a, size)?;
            }
        }
        if self.m > 0 && self.n > 0 {
            check.aligned("b", self.b, size)?;
            check.aligned("c", self.c, size)?;
        }
        Ok(())
    }
}

/// Checks shared by all descriptors.
struct Check<'a> {
    kernel: &'static str,
    pad: &'a PadView,
}

impl Check<'_> {
    fn refuse(&self, what: &'static str, why: String) -> Result<()> {
        Err(Error::InvalidLaunch {
            kernel: self.kernel,
            rank: self.pad.rank as usize,
            what,
            why,
        })
    }

    fn pad(&self) -> Result<()> {
        let PadView { rank, world, .. } = *self.pad;
        if rank >= world {
            return self.refuse("pad", format!("rank {rank} in a world of {world}"));
        }
        if self.pad.peers == DevicePtr::NULL {
            return self.refuse("pad", "it has no peer table".into());
        }
        Ok(())
    }

    fn slots(&self, slots: &[(&'static str, usize); 2]) -> Result<()> {
        for &(what, slot) in slots {
            if slot >= self.pad.slots as usize {
                return self.refuse(
                    what,
                    format!("slot {slot} of a pad with {} slots", self.pad.slots),
                );
            }
        }
        if slots[0].1 == slots[1].1 {
            return self.refuse(
                slots[1].0,
                format!("slot {} is also `{}`", slots[1].1, slots[0].0),
            );
        }
        Ok(())
    }

    fn sizes(&self, m: usize, n: usize, k: usize, dtype: DType) -> Result<()> {
        if !dtype.is_arithmetic() {
            return self.refuse(
                "dtype",
                format!("elements are f32, f16 or bf16, not {dtype}"),
            );
        }
        // The device counts rows, columns and tiles in 32 bits and elements in 64.
        let limit = i32::MAX as usize / 2;
        for (what, size) in [("m", m), ("n", n), ("k", k)] {
            if size > limit {
                return self.refuse(what, format!("{size} is more than {limit}"));
            }
        }
        for (what, elements) in [
            ("m", m as u128 * k.max(n) as u128),
            ("n", n as u128 * k as u128),
        ] {
            if elements * dtype.size() as u128 > isize::MAX as u128 {
                return self.refuse(what, format!("a matrix of {elements} elements"));
            }
        }
        Ok(())
    }

    fn blocks(&self, max: Option<u32>) -> Result<()> {
        if max == Some(0) {
            return self.refuse("max_blocks", "a grid has at least one block".into());
        }
        Ok(())
    }

    fn aligned(&self, what: &'static str, address: DevicePtr, to: usize) -> Result<()> {
        if address == DevicePtr::NULL || !address.0.is_multiple_of(to as u64) {
            return self.refuse(
                what,
                format!(
                    "address {:#x} is null or not aligned to {to} bytes",
                    address.0
                ),
            );
        }
        Ok(())
    }
}
