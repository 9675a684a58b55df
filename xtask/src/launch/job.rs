//! What the ranks of one job share: the address of the store and the token that admits them.

use std::fs::File;
use std::io::Read;
use std::net::{Ipv4Addr, TcpListener};

use crate::error::{Error, Result};

pub(super) struct Identity {
    pub store: String,
    pub token: String,
}

impl Identity {
    /// An address on the loopback interface that nobody listens on, and a new token.
    pub fn new(port: Option<u16>) -> Result<Self> {
        let asked = port.unwrap_or(0);
        // Rank 0 binds the port itself a moment later. The kernel cycles through ephemeral ports, so
        // another program gets this one in between only by asking for its number.
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, asked)).map_err(|source| Error::Port {
                port: asked,
                source,
            })?;
        let address = listener.local_addr().map_err(|source| Error::Port {
            port: asked,
            source,
        })?;
        Ok(Self {
            store: address.to_string(),
            token: random_token()?,
        })
    }

    /// An address on `host`, whose ports nobody here can look at, and a new token.
    pub fn on(host: &str, port: Option<u16>) -> Result<Self> {
        let token = random_token()?;
        // Above common services, below what systems assign. A port in use is an error of rank 0.
        let drawn = u16::from_str_radix(&token[..4], 16).unwrap_or(0) % 10_000;
        let port = port.unwrap_or(20_000 + drawn);
        // `user@host` is ssh's.
        let name = host.rsplit_once('@').map_or(host, |(_, name)| name);
        let store = match name.contains(':') {
            true => format!("[{name}]:{port}"),
            false => format!("{name}:{port}"),
        };
        Ok(Self { store, token })
    }
}

/// 256 random bits in hexadecimal.
fn random_token() -> Result<String> {
    const SOURCE: &str = "/dev/urandom";
    let mut bits = [0u8; 32];
    File::open(SOURCE)
        .and_then(|mut file| file.read_exact(&mut bits))
        .map_err(Error::file("cannot read", SOURCE))?;
    Ok(bits.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_new_every_time() {
        let (a, b) = (Identity::new(None).unwrap(), Identity::new(None).unwrap());
        assert_ne!(a.token, b.token);
        assert_eq!(a.token.len(), 64);
        let port: u16 = a.store.strip_prefix("127.0.0.1:").unwrap().parse().unwrap();
        assert_ne!(port, 0);
    }

    #[test]
    fn a_port_in_use_is_named() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = Identity::new(Some(port)).err().unwrap();
        assert!(error.to_string().contains(&port.to_string()), "{error}");
    }
}
