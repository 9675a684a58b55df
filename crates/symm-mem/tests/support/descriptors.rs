//! Exchanges that lose or swap what one rank sends.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use warpweave_symm_mem::{
    Backend, Error, Exchange, ExchangeError, SymmetricBuffer, ThreadExchange,
};

/// The rank whose descriptor does not arrive as it was sent.
const CULPRIT: usize = 1;

#[derive(Clone, Copy)]
enum Mishap {
    Lost,
    Replaced,
}

struct Unreliable(ThreadExchange, Mishap);

impl Exchange for Unreliable {
    fn rank(&self) -> usize {
        self.0.rank()
    }
    fn world(&self) -> usize {
        self.0.world()
    }
    fn all_gather(&self, tag: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>, ExchangeError> {
        self.0.all_gather(tag, bytes)
    }
    fn all_gather_fds(
        &self,
        tag: &str,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Vec<Vec<OwnedFd>>, ExchangeError> {
        let no_memory = std::fs::File::open("/dev/null").unwrap();
        match self.1 {
            _ if self.rank() != CULPRIT => self.0.all_gather_fds(tag, fds),
            Mishap::Lost => self.0.all_gather_fds(tag, &fds[1..]),
            Mishap::Replaced => self.0.all_gather_fds(tag, &[no_memory.as_fd()]),
        }
    }
}

/// The errors of two ranks instead of a buffer; afterwards the same devices share one.
fn errors<B: Backend>(device: fn(usize) -> B, mishap: Mishap) -> Vec<Error> {
    let threads: Vec<_> = ThreadExchange::group(2)
        .into_iter()
        .zip(ThreadExchange::group(2))
        .map(|(exchange, sound)| {
            std::thread::spawn(move || {
                let device = device(exchange.rank());
                let exchange: Arc<dyn Exchange> = Arc::new(Unreliable(exchange, mishap));
                let error = SymmetricBuffer::new(&device, &exchange, "b", 64)
                    .map(drop)
                    .unwrap_err();
                let sound: Arc<dyn Exchange> = Arc::new(sound);
                let buffer = SymmetricBuffer::new(&device, &sound, "b", 64).unwrap();
                buffer.close(sound.as_ref()).unwrap();
                error
            })
        })
        .collect();
    threads
        .into_iter()
        .map(|t| t.join().expect("a rank panicked"))
        .collect()
}

/// A lost descriptor: every rank names the rank that sent it.
pub fn a_missing_descriptor_names_the_rank<B: Backend>(device: fn(usize) -> B) {
    for error in errors(device, Mishap::Lost) {
        let missing = ExchangeError::MissingDescriptor {
            rank: CULPRIT,
            tag: "symm.fds".into(),
            expected: 1,
            got: 0,
        };
        assert!(error.to_string().contains(&missing.to_string()), "{error}");
    }
}

/// A descriptor that is not shareable memory: the rank that received it names the sender, and the other rank
/// gets that error.
pub fn a_wrong_descriptor_names_the_rank<B: Backend>(device: fn(usize) -> B) {
    let errors = errors(device, Mishap::Replaced);
    assert!(
        matches!(&errors[0], Error::PeerMemory { rank: CULPRIT, .. }),
        "{}",
        errors[0]
    );
    assert!(!errors[0].is_unavailable(), "{}", errors[0]);
    assert!(
        matches!(&errors[1], Error::PeerFailed { rank: 0, .. }),
        "{}",
        errors[1]
    );
    for error in errors {
        let cause = format!("the memory of rank {CULPRIT} cannot be opened: ");
        assert!(error.to_string().contains(&cause), "{error}");
    }
}
