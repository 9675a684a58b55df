//! Proof that both ends of a connection know a secret, which is never sent.
//!
//! Each end sends a random challenge. The one that asks to be admitted proves itself first, by a keyed hash
//! (BLAKE3) of both challenges and of what it asks for; the other one answers with its own proof. A proof is
//! of use for one connection and one direction only.

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::job::random_bytes;

/// What one end of a connection drew at random for the other's proof.
pub(crate) type Challenge = [u8; 32];

/// What only an end that knows the secret can send.
pub(crate) type Proof = [u8; 32];

/// A key made of a job's token or of a group's secret.
#[derive(Clone)]
pub(crate) struct Key([u8; 32]);

/// The challenges of one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Challenges {
    /// Of the end that admits.
    pub host: Challenge,
    /// Of the end that asks.
    pub guest: Challenge,
}

impl Key {
    pub(crate) fn new(secret: &[u8]) -> Self {
        Self(blake3::derive_key("warpweave connections", secret))
    }

    /// Proves the end that asks to be admitted as `what`.
    pub(crate) fn guest(&self, challenges: &Challenges, what: &[u8]) -> Proof {
        *self.hash(b"guest", challenges, what).as_bytes()
    }

    /// Proves the end that admits.
    pub(crate) fn host(&self, challenges: &Challenges) -> Proof {
        *self.hash(b"host ", challenges, &[]).as_bytes()
    }

    pub(crate) fn admits(&self, challenges: &Challenges, what: &[u8], proof: Proof) -> bool {
        // A `Hash` compares in constant time.
        self.hash(b"guest", challenges, what) == blake3::Hash::from_bytes(proof)
    }

    pub(crate) fn trusts(&self, challenges: &Challenges, proof: Proof) -> bool {
        self.hash(b"host ", challenges, &[]) == blake3::Hash::from_bytes(proof)
    }

    fn hash(&self, end: &[u8; 5], challenges: &Challenges, what: &[u8]) -> blake3::Hash {
        blake3::Hasher::new_keyed(&self.0)
            .update(end)
            .update(&challenges.host)
            .update(&challenges.guest)
            .update(what)
            .finalize()
    }
}

pub(crate) fn challenge() -> Result<Challenge> {
    random_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_good_for_its_secret_connection_direction_and_purpose() {
        let (key, other) = (Key::new(b"a secret"), Key::new(b"another"));
        let once = Challenges {
            host: [1; 32],
            guest: [2; 32],
        };
        let again = Challenges {
            host: [3; 32],
            ..once
        };
        let proof = key.guest(&once, b"rank 1");
        assert!(key.admits(&once, b"rank 1", proof));
        assert!(!key.admits(&once, b"rank 2", proof));
        assert!(!key.admits(&again, b"rank 1", proof));
        assert!(!other.admits(&once, b"rank 1", proof));
        assert!(!key.trusts(&once, key.guest(&once, b"")));
        assert!(key.trusts(&once, key.host(&once)));
        assert!(!other.trusts(&once, key.host(&once)));
    }
}
