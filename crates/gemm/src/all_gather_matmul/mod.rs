//! All-gather + GEMM in one launch.
//!
//! Each rank has a shard of the rows of A and all of its own B. The launch pulls the peers' rows into staging
//! chunk by chunk while it multiplies: its own rows in place, the others' once their chunk has arrived. Every
//! SM does both.
//!
//! # Protocol
//!
//! Two flags of the signal pad, each signalled once a call from every rank to every peer:
//! - slot `ready`: "my shard may be read";
//! - slot `done`: "I have read your shard". A call ends after those of all peers.
//!
//! Rows are pulled after `ready`, and multiplied once a counter of the rank shows that their chunk is in
//! staging. Only the rank's next call overwrites its staging, so calls may run back to back, and graphs be
//! replayed, with one staging and no reset. There is no circular wait: `ready` waits for nothing, `done` only
//! for the pulls. A wait that misses the pad's deadline is recorded, and the launch ends with invalid rows in
//! C.
//!
//! The first chunks of each shard may be [`pushed`](Protocol::Rendezvous::pushed). Copy engines reach more of
//! the link's bandwidth than loads do, in large pieces; the chunks pulled after them come in small pieces,
//! which the GEMM can follow closely. `ready` then waits for these copies, and `done` also for the rank's own
//! GEMM, which reads what was pushed.
//!
//! This is a *rendezvous* protocol: a row crosses the link after its owner's flag, and the call ends after
//! each reader's flag. Small shards use the *eager* protocol ([`Protocol::Eager`]), as in message passing:
//! each rank pushes them into the staging of its peers as soon as its launch begins, with a flag for each
//! chunk and no other signal. Calls alternate between two stagings, so that a rank that has received the
//! flags of all peers in one call may overwrite in the next what they read in the call before.
//!
//! # Scales
//!
//! Operands of e4m3 have scales, by tensor or by row. A rank has the scales of the rows of its shard. They go
//! where the rows go, under the same flags: with the rendezvous protocol the launch pulls all of them after
//! `ready`, pushed rows' too, and signals `done` after that; with the eager protocol a chunk's are pushed
//! before its flag.

mod backend;
mod chunks;
mod table;

use std::cmp::Ordering;
use std::ops::Range;

use warpweave_symm_mem::{DType, DevicePtr, PadView};

use self::chunks::Width;
use crate::backend::check_address;
use crate::launches;
use crate::{Error, GemmBatch, GemmOperands, GemmProblem, Layout, Peers, Scaling, Tiling, sm90};

pub use backend::AllGatherGemmBackend;
pub(crate) use table::groups;

/// C = A·B on every rank, with a bias if the problem has one, where each rank has a shard of the rows of A:
/// what all launches of one prepared GEMM share. [`AllGatherOperands`] are a launch's own.
///
/// A and C are row-major. All ranks describe the same rows of A, chunks and slots; B, C and how they are
/// computed are each rank's own.
#[derive(Clone, Debug)]
pub struct AllGatherMatmul {
    /// The whole GEMM. `lda` holds for `a` and for staging.
    pub problem: GemmProblem,
    /// The contiguous rows of A that each rank has, by rank. They may be empty.
    pub shards: Vec<Range<usize>>,
    /// Rows of a chunk; the last of a shard may have fewer. Best whole tiles of a cluster
    /// ([`AllGatherMatmul::chunk_rows`]).
    pub chunk_rows: usize,
    /// This rank.
    pub rank: usize,
    /// Number of ranks.
    pub world: usize,
    /// Slot for "my shard may be read", with pushes also "and my pushed rows are in your staging". With the
    /// eager protocol the first of [`chunks`](AllGatherMatmul::chunks) slots, "the chunk is in your staging".
    pub ready: usize,
    /// Slot for "I have read your shard", with pushes also "and my staging may be written". Unused by the
    /// eager protocol.
    pub done: usize,
    /// How rows come from their owners.
    pub protocol: Protocol,
    /// On a GPU: the tile, the cluster and the swizzle width; `None` for the model's choice.
    /// [`tilings`](AllGatherMatmul::tilings) lists those worth timing.
    pub tiling: Option<Tiling>,
    /// On a GPU: the most blocks of the launch, all of which must be resident at once. `None` takes every SM;
    /// ranks that share a device divide it.
    pub max_blocks: Option<u32>,
}

