//! GEMM + reduction in one launch, with K sharded over the ranks: matmul + reduce-scatter and matmul +
//! all-reduce.
//!
//! Rank r has the columns K_r of A and the rows K_r of B. Its *partial GEMM* covers all of C, and C is the
//! sum of all partial GEMMs. Each rank owns some rows of C, its shard, and reduces them. One launch computes
//! the partial GEMM tile by tile. It leaves the partials of others' rows in its staging, from which their
//! owners pull them, and adds the partials that it pulls itself: matmul + reduce-scatter. Where everyone gets
//! the result, the others then pull it: matmul + all-reduce.
//!
//! # Protocol
//!
//! A *group* is [`group_rows`](MatmulReduce::group_rows) rows of a shard. Its partials share a flag, in slot
//! `ready` + group, and so do its results, in slot `reduced` + group. [`order()`] is the order in which a
//! rank takes the groups. In a call rank r
//! - for each group of another rank: stores its partial into its staging and signals `ready` to the owner;
//! - for each group of its own: waits for `ready` of all others, pulls their partials, adds them and its own
//!   in the order of ranks, stores the result and, where everyone gets it, signals `reduced` to all others;
//! - where everyone gets the result: waits for `reduced` of each group of each other rank, and pulls its
//!   rows;
//! - once it has pulled everything: signals `done` to all others, and ends after their `done`.
//!
//! A rank writes only its own memory: data is pulled, not pushed (`docs/fused-kernel.md` says why). So a call
//! needs no credits: whatever follows it may overwrite what others have pulled.
//!
//! After a failed wait a rank signals nothing more; in one shot a launch that begins after it writes nothing
//! to its peers.
//!
//! # By multimem
//!
//! With NVLink multicast ([`ReduceOutput::Multimem`]) the switch adds partials and copies results, so that
//! each crosses a link once. Staging has rows as C has, those of this rank too. In a call rank r
//! - for each group: stores its partial into its staging and signals `ready` to the owner;
//! - for each group of its own: waits for `ready` of all others, loads the reduction of all ranks' partials
//!   from the multicast address of staging, and stores it to the multicast address of C. Whoever has
//!   signalled `ready` has begun the call, so its C may be written;
//! - then signals `done` to all others, and ends after their `done`: all its rows of C have been stored.
//!
//! # In one shot
//!
//! The protocol above crosses the link twice, for partials and for results, and each crossing adds the
//! latency of a flag: *two shots*. Where C is so small that latency exceeds transfer time, each rank reduces
//! all of C by itself ([`ReduceOutput::Each`]). In a call rank r
//! - for each unit of C, a box as [`Units`] has them: pushes its partial into the staging of every rank,
//!   itself included, and signals `ready` + unit to the others, on a GPU to itself too, because other blocks
//!   have partials of the unit;
//! - for each unit: waits for `ready` of all others, and adds the partials of all in the order of ranks.
//!
//! There is no other signal. Calls alternate between two stagings: a rank that has received the flags of all
//! ranks in one call may overwrite in the next what they read in the call before. The slot `done` only holds
//! tickets and the number of the call.
//!
//! # Rounding
//!
//! Every rank's partial is rounded to the element type of C, that of the rank that reduces too. Operands of
//! e4m3 have scales, by tensor or row, which may differ between the ranks: a partial is scaled before it is
//! rounded. The partials are added in f32 in the order of ranks, from negative zero, then the bias, and the
//! result is rounded once.
//! So the bits of a row depend on nothing but its rows of A, B and the bias: not on who owns it, on m, or on
//! which of the two protocols reduces it, and a GEMM followed by a reduction in the order of ranks, as
//! `warpweave-kernels`' `LocalReduce` and `warpweave-comm`'s direct collectives do it, gives the same.
//!
//! By multimem the switch adds the partials in f32, in an unspecified order, and rounds once. All ranks get
//! the same bits, which may differ from those above. A bias would be rounded once more and is refused.

mod backend;
mod order;
mod units;

use std::ops::Range;

use warpweave_symm_mem::{DType, DevicePtr, PadView};

use crate::backend::check_address;
use crate::launches;
use crate::{
    Activation, Error, GemmBatch, GemmOperands, GemmProblem, Layout, Peers, Scaling, Tiling,
};

pub use backend::GemmReduceBackend;
pub use order::{Group, order};
pub use units::Units;

