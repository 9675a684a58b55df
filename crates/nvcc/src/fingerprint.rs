//! Content hashes for the cache.

use std::fmt;
use std::io::Read;
use std::path::Path;

use crate::error::{Error, Result};

/// A 128-bit FNV-1a hash over length-prefixed items.
///
/// It protects against stale results, not against forgery. For that this width suffices, and the crate needs
/// no dependency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fingerprint(u128);

const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;

impl Fingerprint {
    pub(crate) fn new() -> Self {
        Self(OFFSET)
    }

    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut hash = Self::new();
        hash.absorb(bytes);
        hash
    }

    fn absorb(&mut self, bytes: &[u8]) {
        let mut state = self.0;
        for &byte in bytes {
            state = (state ^ u128::from(byte)).wrapping_mul(PRIME);
        }
        self.0 = state;
    }

    /// Adds an item with its length, so that ("ab", "c") and ("a", "bc") differ.
    pub(crate) fn add(&mut self, piece: impl AsRef<[u8]>) {
        let piece = piece.as_ref();
        self.absorb(&(piece.len() as u64).to_le_bytes());
        self.absorb(piece);
    }

    /// Adds a file's content.
    pub(crate) fn add_file(&mut self, path: &Path) -> Result<()> {
        let mut content = Vec::new();
        std::fs::File::open(path)
            .and_then(|mut file| file.read_to_end(&mut content))
            .map_err(Error::io("read", path))?;
        self.add(&content);
        Ok(())
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_published_vectors() {
        // From the FNV reference's test suite: the empty string, "a" and "foobar".
        assert_eq!(
            Fingerprint::of(b"").to_string(),
            "6c62272e07bb014262b821756295c58d"
        );
        assert_eq!(
            Fingerprint::of(b"a").to_string(),
            "d228cb696f1a8caf78912b704e4a8964"
        );
        assert_eq!(
            Fingerprint::of(b"foobar").to_string(),
            "343e1662793c64bf6f0d3597ba446f18"
        );
    }

    #[test]
    fn pieces_do_not_run_into_each_other() {
        let of = |pieces: &[&str]| {
            let mut hash = Fingerprint::new();
            pieces.iter().for_each(|piece| hash.add(piece));
            hash
        };
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
        assert_ne!(of(&["ab"]), of(&["ab", ""]));
        assert_eq!(of(&["ab", "c"]), of(&["ab", "c"]));
    }
}
