//! Sizes of messages on the command line and in tables.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use warpweave_symm_mem::BackendKind;

/// Bytes, written with the largest binary unit that fits: `4K`, `256M`, `1000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub usize);

const UNITS: [(char, usize); 3] = [('G', 1 << 30), ('M', 1 << 20), ('K', 1 << 10)];

/// The largest message: with several input sets and `world` times as large outputs it can still be counted.
const LARGEST: usize = 1 << 36;

impl Bytes {
    /// What a suite measures where the command line names nothing.
    pub fn defaults(kind: BackendKind) -> Vec<Self> {
        let sizes: &[usize] = match kind {
            BackendKind::Cuda => &[12, 14, 16, 18, 20, 22, 24, 26, 28],
            BackendKind::Host => &[12, 16, 20],
        };
        sizes.iter().map(|&log| Self(1 << log)).collect()
    }
}

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

    #[test]
    fn gpus_measure_from_4k_to_256m_in_steps_of_four() {
        let text = |kind| {
            let sizes = Bytes::defaults(kind).into_iter();
            sizes.map(|size| size.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(
            text(BackendKind::Cuda),
            ["4K", "16K", "64K", "256K", "1M", "4M", "16M", "64M", "256M"]
        );
        assert_eq!(text(BackendKind::Host), ["4K", "64K", "1M"]);
    }
}
