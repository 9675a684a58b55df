//! Ranks as processes: the test itself is rank 0; the others are this binary started again. They exchange
//! through rank 0 over Unix sockets.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use warpweave_symm_mem::{Exchange, ExchangeError};

const RANK: &str = "WARPWEAVE_TEST_RANK";
const WORLD: &str = "WARPWEAVE_TEST_WORLD";
const SOCKET: &str = "WARPWEAVE_TEST_SOCKET";
const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs `body` as every rank of `world` processes; `test` is the name of the calling test.
pub fn processes(test: &str, world: usize, body: impl FnOnce(Arc<dyn Exchange>)) {
    if let (Ok(rank), Ok(world), Ok(socket)) = (
        std::env::var(RANK),
        std::env::var(WORLD),
        std::env::var(SOCKET),
    ) {
        let (rank, world) = (rank.parse().unwrap(), world.parse().unwrap());
        let mut hub = UnixStream::connect(socket).unwrap();
        hub.set_read_timeout(Some(TIMEOUT)).unwrap();
        hub.write_all(&[rank as u8]).unwrap();
        let links = Mutex::new(vec![hub]);
        return body(Arc::new(Linked { rank, world, links }));
    }
    let folder = std::env::temp_dir().join(format!("warpweave-{}-{test}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let socket = folder.join("hub");
    let listener = UnixListener::bind(&socket).unwrap();
    let mut children: Vec<_> = (1..world)
        .map(|rank| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command
                .args(["--exact", test, "--include-ignored", "--nocapture"])
                .env(RANK, rank.to_string())
                .env(WORLD, world.to_string())
                .env(SOCKET, &socket)
                // Its result would be counted as one of this program's.
                .stdout(Stdio::null());
            Running(command.spawn().unwrap())
        })
        .collect();
    let mut links: Vec<_> = (1..world)
        .map(|_| {
            let mut link = listener.accept().unwrap().0;
            link.set_read_timeout(Some(TIMEOUT)).unwrap();
            let mut rank = [0];
            link.read_exact(&mut rank).unwrap();
            (rank[0], link)
        })
        .collect();
    std::fs::remove_dir_all(&folder).unwrap();
    links.sort_by_key(|(rank, _)| *rank);
    let links = Mutex::new(links.into_iter().map(|(_, link)| link).collect());
    body(Arc::new(Linked {
        rank: 0,
        world,
        links,
    }));
    for (i, child) in children.iter_mut().enumerate() {
        let status = child.0.wait().unwrap();
        assert!(status.success(), "rank {} ended with {status}", i + 1);
    }
}

/// Killed if the test ends before it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Rank 0 has a link to each other rank, the others have one to rank 0.
struct Linked {
    rank: usize,
    world: usize,
    links: Mutex<Vec<UnixStream>>,
}

struct Part {
    tag: String,
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
}

fn send(link: &UnixStream, part: &Part) -> std::io::Result<()> {
    let sizes = [part.tag.len(), part.bytes.len(), part.fds.len()];
    let header = sizes.map(|n| (n as u64).to_le_bytes()).concat();
    let fds: Vec<BorrowedFd<'_>> = part.fds.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    }
    let sent = sendmsg(
        link,
        &[IoSlice::new(&header)],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    assert_eq!(sent, header.len());
    let mut link = link;
    link.write_all(part.tag.as_bytes())?;
    link.write_all(&part.bytes)
}

fn receive(link: &UnixStream) -> std::io::Result<Part> {
    let mut header = [0; 24];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(
        link,
        &mut [IoSliceMut::new(&mut header)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    if got.bytes != header.len() {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    let size = |i: usize| u64::from_le_bytes(header[8 * i..8 * i + 8].try_into().unwrap()) as usize;
    let (mut tag, mut bytes) = (vec![0; size(0)], vec![0; size(1)]);
    let mut link = link;
    link.read_exact(&mut tag)?;
    link.read_exact(&mut bytes)?;
    assert_eq!(fds.len(), size(2));
    let tag = String::from_utf8(tag).unwrap();
    Ok(Part { tag, bytes, fds })
}

impl Linked {
    fn gather(&self, mine: Part) -> Result<Vec<Part>, ExchangeError> {
        let links = self.links.lock();
        let tag = mine.tag.clone();
        let lost = |rank: usize| {
            let tag = tag.clone();
            move |source: std::io::Error| ExchangeError::PeerLost {
                rank,
                tag,
                cause: source.to_string(),
            }
        };
        let parts = if self.rank == 0 {
            let mut parts = vec![mine];
            for (i, link) in links.iter().enumerate() {
                parts.push(receive(link).map_err(lost(i + 1))?);
            }
            for (i, link) in links.iter().enumerate() {
                for part in &parts {
                    send(link, part).map_err(lost(i + 1))?;
                }
            }
            parts
        } else {
            send(&links[0], &mine).map_err(lost(0))?;
            (0..self.world)
                .map(|_| receive(&links[0]).map_err(lost(0)))
                .collect::<Result<_, _>>()?
        };
        match parts.iter().position(|part| part.tag != tag) {
            None => Ok(parts),
            Some(rank) => Err(ExchangeError::Mismatch {
                rank,
                tag,
                theirs: parts[rank].tag.clone(),
            }),
        }
    }
}

impl Exchange for Linked {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.world
    }

    fn all_gather(&self, tag: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>, ExchangeError> {
        let parts = self.gather(Part {
            tag: tag.into(),
            bytes: bytes.into(),
            fds: Vec::new(),
        })?;
        Ok(parts.into_iter().map(|part| part.bytes).collect())
    }

    fn all_gather_fds(
        &self,
        tag: &str,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Vec<Vec<OwnedFd>>, ExchangeError> {
        let fds = fds
            .iter()
            .map(|fd| fd.try_clone_to_owned())
            .collect::<std::io::Result<_>>()
            .map_err(|source| ExchangeError::Io {
                what: format!("duplicating a descriptor for `{tag}`"),
                source,
            })?;
        let parts = self.gather(Part {
            tag: tag.into(),
            bytes: Vec::new(),
            fds,
        })?;
        Ok(parts.into_iter().map(|part| part.fds).collect())
    }
}
