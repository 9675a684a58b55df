//! The store's address, from the launcher's environment.

use std::hash::Hasher;

use fnv::FnvHasher;

use super::launcher::Launcher;
use super::{Found, Result};

/// Ports to choose from by the job's id: above those of common services, below those that systems assign.
const PORTS: std::ops::Range<u32> = 20_000..30_000;

impl<L: Fn(&str) -> Option<String>> Found<'_, L> {
    /// `host:port` for a job of `world` ranks.
    pub(super) fn store(&self, world: usize) -> Result<String> {
        if let Some(address) = (self.lookup)("WARPWEAVE_STORE") {
            let port = address
                .rsplit_once(':')
                .and_then(|(_, port)| port.parse::<u16>().ok());
            return match port {
                Some(1..) => Ok(address),
                _ => Err(self.error(format!(
                    "WARPWEAVE_STORE is `{address}`, which is not host:port"
                ))),
            };
        }
        if self.vars.launcher == Launcher::Warpweave {
            return Err(self.error("missing: WARPWEAVE_STORE (host:port)".into()));
        }
        let host = (self.lookup)("MASTER_ADDR");
        let port = self.number(&["MASTER_PORT"])?;
        match (host, port) {
            (Some(host), Some(port @ 1..=65534)) => Ok(join(&host, port as u32 + 1)),
            (Some(_), Some(port)) => Err(self.error(format!(
                "MASTER_PORT is {port}; the store listens on the port after it"
            ))),
            (host, port) => match (self.own_host(world)?, host.is_some() || port.is_some()) {
                (Some(host), false) => Ok(join(&host, self.own_port())),
                _ => Err(self.error(
                    "missing: WARPWEAVE_STORE (host:port of a free port on rank 0), or \
                     MASTER_ADDR and MASTER_PORT"
                        .into(),
                )),
            },
        }
    }

    /// The host of rank 0, if the launcher gives it.
    fn own_host(&self, world: usize) -> Result<Option<String>> {
        const LOOPBACK: &str = "127.0.0.1";
        match self.vars.launcher {
            Launcher::Slurm => {
                if self.number(&["SLURM_STEP_NUM_NODES"])? == Some(1) {
                    return Ok(Some(LOOPBACK.into()));
                }
                let Some(list) = (self.lookup)("SLURM_STEP_NODELIST") else {
                    return Ok(None);
                };
                first_host(&list).map(Some).ok_or_else(|| {
                    self.error(format!(
                        "SLURM_STEP_NODELIST is `{list}`, which is no list of hosts"
                    ))
                })
            }
            Launcher::OpenMpi => {
                let here = self.number(self.vars.local_world)?;
                Ok((here == Some(world) && !self.id().is_empty()).then(|| LOOPBACK.into()))
            }
            _ => Ok(None),
        }
    }

    /// From a hash of the job's id, so that jobs on one host seldom collide.
    fn own_port(&self) -> u32 {
        let mut hash = FnvHasher::default();
        hash.write(self.id().as_bytes());
        PORTS.start + (hash.finish() % u64::from(PORTS.end - PORTS.start)) as u32
    }
}

fn join(host: &str, port: u32) -> String {
    if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// The first host of SLURM's short form, as `gpu007` of `gpu[007-012,020],login1`.
fn first_host(list: &str) -> Option<String> {
    let (mut host, mut rest) = (String::new(), list);
    loop {
        let plain = rest.find(['[', ',']).unwrap_or(rest.len());
        host.push_str(&rest[..plain]);
        match rest[plain..].strip_prefix('[') {
            None => break,
            Some(inside) => {
                let (ranges, after) = inside.split_once(']')?;
                let first = ranges.split([',', '-']).next()?;
                if first.is_empty() || !first.bytes().all(|b| b.is_ascii_digit()) {
                    return None;
                }
                host.push_str(first);
                rest = after;
            }
        }
    }
    let named = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
    (!host.is_empty() && host.bytes().all(named)).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::first_host;

    #[test]
    fn the_first_host_of_a_list() {
        let cases = [
            ("gpu[007-012,020],login1", Some("gpu007")),
            ("login1,gpu[1-2]", Some("login1")),
            ("rack[2-3]node[10-19].site", Some("rack2node10.site")),
            ("one", Some("one")),
            ("gpu[1-", None),
            ("gpu[]", None),
            ("gpu[x]", None),
            ("", None),
            (",a", None),
            ("a b", None),
        ];
        for (list, first) in cases {
            assert_eq!(first_host(list).as_deref(), first, "{list}");
        }
    }
}
