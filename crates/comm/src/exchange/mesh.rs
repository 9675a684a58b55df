//! A Unix socket between every two ranks of a node that are on one host.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, connect, listen, socket_with};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use warpweave_symm_mem::ExchangeError;

use super::link::{FLAGS, Greeting, LARGEST_PACKET, Link, LinkError, PER_PACKET, ready, same_user};
use super::pending::PendingConnections;
use super::{A_MOMENT, reason};
use crate::error::{CommError, Result};
use crate::job::{host_identity, random_bytes};
use crate::store::Store;

pub(super) struct Mesh {
    rank: usize,
    /// By rank; `None` for this rank.
    links: Vec<Option<Link>>,
}

/// Where a rank listens.
#[derive(Serialize, Deserialize)]
struct Contact {
    host: String,
    name: [u8; 16],
    /// That of rank 0 is the group's secret.
    secret: [u8; 32],
}

/// The bytes of each packet of descriptors.
#[derive(Serialize, Deserialize)]
struct Label {
    /// Descriptors in all packets of this call.
    total: u32,
    here: u32,
}

/// What a rank says of a step: why it failed there, if it did.
pub(super) type Said<T> = std::result::Result<T, String>;

/// An all-gather of bytes at a tag, with the error that this rank reports there.
type Gather<'a> = &'a mut dyn FnMut(&str, &[u8], Option<&CommError>) -> Result<Vec<Vec<u8>>>;

impl Mesh {
    /// Collective. What fails on one rank is an error on all.
    pub(super) fn open(store: &Store, gather: Gather<'_>) -> Result<Self> {
        let deadline = Instant::now() + store.timeout();
        let own = contact(store.world());
        let said = own.as_ref().map(|(_, contact)| contact);
        let contacts = agree(store, gather, "warpweave.mesh.contacts", said);
        // This rank's own error explains more.
        let (listener, _) = own?;
        let links = links(store, &contacts?, listener, deadline);
        // Returns once every greeting was received: nobody sends descriptors to a socket that is about to be
        // closed.
        let said = links.as_ref().map(|_| &());
        let open = agree(store, gather, "warpweave.mesh.open", said);
        let (rank, links) = (store.rank(), links?);
        open?;
        Ok(Self { rank, links })
    }

