//! Input sets in device memory, ready to be copied into a plan's buffers between calls.

use warpweave_overlap::execute::{Bound, ExecuteBackend};
use warpweave_overlap::operation::Operand;
use warpweave_overlap::plan::Role;
use warpweave_symm_mem::{Backend, DevicePtr, Memory};

use super::{Matrices, Numbers, Part, with_role};
use crate::error::{BenchError, Result};
use crate::session::Session;

/// A part of a matrix in every set of its kind; in one where it is a weight.
struct Stored<B: Backend> {
    part: Part,
    bytes: usize,
    sets: Vec<B::Memory>,
}

/// The input sets of one kind of numbers, with those parts of the matrices that plans of this rank take.
pub struct InputSets<B: Backend> {
    /// What kind of numbers.
    pub numbers: Numbers,
    matrices: Matrices,
    sets: usize,
    stored: Vec<Stored<B>>,
}

impl<B: ExecuteBackend> InputSets<B> {
    /// `sets` sets of `numbers`, with no part of them yet.
    pub fn new(matrices: Matrices, numbers: Numbers, sets: usize) -> Self {
        Self {
            numbers,
            matrices,
            sets: sets.max(1),
            stored: Vec::new(),
        }
    }

    /// Makes the parts that `operands` take and that are not there yet.
    ///
    /// # Errors
    /// What the backend reports.
    pub fn add(&mut self, session: &Session<B>, operands: &[Operand]) -> Result<()> {
        for operand in operands.iter().filter(|o| o.role() != Role::Output) {
            let part = Part::from(operand);
            if part.is_empty() || self.find(&part).is_some() {
                continue;
            }
            let sets = match operand.role() {
                Role::Weight => 1,
                _ => self.sets,
            };
            let sets = (0..sets).map(|set| self.upload(session, &part, set));
            self.stored.push(Stored {
                sets: sets.collect::<Result<_>>()?,
                bytes: part.len() * self.matrices.problem.dtype.size(),
                part,
            });
        }
        Ok(())
    }

    fn upload(&self, session: &Session<B>, part: &Part, set: usize) -> Result<B::Memory> {
        let source = self.matrices.source(part.matrix, self.numbers, set);
        let bytes = source.bytes(part, session.threads());
        let memory = session.backend.allocate(bytes.len())?;
        // SAFETY: the memory was just allocated with this length and nothing else knows it.
        unsafe {
            session
                .backend
                .upload(&session.stream, memory.address(), &bytes)?
        };
        Ok(memory)
    }

    fn find(&self, part: &Part) -> Option<&Stored<B>> {
        self.stored.iter().find(|stored| stored.part == *part)
    }

    /// Enqueues the copies of set `set`, counted round and round, into the inputs of `bound`, which are among
    /// `operands`.
    ///
    /// # Errors
    /// [`BenchError::Operand`] if a buffer is not as its operand says; what the backend reports.
    pub fn load(
        &self,
        session: &Session<B>,
        (bound, operands): (&Bound<B>, &[Operand]),
        set: usize,
    ) -> Result<()> {
        with_role(operands, Role::Input)
            .try_for_each(|operand| self.copy(session, bound, operand, set))
    }

    /// Enqueues the copies of the weights of `bound`, which are among `operands`.
    ///
    /// # Errors
    /// As [`InputSets::load`].
    pub fn load_weights(
        &self,
        session: &Session<B>,
        (bound, operands): (&Bound<B>, &[Operand]),
    ) -> Result<()> {
        with_role(operands, Role::Weight)
            .try_for_each(|operand| self.copy(session, bound, operand, 0))
    }

    fn copy(
        &self,
        session: &Session<B>,
        bound: &Bound<B>,
        operand: &Operand,
        set: usize,
    ) -> Result<()> {
        let to = address(bound, operand)?;
        let part = Part::from(operand);
        if part.is_empty() {
            return Ok(());
        }
        let Some(stored) = self.find(&part) else {
            return Err(BenchError::Operand {
                plan: bound.plan().name.clone(),
                buffer: operand.buffer.into(),
                why: "no input was made for it".into(),
            });
        };
        let from = stored.sets[set % stored.sets.len()].address();
        // SAFETY: both ranges are as long as `address` has checked and outlive the stream's work, as memory
        // waits for it when dropped. The plan's own work on the buffer is ordered by the stream, and its
        // proof covers this write between calls.
        unsafe {
            session
                .backend
                .copy(&session.stream, to, from, stored.bytes)?
        };
        Ok(())
    }
}

/// Where the buffer of `operand` begins, which has the operand's role, its columns, and at least its rows.
///
/// # Errors
/// [`BenchError::Operand`] if it has not.
pub(crate) fn address<B: ExecuteBackend>(bound: &Bound<B>, operand: &Operand) -> Result<DevicePtr> {
    let (buffer, address) = bound.buffer(operand.buffer)?;
    let (rows, cols) = operand.stored();
    // A buffer of a rank without a share may have any shape.
    let fits = rows * cols == 0 || (rows <= buffer.rows && cols == buffer.cols);
    if fits && buffer.role == operand.role() {
        return Ok(address);
    }
    Err(BenchError::Operand {
        plan: bound.plan().name.clone(),
        buffer: operand.buffer.into(),
        why: format!(
            "it is {} of {}x{}, and the operation asks for {} of {rows}x{cols}",
            buffer.role,
            buffer.rows,
            buffer.cols,
            operand.role()
        ),
    })
}
