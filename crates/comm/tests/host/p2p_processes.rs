//! The ring all-gather with no barrier, each rank a process: the test binary starts itself again.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::transfers::ring::{DIRECTIONS, Kind, Ring};
use crate::transfers::{OWN, Rank, flood};
use warpweave_comm::Communicator;
use warpweave_comm::p2p::Options;
use warpweave_symm_mem::Host;

const CHILD: &str = "WARPWEAVE_TEST_TRANSFERS";

/// Not a test of its own: what a child process runs.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let comm = Communicator::init().expect("the parent started all ranks");
    let options = Options {
        lanes: 2,
        ..Options::default()
    };
    let device = Host::with_timeout(Duration::from_secs(30));
    let rank = Rank::new(device, comm.shared_exchange(), options);
    for direction in DIRECTIONS {
        for method in OWN {
            for kind in [Kind::Symmetric, Kind::Registered] {
                Ring::over(&rank, kind, direction, method, 1003).exact(150, 200, false);
                Ring::over(&rank, kind, direction, method, 4096).exact(40, 100, true);
            }
        }
    }
    for method in OWN {
        flood::exact(&rank, method, 10, 129);
    }
    let Rank {
        p2p,
        stream,
        exchange,
        ..
    } = rank;
    p2p.close(&stream, exchange.as_ref()).expect("all come");
    comm.barrier().expect("all end");
}

/// A child that does not outlive the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn job(world: usize) {
    let port = TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .expect("a free port")
        .port();
    let mut ranks: Vec<_> = (0..world)
        .map(|rank| {
            let child = Command::new(std::env::current_exe().expect("this binary"))
                .args(["--exact", "p2p_processes::child", "--nocapture"])
                .env(CHILD, "1")
                .env("WARPWEAVE_RANK", rank.to_string())
                .env("WARPWEAVE_WORLD_SIZE", world.to_string())
                .env("WARPWEAVE_STORE", format!("127.0.0.1:{port}"))
                .env("WARPWEAVE_JOB_TOKEN", "test job token")
                .env("WARPWEAVE_TIMEOUT", "60")
                // Its result would be counted as one of this program's.
                .stdout(Stdio::null())
                .spawn()
                .expect("starting this binary");
            Running(child)
        })
        .collect();
    for (rank, child) in ranks.iter_mut().enumerate() {
        let status = child.0.wait().expect("a child");
        assert!(status.success(), "rank {rank} of {world}: {status}");
    }
}

#[test]
fn two_processes() {
    job(2);
}

#[test]
fn four_processes() {
    job(4);
}
