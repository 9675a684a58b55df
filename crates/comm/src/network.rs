//! TCP connections among the ranks of a group, for the collectives of the host backend between nodes.
//!
//! Every two ranks have one connection. A call of all ranks sends each peer what it reads and receives what
//! this rank reads, both at the same time. A call ends at its deadline, when a peer closes its connection,
//! when the exchange loses a rank, or when this rank's device stops. This rank then closes its connections,
//! so that its peers' calls fail at once, and every later call fails until [`Network::recover`].

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags};
use serde::{Deserialize, Serialize};
use warpweave_symm_mem::{Error, Exchange, FaultCause, LossWatcher, Result, SignalFault, agree};

use crate::auth::{Challenges, Key, challenge};
use crate::job::random_bytes;
use crate::store::wake::{is_ready, wait_ready};

/// Time between two looks at whether this rank's device has stopped, or a rank is lost.
const LOOK: Duration = Duration::from_millis(20);
/// How long a connection may take to prove itself.
const GREETING_TIMEOUT: Duration = Duration::from_secs(2);
/// How long after a closed connection the exchange may take to say which rank is lost.
const NEWS: Duration = Duration::from_millis(200);
/// What comes before the bytes of a call: its number, its name and its size.
const HEADER: usize = 16;

/// The connections of one rank of a group.
#[derive(Debug)]
pub(crate) struct Network {
    name: String,
    rank: usize,
    timeout: Duration,
    state: Mutex<State>,
    lost: Arc<Lost>,
}

type Lost = OnceLock<(Option<usize>, String)>;

#[derive(Debug)]
struct State {
    /// By rank; `None` for this rank, and for all once a call has failed.
    links: Vec<Option<TcpStream>>,
    calls: u32,
    fault: Option<SignalFault>,
}

/// One collective: what each peer reads of this rank's bytes, and how many bytes this rank reads of each.
pub(crate) struct Transfer<'a> {
    /// The operation: all ranks give the same.
    pub name: &'a str,
    pub given: Vec<&'a [u8]>,
    pub wanted: Vec<usize>,
}

/// Where a rank listens; that of rank 0 has the group's secret.
#[derive(Serialize, Deserialize)]
struct Contact {
    port: u16,
    secret: [u8; 32],
}

impl Network {
    /// Connects the ranks of `exchange`. Collective.
    pub(crate) fn open(exchange: &dyn Exchange, name: &str, timeout: Duration) -> Result<Self> {
        let lost = Arc::new(Lost::new());
        exchange.watch(LossWatcher::new(&lost, |lost, rank, cause| {
            let _ = lost.set((rank, cause.into()));
        }));
        let links = connect_all(exchange, timeout, &lost)?;
        Ok(Self {
            name: name.into(),
            rank: exchange.rank(),
            timeout,
            state: Mutex::new(State {
                links,
                calls: 0,
                fault: None,
            }),
            lost,
        })
    }

    /// Connects all ranks anew after a fault. Collective.
    pub(crate) fn recover(&self, exchange: &dyn Exchange) -> Result<()> {
        let quiet = match self.lost.get() {
            Some(_) => self.check(),
            None => Ok(()),
        };
        agree(exchange, "network.recover", quiet)?;
        let links = connect_all(exchange, self.timeout, &self.lost)?;
        *self.state.lock() = State {
            links,
            calls: 0,
            fault: None,
        };
        Ok(())
    }

    /// The first fault, if a call has failed.
    pub(crate) fn check(&self) -> Result<()> {
        let fault = self.state.lock().fault.clone();
        fault.map_or(Ok(()), |fault| Err(Error::SignalFault(fault)))
    }

    /// Makes a call. Returns what the peers gave, by rank (this rank's entry is empty); `None` if the call
    /// failed, which [`Network::check`] reports.
    pub(crate) fn transfer(
        &self,
        transfer: &Transfer<'_>,
        stopped: impl Fn() -> bool,
    ) -> Option<Vec<Vec<u8>>> {
        let mut state = self.state.lock();
        state.calls = state.calls.wrapping_add(1);
        if state.fault.is_some() {
            return None;
        }
        let start = Instant::now();
        let moved = self.move_bytes(&state, transfer, stopped, start + self.timeout);
        match moved {
            Ok(received) => Some(received),
            Err((peer, cause)) => {
                state.fault = Some(SignalFault {
                    pad: self.name.as_str().into(),
                    rank: self.rank,
                    peer,
                    slot: 0,
                    expected: state.calls,
                    seen: state.calls.wrapping_sub(1),
                    waited: start.elapsed(),
                    root: None,
                    cause,
                });
                // Peers must not take later bytes for those of a call that this rank gave up.
                state.links.iter_mut().for_each(|link| *link = None);
                None
            }
        }
    }

