//! Pending connections at a rank's Unix socket. Peers greet with the group's secret; a connection without it
//! gets no further.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::accept_with;

use super::link::{FLAGS, Greeting, Link, LinkError, same_user};
use crate::store::wake::{is_ready, wait_ready};

/// How long a connection may take to send its greeting.
const GREETING_TIMEOUT: Duration = Duration::from_secs(2);
/// Connections that may be greeting at the same time; the oldest is dropped for a new one.
const MOST_WAITING: usize = 128;

pub(super) struct PendingConnections {
    listener: OwnedFd,
    secret: [u8; 32],
    /// In order of arrival.
    waiting: Vec<(Instant, Link)>,
}

impl PendingConnections {
    pub(super) fn new(listener: OwnedFd, secret: [u8; 32]) -> Self {
        Self {
            listener,
            secret,
            waiting: Vec::new(),
        }
    }

    /// The next connection that greets with the secret, and the rank that it names. Other connections do not
    /// delay it; descriptors that they send are closed.
    pub(super) fn next(
        &mut self,
        watched: BorrowedFd<'_>,
        deadline: Instant,
    ) -> Result<(usize, Link), LinkError> {
        loop {
            let until = self
                .waiting
                .first()
                .map_or(deadline, |(until, _)| deadline.min(*until));
            let mut fds = vec![
                PollFd::from_borrowed_fd(watched, PollFlags::IN),
                PollFd::new(&self.listener, PollFlags::IN),
            ];
            fds.extend(
                self.waiting
                    .iter()
                    .map(|(_, link)| PollFd::from_borrowed_fd(link.socket.as_fd(), PollFlags::IN)),
            );
            wait_ready(&mut fds, Some(until))
                .map_err(|e| LinkError::Io(std::io::Error::other(e.to_string())))?;
            let ready: Vec<bool> = fds.iter().map(is_ready).collect();
            if let Some(place) = ready[2..].iter().position(|ready| *ready) {
                let (_, link) = self.waiting.remove(place);
                if let Some(rank) = self.greeting(&link, watched) {
                    return Ok((rank, link));
                }
            } else if ready[1] {
                self.accept();
            }
            if ready[0] {
                return Err(LinkError::Interrupted);
            }
            let now = Instant::now();
            self.waiting.retain(|(until, _)| *until > now);
            if now >= deadline {
                return Err(LinkError::TimedOut);
            }
        }
    }

    fn greeting(&self, link: &Link, watched: BorrowedFd<'_>) -> Option<usize> {
        let packet = link.receive(watched, Instant::now()).ok()?;
        let greeting: Greeting = postcard::from_bytes(&packet.bytes).ok()?;
        // A `Hash` compares in constant time.
        let [theirs, ours] = [greeting.secret, self.secret].map(blake3::Hash::from_bytes);
        (theirs == ours).then_some(greeting.rank as usize)
    }

    fn accept(&mut self) {
        match accept_with(&self.listener, FLAGS) {
            Ok(socket) if same_user(&socket) => {
                if self.waiting.len() >= MOST_WAITING {
                    self.waiting.remove(0);
                }
                let until = Instant::now() + GREETING_TIMEOUT;
                self.waiting.push((until, Link { socket }));
            }
            Ok(_) | Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
            // No descriptor is free: retrying at once would only spin.
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}
