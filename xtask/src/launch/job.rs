//! What the ranks of one job share: the address of the store and the token that admits them.

use std::net::{Ipv4Addr, TcpListener};

use crate::error::{Error, Result};

pub(super) struct Identity {
    pub store: String,
    /// 256 random bits in hexadecimal.
    pub token: String,
}

impl Identity {
    /// A new token, and an address that nobody listens on: on `host`, else on the loopback interface.
    pub fn new(host: Option<&str>, port: Option<u16>) -> Result<Self> {
        let mut bits = [0u8; 32];
        rustix::rand::getrandom(&mut bits, rustix::rand::GetRandomFlags::empty())
            .map_err(std::io::Error::from)?;
        let token = bits.iter().map(|byte| format!("{byte:02x}")).collect();
        let Some(host) = host else {
            let port = port.unwrap_or(0);
            // Rank 0 binds the port itself a moment later. The kernel cycles through ephemeral ports, so
            // another program gets this one in between only by asking for its number.
            let address = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
                .and_then(|listener| listener.local_addr())
                .map_err(|source| {
                    Error::Failed(format!(
                        "port {port} on 127.0.0.1 cannot be used for the store: {source}; leave --port out \
                         to take a free one"
                    ))
                })?;
            let store = address.to_string();
            return Ok(Self { store, token });
        };
        // Nobody here can look at that host's ports. This one is above common services, below what systems
        // assign; a port in use is an error of rank 0.
        let drawn = 20_000 + u16::from_le_bytes([bits[0], bits[1]]) % 10_000;
        let port = port.unwrap_or(drawn);
        // `user@host` is ssh's.
        let name = host.rsplit_once('@').map_or(host, |(_, name)| name);
        let store = match name.contains(':') {
            true => format!("[{name}]:{port}"),
            false => format!("{name}:{port}"),
        };
        Ok(Self { store, token })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_new_every_time() {
        let new = |host, port| Identity::new(host, port).unwrap();
        let (a, b) = (new(None, None), new(None, None));
        assert_ne!(a.token, b.token);
        assert_eq!(a.token.len(), 64);
        let port: u16 = a.store.strip_prefix("127.0.0.1:").unwrap().parse().unwrap();
        assert_ne!(port, 0);
        assert_eq!(new(Some("me@node"), Some(7)).store, "node:7");
        assert_eq!(new(Some("fd77::1"), Some(7)).store, "[fd77::1]:7");
    }
}
