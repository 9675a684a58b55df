//! The launchers whose environment is understood, and the names of their variables.

use std::fmt;

/// Who started the ranks of this job.
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
    /// Whether a job without a local rank is one host, where the rank will do.
    pub local_rank_optional: bool,
    /// What tells this job from others when no token was given.
    pub job: &'static [&'static str],
}

/// In the order in which they are tried: an MPI job inside a SLURM allocation has the variables of both.
pub(super) const LAUNCHERS: [Variables; 5] = [
    Variables {
        launcher: Launcher::Warpweave,
        rank: &["WARPWEAVE_RANK"],
        world: &["WARPWEAVE_WORLD_SIZE"],
        local_rank: &["WARPWEAVE_LOCAL_RANK"],
        local_rank_optional: true,
        job: &[],
    },
    Variables {
        launcher: Launcher::Torchrun,
        rank: &["RANK"],
        world: &["WORLD_SIZE"],
        local_rank: &["LOCAL_RANK"],
        local_rank_optional: false,
        job: &["TORCHELASTIC_RUN_ID"],
    },
    Variables {
        launcher: Launcher::OpenMpi,
        rank: &["OMPI_COMM_WORLD_RANK"],
        world: &["OMPI_COMM_WORLD_SIZE"],
        local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
        local_rank_optional: false,
        job: &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"],
    },
    Variables {
        launcher: Launcher::Mpich,
        rank: &["PMI_RANK"],
        world: &["PMI_SIZE"],
        local_rank: &["MPI_LOCALRANKID"],
        local_rank_optional: false,
        job: &[],
    },
    Variables {
        launcher: Launcher::Slurm,
        rank: &["SLURM_PROCID"],
        // The step's own size first: a step may have fewer tasks than the allocation.
        world: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        local_rank: &["SLURM_LOCALID"],
        local_rank_optional: false,
        job: &["SLURM_JOB_ID"],
    },
];
