//! A GEMM that waits per chunk for rows of A that arrive from other ranks while it runs.
//!
//! Copy engines push rows of A into this rank's staging and signal a flag of its pad after each chunk. One
//! launch computes all of C: its tiles take this rank's rows first, then the chunks in the expected order of
//! arrival, and no tile reads a row before its chunk's flag is set. Unlike one launch per chunk, only the
//! last wave of tiles is partly filled.
//!
//! PyTorch's "async-input matmul" has the same idea: tiles of one persistent launch wait for rows that copy
//! engines bring.

mod backend;
mod table;

use std::ops::Range;

use warpweave_symm_mem::{DType, DevicePtr, PadView};

use crate::backend::check_address;
use crate::launches;
use crate::{Activation, Error, GemmBatch, GemmOperands, GemmProblem, Layout, Scaling};

pub use backend::ChunkedGemmBackend;
pub(crate) use table::Table;

/// Rows of A that another rank pushes into staging, followed by a signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Rows of A, of staging and of C.
    pub rows: Range<usize>,
    /// The rank that pushes them.
    pub from: usize,
}

/// C = A·B, where this rank has some rows of A and the others arrive: what all launches of one prepared GEMM
/// share. [`ChunkedOperands`] are a launch's own.
///
/// A and C are row-major. A call consumes one signal in the slot `ready` for each entry of `arrivals`: the
/// n-th entry of a rank is signalled by its n-th signal of the call. Only calls of this kind wait in that
/// slot.
#[derive(Clone, Debug)]
pub struct ChunkedMatmul {
    /// The whole GEMM. `lda` holds for `a` and for `staging`.
    pub problem: GemmProblem,
    /// The rows that lie in `a`.
    pub own: Range<usize>,
    /// The other rows, in the order in which they are multiplied; ideally the order of arrival.
    pub arrivals: Vec<Arrival>,
    /// This rank.
    pub rank: usize,
    /// Number of ranks.
    pub world: usize,
    /// Slot for "the next of my rows are in your staging".
    pub ready: usize,
}

/// Where the matrices of a launch lie, and the pad whose flags it waits for.
#[derive(Clone, Copy, Debug)]
pub struct ChunkedOperands {
    /// Address of the first of the rows `own`.
    pub a: DevicePtr,
    /// Address of row 0 of A in staging, which has room for every row. Own rows that share a tile with others
    /// are copied there. Ignored if no rows arrive.
    pub staging: DevicePtr,
    /// Address of B.
    pub b: DevicePtr,
    /// Address of C.
    pub c: DevicePtr,
    /// The signal pad, of the rank and world of the GEMM.
    pub pad: PadView,
}

impl ChunkedMatmul {
    /// The kernel's name, the same on the host and in device code.
    pub const NAME: &'static str = "waiting_matmul";

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
            return refuse("rows arrive, so A must be row-major".into());
        }
        if self.problem.bias || self.problem.batch != GemmBatch::ONE {
            return refuse("it is one GEMM without a bias".into());
        }
        if self.problem.activation != Activation::None {
            return refuse("it has no activation".into());
        }
        if self.problem.scaling != Scaling::None {
            return refuse("it takes no scales, and so no e4m3".into());
        }
        if rank >= world {
            return refuse(format!("a world of {world}"));
        }
        if let Some(arrival) = self.arrivals.iter().find(|a| a.from >= world) {
            return refuse(format!("rank {} in a world of {world}", arrival.from));
        }
        let mut parts: Vec<_> = self.arrivals.iter().map(|arrival| &arrival.rows).collect();
        if let Some(rows) = parts.iter().find(|rows| rows.is_empty()) {
            return refuse(format!("an arrival of no rows, at row {}", rows.start));
        }
        if !self.own.is_empty() {
            parts.push(&self.own);
        }
        parts.sort_by_key(|rows| rows.start);
        let mut end = 0;
        for rows in parts {
            if rows.start != end {
                return refuse(format!("row {end} does not come exactly once"));
            }
            end = rows.end;
        }
        if end != self.problem.m {
            return refuse(format!(
                "{end} rows come, {} are multiplied",
                self.problem.m
            ));
        }
        Ok(())
    }
}

pub(crate) type Launch<'a> = launches::Launch<'a, ChunkedMatmul, ChunkedOperands>;

impl Launch<'_> {
    /// The GEMM of some rows, and the addresses of their A and C.
    pub fn part(&self, rows: &Range<usize>, own: bool) -> (GemmProblem, DevicePtr, DevicePtr) {
        let GemmProblem {
            lda,
            ldc,
            dtype,
            out,
            ..
        } = self.problem;
        let problem = GemmProblem {
            m: rows.len(),
            ..self.problem
        };
        let ChunkedOperands { a, staging, c, .. } = *self.operands;
        let a = match own {
            true => a,
            false => staging.add(rows.start * lda * dtype.size()),
        };
        (problem, a, c.add(rows.start * ldc * out.size()))
    }

    /// Checks the pad, and that the addresses are there, at multiples of `alignment` bytes of their type.
    ///
    /// # Errors
    /// [`Error::InvalidProblem`]; [`Error::Operand`] for an address.
    pub fn check(&self, alignment: impl Fn(DType) -> u64) -> Result<(), Error> {
        let ChunkedOperands {
            a,
            staging,
            b,
            c,
            pad,
        } = *self.operands;
        let (rank, world, slots) = (self.rank, self.world, pad.slots as usize);
        let refuse = |reason: String| {
            Err(Error::InvalidProblem {
                problem: Box::new(self.problem),
                reason: format!("{} on rank {rank}: {reason}", ChunkedMatmul::NAME),
            })
        };
        if (pad.rank as usize, pad.world as usize) != (rank, world) {
            return refuse(format!("the pad is of rank {} of {}", pad.rank, pad.world));
        }
        if self.ready >= slots {
            return refuse(format!("slot {} of a pad with {slots} slots", self.ready));
        }
        let given = (!self.own.is_empty()).then_some(("A", a));
        let arrives = (!self.arrivals.is_empty()).then_some(("staging", staging));
        for (operand, a) in given.into_iter().chain(arrives) {
            let problem = &self.problem;
            check_address(problem, (operand, None), a, alignment(problem.dtype))?;
            GemmOperands::new(a, b, c).check(problem, &alignment)?;
        }
        Ok(())
    }
}