/// Who gets the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduceOutput {
    /// Each rank gets its shard.
    Owner,
    /// Each rank gets all of C, from the owners of its rows.
    Everyone,
    /// Each rank gets all of C and reduces it by itself, in one shot.
    Each,
    /// Each rank gets all of C, from the owners of its rows by multimem: the switch adds what an owner loads,
    /// in an order of its own, and copies what it stores. On a GPU only where multicast is
    /// [allowed](warpweave_symm_mem::multicast::guard).
    Multimem,
}

impl ReduceOutput {
    /// Whether owners reduce their rows for everyone.
    fn is_for_everyone(self) -> bool {
        matches!(self, ReduceOutput::Everyone | ReduceOutput::Multimem)
    }
}

/// C = the sum of A·B over all ranks, with a bias if the problem has one, or this rank's rows of it: what all
/// launches of one prepared GEMM share. [`ReduceOperands`] are a launch's own.
#[derive(Clone, Debug)]
pub struct MatmulReduce {
    /// This rank's partial GEMM: all rows and columns of C, this rank's part of K. On the host K may be
    /// empty, which gives zero; on a GPU a rank without a part is refused when it prepares, so the others
    /// must not launch. `ldc` holds for C and for staging, and so does the type of C: that of A and B, or of
    /// e4m3 any other.
    pub problem: GemmProblem,
    /// The contiguous rows of C that each rank owns, by rank. Ignored in one shot.
    pub shards: Vec<Range<usize>>,
    /// Who gets the result.
    pub c: ReduceOutput,
    /// This rank.
    pub rank: usize,
    /// Number of ranks.
    pub world: usize,
    /// First of the slots for "my partial of the group may be pulled", one for each group of the largest
    /// shard. In one shot, for "my partial of the unit is in your staging", one for each of [`Units`].
    pub ready: usize,
    /// Where everyone gets the result, first of as many slots for "my group is reduced and may be pulled".
    pub reduced: usize,
    /// The slot for "I have pulled what is yours"; by multimem also "and stored my rows to your C". In one
    /// shot it carries no signal.
    pub done: usize,
    /// Rows of a group; the last of a shard may have fewer. On a GPU a multiple of 128. Unused in one shot.
    pub group_rows: usize,
    /// On a GPU: a tile, without clusters; `None` for the model's choice. [`tilings`](MatmulReduce::tilings)
    /// lists those worth timing. Ranks need not agree. Its swizzle is used in one shot only.
    pub tiling: Option<Tiling>,
    /// Most blocks of the launch: for ranks that share a GPU, whose blocks must all be resident at once.
    pub max_blocks: Option<u32>,
}

/// Where the matrices of a launch lie, and the pad that it signals by.
#[derive(Clone, Copy, Debug)]
pub struct ReduceOperands {
    /// Address of this rank's columns of A, m × k, row-major.
    pub a: DevicePtr,
    /// Address of this rank's rows of B, k × n.
    pub b: DevicePtr,
    /// Address of the bias: n elements of the type of C, on a GPU at a multiple of 16 bytes. The owner of a
    /// row adds it once. Ignored by a problem without one.
    pub bias: DevicePtr,
    /// The scales of this rank's columns of A and of its rows of B, f32; ignored by a problem without them.
    pub scales: [DevicePtr; 2],
    /// Where the result goes. [`ReduceOutput::Owner`]: one address, of the first row of this rank's shard;
    /// [`Each`](ReduceOutput::Each): one, of row 0 of this rank's C;
    /// [`Everyone`](ReduceOutput::Everyone) and [`Multimem`](ReduceOutput::Multimem): for each rank that of
    /// row 0 of its C, or of where the others pull its rows, as mapped here.
    pub c: Peers,
    /// With [`ReduceOutput::Everyone`], where this rank has its C, row 0, if that is local memory, which
    /// peers do not reach: the launch stores all rows there, and those of its shard in `c` too. NULL
    /// otherwise.
    pub local_c: DevicePtr,
    /// For each rank the address of its staging, as mapped here: its partials of the rows of each other rank,
    /// in the order of ranks, with room for as many rows of `ldc` elements each as the largest shard. In one
    /// shot each staging is two, and each holds the partials of all ranks, in their order, of all rows of C,
    /// which peers write. By multimem it has the rows of C.
    pub staging: Peers,
    /// By multimem, on a GPU: the multicast addresses of `c` and of `staging`. Null on the host backend,
    /// which loads from and stores to every mapping; otherwise unused.
    pub multicast: [DevicePtr; 2],
    /// In one shot the bytes from the first of the two to the second: at least world · m rows, and on a GPU a
    /// multiple of 16. The same on all ranks and in all calls that share a staging, whatever their m.
    /// Otherwise ignored.
    pub staging_stride: usize,
    /// Address of memory of this rank alone, for the partials that it pulls: as much as a staging that is not
    /// two. Unused in one shot and by multimem.
    pub pulled: DevicePtr,
    /// The signal pad, of the rank and world of the GEMM.
    pub pad: PadView,
}