/// Where the matrices of a launch lie, and the pad that it signals by.
#[derive(Clone, Copy, Debug)]
pub struct AllGatherOperands {
    /// Address of the first row of each rank's shard, as mapped here. Symmetric, because peers read it; with
    /// the eager protocol only this rank's is read, and it may be local.
    pub a: Peers,
    /// Where this rank's shard lies, if that is not in `a`: memory that peers do not reach. The launch
    /// multiplies it there, and copies it to `a` before `ready`. NULL otherwise, with pushes and with the
    /// eager protocol too.
    pub local_a: DevicePtr,
    /// Address of row 0 of A in each rank's staging, as mapped here; the rows of a rank's own shard are
    /// neither read nor written there. Symmetric where peers write: with pushes and with the eager protocol.
    /// Otherwise any device memory of this rank, and the others' are ignored.
    pub staging: Peers,
    /// With the eager protocol each staging is two: bytes from row 0 in the first to row 0 in the second, at
    /// least m rows and on a GPU a multiple of 16. The same on all ranks and in all calls that share a
    /// staging, whatever their m. Otherwise ignored.
    pub staging_stride: usize,
    /// Address of B.
    pub b: DevicePtr,
    /// Address of C.
    pub c: DevicePtr,
    /// Address of the bias: n elements of the type of C, on a GPU at a multiple of 16 bytes. Ignored by a
    /// problem without one.
    pub bias: DevicePtr,
    /// The scales; ignored by a problem without them.
    pub scales: GatheredScales,
    /// The signal pad, of the rank and world of the GEMM.
    pub pad: PadView,
}

/// Where the scales of A and B lie, f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct GatheredScales {
    /// By tensor: one address, of the scale of A. By row: for each rank that of the first scale of its shard,
    /// as mapped here; symmetric where A is.
    pub a: Peers,
    /// By row: for each rank that of the scale of row 0 in its staging of scales, as mapped here, with the
    /// scales of all rows of A; symmetric with the eager protocol. Otherwise any device memory of this rank,
    /// and the others' are ignored.
    pub staging: Peers,
    /// By row and with the eager protocol as [`staging_stride`](AllGatherOperands::staging_stride), of at
    /// least m whole scales.
    pub staging_stride: usize,
    /// Those of B.
    pub b: DevicePtr,
}

/// How rows get from their owners to the ranks that multiply them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Peers pull them after the owner's flag, and release them by another.
    Rendezvous {
        /// Chunks of each shard, from its first, that are pushed: their owner has them written into every
        /// peer's staging and then signals `ready`, if it has any rows; the launch does not signal it.
        ///
        /// The writes may begin once the owner's previous call has ended. After a fault of any rank that is
        /// not enough: results are invalid until the pad has been recovered. The launch leaves two SMs to the
        /// signals, which may be kernels; whoever sets [`max_blocks`](AllGatherMatmul::max_blocks) must do
        /// the same.
        pushed: usize,
    },
    /// Owners push them into the staging of all peers at once. For shards so small that latency exceeds
    /// transfer time.
    Eager,
}

impl Protocol {
    /// Everything is pulled.
    pub const PULL: Protocol = Protocol::Rendezvous { pushed: 0 };

    /// Stagings of a rank, [`staging_stride`](AllGatherOperands::staging_stride) apart, between which calls
    /// alternate: each has the rows of A.
    pub fn stagings(self) -> usize {
        match self {
            Protocol::Rendezvous { .. } => 1,
            Protocol::Eager => 2,
        }
    }
}

