//! Packets of bytes and descriptors over a Unix socket that preserves their boundaries (`SOCK_SEQPACKET`).

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, recvmsg, sendmsg, sockopt,
};

use serde::{Deserialize, Serialize};

use crate::store::wake::{is_ready, wait_ready};

pub(super) const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// Descriptors in one packet; the kernel's limit is 253.
pub(super) const PER_PACKET: usize = 64;
/// Bytes in one packet.
pub(super) const LARGEST_PACKET: usize = 256;

/// A connected, non-blocking socket.
pub(super) struct Link {
    pub socket: OwnedFd,
}

/// The first packet of a connection, from the higher rank to the lower.
#[derive(Serialize, Deserialize)]
pub(super) struct Greeting {
    pub secret: [u8; 32],
    pub rank: u32,
}

pub(super) struct Packet {
    pub bytes: Vec<u8>,
    pub fds: Vec<OwnedFd>,
}

/// Why a packet was not sent or received.
#[derive(Debug)]
pub(super) enum LinkError {
    /// The peer closed its end.
    Closed,
    /// The deadline passed.
    TimedOut,
    /// The other descriptor that was watched became ready.
    Interrupted,
    Io(std::io::Error),
}

impl From<Errno> for LinkError {
    fn from(e: Errno) -> Self {
        match e {
            Errno::PIPE | Errno::CONNRESET => LinkError::Closed,
            e => LinkError::Io(e.into()),
        }
    }
}

impl Link {
    /// Sends one packet; gives up at the deadline or when `watched` becomes readable.
    pub(super) fn send(
        &self,
        bytes: &[u8],
        fds: &[BorrowedFd<'_>],
        watched: BorrowedFd<'_>,
        deadline: Instant,
    ) -> Result<(), LinkError> {
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PER_PACKET))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
                return Err(LinkError::Io(std::io::Error::other(
                    "too many descriptors for one packet",
                )));
            }
            match sendmsg(
                &self.socket,
                &[IoSlice::new(bytes)],
                &mut control,
                SendFlags::NOSIGNAL,
            ) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => ready(self.socket.as_fd(), PollFlags::OUT, watched, deadline)?,
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Receives one packet. Descriptors that the system could not install are missing from it.
    pub(super) fn receive(
        &self,
        watched: BorrowedFd<'_>,
        deadline: Instant,
    ) -> Result<Packet, LinkError> {
        loop {
            let mut bytes = [0; LARGEST_PACKET];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PER_PACKET))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut parts = [IoSliceMut::new(&mut bytes)];
            match recvmsg(
                &self.socket,
                &mut parts,
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            ) {
                Ok(message) => {
                    let mut fds = Vec::new();
                    for part in control.drain() {
                        if let RecvAncillaryMessage::ScmRights(received) = part {
                            fds.extend(received);
                        }
                    }
                    if message.bytes == 0 {
                        return Err(LinkError::Closed);
                    }
                    if message.flags.contains(ReturnFlags::TRUNC) {
                        return Err(LinkError::Io(std::io::Error::other(
                            "a packet above the limit",
                        )));
                    }
                    return Ok(Packet {
                        bytes: bytes[..message.bytes].to_vec(),
                        fds,
                    });
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => ready(self.socket.as_fd(), PollFlags::IN, watched, deadline)?,
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// Whether the other end runs as this process's user.
pub(super) fn same_user(socket: &OwnedFd) -> bool {
    sockopt::socket_peercred(socket).is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}

/// Waits until `fd` is ready.
pub(super) fn ready(
    fd: BorrowedFd<'_>,
    flags: PollFlags,
    watched: BorrowedFd<'_>,
    deadline: Instant,
) -> Result<(), LinkError> {
    let mut fds = [
        PollFd::from_borrowed_fd(fd, flags),
        PollFd::from_borrowed_fd(watched, PollFlags::IN),
    ];
    wait_ready(&mut fds, Some(deadline))
        .map_err(|e| LinkError::Io(std::io::Error::other(e.to_string())))?;
    match (is_ready(&fds[0]), is_ready(&fds[1])) {
        (true, _) => Ok(()),
        (false, true) => Err(LinkError::Interrupted),
        (false, false) => Err(LinkError::TimedOut),
    }
}