impl MatmulReduce {
    /// The kernel's name, the same on the host and in device code.
    pub const NAME: &'static str = "reducing_matmul";

    /// The other ranks, the next one first.
    pub(crate) fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let (rank, world) = (self.rank, self.world);
        (1..world).map(move |step| (rank + step) % world)
    }

    /// The groups in the order in which this rank takes them.
    pub(crate) fn order(&self) -> Vec<Group> {
        let everyone = self.c.is_for_everyone();
        order(&self.shards, self.rank, self.group_rows, everyone)
    }

    /// Groups of the largest shard.
    pub(crate) fn groups(&self) -> usize {
        self.most_rows().div_ceil(self.group_rows)
    }

    /// Rows of the largest shard.
    pub(crate) fn most_rows(&self) -> usize {
        self.shards.iter().map(Range::len).max().unwrap_or(0)
    }

    /// The units of C, in one shot.
    pub(crate) fn units(&self) -> Units {
        Units::of(self.problem.m, self.problem.n)
    }

    /// Bytes of a row of C and of a partial.
    pub(crate) fn row_bytes(&self) -> usize {
        self.problem.ldc * self.problem.out.size()
    }

    /// `row` rows of C after `address`.
    pub(crate) fn row_from(&self, address: DevicePtr, row: usize) -> DevicePtr {
        address.add(row * self.row_bytes())
    }

    /// The problem, or one with a term where it has none.
    pub(crate) fn with_terms(&self) -> GemmProblem {
        let problem = &self.problem;
        GemmProblem {
            k: problem.k.max(1),
            lda: problem.lda.max(1),
            ldb: problem.ldb.max(1),
            ..*problem
        }
    }

    /// Refuses contradictory values.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        self.with_terms().validate()?;
        let (rank, world, problem) = (self.rank, self.world, &self.problem);
        let refuse = |reason: String| {
            Err(Error::InvalidProblem {
                problem: Box::new(*problem),
                reason: format!("{} on rank {rank}: {reason}", Self::NAME),
            })
        };
        if problem.a_layout != Layout::RowMajor {
            return refuse("A must be row-major".into());
        }
        let is_stored = problem.out == problem.dtype || problem.dtype == DType::E4m3;
        if problem.batch != GemmBatch::ONE || !is_stored {
            return refuse("it is one GEMM, stored in its own type".into());
        }
        if problem.scaling == Scaling::Block {
            return refuse("scales must be by tensor or row".into());
        }
        if problem.activation != Activation::None {
            return refuse("partials have no activation".into());
        }
        if rank >= world || world > Peers::MOST {
            return refuse(format!("a world of {world}, {} ranks at most", Peers::MOST));
        }
        if self.c != ReduceOutput::Each && self.shards.len() != world {
            let count = self.shards.len();
            return refuse(format!("{count} shards in a world of {world}"));
        }
        if self.c != ReduceOutput::Each {
            self.validate_shards().or_else(refuse)?;
        }
        if self.c == ReduceOutput::Multimem && problem.bias {
            return refuse("by multimem there is no bias, which would be rounded once more".into());
        }
        let staged_rows = match self.c {
            ReduceOutput::Each => (2 * world).saturating_mul(problem.m),
            ReduceOutput::Multimem => problem.m,
            _ => world.saturating_mul(self.most_rows()),
        };
        if staged_rows.saturating_mul(self.row_bytes()) > isize::MAX as usize {
            return refuse(format!(
                "a staging of {staged_rows} rows does not fit into an address space"
            ));
        }
        let slots = self.slots();
        for (i, &(what, first, count)) in slots.iter().flatten().enumerate() {
            let last = first.saturating_add(count);
            for &(other, from, also) in slots[..i].iter().flatten() {
                if first < from.saturating_add(also) && from < last {
                    return refuse(format!("{other} and {what} share slots"));
                }
            }
        }
        Ok(())
    }

    /// The slots of the pad that it uses: what for, the first, and how many.
    fn slots(&self) -> [Option<(&'static str, usize, usize)>; 3] {
        let ready = match self.c {
            ReduceOutput::Each => self.units().count(),
            _ => self.groups(),
        };
        let everyone = self.c == ReduceOutput::Everyone;
        [
            Some(("ready", self.ready, ready)),
            Some(("done", self.done, 1)),
            everyone.then_some(("reduced", self.reduced, ready)),
        ]
    }

    fn validate_shards(&self) -> Result<(), String> {
        let mut end = 0;
        for shard in &self.shards {
            if shard.start != end || shard.end < end {
                return Err(format!("row {end} is not the first of a shard"));
            }
            end = shard.end;
        }
        let m = self.problem.m;
        if end != m {
            return Err(format!("{end} rows are owned, {m} multiplied"));
        }
        if self.group_rows == 0 || self.group_rows > i32::MAX as usize {
            return Err(format!(
                "group_rows = {} must lie in 1..={}",
                self.group_rows,
                i32::MAX
            ));
        }
        Ok(())
    }
}