/// Bytes of a piece, in which rows are pulled on a GPU: `kPieceBytes` (`cuda/sm90/recv_ring.cuh`).
pub(crate) const PIECE_BYTES: usize = 4096;

impl AllGatherMatmul {
    /// The kernel's name, the same on the host and in device code.
    pub const NAME: &'static str = "all_gather_matmul";

    /// Most ranks of a group on a GPU.
    pub const MAX_WORLD: usize = 8;

    /// Most chunks of a shard with the eager protocol, as
    /// [`eager_chunk_rows`](AllGatherMatmul::eager_chunk_rows) makes them: about the number of SMs of a GPU.
    pub const EAGER_CHUNKS: usize = 128;

    /// Most chunks of a shard.
    pub const MOST_CHUNKS: usize = 1 << 16;

    /// Rows of a tile. The tallest cluster has two tiles one above the other.
    pub const TILE_ROWS: usize = 128;

    /// What counting a slice of a chunk costs a GPU that pulls, µs. Fitted to times on two H200s.
    pub const COUNTING_US: f64 = 0.7;

    /// Chunks of a shard of about m / `world` rows in which a GPU is expected to pull all rows fastest. One
    /// if the rows of others come while the rank multiplies its own.
    pub fn best_chunks(problem: &GemmProblem, world: usize) -> usize {
        chunks::best(problem, world)
    }

    /// Rows of a chunk for which the largest shard, of `shard_rows`, has `chunks` chunks or fewer: those of
    /// whole clusters, unless the shard is not larger than a tile.
    pub fn chunk_rows(shard_rows: usize, chunks: usize) -> usize {
        let rows = shard_rows.div_ceil(chunks.max(1)).max(1);
        match shard_rows.cmp(&Self::TILE_ROWS) {
            Ordering::Less => rows,
            Ordering::Equal => Self::TILE_ROWS,
            Ordering::Greater => rows
                .checked_next_multiple_of(2 * Self::TILE_ROWS)
                .unwrap_or(rows),
        }
    }

    /// Bytes of a row in a slice of a chunk of so many rows of each peer: on a GPU a chunk comes in slices of
    /// K, and a tile multiplies those that are there.
    pub fn slice_bytes(problem: &GemmProblem, world: usize, chunk_rows: usize) -> usize {
        chunks::slice_bytes(problem, world, chunk_rows)
    }

    /// Whether a GPU is expected to be faster in tiles of 128 columns than of 256 where all rows are pulled,
    /// in chunks of so many.
    pub fn is_narrow(problem: &GemmProblem, world: usize, chunk_rows: usize) -> bool {
        chunks::width(problem, world, chunk_rows) == Width::Narrow
    }

    /// Chunks of the largest shard.
    pub fn chunks(&self) -> usize {
        self.largest_shard().div_ceil(self.chunk_rows.max(1))
    }

    /// Rows of the largest chunk, at least 1.
    pub(crate) fn largest_chunk(&self) -> usize {
        self.chunk_rows.min(self.largest_shard()).max(1)
    }

    /// Rows of the largest shard.
    fn largest_shard(&self) -> usize {
        self.shards.iter().map(Range::len).max().unwrap_or(0)
    }

    /// Rows of a chunk with the eager protocol, for shards of at most `shard_rows` rows: every SM has one to
    /// push.
    pub fn eager_chunk_rows(shard_rows: usize) -> usize {
        shard_rows.div_ceil(Self::EAGER_CHUNKS).max(1)
    }

    /// Chunks of a shard that are pushed, at most.
    pub(crate) fn pushed_chunks(&self) -> usize {
        match self.protocol {
            Protocol::Rendezvous { pushed } => pushed.min(self.chunks()),
            Protocol::Eager => 0,
        }
    }

    /// Rows of the largest shard of a peer.
    pub(crate) fn peer_rows(&self) -> usize {
        let peers = (0..self.world).filter(|&rank| rank != self.rank);
        let rows = peers.map(|peer| self.shards[peer].len());
        rows.max().unwrap_or(0)
    }

