//! All ranks use the times that rank 0 finds, in processes whose environments differ.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use warpweave_comm::collective::Costs;
use warpweave_comm::measured::{CACHE_DIR, Figures, Measured};
use warpweave_comm::{Collectives, Communicator};
use warpweave_symm_mem::{Backend, Host};

/// Where a child writes the times that it uses.
const OUT: &str = "WARPWEAVE_MEASURED_OUT";

const FIRST: &str = "all-reduce 2 packets 400=7.0\n";
const OTHER: &str = "all-reduce 2 two-shot 400=1.0\n";

/// Not a test of its own: what a child process runs.
#[test]
fn child() {
    let Some(out) = std::env::var_os(OUT) else {
        return;
    };
    let comm = Communicator::init().expect("the parent's job");
    let (backend, exchange) = (Host::new(), comm.shared_exchange());
    let kept = Measured::of_ranks(&backend, exchange.as_ref()).unwrap();
    let text = if comm.rank() == 0 { FIRST } else { OTHER };
    kept.expect("a folder").write(Figures::Costs, text).unwrap();
    comm.barrier().unwrap();
    let made = Collectives::new(&backend, &exchange, "measured", Default::default()).unwrap();
    std::fs::write(out, made.costs().to_string()).unwrap();
    let stream = backend.setup_stream().unwrap();
    made.close(&stream, exchange.as_ref()).unwrap();
    comm.barrier().expect("the end");
}

#[test]
fn all_ranks_go_by_what_rank_0_finds() {
    let folder = std::env::temp_dir().join(format!("warpweave-measured-{}", std::process::id()));
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let place = |rank: usize, name: &str| folder.join(format!("{rank}.{name}"));
    std::fs::create_dir_all(&folder).unwrap();
    let children = [0, 1].map(|rank| {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "measured::child", "--nocapture"])
            .env(OUT, place(rank, "out"))
            .env(CACHE_DIR, place(rank, "cache"))
            .env("WARPWEAVE_RANK", rank.to_string())
            .env("WARPWEAVE_WORLD_SIZE", "2")
            .env("WARPWEAVE_STORE", format!("127.0.0.1:{port}"))
            .env("WARPWEAVE_JOB_TOKEN", "measured token")
            // Its result would be counted as one of this program's.
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    });
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let read = |path: &Path| {
        std::fs::read_to_string(path)
            .unwrap()
            .parse::<Costs>()
            .unwrap()
    };
    for rank in [0, 1] {
        assert_eq!(
            read(&place(rank, "out")),
            FIRST.parse().unwrap(),
            "rank {rank}"
        );
    }
    std::fs::remove_dir_all(folder).unwrap();
}