    fn move_bytes(
        &self,
        state: &State,
        transfer: &Transfer<'_>,
        stopped: impl Fn() -> bool,
        deadline: Instant,
    ) -> Result<Vec<Vec<u8>>, (usize, FaultCause)> {
        let peers = state.links.iter().enumerate();
        let mut lanes: Vec<Lane<'_>> = peers
            .filter_map(|(peer, link)| {
                let link = link.as_ref()?;
                Some(Lane::new(peer, link, state.calls, transfer))
            })
            .collect();
        loop {
            for lane in &mut lanes {
                let moved = lane
                    .send()
                    .and_then(|()| lane.receive(state.calls, transfer));
                moved.map_err(|cause| match cause {
                    FaultCause::PeerGaveUp { .. } => self.why_closed(lane.peer, cause),
                    cause => (lane.peer, cause),
                })?;
            }
            let pending: Vec<usize> = lanes
                .iter()
                .filter(|l| !l.is_done())
                .map(|l| l.peer)
                .collect();
            let Some(&first) = pending.first() else {
                break;
            };
            if let Some(lost) = self.lost.get() {
                return Err(loss(lost, first));
            }
            if stopped() {
                return Err((first, FaultCause::Stopped));
            }
            let now = Instant::now();
            if now >= deadline {
                return Err((first, FaultCause::Deadline { missing: pending }));
            }
            let mut fds: Vec<_> = lanes
                .iter()
                .filter(|l| !l.is_done())
                .map(Lane::poll)
                .collect();
            // A descriptor that cannot be polled shows at the next read or write.
            let _ = wait_ready(&mut fds, Some(deadline.min(now + LOOK)));
        }
        let mut received = vec![Vec::new(); state.links.len()];
        for lane in lanes {
            received[lane.peer] = lane.received;
        }
        Ok(received)
    }

    /// A peer's connection is closed: because it gave up, or because it or another rank is lost.
    fn why_closed(&self, peer: usize, cause: FaultCause) -> (usize, FaultCause) {
        news(&self.lost).map_or((peer, cause), |lost| loss(lost, peer))
    }
}

/// The lost rank, once the exchange says which it is.
fn news(lost: &Lost) -> Option<&(Option<usize>, String)> {
    let until = Instant::now() + NEWS;
    while lost.get().is_none() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    lost.get()
}

fn loss((rank, why): &(Option<usize>, String), waited_for: usize) -> (usize, FaultCause) {
    let why = why.clone();
    match rank {
        Some(rank) => (*rank, FaultCause::PeerLost { why }),
        None => (waited_for, FaultCause::OutsiderLost { why }),
    }
}

/// What a call moves over one connection.
struct Lane<'a> {
    peer: usize,
    link: &'a TcpStream,
    header: [u8; HEADER],
    given: &'a [u8],
    /// Bytes of header and body that were sent.
    sent: usize,
    their_header: [u8; HEADER],
    received: Vec<u8>,
    /// Bytes of header and body that have arrived.
    arrived: usize,
}

impl<'a> Lane<'a> {
    fn new(peer: usize, link: &'a TcpStream, call: u32, transfer: &Transfer<'a>) -> Self {
        let given = transfer.given[peer];
        Self {
            peer,
            link,
            header: header(call, transfer.name, given.len()),
            given,
            sent: 0,
            their_header: [0; HEADER],
            received: vec![0; transfer.wanted[peer]],
            arrived: 0,
        }
    }

    fn is_done(&self) -> bool {
        self.sent == HEADER + self.given.len() && self.arrived == HEADER + self.received.len()
    }

