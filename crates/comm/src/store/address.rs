//! Where rank 0 listens, and how ranks reach it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::client::Client;
use crate::auth::Key;
use crate::error::{CommError, Result};
use crate::job::Job;

/// All addresses of `HOST:PORT`, each once.
fn resolve(address: &str) -> Result<Vec<SocketAddr>> {
    let found = address
        .to_socket_addrs()
        .map_err(|e| CommError::io(format!("resolving the store's address `{address}`"), e))?;
    let mut all: Vec<SocketAddr> = Vec::new();
    for one in found {
        if !all.contains(&one) {
            all.push(one);
        }
    }
    match all.is_empty() {
        false => Ok(all),
        true => Err(CommError::Protocol {
            what: format!("the store's address `{address}` resolves to nothing"),
        }),
    }
}

/// Where rank 0 listens: at a loopback address if it is given as one, so that no other host gets in; else at
/// all of this host's, whatever its own name resolves to here.
pub(super) fn listening(address: &str) -> Result<Vec<SocketAddr>> {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    let literal = host.trim_matches(['[', ']']).parse::<IpAddr>();
    let port = port.parse().map_err(|_| CommError::Protocol {
        what: format!("the store's address `{address}` is not host:port"),
    })?;
    match literal {
        Ok(ip) if ip.is_loopback() => Ok(vec![(ip, port).into()]),
        _ if host == "localhost" => resolve(address),
        // The first takes connections of both families where this host has IPv6.
        _ => Ok(vec![
            (Ipv6Addr::UNSPECIFIED, port).into(),
            (Ipv4Addr::UNSPECIFIED, port).into(),
        ]),
    }
}

/// The address by which this host reaches its own listener.
pub(super) fn reachable(listening: SocketAddr) -> SocketAddr {
    match listening.ip().is_unspecified() {
        // Also by a listener of IPv6, which takes both families.
        true => (Ipv4Addr::LOCALHOST, listening.port()).into(),
        false => listening,
    }
}

/// The longest that one of several addresses is tried for, before the next.
const ATTEMPT: Duration = Duration::from_secs(1);

/// Joins at any address that the store's name resolves to, and retries until rank 0 listens.
pub(super) fn connect(
    job: &Job,
    place: (usize, usize),
    key: &Key,
    deadline: Instant,
) -> Result<Client> {
    let (address, rank) = (job.store(), job.rank());
    let mut pause = Duration::from_millis(2);
    loop {
        let (mut refused, mut failed) = (None, None);
        let resolved = match resolve(address) {
            Ok(resolved) => resolved,
            Err(e) => {
                failed = Some(e);
                Vec::new()
            }
        };
        for one in &resolved {
            let left = deadline.saturating_duration_since(Instant::now());
            let attempt = match resolved.len() {
                1 => left,
                _ => left.min(ATTEMPT),
            };
            if attempt.is_zero() {
                break;
            }
            let joined = TcpStream::connect_timeout(one, attempt)
                .map_err(|e| {
                    CommError::io(format!("rank {rank} reaching the store at {address}"), e)
                })
                .and_then(|stream| Client::join(stream, address, place, key, deadline));
            match joined {
                Ok(client) => return Ok(client),
                // Another job's store may be at one of the addresses.
                Err(e @ CommError::Refused { .. }) => refused = Some(e),
                // A store flooded with connections drops the oldest that has not sent its greeting.
                Err(e) => failed = Some(e),
            }
        }
        if let Some(refused) = refused {
            return Err(refused);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(CommError::Timeout {
                rank,
                what: match failed {
                    Some(e) => format!("joining the job: {e}"),
                    None => format!("joining the store at {address}"),
                },
                waiting_for: vec![0],
                after: job.timeout(),
            });
        }
        std::thread::sleep(pause.min(left));
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_0_listens_to_other_hosts_unless_its_address_is_loopback() {
        let of = |address: &str| listening(address).unwrap();
        assert_eq!(of("127.0.0.1:4000"), [([127, 0, 0, 1], 4000).into()]);
        assert_eq!(of("[::1]:4000"), [(Ipv6Addr::LOCALHOST, 4000).into()]);
        for address in ["gpu-7:4000", "10.0.0.1:4000", "[fd77::1]:4000"] {
            let all = of(address);
            assert!(
                all.iter()
                    .all(|a| a.ip().is_unspecified() && a.port() == 4000),
                "{all:?}"
            );
            assert!(all[0].is_ipv6() && all[1].is_ipv4(), "{all:?}");
        }
        assert!(listening("gpu-7").is_err());
    }
}
