//! GEMMs whose K is sharded over ranks, and the sums of these over the ranks, in one launch.
//!
//! Rank r has the columns K_r of A and the rows K_r of B, so that it has a *partial GEMM* of all of C, and C is the sum of
//! these. Each rank owns some rows of C, its shard, and sums them. One launch computes the partial GEMM tile by tile,
//! leaves those of others' rows in its staging, from which their owners pull them, and adds the parts that it pulls itself:
//! matmul + reduce-scatter. Where everyone is to have the sums, the others pull these in their turn: matmul + all-reduce.
//!
//! # Protocol
//!
//! A *group* is [`group_rows`](MatmulReduce::group_rows) rows of a shard. Its parts and its sums are published together, in
//! slots of the pad of its own: `ready` + group and `summed` + group. [`order()`] is the order in which a rank takes the groups.
//! In a call rank r
//! - for each group of another rank: stores its part into its staging, signals `ready` to the owner;
//! - for each group of its own: waits for `ready` of all others, pulls their parts, adds them to its own in the order of
//!   ranks, stores the sum and, where everyone gets the sums, signals `summed` to all others;
//! - where everyone gets the sums: waits for `summed` of each group of each other rank, and pulls its rows;
//! - has pulled everything: signals `done` to all others, and ends after their `done`.
//!
//! A rank writes its own memory alone: data is pulled, not sent (`docs/fused-kernel.md` says why). So a call needs no credits:
//! whatever follows it may write what others have pulled.
//!
//! After a wait that failed a rank publishes nothing; in one shot a launch that begins after it writes nothing to its peers.
//!
//! # In one shot
//!
//! Those are two trips over the link, of parts and of sums, each with a flag before and after it: *two shots*. Where C is so small that
//! flags take longer than bytes, each rank sums all of it by itself ([`ReduceOutput::Each`]). In a call rank r
//! - for each unit of C, a box as [`Units`] has them: stores its part into the staging of every rank, this one included, and signals
//!   `ready` + unit to the others, on a GPU to itself too: other blocks have parts of the unit;
//! - for each unit: waits for `ready` of all others, and adds the parts of all in the order of ranks.
//!
//! Nothing else is said: calls take two stagings in turn, so that who has heard from all ranks in one call may write in the next what they
//! read in the one before. The slot `done` is for tickets and the number of the call alone.
//!
//! # Rounding
//!
//! A part is rounded to the element type when it is stored. The owner's own part is not: to its f32 sums those of the others are
//! added in the order of ranks, and after them a bias, and the sum is rounded once. In one shot the own part is rounded too, and has its
//! place among the others, so that all ranks get the same bits. Each run gives the same bits.

mod backend;
mod order;
mod units;

use std::ops::Range;

use warpweave_symm_mem::{DevicePtr, PadView};

use crate::sm90::Tiling;
use crate::{Error, GemmBatch, GemmProblem, Layout};

pub use backend::GemmReduceBackend;
pub use order::{Group, order};
pub use units::Units;

/// Who gets the sums, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReduceOutput {
    /// Each rank those of its shard: the address of the first of this rank's.
    Owner(DevicePtr),
    /// Each rank all: for each rank the address of row 0 of its C, as mapped here.
    Everyone(Vec<DevicePtr>),
    /// Each rank all, which it sums by itself, in one shot: the address of row 0 of its C.
    Each(DevicePtr),
}

