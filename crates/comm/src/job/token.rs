//! The secret that authenticates the ranks of a job.

use std::fmt;

use crate::error::{CommError, Result};

const SHORTEST: usize = 8;
const LONGEST: usize = 256;

/// The token of a job, which a process needs to join its store: 8 to 256 bytes.
///
/// It is never sent: both ends of a connection prove that they know it. So it guards a job against other
/// users of the machine, a misdirected rank of another job, and whoever can connect. What ranks send each
/// other afterwards is not encrypted.
#[derive(Clone)]
pub struct JobToken {
    bytes: Vec<u8>,
    secret: bool,
}

impl JobToken {
    /// The token that a launcher handed to every rank.
    ///
    /// # Errors
    /// [`CommError::InvalidArgument`] when it is shorter than 8 or longer than 256 bytes.
    pub fn new(text: impl AsRef<[u8]>) -> Result<Self> {
        let bytes = text.as_ref();
        if !(SHORTEST..=LONGEST).contains(&bytes.len()) {
            return Err(CommError::InvalidArgument {
                what: "job token",
                why: format!(
                    "{} bytes; it must have {SHORTEST} to {LONGEST}",
                    bytes.len()
                ),
            });
        }
        Ok(Self {
            bytes: bytes.to_vec(),
            secret: true,
        })
    }

    /// Derives a token from a launcher's job id: it keeps jobs apart, but anyone may know it.
    pub(super) fn derived(text: &str) -> Self {
        Self {
            bytes: blake3::hash(text.as_bytes()).to_hex().as_bytes().to_vec(),
            secret: false,
        }
    }

    /// False for a token derived from a launcher's job id.
    pub(crate) fn is_secret(&self) -> bool {
        self.secret
    }

    /// A token of 256 random bits, as 64 hexadecimal digits.
    ///
    /// # Errors
    /// [`CommError::Io`] when the system has no randomness to give.
    pub fn random() -> Result<Self> {
        let bits: [u8; 32] = random_bytes()?;
        Self::new(bits.map(|b| format!("{b:02x}")).concat())
    }

    /// The bytes, for the launcher that must hand them on.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl fmt::Debug for JobToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobToken(…)")
    }
}

pub(crate) fn random_bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0u8; N];
    let mut filled = 0;
    while filled < N {
        filled += rustix::io::retry_on_intr(|| {
            rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())
        })
        .map_err(|e| CommError::io("reading random bytes", e))?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_tokens_differ_and_short_ones_are_refused() {
        assert_ne!(
            JobToken::random().unwrap().bytes,
            JobToken::random().unwrap().bytes
        );
        assert!(JobToken::new("short").is_err());
        assert!(!format!("{:?}", JobToken::new("correct horse").unwrap()).contains("horse"));
    }

    #[test]
    fn long_ids_that_differ_at_their_end_give_different_tokens() {
        let of = |restart: &str| JobToken::derived(&("a".repeat(LONGEST) + restart));
        assert_eq!(of("0").bytes, of("0").bytes);
        assert_ne!(of("0").bytes, of("1").bytes);
    }
}