    fn poll(&self) -> PollFd<'_> {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::OUT, self.sent < HEADER + self.given.len());
        flags.set(PollFlags::IN, self.arrived < HEADER + self.received.len());
        PollFd::new(self.link, flags)
    }

    fn send(&mut self) -> Result<(), FaultCause> {
        loop {
            let rest = match self.sent.checked_sub(HEADER) {
                None => &self.header[self.sent..],
                Some(sent) => &self.given[sent..],
            };
            if rest.is_empty() && self.sent >= HEADER {
                return Ok(());
            }
            match (&*self.link).write(rest) {
                Ok(n) => self.sent += n,
                Err(e) => return self.passing(&e),
            }
        }
    }

    fn receive(&mut self, call: u32, transfer: &Transfer<'_>) -> Result<(), FaultCause> {
        loop {
            let rest = match self.arrived.checked_sub(HEADER) {
                None => &mut self.their_header[self.arrived..],
                Some(arrived) => &mut self.received[arrived..],
            };
            if rest.is_empty() && self.arrived >= HEADER {
                return Ok(());
            }
            match (&*self.link).read(rest) {
                Ok(0) => {
                    return Err(FaultCause::PeerGaveUp {
                        reporter: self.peer,
                    });
                }
                Ok(n) => self.arrived += n,
                Err(e) => return self.passing(&e),
            }
            let wanted = header(call, transfer.name, self.received.len());
            if self.arrived == HEADER && self.their_header != wanted {
                return Err(FaultCause::OtherCall);
            }
        }
    }

    fn passing(&self, error: &std::io::Error) -> Result<(), FaultCause> {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(()),
            _ => Err(FaultCause::PeerGaveUp {
                reporter: self.peer,
            }),
        }
    }
}

fn header(call: u32, name: &str, bytes: usize) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..4].copy_from_slice(&call.to_le_bytes());
    header[4..8].copy_from_slice(&blake3::hash(name.as_bytes()).as_bytes()[..4]);
    header[8..].copy_from_slice(&(bytes as u64).to_le_bytes());
    header
}

/// A connection to every peer. Collective.
fn connect_all(
    exchange: &dyn Exchange,
    timeout: Duration,
    lost: &Lost,
) -> Result<Vec<Option<TcpStream>>> {
    let rank = exchange.rank();
    let addresses = exchange.addresses()?;
    let listening = listen(&addresses, rank);
    let (listener, contact) = agree(exchange, "network.listen", listening)?;
    let contact = postcard::to_stdvec(&contact).map_err(|e| malformed(rank, &e))?;
    let contacts = exchange.all_gather("network.contacts", &contact)?;
    let contacts = contacts
        .iter()
        .enumerate()
        .map(|(peer, bytes)| postcard::from_bytes(bytes).map_err(|e| malformed(peer, &e)));
    let contacts: Vec<Contact> = contacts.collect::<Result<_>>()?;
    let key = Key::new(&contacts[0].secret);
    let connector = Connector {
        rank,
        key,
        deadline: Instant::now() + timeout,
        timeout,
        lost,
    };
    let links = connector
        .dial_lower(&addresses, &contacts)
        .and_then(|mut links| {
            connector.await_higher(&listener, &mut links)?;
            Ok(links)
        });
    if let Err(Error::Exchange(crate::ExchangeError::Timeout { .. })) = links {
        exchange.note_timeout();
    }
    agree(exchange, "network.connect", links)
}

fn listen(addresses: &[IpAddr], rank: usize) -> Result<(TcpListener, Contact)> {
    let all = match addresses[rank] {
        own if addresses.iter().all(IpAddr::is_loopback) => own,
        IpAddr::V4(_) => IpAddr::from([0; 4]),
        IpAddr::V6(_) => IpAddr::from([0; 16]),
    };
    let failed = |e| Error::io(format!("listening for peers at {all}"), e);
    let listener = TcpListener::bind((all, 0)).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    let secret = random_bytes().map_err(|e| Error::io("a secret", std::io::Error::other(e)))?;
    Ok((listener, Contact { port, secret }))
}

fn malformed(peer: usize, error: &postcard::Error) -> Error {
    Error::Exchange(crate::ExchangeError::Protocol {
        rank: peer,
        tag: "network.contacts".into(),
        what: format!("its contact cannot be understood: {error}"),
    })
}

/// How the ranks of a group find each other: each connects to those below it and accepts those above.
struct Connector<'a> {
    rank: usize,
    key: Key,
    deadline: Instant,
    timeout: Duration,
    lost: &'a Lost,
}