/// C = the sum of A·B over all ranks, with a bias if the problem has one, or this rank's rows of it.
#[derive(Clone, Debug)]
pub struct MatmulReduce {
    /// This rank's partial GEMM: all rows and columns of C, this rank's part of K. That may be empty: a GEMM of no
    /// terms is zero. `ldc` holds for C and for staging.
    pub problem: GemmProblem,
    /// The rows of C that each rank owns, one after the other. In one shot nobody owns any, and this is ignored.
    pub shards: Vec<Range<usize>>,
    /// Address of this rank's columns of A, m × k, row-major.
    pub a: DevicePtr,
    /// Address of this rank's rows of B, k × n.
    pub b: DevicePtr,
    /// Address of the bias: n elements of the type of C, on a GPU at a multiple of 16 bytes. The sums get it once, each from its
    /// owner. Ignored by a problem without one.
    pub bias: DevicePtr,
    /// Where the sums go.
    pub c: ReduceOutput,
    /// For each rank the address of its staging, as mapped here: its parts of the rows of each of the others, in the order of
    /// ranks, for each of whom it has as many rows of `ldc` elements as the largest shard. In one shot each is two, one after the other:
    /// the parts of all ranks, in their order, of all rows of C, which peers write.
    pub staging: Vec<DevicePtr>,
    /// Address of as much memory of this rank alone, for the parts that it pulls. In one shot there are none.
    pub pulled: DevicePtr,
    /// The signal pad, which gives rank and world size.
    pub pad: PadView,
    /// First of the slots for "my part of the group may be pulled", one for each group of the largest shard. In one shot, for "my part of
    /// the unit is in your staging", one for each of [`Units`].
    pub ready: usize,
    /// Where everyone gets the sums, first of as many slots for "the sums of my group may be pulled".
    pub summed: usize,
    /// The slot for "I have pulled what is yours". In one shot a slot in which nothing is said.
    pub done: usize,
    /// Rows of a group, but the last of a shard. On a GPU a multiple of 128. In one shot there are none.
    pub group_rows: usize,
    /// On a GPU: a tile, of those of [`sm90::tilings`](crate::sm90::tilings) that are no clusters; `None` for the model's choice. Ranks
    /// need not agree. The order of tiles is taken in one shot alone.
    pub tiling: Option<Tiling>,
    /// Blocks that the launch may have at most: for ranks that share a GPU, whose blocks must all be resident at once.
    pub max_blocks: Option<u32>,
}

impl MatmulReduce {
    /// The kernel's name, the same on the host and in device code.
    pub const NAME: &'static str = "reducing_matmul";

    pub(crate) fn rank(&self) -> usize {
        self.pad.rank as usize
    }

    pub(crate) fn world(&self) -> usize {
        self.pad.world as usize
    }