    /// Sends `fds` to every peer that has a link and receives `counts[peer]` descriptors from each of them.
    pub(super) fn transfer(
        &self,
        store: &Store,
        tag: &str,
        fds: &[BorrowedFd<'_>],
        counts: &[usize],
        deadline: Instant,
    ) -> Result<Vec<Vec<OwnedFd>>> {
        let mut received: Vec<Vec<OwnedFd>> =
            counts.iter().map(|&n| Vec::with_capacity(n)).collect();
        let mut short = None;
        let packets = counts
            .iter()
            .map(|n| n.div_ceil(PER_PACKET))
            .max()
            .unwrap_or(0);
        // Packet by packet, each sent before the next is received: a socket holds at most two of a peer.
        for packet in 0..packets {
            if let Some(part) = fds.chunks(PER_PACKET).nth(packet) {
                let label = encode(&Label {
                    total: fds.len() as u32,
                    here: part.len() as u32,
                })?;
                for (peer, link) in self.peers() {
                    link.send(&label, part, store.failed(), deadline)
                        .map_err(|t| link_error(store, peer, tag, t))?;
                }
            }
            for (peer, link) in self
                .peers()
                .filter(|&(peer, _)| packet < counts[peer].div_ceil(PER_PACKET))
            {
                let packet = link
                    .receive(store.failed(), deadline)
                    .map_err(|t| link_error(store, peer, tag, t))?;
                let label: Label = decode(peer, &packet.bytes)?;
                let room = counts[peer] - received[peer].len().min(counts[peer]);
                if label.total as usize != counts[peer]
                    || label.here as usize > PER_PACKET.min(room)
                    || packet.fds.len() > label.here as usize
                {
                    return Err(CommError::Exchange(ExchangeError::Protocol {
                        rank: peer,
                        tag: tag.into(),
                        what: format!(
                            "it gave a count of {} descriptors; its packet says {} of {} and has {}",
                            counts[peer],
                            label.here,
                            label.total,
                            packet.fds.len()
                        ),
                    }));
                }
                // Later packets are received all the same, so that the peers can finish sending.
                if packet.fds.len() < label.here as usize {
                    short.get_or_insert(peer);
                }
                received[peer].extend(packet.fds);
            }
        }
        if let Some((peer, got)) = short.map(|p| (p, received[p].len())).or_else(|| {
            let short = self.peers().find(|&(p, _)| received[p].len() != counts[p]);
            short.map(|(p, _)| (p, received[p].len()))
        }) {
            return Err(CommError::Exchange(ExchangeError::MissingDescriptor {
                rank: peer,
                tag: tag.into(),
                expected: counts[peer],
                got,
            }));
        }
        received[self.rank] = duplicate(tag, fds)?;
        Ok(received)
    }

    /// The ranks that have a link.
    pub(super) fn peers(&self) -> impl Iterator<Item = (usize, &Link)> {
        self.links
            .iter()
            .enumerate()
            .filter_map(|(peer, link)| Some((peer, link.as_ref()?)))
    }
}

/// What every rank says of a step; the error of the first that it failed on.
fn agree<T: Serialize + DeserializeOwned>(
    store: &Store,
    gather: Gather<'_>,
    step: &str,
    mine: std::result::Result<&T, &CommError>,
) -> Result<Vec<T>> {
    let all = gather(step, &encode(&mine.map_err(reason))?, mine.err())?;
    let value = |(peer, bytes): (usize, &Vec<u8>)| {
        let said: Said<T> = decode(peer, bytes)?;
        said.map_err(|cause| CommError::PeerFailed {
            rank: store.rank(),
            peer,
            what: step.into(),
            cause,
            unavailable: false,
        })
    };
    all.iter().enumerate().map(value).collect()
}

/// A socket that listens, and where.
fn contact(world: usize) -> Result<(OwnedFd, Contact)> {
    let name = random_bytes()?;
    let contact = Contact {
        host: host_identity(),
        name,
        secret: random_bytes()?,
    };
    Ok((listener(&name, world)?, contact))
}

/// Sockets to all ranks of this host.
fn links(
    store: &Store,
    contacts: &[Contact],
    listener: OwnedFd,
    deadline: Instant,
) -> Result<Vec<Option<Link>>> {
    let (rank, world) = (store.rank(), store.world());
    let nodes = store.nodes()?;
    let is_near =
        |&peer: &usize| nodes.share_one([rank, peer]) && contacts[peer].host == contacts[rank].host;
    let secret = contacts[0].secret;
    let mut links: Vec<Option<Link>> = (0..world).map(|_| None).collect();
    let greeting = encode(&Greeting {
        secret,
        rank: rank as u32,
    })?;
    for peer in (0..rank).filter(is_near) {
        let link = connect_to(store, peer, &contacts[peer].name, deadline)?;
        link.send(&greeting, &[], store.failed(), deadline)
            .map_err(|t| link_error(store, peer, "warpweave.mesh.greet", t))?;
        links[peer] = Some(link);
    }
    let mut pending = PendingConnections::new(listener, secret);
    let later: Vec<usize> = (rank + 1..world).filter(is_near).collect();
    while let Some(missing) = later.iter().copied().find(|&r| links[r].is_none()) {
        let (peer, link) = pending
            .next(store.failed(), deadline)
            .map_err(|t| link_error(store, missing, "warpweave.mesh.accept", t))?;
        if later.contains(&peer) && links[peer].is_none() {
            links[peer] = Some(link);
        }
    }
    Ok(links)
}

/// Duplicates for the caller's own entry.
pub(super) fn duplicate(tag: &str, fds: &[BorrowedFd<'_>]) -> Result<Vec<OwnedFd>> {
    fds.iter()
        .map(|fd| {
            fd.try_clone_to_owned().map_err(|e| {
                CommError::io(
                    format!("duplicating a descriptor for `{tag}` (is ulimit -n reached?)"),
                    e,
                )
            })
        })
        .collect()
}

fn address(name: &[u8; 16]) -> Result<SocketAddrUnix> {
    let text: String = name.iter().map(|b| format!("{b:02x}")).collect();
    SocketAddrUnix::new_abstract_name(format!("warpweave-{text}").as_bytes())
        .map_err(|e| CommError::io("naming a Unix socket", e))
}

fn socket() -> Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)
        .map_err(|e| CommError::io("making a Unix socket (is ulimit -n reached?)", e))
}

