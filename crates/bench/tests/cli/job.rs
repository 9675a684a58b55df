//! Jobs of real processes of the binary.

use std::fs::File;
use std::io::{Read, Seek};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use warpweave_symm_mem::Cuda;

/// Where the binary is: where `WARPWEAVE_BIN` says, where cargo put it, or, in a bundle, above this test
/// program's folder.
fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("WARPWEAVE_BIN") {
        return path.into();
    }
    let built = Path::new(env!("CARGO_BIN_EXE_warpweave"));
    if built.is_file() {
        return built.into();
    }
    let own = std::env::current_exe().unwrap();
    let bundled = own.parent().unwrap().join("../warpweave");
    assert!(
        bundled.is_file(),
        "the binary under test is neither at {} nor at {}: set WARPWEAVE_BIN",
        built.display(),
        bundled.display()
    );
    bundled
}

/// The binary, with nothing of the environment that would change what it does; where libraries are does not.
pub fn warpweave() -> Command {
    const LIBRARIES: [&str; 2] = ["WARPWEAVE_NCCL", "WARPWEAVE_CUBLASLT"];
    let mut command = Command::new(binary());
    for (name, _) in std::env::vars() {
        if name.starts_with("WARPWEAVE_") && !LIBRARIES.contains(&name.as_str()) {
            command.env_remove(name);
        }
    }
    command.env_remove("RUST_LOG").env_remove("COLUMNS");
    command
}

/// Longer than anything takes on a machine that does other work too.
pub const PATIENT: Duration = Duration::from_secs(30);

/// What a command that is no job said.
pub struct Said {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

/// Runs the binary with the words of `line`.
pub fn say(line: &str) -> Said {
    said(warpweave().args(args(line)))
}

/// Runs a command to its end.
pub fn said(command: &mut Command) -> Said {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let [out, err] = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    let code = status.code();
    Said { code, out, err }
}

/// A JSON file.
#[track_caller]
pub fn read_json(path: impl AsRef<Path>) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The GPUs of this machine, four at most.
pub fn gpus() -> usize {
    let gpus = Cuda::device_count().expect("a driver and GPUs");
    assert!(
        gpus >= 2,
        "this test needs two GPUs, and this process sees {gpus}"
    );
    gpus.min(4)
}

/// Makes sure that `text` has all of `parts`.
#[track_caller]
pub fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// Whether `text` names one of `ranks`, as `rank 2` or as one of `ranks [1, 2]`.
pub fn names_one_of(text: &str, ranks: std::ops::Range<usize>) -> bool {
    text.split("rank").skip(1).any(|after| {
        let after = after.trim_start_matches('s').trim_start_matches([' ', '[']);
        let mut numbers = after.split(", ").map_while(|word| {
            let digits = word.split(|c: char| !c.is_ascii_digit()).next()?;
            digits.parse().ok()
        });
        numbers.any(|rank| ranks.contains(&rank))
    })
}

/// What became of the ranks of a job.
pub struct Outcome {
    /// Exit status and output of each rank.
    pub ranks: Vec<Output>,
    /// When each rank ended, from the start.
    pub ends: Vec<Duration>,
    /// How long the last one took.
    pub took: Duration,
}

impl Outcome {
    /// What a rank wrote to standard error.
    pub fn errors(&self, rank: usize) -> String {
        String::from_utf8_lossy(&self.ranks[rank].stderr).into_owned()
    }

    /// Makes sure that a rank ended with this status. Returns what it wrote to standard error.
    #[track_caller]
    pub fn ended(&self, rank: usize, code: Option<i32>) -> String {
        let error = self.errors(rank);
        let status = self.ranks[rank].status;
        assert_eq!(status.code(), code, "rank {rank}: {error}");
        error
    }

    /// Makes sure that every rank ended well. Returns what rank 0, and no other, wrote to standard output.
    #[track_caller]
    pub fn succeeded(&self) -> String {
        for (rank, output) in self.ranks.iter().enumerate() {
            let errors = self.errors(rank);
            assert!(output.status.success(), "rank {rank}: {errors}");
            assert!(output.stdout.is_empty() || rank == 0, "only rank 0 reports");
        }
        self.report()
    }