    /// The other ranks, the next one first.
    pub(crate) fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let (rank, world) = (self.rank(), self.world());
        (1..world).map(move |step| (rank + step) % world)
    }

    /// The groups in the order in which this rank takes them.
    pub(crate) fn order(&self) -> Vec<Group> {
        let everyone = matches!(self.c, ReduceOutput::Everyone(_));
        order(&self.shards, self.rank(), self.group_rows, everyone)
    }

    /// Groups of the largest shard.
    pub(crate) fn groups(&self) -> usize {
        self.most_rows().div_ceil(self.group_rows)
    }

    /// Rows of the largest shard.
    pub(crate) fn most_rows(&self) -> usize {
        self.shards.iter().map(Range::len).max().unwrap_or(0)
    }

    /// Where the part of `source` of the rows of `owner` lies, in the staging of `source`.
    pub(crate) fn staged(&self, source: usize, owner: usize) -> DevicePtr {
        self.place_of(owner, source, self.staging[source])
    }

    /// Where the part of `source` of this rank's rows is pulled to.
    pub(crate) fn pulled(&self, source: usize) -> DevicePtr {
        self.place_of(source, self.rank(), self.pulled)
    }

    /// The place of `one` among those that belong to all ranks but `without`.
    fn place_of(&self, one: usize, without: usize, first: DevicePtr) -> DevicePtr {
        let place = one - usize::from(one > without);
        self.row_from(first, place * self.most_rows())
    }

    /// The units of C, in one shot.
    pub(crate) fn units(&self) -> Units {
        Units::of(self.problem.m, self.problem.n)
    }

    /// In one shot, where the part of `source` begins in the staging of `rank`, of two in the one of `parity`.
    pub(crate) fn left(&self, source: usize, rank: usize, parity: usize) -> DevicePtr {
        let parts = parity * self.world() + source;
        self.row_from(self.staging[rank], parts * self.problem.m)
    }

    /// Where the rows of C that this rank sums lie.
    pub(crate) fn own_sums(&self) -> DevicePtr {
        match &self.c {
            ReduceOutput::Owner(c) | ReduceOutput::Each(c) => *c,
            ReduceOutput::Everyone(copies) => {
                let rank = self.rank();
                self.row_from(copies[rank], self.shards[rank].start)
            }
        }
    }

    /// Bytes of a row of C and of a part.
    pub(crate) fn row_bytes(&self) -> usize {
        self.problem.ldc * self.problem.dtype.size()
    }

    /// `row` rows of C after `address`.
    pub(crate) fn row_from(&self, address: DevicePtr, row: usize) -> DevicePtr {
        address.add(row * self.row_bytes())
    }

    /// The problem of `rows` of A, and where these begin.
    pub(crate) fn part(&self, rows: &Range<usize>) -> (GemmProblem, DevicePtr) {
        let GemmProblem { lda, dtype, .. } = self.problem;
        let problem = GemmProblem {
            m: rows.len(),
            ..self.problem
        };
        (problem, self.a.add(rows.start * lda * dtype.size()))
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

    /// Refuses what contradicts itself.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        self.with_terms().validate()?;
        let (rank, world, problem) = (self.rank(), self.world(), &self.problem);
        let refuse = |reason: String| {
            Err(Error::InvalidProblem {
                problem: Box::new(*problem),
                reason: format!("{} on rank {rank}: {reason}", Self::NAME),
            })
        };
        if problem.a_layout != Layout::RowMajor {
            return refuse("A must be row-major".into());
        }
        if problem.batch != GemmBatch::ONE || problem.out != problem.dtype {
            return refuse("it is one GEMM, stored in its own type".into());
        }
        let (copies, shards) = match &self.c {
            ReduceOutput::Owner(_) => (world, self.shards.len()),
            ReduceOutput::Everyone(copies) => (copies.len(), self.shards.len()),
            ReduceOutput::Each(_) => (world, world),
        };
        for (what, count) in [
            ("shards", shards),
            ("copies of C", copies),
            ("stagings", self.staging.len()),
        ] {
            if count != world {
                return refuse(format!("{count} {what} in a world of {world}"));
            }
        }
        if !matches!(self.c, ReduceOutput::Each(_)) {
            self.validate_shards().or_else(refuse)?;
        }
        let staged_rows = match self.c {
            ReduceOutput::Each(_) => (2 * world).saturating_mul(problem.m),
            _ => world.saturating_mul(self.most_rows()),
        };
        if staged_rows.saturating_mul(self.row_bytes()) > isize::MAX as usize {
            return refuse(format!(
                "a staging of {staged_rows} rows does not fit into an address space"
            ));
        }
        let ready = match self.c {
            ReduceOutput::Each(_) => self.units().count(),
            _ => self.groups(),
        };
        let mut slots = vec![("ready", self.ready, ready), ("done", self.done, 1)];
        if matches!(self.c, ReduceOutput::Everyone(_)) {
            slots.push(("summed", self.summed, ready));
        }
        for (i, &(what, first, count)) in slots.iter().enumerate() {
            let (most, last) = (self.pad.slots as usize, first.saturating_add(count));
            if last > most {
                return refuse(format!(
                    "{what} takes slots {first}..{last} of a pad with {most}"
                ));
            }
            for &(other, from, also) in &slots[..i] {
                if first < from + also && from < last {
                    return refuse(format!("{other} and {what} share slots"));
                }
            }
        }
        Ok(())
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

#[cfg(test)]
pub(crate) mod tests;