    /// Chunks of a shard whose tiles come before those of all later chunks.
    pub(crate) fn ahead_chunks(&self) -> usize {
        match self.protocol {
            Protocol::Rendezvous { .. } => self.pushed_chunks(),
            Protocol::Eager => self.chunks(),
        }
    }

    /// Whether on a GPU this rank's GEMM waits for the rows of others, by the rates of four H200s. Then peers
    /// should have local rows as early as can be: a copy by the whole device is faster than that of the
    /// launch ([`AllGatherOperands::local_a`]).
    pub fn is_late(&self) -> bool {
        let own = self.shards[self.rank].len();
        sm90::pulling(&self.problem, (self.problem.m - own) * self.row_bytes()) > 0.75
    }

    /// The rows of chunk `index` of the shard of `rank`; none after its last chunk.
    pub(crate) fn chunk(&self, rank: usize, index: usize) -> Range<usize> {
        let Range { start, end } = self.shards[rank];
        let from = start.saturating_add(index.saturating_mul(self.chunk_rows));
        from.min(end)..from.saturating_add(self.chunk_rows).min(end)
    }

    /// The rows of the shard of `rank` that are pushed to its peers.
    pub(crate) fn pushed_rows(&self, rank: usize) -> Range<usize> {
        let start = self.shards[rank].start;
        match self.pushed_chunks() {
            0 => start..start,
            chunks => start..self.chunk(rank, chunks - 1).end,
        }
    }

    /// Bytes from a row of A to the next.
    pub(crate) fn row_bytes(&self) -> usize {
        self.problem.lda * self.problem.dtype.size()
    }

    /// Refuses contradictory values.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        self.problem.validate()?;
        let (rank, world) = (self.rank, self.world);
        let refuse = |reason: String| {
            Err(Error::InvalidProblem {
                problem: Box::new(self.problem),
                reason: format!("{} on rank {rank}: {reason}", Self::NAME),
            })
        };
        if self.problem.a_layout != Layout::RowMajor {
            return refuse("shards are rows, so A must be row-major".into());
        }
        if self.problem.batch != GemmBatch::ONE {
            return refuse("it is one GEMM".into());
        }
        if self.problem.scaling == Scaling::Block {
            return refuse("scales must be by tensor or row".into());
        }
        if rank >= world || world > Peers::MOST || self.shards.len() != world {
            return refuse(format!(
                "{} shards in a world of {world}, {} ranks at most",
                self.shards.len(),
                Peers::MOST
            ));
        }
        if self.chunk_rows == 0 || self.chunk_rows > i32::MAX as usize {
            return refuse(format!(
                "chunk_rows = {} must lie in 1..={}",
                self.chunk_rows,
                i32::MAX
            ));
        }
        let mut end = 0;
        for (owner, shard) in self.shards.iter().enumerate() {
            if shard.start != end || shard.end < end {
                return refuse(format!(
                    "rank {owner} has rows {shard:?}, not those from {end} on"
                ));
            }
            end = shard.end;
        }
        if end != self.problem.m {
            let m = self.problem.m;
            return refuse(format!("the shards have {end} rows, {m} are multiplied"));
        }
        if self.chunks() > Self::MOST_CHUNKS {
            return refuse(format!(
                "chunk_rows = {} makes {} chunks of a shard, {} at most",
                self.chunk_rows,
                self.chunks(),
                Self::MOST_CHUNKS
            ));
        }
        let stagings = self.protocol.stagings();
        let bytes = self.row_bytes().saturating_mul(self.problem.m);
        if bytes.saturating_mul(stagings) > isize::MAX as usize {
            return refuse(format!(
                "{stagings} stagings of {bytes} bytes do not fit into an address space"
            ));
        }
        match self.protocol {
            Protocol::Rendezvous { .. } if self.ready == self.done => {
                refuse(format!("one slot, {}, for `ready` and `done`", self.ready))
            }
            _ => Ok(()),
        }
    }
}

