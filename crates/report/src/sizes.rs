//! Sizes of problems and of messages, on command lines and in reports.

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

/// Bytes, written with the largest binary unit that fits: `4K`, `256M`, `1000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub usize);

const UNITS: [(char, usize); 3] = [('G', 1 << 30), ('M', 1 << 20), ('K', 1 << 10)];

/// The largest message: with several input sets and `world` times as large outputs it can still be counted.
const LARGEST: usize = 1 << 36;

impl FromStr for Bytes {
    type Err = String;

    /// As it is written, also followed by `B` or `iB`.
    fn from_str(text: &str) -> Result<Self, String> {
        let short = text.strip_suffix("iB").or(text.strip_suffix('B'));
        let short = short.unwrap_or(text);
        let unit = UNITS
            .iter()
            .find(|(unit, _)| short.ends_with([*unit, unit.to_ascii_lowercase()]));
        let (digits, factor) = match unit {
            Some((_, factor)) => (&short[..short.len() - 1], *factor),
            None => (short, 1),
        };
        let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        let bytes = is_number.then(|| digits.parse::<usize>().ok()?.checked_mul(factor));
        match bytes.flatten() {
            Some(bytes @ 1..=LARGEST) => Ok(Self(bytes)),
            _ => Err(format!(
                "`{text}` is not a size of 1 byte to 64G, such as 4K, 1M or 1000"
            )),
        }
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS
            .iter()
            .find(|(_, factor)| self.0.is_multiple_of(*factor) && self.0 > 0);
        match unit {
            Some((unit, factor)) => write!(f, "{}{unit}", self.0 / factor),
            None => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn a_size_is_read_as_it_is_written() {
        for (text, bytes) in [
            ("4K", 4096),
            ("1M", 1 << 20),
            ("1000", 1000),
            ("2G", 2 << 30),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)));
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        for (text, bytes) in [
            ("64k", 65536),
            ("16MiB", 16 << 20),
            ("8B", 8),
            ("3KB", 3072),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        for wrong in [
            "",
            "K",
            "0",
            "4T",
            "-1",
            "+1K",
            "1.5M",
            "999999999G",
            "99999999999999999999",
        ] {
            assert!(
                wrong.parse::<Bytes>().unwrap_err().contains(wrong),
                "{wrong}"
            );
        }
    }
}
