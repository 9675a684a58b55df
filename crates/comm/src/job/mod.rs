//! This process's place in its job: rank, world size, and the store's address.
//!
//! | what | own | torchrun | Open MPI | MPICH | SLURM |
//! |---|---|---|---|---|---|
//! | rank | `WARPWEAVE_RANK` | `RANK` | `OMPI_COMM_WORLD_RANK` | `PMI_RANK` | `SLURM_PROCID` |
//! | world size | `WARPWEAVE_WORLD_SIZE` | `WORLD_SIZE` | `OMPI_COMM_WORLD_SIZE` | `PMI_SIZE` | `SLURM_STEP_NUM_TASKS`, `SLURM_NTASKS` |
//! | local rank | `WARPWEAVE_LOCAL_RANK` (else the rank) | `LOCAL_RANK` | `OMPI_COMM_WORLD_LOCAL_RANK` | `MPI_LOCALRANKID` | `SLURM_LOCALID` |
//!
//! The first launcher in that order with a rank or a world size in the environment is taken (SLURM: with a
//! step's variables, which a batch script lacks). Its variables must be complete and consistent. Launchers
//! inside one another may differ: `torchrun` inside `srun` is torchrun's job.
//!
//! The store's address is, in this order,
//! 1. `WARPWEAVE_STORE` (`host:port`), the only one that a job of the own variables takes;
//! 2. `MASTER_ADDR` and the port **after** `MASTER_PORT`, which torchrun itself listens on;
//! 3. under `srun`, the first host of `SLURM_STEP_NODELIST`, where rank 0 is (loopback when the step has one
//!    node), and under Open MPI, loopback when `OMPI_COMM_WORLD_LOCAL_SIZE` says that all ranks are on one
//!    host: at a port from 20000 to 29999 that the job's id gives.
//!
//! The token is `WARPWEAVE_JOB_TOKEN`. Under a foreign launcher that gives an id of the job it may be left
//! out; the token is then derived from the id, which keeps jobs apart but is not secret. The store then
//! refuses other users of its host, and warns if it listens to other hosts. torchrun without `--rdzv-id`
//! gives the id `none`; then `MASTER_ADDR` and `MASTER_PORT` are the id. MPICH without SLURM often gives no
//! id, and neither does what sets torchrun's variables in its place: such a job needs the token.
//! `WARPWEAVE_TIMEOUT` (seconds, default 60) bounds every wait for peers.
//!
//! Ranks of one host and one network namespace share a *node*, unless `WARPWEAVE_NODE` gives another identity
//! (as `NCCL_HOSTID` does for NCCL): a host divided in two for a test, or the hosts of one NVLink domain.

mod address;
mod launcher;
mod token;

use std::time::Duration;

use warpweave_symm_mem::backend::LONGEST_TIMEOUT;

pub use launcher::Launcher;
pub use token::JobToken;
pub(crate) use token::random_bytes;

use crate::error::{CommError, Result};
use launcher::{LAUNCHERS, Variables};

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);
pub(crate) const LARGEST_WORLD: usize = 4096;

/// One rank's place in its job.
#[derive(Clone, Debug)]
pub struct Job {
    rank: usize,
    world: usize,
    local_rank: usize,
    launcher: Launcher,
    store: String,
    token: JobToken,
    node: String,
    timeout: Duration,
}

