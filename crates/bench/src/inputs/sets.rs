//! Input sets in device memory, ready to be copied into a plan's buffers between calls.

use std::rc::Rc;

use warpweave_overlap::operation::Operand;
use warpweave_overlap::plan::Role;
use warpweave_symm_mem::Backend;

use super::{Matrices, Numbers, Set};
use crate::error::Result;
use crate::session::{ExecuteBackend, Session};

/// A part of a matrix in every set of its kind; in one where it is a weight.
pub struct Stored<B: Backend> {
    part: Operand,
    numbers: Numbers,
    sets: Vec<B::Memory>,
}

impl<B: Backend> Stored<B> {
    /// A set, counted round and round.
    pub fn set(&self, index: usize) -> &B::Memory {
        &self.sets[index % self.sets.len()]
    }
}

/// The input sets of a problem, with those parts of the matrices that plans of this rank take.
pub struct InputSets<B: Backend> {
    matrices: Matrices,
    sets: Vec<(Numbers, usize)>,
    stored: Vec<Rc<Stored<B>>>,
}

impl<B: ExecuteBackend> InputSets<B> {
    /// This many sets of each kind, with no part of them yet.
    pub fn new(matrices: Matrices, sets: &[(Numbers, usize)]) -> Self {
        Self {
            matrices,
            sets: sets.into(),
            stored: Vec::new(),
        }
    }

    /// The part that `operand` takes, made where it is not there yet.
    pub fn of(
        &mut self,
        session: &Session<B>,
        operand: &Operand,
        numbers: Numbers,
    ) -> Result<Rc<Stored<B>>> {
        // The name of the buffer does not matter.
        let part = Operand {
            buffer: "",
            ..operand.clone()
        };
        let same = |stored: &&Rc<Stored<B>>| stored.part == part && stored.numbers == numbers;
        if let Some(stored) = self.stored.iter().find(same) {
            return Ok(stored.clone());
        }
        let (rows, cols) = part.stored();
        let of_kind = self.sets.iter().find(|(kind, _)| *kind == numbers);
        let sets = match operand.role() {
            _ if rows * cols == 0 => 0,
            Role::Weight => 1,
            _ => of_kind.map_or(1, |(_, sets)| *sets),
        };
        let source = |index| self.matrices.source(part.matrix, Set { numbers, index });
        let sets =
            (0..sets).map(|set| session.upload(&source(set).bytes(&part, session.threads())));
        let stored = Rc::new(Stored {
            sets: sets.collect::<Result<_>>()?,
            part,
            numbers,
        });
        self.stored.push(stored.clone());
        Ok(stored)
    }
}
