//! Which user owns the other end of a TCP connection, as far as this host knows.
//!
//! TCP carries no credentials, but the kernel lists the sockets of this network namespace with their owners.
//! A peer that is not in the list is on another host, unless its address is a loopback one.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream};

/// False if the peer is a process of this host under another user, or if its user is unknown.
pub(super) fn may_be_same_user(stream: &TcpStream) -> bool {
    let (Ok(peer), Ok(here)) = (stream.peer_addr(), stream.local_addr()) else {
        return false;
    };
    let owner = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|path| std::fs::read_to_string(path).ok())
        .find_map(|table| owner(&table, peer, here));
    match owner {
        Some(uid) => uid == rustix::process::geteuid().as_raw(),
        None => !peer.ip().to_canonical().is_loopback(),
    }
}

/// The user whose socket has the address `local` and is connected to `remote`.
fn owner(table: &str, local: SocketAddr, remote: SocketAddr) -> Option<u32> {
    let same = |text: &str, wanted: SocketAddr| {
        address(text).is_some_and(|(ip, port)| {
            ip.to_canonical() == wanted.ip().to_canonical() && port == wanted.port()
        })
    };
    table.lines().skip(1).find_map(|line| {
        // sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid …
        let mut words = line.split_whitespace().skip(1);
        let (own, peer) = (words.next()?, words.next()?);
        (same(own, local) && same(peer, remote)).then(|| words.nth(4)?.parse().ok())?
    })
}

/// `0100007F:1F90`: groups of four bytes, each a number of this machine's byte order; the port is plain.
fn address(text: &str) -> Option<(IpAddr, u16)> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let group = |n: usize| {
        let digits = ip.get(8 * n..8 * n + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    let ip: IpAddr = match ip.len() {
        8 => group(0)?.into(),
        32 => {
            let groups = [group(0)?, group(1)?, group(2)?, group(3)?];
            let octets: [u8; 16] = groups.concat().try_into().ok()?;
            Ipv6Addr::from(octets).into()
        }
        _ => return None,
    };
    Some((ip, port))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn an_own_connection_is_known_and_a_foreign_one_would_be() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(any) else {
                continue;
            };
            let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (here, _) = listener.accept().unwrap();
            assert!(may_be_same_user(&here), "{any}");
            assert!(may_be_same_user(&there), "{any}");
        }
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn the_owner_stands_in_the_row_of_the_peers_own_socket() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
             0: 0100007F:1F90 0100007F:C001 01 00000000:00000000 00:00000000 00000000  1000        0 11 1\n\
             1: 0100007F:C001 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1001        0 12 1\n\
             2: 0000000000000000FFFF00000100007F:C002 0000000000000000FFFF00000100007F:1F90 01 0:0 0:0 0  1002 0 13 1\n\
             3: garbage\n";
        let server = "127.0.0.1:8080".parse().unwrap();
        let client = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        assert_eq!(owner(table, client(0xc001), server), Some(1001));
        assert_eq!(owner(table, client(0xc002), server), Some(1002));
        assert_eq!(owner(table, client(0xc003), server), None);
    }
}
