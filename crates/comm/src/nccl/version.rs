//! Versions of NCCL.

use std::fmt;

/// A version of NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NcclVersion {
    /// 2 in 2.28.3.
    pub major: u32,
    /// 28 in 2.28.3.
    pub minor: u32,
    /// 3 in 2.28.3.
    pub patch: u32,
}

/// The first version with non-blocking communicators as this crate uses them, and `ncclCommSplit`.
pub const OLDEST_NCCL: NcclVersion = NcclVersion::of(2, 18);

impl NcclVersion {
    /// The first release of a minor version.
    pub const fn of(major: u32, minor: u32) -> Self {
        Self {
            major,
            minor,
            patch: 0,
        }
    }

    /// From `ncclGetVersion`: 22803 is 2.28.3; before 2.9 it was 2804 for 2.8.4.
    pub(super) fn from_code(code: i32) -> Self {
        let code = code.max(0) as u32;
        let unit = if code < 10_000 { 1_000 } else { 10_000 };
        Self {
            major: code / unit,
            minor: code % unit / 100,
            patch: code % 100,
        }
    }
}

impl fmt::Display for NcclVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_codes_of_both_eras() {
        assert_eq!(NcclVersion::from_code(22803).to_string(), "2.28.3");
        assert_eq!(
            NcclVersion::from_code(21805),
            NcclVersion {
                major: 2,
                minor: 18,
                patch: 5
            }
        );
        assert_eq!(NcclVersion::from_code(2804).to_string(), "2.8.4");
        assert!(NcclVersion::from_code(21700) < OLDEST_NCCL);
    }
}
