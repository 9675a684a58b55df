//! The ranks: this process and copies of it.

use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use warpweave_bench::cli::Device;
use warpweave_bench::{BenchError, Result};
use warpweave_comm::{Job, JobToken};
use warpweave_symm_mem::Cuda;

use crate::unusable;

const DEVICE: &str = "WARPWEAVE_BENCH_DEVICE";
const RANKS: &str = "WARPWEAVE_BENCH_RANKS";
/// Names to a copy the process that started it.
const PARENT: &str = "WARPWEAVE_BENCH_PARENT";

/// A job whose ranks other than this one are running.
pub struct Started {
    /// This process's place in it.
    pub job: Job,
    /// The others.
    pub followers: Followers,
}

/// The other ranks; they die with this process.
pub struct Followers(Vec<Child>);

/// The device that was asked for; without the device code there is nothing to run on a GPU.
///
/// # Errors
/// [`BenchError::Usage`].
pub fn device() -> Result<Device> {
    match std::env::var(DEVICE).as_deref() {
        Ok("host") => Ok(Device::Host),
        Ok("cuda") => Ok(Device::Cuda),
        Err(_) if cfg!(feature = "nvcc") => Ok(Device::Auto),
        Err(_) => Ok(Device::Host),
        Ok(other) => Err(unusable(DEVICE, other, "`host` or `cuda`")),
    }
}

fn ranks() -> Result<usize> {
    if let Ok(asked) = std::env::var(RANKS) {
        let number = asked.parse().ok().filter(|ranks| (1..=64).contains(ranks));
        return number.ok_or_else(|| unusable(RANKS, &asked, "a number of ranks from 1 to 64"));
    }
    let gpus = match device()? {
        Device::Host => 0,
        Device::Cuda => Cuda::device_count()?,
        // What the driver lacks is told when a device is chosen.
        Device::Auto => Cuda::device_count().unwrap_or(0),
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Ok(if gpus > 0 { gpus } else { cores.clamp(2, 4) })
}

/// Starts the other ranks with this process's arguments.
///
/// # Errors
/// [`BenchError::Usage`] for variables that make no sense; a process cannot be started.
pub fn start() -> Result<Started> {
    let world = ranks()?;
    // Rank 0 binds the port itself a moment later; another program gets it in between only by asking for its
    // number.
    let store = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
    let token = JobToken::random()?;
    let token = String::from_utf8_lossy(token.as_bytes()).into_owned();
    let place = |rank: usize| {
        [
            ("WARPWEAVE_RANK", rank.to_string()),
            ("WARPWEAVE_WORLD_SIZE", world.to_string()),
            ("WARPWEAVE_LOCAL_RANK", rank.to_string()),
            ("WARPWEAVE_STORE", store.to_string()),
            ("WARPWEAVE_JOB_TOKEN", token.clone()),
        ]
    };
    let mut followers = Followers(Vec::new());
    for rank in 1..world {
        let child = Command::new(std::env::current_exe()?)
            .args(std::env::args_os().skip(1))
            .envs(place(rank))
            .env(PARENT, std::process::id().to_string())
            .stdin(Stdio::null())
            // Tables are rank 0's.
            .stdout(Stdio::null())
            .spawn()?;
        followers.0.push(child);
    }
    let own = place(0);
    let job = Job::from_lookup(|name| {
        let set = own.iter().find(|(known, _)| *known == name);
        set.map(|(_, value)| value.clone())
            .or_else(|| std::env::var(name).ok())
    })?;
    Ok(Started { job, followers })
}

/// Whether a rank 0 of this program started this process.
pub fn is_follower() -> bool {
    std::env::var_os(PARENT).is_some()
}

/// Asks the kernel to end this process when the one that started it ends.
///
/// # Errors
/// It has ended already.
pub fn die_with_parent() -> Result<()> {
    let system = |error: rustix::io::Errno| BenchError::from(std::io::Error::from(error));
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(system)?;
    let parent = std::env::var(PARENT).ok().and_then(|pid| pid.parse().ok());
    let now = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
    match now == parent {
        true => Ok(()),
        false => Err(system(rustix::io::Errno::SRCH)),
    }
}

impl Followers {
    /// Waits until all have ended.
    ///
    /// # Errors
    /// [`BenchError::Peers`] naming those that failed.
    pub fn join(mut self) -> Result<()> {
        let mut failed = Vec::new();
        for (child, rank) in self.0.iter_mut().zip(1..) {
            let status = child.wait()?;
            if !status.success() {
                failed.push(format!("rank {rank} ended with {status}"));
            }
        }
        match failed.is_empty() {
            true => Ok(()),
            false => Err(BenchError::Peers {
                step: "the end".into(),
                peers: failed,
            }),
        }
    }
}
