//! Jobs of real processes of the binary.

use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The binary, with nothing of the environment that would change what it does.
pub fn warpweave() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warpweave"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("WARPWEAVE_")) {
        command.env_remove(name);
    }
    command.env_remove("RUST_LOG");
    command
}

/// What became of the ranks of a job.
pub struct Outcome {
    /// Exit status and output of each rank.
    pub ranks: Vec<Output>,
    /// How long the last one took.
    pub took: Duration,
}

impl Outcome {
    /// What a rank wrote to standard error.
    pub fn errors(&self, rank: usize) -> String {
        String::from_utf8_lossy(&self.ranks[rank].stderr).into_owned()
    }

    /// What rank 0 wrote to standard output.
    pub fn report(&self) -> String {
        String::from_utf8_lossy(&self.ranks[0].stdout).into_owned()
    }
}

/// Runs a rank for each list of arguments, with `patience` for waits on the device and twice that for the exchange of the
/// ranks. Ranks that have not ended within `limit` are killed, which the caller sees in their status.
pub fn run(args: &[Vec<String>], patience: Duration, limit: Duration) -> Outcome {
    let store = free_address();
    let started = Instant::now();
    let mut ranks: Vec<Child> = args
        .iter()
        .enumerate()
        .map(|(rank, own)| {
            warpweave()
                .args(own)
                .env("WARPWEAVE_RANK", rank.to_string())
                .env("WARPWEAVE_WORLD_SIZE", args.len().to_string())
                .env("WARPWEAVE_STORE", &store)
                .env("WARPWEAVE_JOB_TOKEN", "a token of the bench's tests")
                .env("WARPWEAVE_TIMEOUT_MS", patience.as_millis().to_string())
                .env(
                    "WARPWEAVE_TIMEOUT",
                    (patience * 2).as_secs_f64().to_string(),
                )
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    while ranks
        .iter_mut()
        .any(|rank| rank.try_wait().unwrap().is_none())
    {
        if started.elapsed() > limit {
            ranks.iter_mut().for_each(|rank| drop(rank.kill()));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let took = started.elapsed();
    Outcome {
        ranks: ranks
            .into_iter()
            .map(|rank| rank.wait_with_output().unwrap())
            .collect(),
        took,
    }
}

/// The same arguments for every rank.
pub fn all(world: usize, args: &[&str]) -> Vec<Vec<String>> {
    vec![args.iter().map(|arg| (*arg).to_owned()).collect(); world]
}

/// An address that nobody listens at. Another process may take it before the job does; the job then ends with an error.
fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string()
}
