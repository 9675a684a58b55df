//! One connection of the server: its socket, its buffers and its deadline.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use super::wire::{FrameBuffer, REQUEST_LIMIT, Shared};

pub(super) struct Connection {
    pub stream: TcpStream,
    pub incoming: FrameBuffer,
    pub outgoing: Outgoing,
    pub phase: Phase,
}

/// What is to be sent, in parts: the reply to an all-gather is that of all other connections too.
#[derive(Default)]
pub(super) struct Outgoing {
    parts: VecDeque<Shared>,
    /// Bytes of the first part that are sent.
    sent: usize,
    /// Bytes to send.
    bytes: usize,
}

impl Outgoing {
    /// Adds a part, which is not empty.
    pub(super) fn push(&mut self, part: Shared) {
        debug_assert!(!part.is_empty());
        self.bytes += part.len();
        self.parts.push_back(part);
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// What comes next; empty where nothing does.
    fn next(&self) -> &[u8] {
        self.parts.front().map_or(&[], |part| &part[self.sent..])
    }

    fn advance(&mut self, sent: usize) {
        self.sent += sent;
        self.bytes -= sent;
        if self.next().is_empty() {
            self.parts.pop_front();
            self.sent = 0;
        }
    }
}

#[derive(Clone, Copy)]
pub(super) enum Phase {
    /// Has not shown the token yet.
    Greeting { until: Instant },
    /// Belongs to a rank.
    Joined,
    /// Refused, or said goodbye: closed once its output is flushed.
    Closing { until: Instant },
}

impl Connection {
    pub(super) fn until(&self) -> Option<Instant> {
        match self.phase {
            Phase::Greeting { until } | Phase::Closing { until } => Some(until),
            Phase::Joined => None,
        }
    }

    pub(super) fn interest(&self) -> PollFlags {
        let read = match self.phase {
            Phase::Closing { .. } => PollFlags::empty(),
            _ => PollFlags::IN,
        };
        let write = if self.outgoing.is_empty() {
            PollFlags::empty()
        } else {
            PollFlags::OUT
        };
        read | write
    }

    pub(super) fn read(&mut self) -> Result<(), String> {
        let mut chunk = [0; 1 << 16];
        // Up to the first message, and at most one frame, so that a flooding rank neither fills memory nor
        // starves the others.
        for _ in 0..REQUEST_LIMIT / chunk.len() + 1 {
            if matches!(self.phase, Phase::Closing { .. }) {
                return Ok(());
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => {
                    return Err(
                        "its connection to the store closed without a goodbye: the process ended"
                            .into(),
                    );
                }
                Ok(n) => self.incoming.push(&chunk[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(format!("its connection to the store broke: {e}")),
            }
            if matches!(self.phase, Phase::Greeting { .. }) || self.incoming.has_message() {
                return Ok(());
            }
        }
        Ok(())
    }

    pub(super) fn write(&mut self) -> Result<(), String> {
        while !self.outgoing.is_empty() {
            match self.stream.write(self.outgoing.next()) {
                Ok(0) => return Err("its connection to the store takes nothing more".into()),
                Ok(n) => self.outgoing.advance(n),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(format!("its connection to the store broke: {e}")),
            }
        }
        Ok(())
    }
}

/// Detects, within about ten seconds, a host that vanished without closing its connections.
pub(super) fn keep_alive(stream: &TcpStream) {
    use rustix::net::sockopt;
    // Where the system lacks one of these options, the store's deadlines still bound every wait.
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, Duration::from_secs(4));
    let _ = sockopt::set_tcp_keepintvl(stream, Duration::from_secs(2));
    let _ = sockopt::set_tcp_keepcnt(stream, 3);
    let _ = sockopt::set_tcp_user_timeout(stream, 10_000);
}
