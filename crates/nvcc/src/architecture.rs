//! GPU architectures by nvcc's names.

use std::fmt;

use crate::error::{Error, Result};

/// Machine code or an intermediate form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `sm_…`: machine code for one family of devices.
    Real,
    /// `compute_…`: PTX, which the driver compiles for this device and for newer ones.
    Virtual,
}

/// An architecture such as `sm_90a` or `compute_80`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Architecture {
    kind: Kind,
    name: String,
}

impl Architecture {
    /// Parses `sm_90a`, `sm_80`, `compute_80`, …
    ///
    /// # Errors
    /// [`Error::Architecture`] for any other spelling.
    pub fn parse(text: &str) -> Result<Self> {
        let unknown = || Error::Architecture {
            given: text.to_owned(),
            expected: "architecture (such as sm_90a or compute_80)",
        };
        let (kind, name) = match text.split_once('_') {
            Some(("sm", name)) => (Kind::Real, name),
            Some(("compute", name)) => (Kind::Virtual, name),
            _ => return Err(unknown()),
        };
        let digits = name.strip_suffix(['a', 'f']).unwrap_or(name);
        let plausible =
            (2..=3).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
        if !plausible {
            return Err(unknown());
        }
        Ok(Self {
            kind,
            name: name.to_owned(),
        })
    }

    pub(crate) fn parse_as(text: &str, kind: Kind) -> Result<Self> {
        let parsed = Self::parse(text)?;
        if parsed.kind == kind {
            return Ok(parsed);
        }
        Err(Error::Architecture {
            given: text.to_owned(),
            expected: match kind {
                Kind::Real => "real architecture (such as sm_90a), which machine code is made for",
                Kind::Virtual => "virtual architecture (such as compute_80), which PTX is made for",
            },
        })
    }

    /// Whether this is machine code or PTX.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The option that makes nvcc produce machine code for this architecture and nothing else.
    pub(crate) fn machine_code(&self) -> String {
        format!("-gencode=arch=compute_{0},code=sm_{0}", self.name)
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = match self.kind {
            Kind::Real => "sm",
            Kind::Virtual => "compute",
        };
        write!(f, "{prefix}_{}", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_survive_a_round_trip() {
        for text in ["sm_90a", "sm_80", "sm_100f", "compute_80", "compute_90a"] {
            assert_eq!(Architecture::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn other_spellings_are_refused() {
        for text in [
            "", "90a", "sm90a", "sm_", "sm_9", "sm_90x", "sm_9000", "SM_90", "compute_", "sm_-9",
        ] {
            assert!(Architecture::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn kinds_are_not_interchangeable() {
        assert!(Architecture::parse_as("compute_80", Kind::Real).is_err());
        assert!(Architecture::parse_as("sm_80", Kind::Virtual).is_err());
        let hopper = Architecture::parse_as("sm_90a", Kind::Real).unwrap();
        assert_eq!(
            hopper.machine_code(),
            "-gencode=arch=compute_90a,code=sm_90a"
        );
    }
}
