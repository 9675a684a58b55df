//! Ranks of one node that are on hosts of their own: descriptors do not reach them, fabric handles do.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use warpweave_fake_driver::{Control, Failure, When};
use warpweave_symm_mem::{
    Backend, Cuda, Error, Exchange, ExchangeError, Result, Support, SymmetricBuffer, ThreadExchange,
};

use super::{Kept, Rank, bodies};

/// An exchange whose ranks are on a host each: as the exchange of a job, it passes descriptors within hosts.
struct Hosts(Arc<dyn Exchange>);

impl Exchange for Hosts {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn world(&self) -> usize {
        self.0.world()
    }

    fn all_gather(
        &self,
        tag: &str,
        bytes: &[u8],
    ) -> std::result::Result<Vec<Vec<u8>>, ExchangeError> {
        self.0.all_gather(tag, bytes)
    }

    fn all_gather_fds(
        &self,
        tag: &str,
        fds: &[BorrowedFd<'_>],
    ) -> std::result::Result<Vec<Vec<OwnedFd>>, ExchangeError> {
        let mut all = self.0.all_gather_fds(tag, fds)?;
        for rank in (0..all.len()).filter(|rank| *rank != self.rank()) {
            all[rank].clear();
        }
        Ok(all)
    }
}

/// A buffer over hosts whose every part every rank sees.
pub fn buffer(rank: &Rank) -> Result<Kept> {
    bodies::buffer(&Rank {
        exchange: Arc::new(Hosts(rank.exchange.clone())),
        ..*rank
    })
}

/// `LACKS` fabric handles in some way: what a group of two hosts and one of one host say to it.
pub fn answer(driver: &Control) {
    let lacks = std::env::var("LACKS").unwrap();
    let (reason, refused) = match lacks.as_str() {
        "fabric" => ("the device or its driver has no fabric handles", [0, 1]),
        "imex" => ("NOT_PERMITTED", [0, 1]),
        "switch" => ("WARPWEAVE_FABRIC_HANDLES=0", [0, 1]),
        // A rank of two: the fake driver refuses its first cuMemCreate.
        "imex of a rank" => ("NOT_PERMITTED", [1, 1]),
        other => panic!("nothing lacks {other}"),
    };
    let fails = failure_of_a_rank(driver, &lacks);
    for hosts in [true, false] {
        driver.restart(fails);
        let threads: Vec<_> = ThreadExchange::group(2)
            .into_iter()
            .map(|exchange| {
                let driver = *driver;
                std::thread::spawn(move || {
                    let number = exchange.rank();
                    driver.rank(number);
                    let exchange: Arc<dyn Exchange> = match hosts {
                        true => Arc::new(Hosts(Arc::new(exchange))),
                        false => Arc::new(exchange),
                    };
                    let device = Cuda::new(number).unwrap();
                    let made = SymmetricBuffer::new(&device, &exchange, "b", 100);
                    (device.fabric_handles().unwrap(), made.map(drop))
                })
            })
            .collect();
        for (number, thread) in threads.into_iter().enumerate() {
            let (support, made) = thread.join().unwrap();
            match support {
                Support::No(why) if refused.contains(&number) => {
                    assert!(why.contains(reason), "{why}");
                }
                support => assert_eq!((support, refused.contains(&number)), (Support::Yes, false)),
            }
            // Within a host all ranks fall back on descriptors together.
            let Err(error) = made else {
                assert!(
                    !hosts,
                    "rank {number} has memory of another host without a handle for it"
                );
                continue;
            };
            assert!(hosts, "rank {number}: {error}");
            let Error::PeerMemory { cause, .. } = &error else {
                panic!("rank {number}: {error}");
            };
            assert!(cause.is_unavailable(), "{error}");
            assert!(
                cause
                    .to_string()
                    .contains("across hosts all ranks need fabric handles"),
                "{error}"
            );
        }
        assert_eq!(driver.live(), [""; 0]);
        // A new process would ask again; here the fake driver forgets what it refused.
        driver.wipe();
    }
}

/// The first cuMemCreate of rank 1 is refused.
fn failure_of_a_rank(driver: &Control, lacks: &str) -> Option<Failure> {
    if lacks != "imex of a rank" {
        return None;
    }
    driver.restart(None);
    let device = Cuda::new(0).unwrap();
    assert_eq!(device.fabric_handles().unwrap(), Support::Yes);
    let calls = driver.calls();
    let create = calls
        .iter()
        .find(|call| call.function == "cuMemCreate")
        .unwrap();
    const NOT_PERMITTED: u32 = 800;
    Some(Failure {
        rank: 1,
        call: create.number,
        code: NOT_PERMITTED,
        when: When::Instead,
    })
}
