//! Two processes share a buffer: each writes into the other's memory by a plain address and signals it.
//!
//! Started alone, the program starts a second process and gives it its place in the job; under `torchrun`,
//! `mpirun`, `srun` or `cargo xtask launch` with two ranks, both are there. Each takes a GPU where there are
//! two, else the host backend.

use std::error::Error;
use std::net::TcpListener;
use std::process::{Child, Command};

use warpweave::comm::{Communicator, Job, JobToken, Launcher};
use warpweave::symm_mem::{Backend, Cuda, Host, SignalPad, SymmetricBuffer};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome<()> {
    let job = Job::from_env()?;
    let (job, second) = match job.launcher() {
        Launcher::Alone => {
            let (job, second) = start_second()?;
            (job, Some(second))
        }
        _ => (job, None),
    };
    let comm = Communicator::join(job)?;
    let said = match Cuda::device_count() {
        Ok(gpus) if gpus >= comm.world() && cfg!(feature = "nvcc") => {
            rank(Cuda::new(comm.local_rank())?, &comm)?
        }
        _ => rank(Host::new(), &comm)?,
    };
    println!("{said}");
    match second.map(|mut second| second.wait()).transpose()? {
        Some(status) if !status.success() => Err(format!("rank 1 ended with {status}").into()),
        _ => Ok(()),
    }
}

/// Makes this process rank 0 of two and starts the other, whose place is in its environment.
fn start_second() -> Outcome<(Job, Child)> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let store = format!("127.0.0.1:{port}");
    // The token is a secret, so it goes by the environment and not by the command line.
    let random: String = JobToken::random()?
        .as_bytes()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let second = Command::new(std::env::current_exe()?)
        .env("WARPWEAVE_RANK", "1")
        .env("WARPWEAVE_WORLD_SIZE", "2")
        .env("WARPWEAVE_STORE", &store)
        .env("WARPWEAVE_JOB_TOKEN", &random)
        .spawn()?;
    Ok((Job::new(0, 2, store, JobToken::new(random)?)?, second))
}

/// What each rank does, on either backend.
fn rank<B: Backend>(device: B, comm: &Communicator) -> Outcome<String> {
    let (me, exchange) = (comm.rank(), comm.shared_exchange());
    let right = (me + 1) % comm.world();
    let left = (me + comm.world() - 1) % comm.world();
    let stream = device.stream(Default::default())?;

    // Every rank brings 64 bytes, and every rank reaches the parts of all.
    let letters = SymmetricBuffer::new(&device, &exchange, "letters", 64)?;
    let pad = SignalPad::new(&device, &exchange, "letters", 1)?;

    let letter = format!("written by rank {me}, process {}", std::process::id());
    let mut bytes = letter.clone().into_bytes();
    bytes.resize(64, 0);
    let theirs = letters.range(right, 0, 64)?;
    let mut got = vec![0; 64];
    // SAFETY: both ranges are checked. The peer reads after its wait for the signal, and writes nothing
    // there.
    unsafe { device.upload(&stream, theirs, &bytes)? };
    pad.signal(&stream, 0, &[right])?;
    pad.wait(&stream, 0, &[left], 0)?;
    // SAFETY: as above, in the other direction.
    unsafe { device.download(&stream, letters.local(), &mut got)? };
    pad.check(&stream)?; // did the peer come in time?

    // Nobody frees what a peer still reads or signals.
    pad.close(&stream, exchange.as_ref())?;
    letters.close(exchange.as_ref())?;
    comm.barrier()?; // rank 0 keeps the store until all are here
    let got = String::from_utf8(got)?;
    Ok(format!(
        "rank {me} on {}: {}",
        device.device().name,
        got.trim_end_matches('\0')
    ))
}
