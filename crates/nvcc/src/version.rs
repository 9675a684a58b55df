//! Versions of the CUDA compiler.

use std::fmt;

/// The oldest nvcc that compiles Warpweave's kernels.
pub const OLDEST: Version = Version {
    major: 12,
    minor: 8,
};

/// The newest nvcc whose PTX a driver of branch 580 still loads.
pub const NEWEST: Version = Version {
    major: 13,
    minor: 0,
};

/// A CUDA release, `major.minor`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The first number: 13 of 13.0.
    pub major: u16,
    /// The second number: 0 of 13.0.
    pub minor: u16,
}

impl Version {
    /// Parses the release in the output of `nvcc --version`; `None` if there is none.
    pub fn parse(banner: &str) -> Option<Self> {
        let rest = banner.split_once("release ")?.1;
        let number: &str = rest
            .split(|c: char| !(c.is_ascii_digit() || c == '.'))
            .next()?;
        let (major, minor) = number.split_once('.')?;
        let minor = minor.split('.').next()?;
        Some(Self {
            major: major.parse().ok()?,
            minor: minor.parse().ok()?,
        })
    }

    /// Whether this release lies between [`OLDEST`] and [`NEWEST`].
    pub fn is_supported(self) -> bool {
        (OLDEST..=NEWEST).contains(&self)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BANNER: &str = "nvcc: NVIDIA (R) Cuda compiler driver\n\
        Cuda compilation tools, release 13.0, V13.0.88\n\
        Build cuda_13.0.r13.0/compiler.36424714_0\n";

    #[test]
    fn reads_the_release_of_a_banner() {
        assert_eq!(
            Version::parse(BANNER),
            Some(Version {
                major: 13,
                minor: 0
            })
        );
        let two_digits = "Cuda compilation tools, release 12.10, V12.10.3";
        assert_eq!(
            Version::parse(two_digits),
            Some(Version {
                major: 12,
                minor: 10
            })
        );
    }

    #[test]
    fn refuses_what_is_no_banner() {
        for text in [
            "",
            "release",
            "release x.y",
            "release 13",
            "clang version 18.1",
            "release 99999999.0",
        ] {
            assert_eq!(Version::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn bounds_are_inclusive() {
        let version = |major, minor| Version { major, minor };
        assert!(!version(12, 7).is_supported());
        assert!(version(12, 8).is_supported());
        assert!(version(12, 10).is_supported());
        assert!(version(13, 0).is_supported());
        assert!(!version(13, 1).is_supported());
    }
}
