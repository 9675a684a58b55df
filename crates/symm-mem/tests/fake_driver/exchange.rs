//! An exchange among processes: rank 0 collects and distributes, over Unix sockets.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use warpweave_symm_mem::{Exchange, ExchangeError};

/// A peer that is silent for so long is lost.
const LIMIT: Duration = Duration::from_secs(20);

/// Largest number of descriptors from one rank in a call.
const MOST_FDS: usize = 8;

/// A rank of a group of processes.
pub struct ProcessExchange {
    rank: usize,
    world: usize,
    /// Of rank 0 the sockets to the ranks above it, of the others the one to rank 0.
    sockets: Mutex<Vec<UnixStream>>,
}

type Given = (Vec<u8>, Vec<OwnedFd>);

impl ProcessExchange {
    /// Connects to the other ranks at `place`, a path that no group used before.
    pub fn connect(place: &Path, rank: usize, world: usize) -> io::Result<Self> {
        let mut sockets = Vec::new();
        if rank == 0 {
            let aside = place.with_extension("new");
            let listener = UnixListener::bind(&aside)?;
            std::fs::rename(&aside, place)?;
            let mut found: Vec<Option<UnixStream>> = (1..world).map(|_| None).collect();
            for _ in 1..world {
                let (mut socket, _) = listener.accept()?;
                let mut peer = [0];
                socket.read_exact(&mut peer)?;
                found[usize::from(peer[0]) - 1] = Some(socket);
            }
            sockets.extend(found.into_iter().flatten());
        } else {
            let start = Instant::now();
            let mut socket = loop {
                match UnixStream::connect(place) {
                    Ok(socket) => break socket,
                    Err(error) if start.elapsed() > LIMIT => return Err(error),
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            };
            socket.write_all(&[rank as u8])?;
            sockets.push(socket);
        }
        for socket in &sockets {
            socket.set_read_timeout(Some(LIMIT))?;
        }
        Ok(ProcessExchange {
            rank,
            world,
            sockets: Mutex::new(sockets),
        })
    }

    fn gather(
        &self,
        tag: &str,
        bytes: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Vec<Given>, ExchangeError> {
        let lost = |rank: usize| {
            move |error: io::Error| ExchangeError::PeerLost {
                rank,
                tag: tag.into(),
                cause: error.to_string(),
            }
        };
        let mut own = Vec::new();
        for fd in fds {
            own.push(fd.try_clone_to_owned().map_err(lost(self.rank))?);
        }
        let own: Given = (bytes.to_vec(), own);
        let mut sockets = self.sockets.lock().unwrap();
        if self.rank != 0 {
            let hub = &mut sockets[0];
            send(hub, &own).map_err(lost(0))?;
            return (0..self.world)
                .map(|_| receive(hub).map_err(lost(0)))
                .collect();
        }
        let mut all = vec![own];
        for (peer, socket) in (1..).zip(sockets.iter_mut()) {
            all.push(receive(socket).map_err(lost(peer))?);
        }
        for (peer, socket) in (1..).zip(sockets.iter_mut()) {
            all.iter()
                .try_for_each(|given| send(socket, given))
                .map_err(lost(peer))?;
        }
        Ok(all)
    }
}

fn send(socket: &mut UnixStream, (bytes, fds): &Given) -> io::Result<()> {
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(
            control.push(SendAncillaryMessage::ScmRights(&fds)),
            "too many descriptors"
        );
    }
    let head = (bytes.len() as u64).to_ne_bytes();
    // The head goes at once, and the descriptors with it.
    let flags = SendFlags::NOSIGNAL;
    assert_eq!(
        sendmsg(&*socket, &[IoSlice::new(&head)], &mut control, flags)?,
        head.len()
    );
    socket.write_all(bytes)
}

fn receive(socket: &mut UnixStream) -> io::Result<Given> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut head = [0; 8];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let read = recvmsg(
        &*socket,
        &mut [IoSliceMut::new(&mut head)],
        &mut control,
        flags,
    )?
    .bytes;
    if read != head.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    let mut bytes = vec![0; u64::from_ne_bytes(head) as usize];
    socket.read_exact(&mut bytes)?;
    Ok((bytes, fds))
}

impl Exchange for ProcessExchange {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.world
    }

    fn all_gather(&self, tag: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>, ExchangeError> {
        let all = self.gather(tag, bytes, &[])?;
        Ok(all.into_iter().map(|(bytes, _)| bytes).collect())
    }

    fn all_gather_fds(
        &self,
        tag: &str,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Vec<Vec<OwnedFd>>, ExchangeError> {
        let all = self.gather(tag, &[], fds)?;
        Ok(all.into_iter().map(|(_, fds)| fds).collect())
    }
}
