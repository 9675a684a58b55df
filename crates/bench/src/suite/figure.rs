//! What others published.

use serde::Serialize;
use warpweave_symm_mem::DType;

use crate::shape::Shape;

/// A published time.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// The problem.
    pub shape: Shape,
    /// Its element type.
    pub dtype: &'static str,
    /// What was measured.
    pub what: &'static str,
    /// Milliseconds.
    pub ms: f64,
    /// On what, and by whom.
    pub source: &'static str,
    /// What of ours it stands beside.
    #[serde(skip)]
    pub beside: Beside,
}

/// What of ours a published time stands beside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// The configuration of this name.
    Row(&'static str),
    /// The product alone.
    Product,
    /// Nothing that we have.
    Nothing,
}

impl Figure {
    /// The figures of a problem, each by what it is of.
    pub(super) fn all<const N: usize>(
        (shape, dtype): (Shape, DType),
        source: &'static str,
        figures: [(&'static str, f64, Beside); N],
    ) -> [Self; N] {
        figures.map(|(what, ms, beside)| Self {
            shape,
            dtype: dtype.name(),
            what,
            ms,
            source,
            beside,
        })
    }

    /// Whether it stands beside the row of this name.
    pub(super) fn is_of(&self, row: &str) -> bool {
        matches!(self.beside, Beside::Row(name) if name == row)
    }
}
