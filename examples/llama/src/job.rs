//! Processes, one for each rank. The first that fails ends the job, which says which it was.

use std::ffi::OsString;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rand::Rng;
use rustix::process::Signal;
use warpweave_comm::Communicator;
use warpweave_symm_mem::Backend;

use crate::error::{Error, Result};

/// The exit status of a rank that ended because another did.
pub const PEER_LOST: u8 = 76;
/// How long the other ranks have to end by themselves after the first failure: longer than a wait for a peer.
const GRACE: Duration = Duration::from_secs(15);
/// Between two looks at whether something has ended.
pub(crate) const GLANCE: Duration = Duration::from_millis(20);

/// Ctrl-C and SIGTERM, which from now on only set a flag.
#[derive(Clone, Debug)]
pub struct Interrupts(Arc<AtomicBool>);

impl Interrupts {
    /// Catches them.
    ///
    /// # Errors
    /// The system refuses.
    pub fn catch() -> Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register(signal, flag.clone())
                .map_err(Error::file("a signal handler"))?;
        }
        Ok(Interrupts(flag))
    }

    /// # Errors
    /// [`Error::Interrupted`] after one.
    pub fn check(&self) -> Result<()> {
        match self.0.load(Ordering::Relaxed) {
            true => Err(Error::Interrupted),
            false => Ok(()),
        }
    }
}

/// The processes of a job; those that still run are killed on drop.
struct Processes(Vec<Process>);

struct Process {
    child: Child,
    ended: Option<ExitStatus>,
}

impl Drop for Processes {
    fn drop(&mut self) {
        // All at once, before one sees that another is lost. One that has ended is no error.
        for process in &mut self.0 {
            let _ = process.child.kill();
        }
        for process in &mut self.0 {
            let _ = process.child.wait();
        }
    }
}

/// Runs this program with `arguments` as every rank of a job, and waits for them. They write to this
/// program's output.
///
/// # Errors
/// [`Error::RankFailed`] naming the first rank that failed; [`Error::Interrupted`].
pub fn run(world: usize, arguments: &[OsString], interrupts: &Interrupts) -> Result<()> {
    let program = std::env::current_exe().map_err(Error::file("this program"))?;
    // Rank 0 listens at it in a moment; the kernel gives a port again only after all others.
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| socket.local_addr());
    let store = port.map_err(Error::file("a port of this machine"))?;
    let token: String = (0..4)
        .map(|_| format!("{:016x}", rand::rng().random::<u64>()))
        .collect();

    let mut processes = Processes(Vec::new());
    for rank in 0..world {
        let mut command = Command::new(&program);
        command.args(arguments).stdin(Stdio::null());
        command.env("WARPWEAVE_RANK", rank.to_string());
        command.env("WARPWEAVE_WORLD_SIZE", world.to_string());
        command.env("WARPWEAVE_LOCAL_RANK", rank.to_string());
        command.env("WARPWEAVE_STORE", store.to_string());
        command.env("WARPWEAVE_JOB_TOKEN", &token);
        let child = command.spawn().map_err(Error::file(&program))?;
        processes.0.push(Process { child, ended: None });
    }
    processes.watch(interrupts)
}

impl Processes {
    fn watch(&mut self, interrupts: &Interrupts) -> Result<()> {
        let world = self.0.len();
        let mut failed: Vec<(usize, ExitStatus)> = Vec::new();
        let mut deadline = None;
        loop {
            interrupts.check()?;
            for (rank, process) in self
                .0
                .iter_mut()
                .enumerate()
                .filter(|(_, process)| process.ended.is_none())
            {
                process.ended = process
                    .child
                    .try_wait()
                    .map_err(Error::file("a rank's process"))?;
                failed.extend(
                    process
                        .ended
                        .filter(|status| !status.success())
                        .map(|status| (rank, status)),
                );
            }
            if !failed.is_empty() {
                deadline.get_or_insert_with(|| Instant::now() + GRACE);
            }
            let all = self.0.iter().all(|process| process.ended.is_some());
            if all || deadline.is_some_and(|deadline| Instant::now() > deadline) {
                break;
            }
            thread::sleep(GLANCE);
        }
        // Ctrl-C in a terminal goes to the ranks, too.
        let interrupted = failed
            .iter()
            .any(|(_, status)| status.signal() == Some(Signal::INT.as_raw()));
        let followed = |status: &ExitStatus| status.code() == Some(PEER_LOST.into());
        let cause = failed
            .iter()
            .find(|(_, status)| !followed(status))
            .or(failed.first());
        match cause {
            None => Ok(()),
            Some(_) if interrupted => Err(Error::Interrupted),
            Some((rank, status)) => {
                let end = match status.signal() {
                    Some(signal) => format!("was killed by signal {signal}"),
                    None => format!("ended with status {}", status.code().unwrap_or_default()),
                };
                Err(Error::RankFailed {
                    rank: *rank,
                    world,
                    end,
                })
            }
        }
    }
}

/// This process as a rank of the job that started it, and ends with it.
///
/// # Errors
/// The environment describes no job, or the other ranks do not come.
pub fn join() -> Result<Arc<Communicator>> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(Error::file("the death signal of this process"))?;
    Ok(Arc::new(Communicator::init()?))
}

/// Ends the waits of a device as soon as a rank is lost, so that the others need not wait for their deadline.
#[derive(Debug)]
pub struct Watch {
    over: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Watch {
    /// Watches until it is dropped.
    pub fn new<B: Backend>(comm: &Arc<Communicator>, device: &B) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let (comm, device, ended) = (comm.clone(), device.clone(), over.clone());
        let thread = thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                if comm.check("watch").is_err() {
                    return device.stop_waits();
                }
                thread::sleep(GLANCE);
            }
        });
        Watch {
            over,
            thread: Some(thread),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It cannot panic, and a drop must not.
            let _ = thread.join();
        }
    }
}

/// What ended the work of this rank: the loss of another, if that is the cause of `error`. Otherwise the
/// others are told of `error`.
pub fn cause(comm: &Communicator, error: Error) -> Error {
    if error.is_of_peer() {
        return error;
    }
    if matches!(
        error,
        Error::Candle(_) | Error::Layer(_) | Error::Execute(_) | Error::Memory(_)
    ) {
        // A rank's loss may be known a moment after what it led to.
        for _ in 0..25 {
            if let Err(lost) = comm.check("generation") {
                return lost.into();
            }
            thread::sleep(GLANCE);
        }
    }
    comm.abort(&error.to_string());
    error
}