    /// What rank 0 wrote to standard output.
    pub fn report(&self) -> String {
        String::from_utf8_lossy(&self.ranks[0].stdout).into_owned()
    }
}

/// How long the ranks wait for each other.
#[derive(Clone, Copy)]
pub struct Patience {
    /// On the device.
    pub device: Duration,
    /// In their exchange.
    pub exchange: Duration,
}

impl From<Duration> for Patience {
    /// So long on the device, and twice as long in the exchange.
    fn from(device: Duration) -> Self {
        let exchange = device * 2;
        Self { device, exchange }
    }
}

/// Runs a rank for each list of arguments. Ranks that have not ended within `limit` are killed, which the
/// caller sees in their status.
pub fn run(args: &[Vec<String>], patience: impl Into<Patience>, limit: Duration) -> Outcome {
    run_with(args, &[], patience, limit, |_| ())
}

/// Runs the words of `line` on so many ranks that have time.
pub fn run_line(world: usize, line: &str) -> Outcome {
    run_line_in(world, line, &[])
}

/// As [`run_line`], with some more environment.
pub fn run_line_in(world: usize, line: &str, environment: &[(&str, &str)]) -> Outcome {
    let (ranks, limit) = (all(world, &args(line)), Duration::from_secs(240));
    run_with(&ranks, environment, PATIENT, limit, |_| ())
}

/// As [`run`], with some more environment; `meanwhile` does something to the ranks.
pub fn run_with(
    args: &[Vec<String>],
    environment: &[(&str, &str)],
    patience: impl Into<Patience>,
    limit: Duration,
    meanwhile: impl FnOnce(&mut [Child]),
) -> Outcome {
    let patience = patience.into();
    let store = free_address();
    let ranks = args.iter().enumerate().map(|(rank, own)| {
        let mut command = rank_of((rank, args.len()), &store, patience);
        command.args(own).envs(environment.iter().copied());
        command
    });
    run_commands(ranks.collect(), limit, meanwhile)
}

/// The binary as a rank among so many.
pub fn rank_of(
    (rank, world): (usize, usize),
    store: &str,
    patience: impl Into<Patience>,
) -> Command {
    let Patience { device, exchange } = patience.into();
    let mut command = warpweave();
    command
        .env("WARPWEAVE_RANK", rank.to_string())
        .env("WARPWEAVE_WORLD_SIZE", world.to_string())
        .env("WARPWEAVE_STORE", store)
        .env("WARPWEAVE_JOB_TOKEN", "a token of the bench's tests")
        .env("WARPWEAVE_TIMEOUT_MS", device.as_millis().to_string())
        .env("WARPWEAVE_TIMEOUT", exchange.as_secs_f64().to_string());
    command
}

/// All that was written to a file by others that have it open.
fn whole(mut file: File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

/// Runs the command of each rank. Ranks that have not ended within `limit` are killed; `meanwhile` does
/// something to the ranks.
pub fn run_commands(
    commands: Vec<Command>,
    limit: Duration,
    meanwhile: impl FnOnce(&mut [Child]),
) -> Outcome {
    let started = Instant::now();
    // Files, since nobody reads a pipe before the end, and a long table would fill it.
    let start = |mut command: Command| {
        let [out, err] = [(); 2].map(|()| tempfile::tempfile().unwrap());
        command
            .stdin(Stdio::null())
            .stdout(out.try_clone().unwrap())
            .stderr(err.try_clone().unwrap());
        (command.spawn().unwrap(), [out, err])
    };
    let (mut ranks, said): (Vec<Child>, Vec<[File; 2]>) = commands.into_iter().map(start).unzip();
    meanwhile(&mut ranks);
    let mut ends = vec![None; ranks.len()];
    let mut look = |ranks: &mut Vec<Child>| {
        for (end, rank) in ends.iter_mut().zip(ranks) {
            if end.is_none() && rank.try_wait().unwrap().is_some() {
                *end = Some(started.elapsed());
            }
        }
        ends.iter().copied().collect::<Option<Vec<_>>>()
    };
    let ends = loop {
        if let Some(ends) = look(&mut ranks) {
            break ends;
        }
        if started.elapsed() > limit {
            ranks.iter_mut().for_each(|rank| drop(rank.kill()));
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let took = started.elapsed();
    Outcome {
        ranks: ranks
            .into_iter()
            .zip(said)
            .map(|(mut rank, said)| {
                let [stdout, stderr] = said.map(whole);
                let status = rank.wait().unwrap();
                Output {
                    status,
                    stdout,
                    stderr,
                }
            })
            .collect(),
        ends,
        took,
    }
}

/// Arguments without spaces, from one text.
pub fn args(text: &str) -> Vec<&str> {
    text.split(' ').collect()
}

/// The same arguments for every rank.
pub fn all(world: usize, args: &[&str]) -> Vec<Vec<String>> {
    vec![args.iter().map(|arg| (*arg).to_owned()).collect(); world]
}

/// An address that nobody listens at. Another process may take it before the job does; the job then ends with
/// an error.
fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string()
}