fn listener(name: &[u8; 16], world: usize) -> Result<OwnedFd> {
    let socket = socket()?;
    bind(&socket, &address(name)?).map_err(|e| CommError::io("binding a Unix socket", e))?;
    listen(&socket, world.max(128) as i32)
        .map_err(|e| CommError::io("listening on a Unix socket", e))?;
    Ok(socket)
}

fn connect_to(store: &Store, peer: usize, name: &[u8; 16], deadline: Instant) -> Result<Link> {
    let socket = socket()?;
    let address = address(name)?;
    loop {
        match connect(&socket, &address) {
            Ok(()) => break,
            Err(Errno::INTR) => {}
            // Its queue is full, and a Unix socket has no event for that.
            Err(Errno::AGAIN) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1))
            }
            Err(e) => {
                store.check("warpweave.mesh.connect")?;
                return Err(CommError::PeerLost {
                    rank: store.rank(),
                    peer,
                    what: "warpweave.mesh.connect".into(),
                    cause: format!("its socket cannot be reached: {e}"),
                });
            }
        }
    }
    if !same_user(&socket) {
        return Err(CommError::Exchange(ExchangeError::Protocol {
            rank: peer,
            tag: "warpweave.mesh.connect".into(),
            what: "it runs as another user, and descriptors are passed within one user only".into(),
        }));
    }
    Ok(Link { socket })
}

/// The store sees a death at the same time as the sockets do, and knows why: its error takes precedence.
fn link_error(store: &Store, peer: usize, tag: &str, error: LinkError) -> CommError {
    if let LinkError::Closed = error {
        let deadline = Instant::now() + A_MOMENT;
        let _ = ready(store.failed(), PollFlags::IN, store.failed(), deadline);
    }
    if let Err(e) = store.check(tag) {
        return e;
    }
    let (rank, what) = (store.rank(), tag.to_owned());
    match error {
        // The rank lives: its own wait has failed.
        LinkError::Closed | LinkError::Interrupted => CommError::PeerFailed {
            rank,
            peer,
            what,
            cause: "it gave this call up".into(),
            unavailable: false,
        },
        LinkError::TimedOut => CommError::Timeout {
            rank,
            what,
            waiting_for: vec![peer],
            after: store.timeout(),
        },
        LinkError::Io(e) => CommError::io(
            format!("passing descriptors to or from rank {peer} in `{tag}`"),
            e,
        ),
    }
}

pub(super) fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>> {
    let bytes = postcard::to_stdvec(message).map_err(|e| CommError::Protocol {
        what: format!("encoding a greeting: {e}"),
    })?;
    debug_assert!(bytes.len() <= LARGEST_PACKET);
    Ok(bytes)
}

fn decode<'a, T: Deserialize<'a>>(peer: usize, bytes: &'a [u8]) -> Result<T> {
    postcard::from_bytes(bytes).map_err(|e| CommError::Protocol {
        what: format!("rank {peer} sent what cannot be understood: {e}"),
    })
}

/// Decodes `bytes` as each kind of message, for fuzzing.
#[cfg(any(test, fuzzing))]
pub(super) fn decode_all(bytes: &[u8]) {
    fn read<'a, T: Serialize + Deserialize<'a>>(bytes: &'a [u8]) {
        if let Ok(message) = decode::<T>(0, bytes) {
            postcard::to_stdvec(&message).expect("what was read can be written");
        }
    }
    read::<Said<Contact>>(bytes);
    read::<Greeting>(bytes);
    read::<Label>(bytes);
}

/// One message of each kind, for the corpus.
#[cfg(test)]
pub(super) fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let contact = Contact {
        host: "a host".into(),
        name: [7; 16],
        secret: [8; 32],
    };
    let greeting = Greeting {
        secret: [8; 32],
        rank: 3,
    };
    let label = Label {
        total: 70,
        here: 64,
    };
    let small = "a small message";
    vec![
        ("packets/contact", encode(&Said::Ok(contact)).expect(small)),
        ("packets/greeting", encode(&greeting).expect(small)),
        ("packets/label", encode(&label).expect(small)),
    ]
}

#[cfg(test)]
impl Mesh {
    /// Over existing sockets.
    pub(super) fn of(rank: usize, links: Vec<Option<Link>>) -> Self {
        Self { rank, links }
    }
}
