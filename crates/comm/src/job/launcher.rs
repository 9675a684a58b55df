//! The supported launchers and the names of their variables.

use std::fmt;

/// The launcher of this job's ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Launcher {
    /// Nobody: one process that is the whole job.
    Alone,
    /// This project's own variables, as `cargo xtask` sets them.
    Warpweave,
    /// `torchrun`.
    Torchrun,
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// MPICH's `mpiexec` and its descendants (hydra).
    Mpich,
    /// SLURM's `srun`.
    Slurm,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Launcher::Alone => "a single process",
            Launcher::Warpweave => "warpweave",
            Launcher::Torchrun => "torchrun",
            Launcher::OpenMpi => "Open MPI",
            Launcher::Mpich => "MPICH",
            Launcher::Slurm => "SLURM",
        })
    }
}

/// The variables of one launcher. Each slice lists alternatives, the preferred one first.
pub(super) struct Variables {
    pub launcher: Launcher,
    pub rank: &'static [&'static str],
    pub world: &'static [&'static str],
    pub local_rank: &'static [&'static str],
    /// Ranks of this host; may be missing.
    pub local_world: &'static [&'static str],
    /// Whether a job without a local rank runs on one host, so that the rank serves as the local rank.
    pub local_rank_optional: bool,
    /// The same rank under another name; may be missing.
    pub same_rank: &'static [&'static str],
    /// Together they identify the job when no token was given; some may be missing.
    pub job: &'static [&'static str],
    /// One of them must be set, or the next launcher is tried.
    pub mark: &'static [&'static str],
}

const NONE: &[&str] = &[];

/// In the order in which they are tried: an MPI job inside a SLURM allocation has the variables of both.
pub(super) const LAUNCHERS: [Variables; 5] = [
    Variables {
        launcher: Launcher::Warpweave,
        rank: &["WARPWEAVE_RANK"],
        world: &["WARPWEAVE_WORLD_SIZE"],
        local_rank: &["WARPWEAVE_LOCAL_RANK"],
        local_world: NONE,
        local_rank_optional: true,
        same_rank: NONE,
        job: NONE,
        mark: &["WARPWEAVE_RANK", "WARPWEAVE_WORLD_SIZE"],
    },
    Variables {
        launcher: Launcher::Torchrun,
        rank: &["RANK"],
        world: &["WORLD_SIZE"],
        local_rank: &["LOCAL_RANK"],
        local_world: &["LOCAL_WORLD_SIZE"],
        local_rank_optional: false,
        same_rank: NONE,
        // A restarted group must not join what is left of the previous one.
        job: &["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"],
        mark: &["RANK", "WORLD_SIZE"],
    },
    Variables {
        launcher: Launcher::OpenMpi,
        rank: &["OMPI_COMM_WORLD_RANK"],
        world: &["OMPI_COMM_WORLD_SIZE"],
        local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
        local_world: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
        local_rank_optional: false,
        same_rank: &["PMIX_RANK"],
        job: &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"],
        mark: &["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"],
    },
    Variables {
        launcher: Launcher::Mpich,
        rank: &["PMI_RANK"],
        world: &["PMI_SIZE"],
        // Under `srun --mpi=pmi2` the ranks have PMI's variables, and SLURM's for what PMI does not say.
        local_rank: &["MPI_LOCALRANKID", "PMI_LOCAL_RANK", "SLURM_LOCALID"],
        local_world: &["MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"],
        local_rank_optional: false,
        same_rank: NONE,
        job: &["PMI_JOBID", "SLURM_JOB_ID", "SLURM_STEP_ID"],
        mark: &["PMI_RANK", "PMI_SIZE"],
    },
    Variables {
        launcher: Launcher::Slurm,
        rank: &["SLURM_PROCID"],
        // The step's own size first: a step may have fewer tasks than the allocation.
        world: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        local_rank: &["SLURM_LOCALID"],
        local_world: NONE,
        local_rank_optional: false,
        same_rank: NONE,
        job: &["SLURM_JOB_ID", "SLURM_STEP_ID"],
        // A batch script and a shell of `salloc` have the allocation's variables but are not ranks of a step.
        mark: &["SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NUM_TASKS"],
    },
];