pub(crate) type Launch<'a> = launches::Launch<'a, MatmulReduce, ReduceOperands>;

impl Launch<'_> {
    /// Where the partial of `source` of the rows of `owner` lies, in the staging of `source`.
    pub fn staged(&self, source: usize, owner: usize) -> DevicePtr {
        let first = self.operands.staging[source];
        match self.c {
            ReduceOutput::Multimem => self.row_from(first, self.shards[owner].start),
            _ => self.place_of(owner, source, first),
        }
    }

    /// Where the partial of `source` of this rank's rows is pulled to.
    pub fn pulled(&self, source: usize) -> DevicePtr {
        self.place_of(source, self.rank, self.operands.pulled)
    }

    /// The place of `one` among those that belong to all ranks but `without`.
    fn place_of(&self, one: usize, without: usize, first: DevicePtr) -> DevicePtr {
        let place = one - usize::from(one > without);
        self.row_from(first, place * self.most_rows())
    }

    /// In one shot, where the partial of `source` begins in the staging of `rank`, in the copy of `parity`.
    pub fn left(&self, source: usize, rank: usize, parity: usize) -> DevicePtr {
        let copy = self.operands.staging[rank].add(parity * self.operands.staging_stride);
        self.row_from(copy, source * self.problem.m)
    }

    /// Where the rows of C that this rank reduces lie.
    pub fn own_results(&self) -> DevicePtr {
        match self.c {
            ReduceOutput::Owner | ReduceOutput::Each => self.operands.c[0],
            ReduceOutput::Everyone | ReduceOutput::Multimem => {
                self.row_from(self.operands.c[self.rank], self.shards[self.rank].start)
            }
        }
    }

    /// Where all get the result, row 0 of the C that this rank has for itself.
    pub fn own_c(&self) -> DevicePtr {
        let local = self.operands.local_c.non_null();
        local.unwrap_or(self.operands.c[self.rank])
    }

    /// Where the rows that this rank reduces are stored a second time, if its C is local.
    pub fn local_results(&self) -> Option<DevicePtr> {
        let local = self.operands.local_c.non_null()?;
        Some(self.row_from(local, self.shards[self.rank].start))
    }

    /// The multicast addresses of this rank's rows of C and of their partials.
    pub fn own_multicast(&self) -> [DevicePtr; 2] {
        let first = self.shards[self.rank].start;
        self.operands
            .multicast
            .map(|address| self.row_from(address, first))
    }

    /// Checks that a GPU has the multicast addresses that it needs, at multiples of `alignment` bytes.
    ///
    /// # Errors
    /// [`Error::Operand`].
    pub fn check_multicast(&self, alignment: u64) -> Result<(), Error> {
        let named = ["C", "staging"].into_iter().zip(self.operands.multicast);
        for (operand, address) in named.filter(|_| self.c == ReduceOutput::Multimem) {
            if address == DevicePtr::NULL || !address.0.is_multiple_of(alignment) {
                return Err(Error::Operand {
                    operand,
                    problem: Box::new(self.problem),
                    reason: format!(
                        "a GPU reduces by multimem through a multicast address at a multiple of {alignment} \
                         bytes, not {:#x}: bind the buffer to a `MulticastBuffer`, which \
                         WARPWEAVE_MULTICAST=1 allows",
                        address.0
                    ),
                });
            }
        }
        Ok(())
    }

    /// The problem of `rows` of A, and its operands for a result at `c`.
    pub fn part(&self, rows: &Range<usize>, c: DevicePtr) -> (GemmProblem, GemmOperands) {
        let GemmProblem { lda, dtype, .. } = self.problem;
        let problem = GemmProblem {
            m: rows.len(),
            ..self.problem
        };
        let ReduceOperands {
            a,
            b,
            scales: [of_a, of_b],
            ..
        } = *self.operands;
        let a = a.add(rows.start * lda * dtype.size());
        let of_a = match problem.scaling {
            Scaling::Row => of_a.add(rows.start * DType::F32.size()),
            _ => of_a,
        };
        let operands = GemmOperands::new(a, b, c).with_scales([of_a, of_b]);
        (problem, operands)
    }

    /// Checks the pad, and that the addresses are there, at multiples of `alignment` bytes of their type.
    ///
    /// # Errors
    /// [`Error::InvalidProblem`]; [`Error::Operand`] for an address.
    pub fn check(&self, alignment: impl Fn(DType) -> u64) -> Result<(), Error> {
        let (rank, world, problem) = (self.rank, self.world, &self.problem);
        let refuse = |reason: String| {
            Err(Error::InvalidProblem {
                problem: Box::new(*problem),
                reason: format!("{} on rank {rank}: {reason}", MatmulReduce::NAME),
            })
        };
        let ReduceOperands {
            a,
            b,
            bias,
            scales,
            c,
            local_c,
            staging,
            staging_stride,
            multicast: _,
            pulled,
            pad,
        } = self.operands;
        if (pad.rank as usize, pad.world as usize) != (rank, world) {
            return refuse(format!("the pad is of rank {} of {}", pad.rank, pad.world));
        }
        let most = pad.slots as usize;
        for (what, first, count) in self.slots().into_iter().flatten() {
            let last = first.saturating_add(count);
            if last > most {
                return refuse(format!(
                    "{what} takes slots {first}..{last} of a pad with {most}"
                ));
            }
        }
        let local_c = local_c.non_null();
        if local_c.is_some() && self.c != ReduceOutput::Everyone {
            return refuse("only a C that all get from its owners may be local".into());
        }
        let copies = match self.c {
            ReduceOutput::Everyone | ReduceOutput::Multimem => world,
            ReduceOutput::Owner | ReduceOutput::Each => 1,
        };
        for (what, count, wanted) in [
            ("copies of C", c.len(), copies),
            ("stagings", staging.len(), world),
        ] {
            if count != wanted {
                return refuse(format!("{count} {what} in a world of {world}"));
            }
        }
        if self.c == ReduceOutput::Each {
            let bytes = world * problem.m * self.row_bytes();
            let room = isize::MAX as usize - bytes;
            let alignment = alignment(problem.out);
            let is_aligned = (*staging_stride as u64).is_multiple_of(alignment);
            if !(bytes..=room).contains(staging_stride) || !is_aligned {
                return refuse(format!(
                    "staging_stride = {staging_stride} must be at least the {bytes} bytes of all partials, \
                     and a multiple of {alignment}"
                ));
            }
        }
        let own_c = match self.c.is_for_everyone() {
            true => c[rank],
            false => c[0],
        };
        GemmOperands::new(*a, *b, own_c)
            .with_bias(*bias)
            .with_scales(*scales)
            .check(problem, &alignment)?;
        let check = |operand, rank, address| {
            check_address(problem, (operand, rank), address, alignment(problem.out))
        };
        for (rank, &c) in c.iter().enumerate().filter(|_| self.c.is_for_everyone()) {
            check("C", Some(rank), c)?;
        }
        let pulls = matches!(self.c, ReduceOutput::Owner | ReduceOutput::Everyone);
        for (rank, &staging) in staging.iter().enumerate().filter(|_| world > 1 || !pulls) {
            check("staging", Some(rank), staging)?;
        }
        if pulls && world > 1 {
            check("pulled", None, *pulled)?;
        }
        local_c.map_or(Ok(()), |c| check("local C", None, c))
    }
}

#[cfg(test)]
pub(crate) mod tests;
