//! What others published.

use serde::{Deserialize, Serialize};
use warpweave_symm_mem::DType;

use crate::report::Name;
use crate::shape::Shape;

/// A published time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figure {
    /// The problem.
    pub shape: Shape,
    /// Its element type.
    pub dtype: Name,
    /// What was measured.
    pub what: Name,
    /// Milliseconds.
    pub ms: f64,
    /// On what, and by whom.
    pub source: Name,
    /// What of ours it stands beside.
    #[serde(skip)]
    pub beside: Beside,
}

/// What of ours a published time stands beside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Beside {
    /// The configuration of this name.
    Row(&'static str),
    /// The product alone.
    Product,
    /// Nothing that we have, or that a file tells.
    #[default]
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
            dtype: dtype.name().into(),
            what: what.into(),
            ms,
            source: source.into(),
            beside,
        })
    }

    /// Whether it stands beside the row of this name.
    pub(super) fn is_of(&self, row: &str) -> bool {
        matches!(self.beside, Beside::Row(name) if name == row)
    }
}