pub(crate) type Launch<'a> = launches::Launch<'a, AllGatherMatmul, AllGatherOperands>;

impl Launch<'_> {
    /// Whether each row of A has a scale.
    pub fn has_row_scales(&self) -> bool {
        self.problem.scaling == Scaling::Row
    }

    /// The place of the scale of a row in the staging of `rank`, of two in the one of `parity`.
    pub fn staged_scale(&self, rank: usize, row: usize, parity: usize) -> DevicePtr {
        let GatheredScales {
            staging,
            staging_stride,
            ..
        } = &self.operands.scales;
        staging[rank].add(row * DType::F32.size() + parity * staging_stride)
    }

    /// The scale of a row of the shard of `rank`, where that rank has it.
    pub fn shard_scale(&self, rank: usize, row: usize) -> DevicePtr {
        let first = self.shards[rank].start;
        self.operands.scales.a[rank].add((row - first) * DType::F32.size())
    }

    /// Where the scales of A from a row on lie: as [`row`](Self::row), or the one of A.
    pub fn scales_of_rows(&self, row: usize, parity: usize) -> DevicePtr {
        match self.problem.scaling {
            Scaling::None => DevicePtr::NULL,
            Scaling::Row if self.shards[self.rank].contains(&row) => {
                self.shard_scale(self.rank, row)
            }
            Scaling::Row => self.staged_scale(self.rank, row, parity),
            Scaling::Tensor | Scaling::Block => self.operands.scales.a[0],
        }
    }

    /// The place of a row in the staging of `rank`, of two in the one of `parity`.
    pub fn staged(&self, rank: usize, row: usize, parity: usize) -> DevicePtr {
        let second = parity * self.operands.staging_stride;
        self.operands.staging[rank].add(row * self.row_bytes() + second)
    }

    /// Where a row of A is read: this rank's where it lies, the others in staging, of two in the one of
    /// `parity`.
    pub fn row(&self, row: usize, parity: usize) -> DevicePtr {
        let own = &self.shards[self.rank];
        match own.contains(&row) {
            true => self.own_a().add((row - own.start) * self.row_bytes()),
            false => self.staged(self.rank, row, parity),
        }
    }

    /// Where this rank's shard is read by itself.
    pub fn own_a(&self) -> DevicePtr {
        let local = self.operands.local_a.non_null();
        local.unwrap_or(self.operands.a[self.rank])
    }

    /// Where this rank's shard is copied to for its peers, if it is local.
    pub fn copied_a(&self) -> DevicePtr {
        match self.operands.local_a != DevicePtr::NULL && self.world > 1 {
            true => self.operands.a[self.rank],
            false => DevicePtr::NULL,
        }
    }

    /// The GEMM of some rows of one shard, with its operands, those of others in the staging of `parity`.
    pub fn part(&self, rows: &Range<usize>, parity: usize) -> (GemmProblem, GemmOperands) {
        let problem = GemmProblem {
            m: rows.len(),
            ..self.problem
        };
        let AllGatherOperands { b, c, bias, .. } = *self.operands;
        let c = c.add(rows.start * self.problem.ldc * self.problem.out.size());
        let of_a = self.scales_of_rows(rows.start, parity);
        let operands = GemmOperands::new(self.row(rows.start, parity), b, c)
            .with_bias(bias)
            .with_scales([of_a, self.operands.scales.b]);
        (problem, operands)
    }

    /// Checks the pad, and that the addresses are there, at multiples of `alignment` bytes of their type.
    ///
    /// # Errors
    /// [`Error::InvalidProblem`]; [`Error::Operand`] for an address.
    pub fn check(&self, alignment: impl Fn(DType) -> u64) -> Result<(), Error> {
        let (rank, world) = (self.rank, self.world);
        let refuse = |reason: String| {
            Err(Error::InvalidProblem {
                problem: Box::new(self.problem),
                reason: format!("{} on rank {rank}: {reason}", AllGatherMatmul::NAME),
            })
        };
        let AllGatherOperands {
            a,
            local_a,
            staging,
            staging_stride,
            b,
            c,
            bias,
            scales,
            pad,
        } = self.operands;
        let (slots, ready, done) = (pad.slots as usize, self.ready, self.done);
        if (pad.rank as usize, pad.world as usize) != (rank, world) {
            return refuse(format!("the pad is of rank {} of {}", pad.rank, pad.world));
        }
        let [addresses, stagings] = [a.len(), staging.len()];
        if [addresses, stagings] != [world; 2] {
            return refuse(format!(
                "{addresses} addresses with {stagings} stagings in a world of {world}"
            ));
        }
        match self.protocol {
            Protocol::Rendezvous { .. } if ready >= slots || done >= slots => {
                return refuse(format!(
                    "slots {ready} and {done} of a pad with {slots} slots"
                ));
            }
            Protocol::Eager if ready >= slots || self.chunks() > slots - ready => {
                return refuse(format!(
                    "{} slots from {ready} on of a pad with {slots} slots",
                    self.chunks()
                ));
            }
            _ => {}
        }
        if *local_a != DevicePtr::NULL && self.protocol != Protocol::PULL {
            return refuse("rows that are in local memory must be pulled".into());
        }
        let [of_a, staged] = match self.problem.scaling {
            Scaling::None => [0, 0],
            Scaling::Row => [world; 2],
            Scaling::Tensor | Scaling::Block => [1, 0],
        };
        let counts = [scales.a.len(), scales.staging.len()];
        if self.problem.scaling != Scaling::None && counts != [of_a, staged] {
            return refuse(format!(
                "{counts:?} addresses of scales of A and of their stagings, not {:?}",
                [of_a, staged]
            ));
        }
        let (row, scale) = (self.row_bytes(), DType::F32.size());
        let strides = [
            (*staging_stride, row, alignment(self.problem.dtype), "A"),
            (scales.staging_stride, scale, scale as u64, "its scales"),
        ];
        let strides = strides.into_iter().take(1 + usize::from(staged > 0));
        for (stride, row, alignment, of) in strides {
            let bytes = self.problem.m * row;
            let room = isize::MAX as usize - bytes;
            let is_aligned = (stride as u64).is_multiple_of(alignment);
            let is_used = self.protocol == Protocol::Eager && world > 1;
            if is_used && (!(bytes..=room).contains(&stride) || !is_aligned) {
                return refuse(format!(
                    "staging_stride = {stride} must be at least the {bytes} bytes of {of}, and a multiple of \
                     {alignment}"
                ));
            }
        }
        let own_scales = match self.problem.scaling {
            Scaling::Row => scales.a[rank],
            _ => scales.a.first().copied().unwrap_or(DevicePtr::NULL),
        };
        GemmOperands::new(a[rank], *b, *c)
            .with_bias(*bias)
            .with_scales([own_scales, scales.b])
            .check(&self.problem, &alignment)?;
        let own = rank..rank + 1;
        let (read, written) = match self.protocol {
            Protocol::Rendezvous { .. } => (0..world, own),
            Protocol::Eager => (own, 0..world),
        };
        let written = if world > 1 { written } else { 0..0 };
        let [element, scale] = [alignment(self.problem.dtype), scale as u64];
        if let Some(local_a) = local_a.non_null() {
            check_address(&self.problem, ("local A", None), local_a, element)?;
        }
        for (operand, addresses, ranks, alignment) in [
            ("A", a, &read, element),
            ("staging", staging, &written, element),
            ("scales of A", &scales.a, &read, scale),
            ("staging of scales of A", &scales.staging, &written, scale),
        ]
        .into_iter()
        .take(if staged > 0 { 4 } else { 2 })
        {
            for rank in ranks.clone() {
                let named = (operand, Some(rank));
                check_address(&self.problem, named, addresses[rank], alignment)?;
            }
        }
        Ok(())
    }
}
