//! One peer's socket at the server: bytes in, bytes out, and how long it may stay.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use super::wire::{Inbox, REQUEST_LIMIT};

pub(super) struct Connection {
    pub stream: TcpStream,
    pub inbox: Inbox,
    pub outbox: Vec<u8>,
    pub phase: Phase,
}

#[derive(Clone, Copy)]
pub(super) enum Phase {
    Stranger {
        until: Instant,
    },
    /// A rank has been seated here.
    Member,
    /// Refused, or gone with a goodbye: closed as soon as the last words are delivered.
    Parting {
        until: Instant,
    },
}

impl Connection {
    pub(super) fn until(&self) -> Option<Instant> {
        match self.phase {
            Phase::Stranger { until } | Phase::Parting { until } => Some(until),
            Phase::Member => None,
        }
    }

    pub(super) fn interest(&self) -> PollFlags {
        let read = match self.phase {
            Phase::Parting { .. } => PollFlags::empty(),
            _ => PollFlags::IN,
        };
        let write = if self.outbox.is_empty() {
            PollFlags::empty()
        } else {
            PollFlags::OUT
        };
        read | write
    }

    pub(super) fn read(&mut self) -> Result<(), String> {
        let mut chunk = [0; 1 << 16];
        // One frame at most, so that a rank that writes without end neither fills the memory nor starves the others.
        for _ in 0..REQUEST_LIMIT / chunk.len() + 1 {
            if matches!(self.phase, Phase::Parting { .. }) {
                return Ok(());
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => {
                    return Err(
                        "its connection to the store closed without a goodbye: the process ended"
                            .into(),
                    );
                }
                Ok(n) => self.inbox.push(&chunk[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(format!("its connection to the store broke: {e}")),
            }
            if matches!(self.phase, Phase::Stranger { .. }) {
                return Ok(());
            }
        }
        Ok(())
    }

    pub(super) fn write(&mut self) -> Result<(), String> {
        let mut written = 0;
        let result = loop {
            if written == self.outbox.len() {
                break Ok(());
            }
            match self.stream.write(&self.outbox[written..]) {
                Ok(0) => break Err("its connection to the store takes nothing more".into()),
                Ok(n) => written += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => break Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => break Err(format!("its connection to the store broke: {e}")),
            }
        };
        self.outbox.drain(..written);
        result
    }
}

/// Finds a host that vanished without closing its connections, within about ten seconds.
pub(super) fn keep_alive(stream: &TcpStream) {
    use rustix::net::sockopt;
    // Where the system does not know one of these, the store's deadlines still bound every wait.
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, Duration::from_secs(4));
    let _ = sockopt::set_tcp_keepintvl(stream, Duration::from_secs(2));
    let _ = sockopt::set_tcp_keepcnt(stream, 3);
    let _ = sockopt::set_tcp_user_timeout(stream, 10_000);
}
