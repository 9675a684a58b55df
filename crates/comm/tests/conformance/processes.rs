//! The suite on the host backend, ranks as processes: the test binary starts itself again.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use warpweave_comm::Communicator;
use warpweave_symm_mem::Host;

use crate::random::Random;
use crate::rank::{Rank, Sizes};
use crate::suite::{self, Mixture};

/// Tells a child that it is one.
const ROLE: &str = "WARPWEAVE_CONFORMANCE_RANK";

/// Not a test of its own: what a child process runs.
#[test]
fn child() {
    if std::env::var(ROLE).is_err() {
        return;
    }
    let comm = Communicator::init().expect("the parent's job");
    let backend = Host::with_timeout(Duration::from_secs(60));
    let rank = Rank::new(backend, comm.shared_exchange(), Sizes::SMALL).expect("memory");
    let limits = rank.limits();
    let mixture = Mixture {
        calls: 200,
        most: 3000,
        micros: 200,
        graphs: 12,
    };
    rank.play(&suite::small(&limits), 1).expect("small lengths");
    rank.play(
        &suite::mixed(&mut Random::with_seed(5), &limits, &mixture),
        5,
    )
    .expect("mixed calls");
    suite::epochs_wrap_around(&rank).expect("epochs");
    suite::barriers_order_work(&rank).expect("barriers");
    rank.close().expect("an orderly end");
    comm.barrier().expect("the end");
}

/// Ended with the test, however that ends.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn processes(world: usize) {
    let port = TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .expect("a free port")
        .port();
    let ranks: Vec<_> = (0..world)
        .map(|rank| {
            let child = Command::new(std::env::current_exe().expect("this binary"))
                .args(["--exact", "processes::child", "--nocapture"])
                .env(ROLE, "1")
                .env("WARPWEAVE_RANK", rank.to_string())
                .env("WARPWEAVE_WORLD_SIZE", world.to_string())
                .env("WARPWEAVE_STORE", format!("127.0.0.1:{port}"))
                .env("WARPWEAVE_JOB_TOKEN", "conformance token")
                .env("WARPWEAVE_TIMEOUT", "60")
                .stdout(Stdio::null())
                .spawn();
            Started(child.expect("starting this binary"))
        })
        .collect();
    for (rank, mut child) in ranks.into_iter().enumerate() {
        let status = child.0.wait().expect("a child");
        assert!(status.success(), "rank {rank} of {world}: {status}");
    }
}

#[test]
fn two_processes() {
    processes(2);
}

#[test]
fn four_processes() {
    processes(4);
}
