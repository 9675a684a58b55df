//! Sizes on the command line.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// `MxNxK`: C\[M,N\] = A\[M,K\]·B\[K,N\].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Rows of A and C, over all ranks.
    pub m: usize,
    /// Columns of B and C.
    pub n: usize,
    /// Columns of A, rows of B.
    pub k: usize,
}

impl Shape {
    /// The shape of these sizes.
    pub const fn new(m: usize, n: usize, k: usize) -> Self {
        Self { m, n, k }
    }

    /// Whether the bytes of each matrix can be counted, with several input sets of four-byte elements side by
    /// side.
    fn is_addressable(self) -> bool {
        const LARGEST: usize = usize::MAX >> 8;
        [(self.m, self.k), (self.k, self.n), (self.m, self.n)]
            .iter()
            .all(|(rows, cols)| rows.checked_mul(*cols).is_some_and(|size| size <= LARGEST))
    }
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let sizes: Option<Vec<usize>> = text
            .split('x')
            .map(|size| size.parse().ok().filter(|&size| size > 0))
            .collect();
        match sizes.as_deref() {
            Some(&[m, n, k]) if Self { m, n, k }.is_addressable() => Ok(Self { m, n, k }),
            Some([_, _, _]) => Err(format!("`{text}` has matrices that no machine can hold")),
            _ => Err(format!(
                "`{text}` is not MxNxK with three positive sizes, such as 8192x3584x8192"
            )),
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{}", self.m, self.n, self.k)
    }
}

#[cfg(test)]
mod tests {
    use super::Shape;

    #[test]
    fn a_shape_is_read_as_it_is_written() {
        let shape: Shape = "8192x3584x4096".parse().unwrap();
        assert_eq!(shape, Shape::new(8192, 3584, 4096));
        assert_eq!(shape.to_string(), "8192x3584x4096");
        let huge = usize::MAX.to_string();
        let huge = format!("{huge}x{huge}x1");
        for wrong in [
            huge.as_str(),
            "",
            "1x2",
            "1x2x3x4",
            "0x1x1",
            "1x-2x3",
            "axbxc",
        ] {
            assert!(wrong.parse::<Shape>().unwrap_err().contains(wrong));
        }
    }
}
