//! Element types: their digits.

use warpweave_symm_mem::DType;

/// The integer up to which all are elements: 2 to the number of digits.
pub(crate) fn largest_exact(dtype: DType) -> usize {
    (2.0 / dtype.epsilon()) as usize
}