impl Connector<'_> {
    fn dial_lower(
        &self,
        addresses: &[IpAddr],
        contacts: &[Contact],
    ) -> Result<Vec<Option<TcpStream>>> {
        let mut links: Vec<Option<TcpStream>> = contacts.iter().map(|_| None).collect();
        for peer in 0..self.rank {
            let address = SocketAddr::from((addresses[peer], contacts[peer].port));
            let left = self.deadline.saturating_duration_since(Instant::now());
            let link = TcpStream::connect_timeout(&address, left.max(Duration::from_millis(1)))
                .and_then(|link| {
                    prepare(&link, left)?;
                    self.introduce(&link)?;
                    link.set_nonblocking(true)?;
                    Ok(link)
                })
                .map_err(|e| {
                    let known = self.check(peer).and_then(|()| {
                        news(self.lost);
                        self.check(peer)
                    });
                    let refused =
                        || Error::io(format!("connecting to rank {peer} at {address}"), e);
                    known.err().unwrap_or_else(refused)
                })?;
            links[peer] = Some(link);
        }
        Ok(links)
    }

    /// Whether there is still reason to wait for `peer`: no rank is lost, and the deadline has not passed.
    fn check(&self, peer: usize) -> Result<()> {
        let tag = "network.connect".into();
        if let Some((rank, why)) = self.lost.get() {
            return Err(Error::Exchange(crate::ExchangeError::PeerLost {
                rank: rank.unwrap_or(peer),
                tag,
                cause: why.clone(),
            }));
        }
        if Instant::now() >= self.deadline {
            return Err(Error::Exchange(crate::ExchangeError::Timeout {
                tag,
                waiting_for: vec![peer],
                after: self.timeout,
            }));
        }
        Ok(())
    }

    /// Proves this rank to the one that it has connected to, and asks for its proof.
    fn introduce(&self, mut link: &TcpStream) -> std::io::Result<()> {
        let mut challenges = Challenges::default();
        link.read_exact(&mut challenges.host)?;
        challenges.guest = challenge().map_err(std::io::Error::other)?;
        let rank = (self.rank as u32).to_le_bytes();
        let proof = self.key.guest(&challenges, &rank);
        link.write_all(&[&rank[..], &challenges.guest, &proof].concat())?;
        let mut answer = [0; 32];
        link.read_exact(&mut answer)?;
        match self.key.trusts(&challenges, answer) {
            true => Ok(()),
            false => Err(std::io::Error::other(
                "what listens there is no rank of this group",
            )),
        }
    }

    fn await_higher(&self, listener: &TcpListener, links: &mut [Option<TcpStream>]) -> Result<()> {
        let (sender, proved) = mpsc::channel();
        while let Some(missing) = (self.rank + 1..links.len()).find(|&r| links[r].is_none()) {
            while let Ok((rank, link)) = proved.try_recv() {
                if rank > self.rank && links.get(rank).is_some_and(Option::is_none) {
                    links[rank] = Some(link);
                }
            }
            self.check(missing)?;
            let mut fds = [PollFd::new(listener, PollFlags::IN)];
            let _ = wait_ready(&mut fds, Some(self.deadline.min(Instant::now() + LOOK)));
            if !is_ready(&fds[0]) {
                continue;
            }
            if let Ok((link, _)) = listener.accept() {
                // In a thread of its own: a stranger that says nothing delays nobody.
                let (key, sender) = (self.key.clone(), sender.clone());
                std::thread::spawn(move || {
                    if let Ok(rank) = admit(&link, &key) {
                        let _ = sender.send((rank, link));
                    }
                });
            }
        }
        Ok(())
    }
}

fn prepare(link: &TcpStream, timeout: Duration) -> std::io::Result<()> {
    link.set_nodelay(true)?;
    let timeout = Some(timeout.max(Duration::from_millis(1)));
    link.set_read_timeout(timeout)?;
    link.set_write_timeout(timeout)
}

/// The rank that an accepted connection proves to be.
fn admit(mut link: &TcpStream, key: &Key) -> std::io::Result<usize> {
    link.set_nonblocking(false)?;
    prepare(link, GREETING_TIMEOUT)?;
    let mut challenges = Challenges {
        host: challenge().map_err(std::io::Error::other)?,
        ..Challenges::default()
    };
    link.write_all(&challenges.host)?;
    let (mut rank, mut proof) = ([0; 4], [0; 32]);
    link.read_exact(&mut rank)?;
    link.read_exact(&mut challenges.guest)?;
    link.read_exact(&mut proof)?;
    if !key.admits(&challenges, &rank, proof) {
        return Err(std::io::Error::other("no proof"));
    }
    link.write_all(&key.host(&challenges))?;
    link.set_nonblocking(true)?;
    Ok(u32::from_le_bytes(rank) as usize)
}