impl Job {
    /// Reads the process environment.
    ///
    /// # Errors
    /// [`CommError::Environment`] naming the variables that are missing or wrong. No launcher at all is no
    /// error: the process is then a job of one rank.
    pub fn from_env() -> Result<Self> {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    /// As [`Job::from_env`], from any lookup of variables.
    ///
    /// # Errors
    /// As [`Job::from_env`].
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let lookup = |name: &str| lookup(name).filter(|value| !value.is_empty());
        let any = |names: &[&str]| names.iter().any(|name| lookup(name).is_some());
        let timeout = timeout(&lookup)?;
        let Some(vars) = LAUNCHERS.iter().find(|l| any(l.mark)) else {
            if lookup("WARPWEAVE_STORE").is_some() {
                return Err(CommError::Environment {
                    launcher: Launcher::Warpweave.to_string(),
                    why: "WARPWEAVE_STORE is set; WARPWEAVE_RANK and WARPWEAVE_WORLD_SIZE are missing".into(),
                });
            }
            return Ok(Self {
                timeout,
                ..Self::alone()?
            });
        };
        let found = Found {
            vars,
            lookup: &lookup,
        };
        let (rank, world, local_rank) = found.place()?;
        let (store, token) = if world == 1 {
            ("127.0.0.1:0".into(), JobToken::random()?)
        } else {
            (found.store(world)?, found.token()?)
        };
        Ok(Self {
            rank,
            world,
            local_rank,
            launcher: vars.launcher,
            store,
            token,
            node: lookup("WARPWEAVE_NODE").unwrap_or_else(host_identity),
            timeout,
        })
    }

    /// A job of one rank: this process.
    ///
    /// # Errors
    /// [`CommError::Io`] when the system has no randomness for the token.
    pub fn alone() -> Result<Self> {
        Self::new(0, 1, "127.0.0.1:0", JobToken::random()?)
    }

    /// The place of `rank` among `world` ranks of one host whose store is, or will be, at `store`
    /// (`host:port`).
    ///
    /// # Errors
    /// [`CommError::InvalidArgument`] when `rank` is not below `world`, or `world` is above 4096.
    pub fn new(
        rank: usize,
        world: usize,
        store: impl Into<String>,
        token: JobToken,
    ) -> Result<Self> {
        if rank >= world || world > LARGEST_WORLD {
            return Err(CommError::InvalidArgument {
                what: "rank",
                why: format!(
                    "rank {rank} of {world}; a job has at most {LARGEST_WORLD} ranks, numbered from 0"
                ),
            });
        }
        Ok(Self {
            rank,
            world,
            local_rank: rank,
            launcher: if world == 1 {
                Launcher::Alone
            } else {
                Launcher::Warpweave
            },
            store: store.into(),
            token,
            node: host_identity(),
            timeout: DEFAULT_TIMEOUT,
        })
    }

    /// The same job with another bound on every wait for peers, [`LONGEST_TIMEOUT`] at most.
    pub fn with_timeout(self, timeout: Duration) -> Self {
        let timeout = timeout.min(LONGEST_TIMEOUT);
        Self { timeout, ..self }
    }

    /// The same job with this rank in another node: ranks with the same `identity` share one.
    pub fn with_node(self, identity: impl Into<String>) -> Self {
        let node = identity.into();
        Self { node, ..self }
    }

    /// What identifies this rank's node.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// The same job with its store elsewhere.
    pub(crate) fn with_store(self, store: String) -> Self {
        Self { store, ..self }
    }

    /// This process's rank, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks.
    pub fn world(&self) -> usize {
        self.world
    }

    /// Rank among the ranks of this host: the index of the device to use.
    pub fn local_rank(&self) -> usize {
        self.local_rank
    }

    /// The launcher whose environment this was read from.
    pub fn launcher(&self) -> Launcher {
        self.launcher
    }

    /// The store's address, as `host:port`.
    pub fn store(&self) -> &str {
        &self.store
    }

    /// The job's token.
    pub fn token(&self) -> &JobToken {
        &self.token
    }

    /// The bound on every wait for peers.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }
}

struct Found<'a, L> {
    vars: &'a Variables,
    lookup: &'a L,
}

