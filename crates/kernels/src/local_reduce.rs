//! The local reduction of partials: its launch descriptor.

use warpweave_symm_mem::{DType, DevicePtr};

use crate::error::{Error, Result};

/// The largest number of partials in one launch.
pub const MAX_PARTIALS: usize = 8;

/// A box of rows in memory: row `i` begins at element `i * row_stride` after `address`, and its elements are
/// contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strided {
    /// The first element, aligned to an element. May lie in a peer's memory, as mapped here.
    pub address: DevicePtr,
    /// Elements from the start of a row to the start of the next: at least the columns of the box, or 0 for a
    /// partial whose one row is added to every row of the result, as a bias is.
    pub row_stride: usize,
}

impl Strided {
    /// Fills the unused entries of [`LocalReduce::partials`].
    pub const NONE: Strided = Strided {
        address: DevicePtr::NULL,
        row_stride: 0,
    };
}

/// Adds boxes of `rows` × `cols` elements in the given order, in f32 starting from negative zero, and rounds
/// once.
///
/// The destination may be one of the partials, or disjoint from all of them; it is disjoint from a partial of
/// one row that is added to every row. A launch does not wait: the
/// caller ensures that the partials, including those of peers, are ready.
#[derive(Clone, Copy, Debug)]
pub struct LocalReduce {
    /// The partials, in the first `count` entries.
    pub partials: [Strided; MAX_PARTIALS],
    /// Number of partials, from 1 to [`MAX_PARTIALS`].
    pub count: usize,
    /// The destination, in this rank's memory.
    pub dst: Strided,
    /// Rows of all boxes.
    pub rows: usize,
    /// Columns of all boxes.
    pub cols: usize,
    /// Element type of all boxes.
    pub dtype: DType,
    /// This rank, for errors.
    pub rank: usize,
}

impl LocalReduce {
    /// The kernel's name, the same on the host and in device code.
    pub const NAME: &'static str = "local_reduce";

    /// The most elements of a box: the device counts them in 32 bits.
    pub const MOST_ELEMENTS: usize = i32::MAX as usize;

    /// The reduction of at most [`MAX_PARTIALS`] `partials`, with the other fields as given.
    ///
    /// # Errors
    /// [`Error::InvalidLaunch`] for no partials or too many.
    pub fn new(
        rank: usize,
        partials: &[Strided],
        dst: Strided,
        (rows, cols): (usize, usize),
        dtype: DType,
    ) -> Result<Self> {
        let mut all = [Strided::NONE; MAX_PARTIALS];
        match all.get_mut(..partials.len()) {
            Some(used) if !partials.is_empty() => used.copy_from_slice(partials),
            _ => {
                let why = format!(
                    "{} boxes, and one to {MAX_PARTIALS} can be added",
                    partials.len()
                );
                return Err(refusal(rank, "partials", why));
            }
        }
        Ok(LocalReduce {
            partials: all,
            count: partials.len(),
            dst,
            rows,
            cols,
            dtype,
            rank,
        })
    }

    /// The partials in use.
    pub(crate) fn used(&self) -> &[Strided] {
        &self.partials[..self.count.min(MAX_PARTIALS)]
    }

    /// The same elements as one row, if no box has gaps between its rows.
    pub(crate) fn flattened(self) -> Self {
        let dense = |b: &Strided| b.row_stride == self.cols;
        if self.rows > 1 && dense(&self.dst) && self.used().iter().all(dense) {
            let cols = self.rows * self.cols;
            return LocalReduce {
                rows: 1,
                cols,
                ..self
            };
        }
        self
    }

    /// Whether all rows of all boxes consist of aligned 16-byte vectors.
    pub(crate) fn has_vectors(&self) -> bool {
        let size = self.dtype.size();
        let row = |b: &Strided| match self.rows {
            0 | 1 => 0,
            _ => (b.row_stride * size) as u64,
        };
        let all = self
            .used()
            .iter()
            .chain([&self.dst])
            .fold((self.cols * size) as u64, |all, b| {
                all | b.address.0 | row(b)
            });
        all.is_multiple_of(16)
    }

    /// Checks the descriptor for consistency.
    pub(crate) fn validate(&self) -> Result<()> {
        let refuse = |what, why| Err(refusal(self.rank, what, why));
        if !(1..=MAX_PARTIALS).contains(&self.count) {
            let why = format!(
                "{} boxes, and one to {MAX_PARTIALS} can be added",
                self.count
            );
            return refuse("count", why);
        }
        if !self.dtype.is_arithmetic() {
            let why = format!("elements are f32, f16 or bf16, not {}", self.dtype);
            return refuse("dtype", why);
        }
        let limit = Self::MOST_ELEMENTS;
        if self.rows.checked_mul(self.cols).is_none_or(|n| n > limit) {
            let why = format!("{}x{} elements are more than {limit}", self.rows, self.cols);
            return refuse("size", why);
        }
        if self.rows == 0 || self.cols == 0 {
            return Ok(());
        }
        let size = self.dtype.size() as u64;
        for (what, b) in std::iter::repeat("partials")
            .zip(self.used())
            .chain([("dst", &self.dst)])
        {
            if b.address == DevicePtr::NULL || !b.address.0.is_multiple_of(size) {
                let why = format!(
                    "address {:#x} is null or not aligned to {size} bytes",
                    b.address.0
                );
                return refuse(what, why);
            }
            let repeated = what == "partials" && b.row_stride == 0;
            if self.rows > 1 && b.row_stride < self.cols && !repeated {
                let why = format!("rows of {} elements every {}", self.cols, b.row_stride);
                return refuse(what, why);
            }
        }
        Ok(())
    }
}

fn refusal(rank: usize, what: &'static str, why: String) -> Error {
    Error::InvalidLaunch {
        kernel: LocalReduce::NAME,
        rank,
        what,
        why,
    }
}
