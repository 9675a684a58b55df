//! One connection of the server: its socket, its buffers and its deadline.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use super::wire::{FrameBuffer, REQUEST_LIMIT};

pub(super) struct Connection {
    pub stream: TcpStream,
    pub incoming: FrameBuffer,
    pub outgoing: Vec<u8>,
    pub phase: Phase,
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
        // At most one frame, so that a flooding rank neither fills memory nor starves the others.
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
            if matches!(self.phase, Phase::Greeting { .. }) {
                return Ok(());
            }
        }
        Ok(())
    }

    pub(super) fn write(&mut self) -> Result<(), String> {
        let mut written = 0;
        let result = loop {
            if written == self.outgoing.len() {
                break Ok(());
            }
            match self.stream.write(&self.outgoing[written..]) {
                Ok(0) => break Err("its connection to the store takes nothing more".into()),
                Ok(n) => written += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => break Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => break Err(format!("its connection to the store broke: {e}")),
            }
        };
        self.outgoing.drain(..written);
        result
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