impl<L: Fn(&str) -> Option<String>> Found<'_, L> {
    fn place(&self) -> Result<(usize, usize, usize)> {
        let rank = self.number(self.vars.rank)?;
        let world = self.number(self.vars.world)?;
        let local = self.number(self.vars.local_rank)?;
        let local = local.or(rank.filter(|_| self.vars.local_rank_optional || world == Some(1)));
        match (rank, world, local) {
            (Some(rank), Some(world), Some(local)) => {
                if rank >= world || world > LARGEST_WORLD || local >= world {
                    return Err(self.error(format!(
                        "{} = {rank}, {} = {world}, local rank {local}: ranks must be below the world \
                         size, which is at most {LARGEST_WORLD}",
                        self.vars.rank[0], self.vars.world[0],
                    )));
                }
                self.consistent(rank, world, local)?;
                Ok((rank, world, local))
            }
            _ => {
                let missing: Vec<_> = [
                    (rank, self.vars.rank),
                    (world, self.vars.world),
                    (local, self.vars.local_rank),
                ]
                .into_iter()
                .filter(|(value, _)| value.is_none())
                .map(|(_, names)| names.join(" or "))
                .collect();
                Err(self.error(format!("missing: {}", missing.join(", "))))
            }
        }
    }

    /// Checks that variables which say the same thing agree.
    fn consistent(&self, rank: usize, world: usize, local: usize) -> Result<()> {
        if let Some(again) = self.number(self.vars.same_rank)?
            && again != rank
        {
            return Err(self.error(format!(
                "{} = {rank} and {} = {again} contradict each other",
                self.vars.rank[0], self.vars.same_rank[0]
            )));
        }
        match self.number(self.vars.local_world)? {
            Some(of) if local >= of || of > world => Err(self.error(format!(
                "{} = {world}, {} = {local} and {} = {of} contradict each other",
                self.vars.world[0], self.vars.local_rank[0], self.vars.local_world[0]
            ))),
            _ => Ok(()),
        }
    }

    fn number(&self, names: &[&str]) -> Result<Option<usize>> {
        let Some((name, text)) = names
            .iter()
            .find_map(|&name| Some((name, (self.lookup)(name)?)))
        else {
            return Ok(None);
        };
        text.trim()
            .parse()
            .map(Some)
            .map_err(|_| self.error(format!("{name} is `{text}`, which is not a number from 0")))
    }

    fn token(&self) -> Result<JobToken> {
        if let Some(text) = (self.lookup)("WARPWEAVE_JOB_TOKEN") {
            return JobToken::new(text)
                .map_err(|e| self.error(format!("WARPWEAVE_JOB_TOKEN: {e}")));
        }
        let id = self.id();
        if id.is_empty() {
            let why = match self.vars.job {
                [] => String::new(),
                names => format!(
                    ", for the launcher gives no id of the job ({})",
                    names.join(", ")
                ),
            };
            return Err(self.error(format!(
                "missing: WARPWEAVE_JOB_TOKEN (8 to 256 bytes, the same on every rank){why}"
            )));
        }
        let text = format!("warpweave job {} {id}", self.vars.launcher);
        Ok(JobToken::derived(&text))
    }

    /// The launcher's id of this job; empty if it gives none.
    fn id(&self) -> String {
        let parts = self.vars.job.iter().filter_map(|n| (self.lookup)(n));
        let mut parts: Vec<_> = parts.collect();
        // torchrun's default for all jobs. Its first agent listens at this address, so that no other has it.
        if self.vars.launcher == Launcher::Torchrun && parts.first().is_some_and(|id| id == "none")
        {
            match ["MASTER_ADDR", "MASTER_PORT"].map(self.lookup) {
                [Some(host), Some(port)] => parts[0] = format!("{host}:{port}"),
                _ => return String::new(),
            }
        }
        parts.join(" ")
    }

    fn error(&self, why: String) -> CommError {
        CommError::Environment {
            launcher: self.vars.launcher.to_string(),
            why,
        }
    }
}

/// What two ranks must share to pass each other descriptors: the running kernel and the network namespace.
pub(crate) fn host_identity() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let net = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    format!("{} {}", boot.trim(), net.display())
}

fn timeout(lookup: &impl Fn(&str) -> Option<String>) -> Result<Duration> {
    let Some(text) = lookup("WARPWEAVE_TIMEOUT") else {
        return Ok(DEFAULT_TIMEOUT);
    };
    text.trim()
        .parse::<f64>()
        .ok()
        .filter(|s| (0.001..=86400.0).contains(s))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| CommError::Environment {
            launcher: Launcher::Warpweave.to_string(),
            why: format!(
                "WARPWEAVE_TIMEOUT is `{text}`, which is not a number of seconds from 0.001 to 86400"
            ),
        })
}

#[cfg(test)]
mod tests;
