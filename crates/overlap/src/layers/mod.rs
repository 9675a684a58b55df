//! Tensor-parallel linear layers over the schedules of this crate.
//!
//! A layer is a shape: N, K, element type, and the largest M. Weights, bias and activations are those of the
//! call, so one object serves all layers of that shape of a model. It holds a few prepared
//! [schedules](crate::Schedule), chosen by ranges of M, all of them on the arena of one
//! [`Executor`]. [`ColumnParallelLinear::forward`] and [`RowParallelLinear::forward`] take any M up to the
//! largest, enqueue, and neither exchange, allocate device memory nor wait; so a caller can capture them in a
//! graph of its own.
//!
//! A shape of e4m3 with [scales](crate::plan::Problem::with_scaling) takes x and weights with theirs, as a
//! [`Matrix`]; bias and y are bf16 then.
//!
//! **Reproducible.** By default the bits of a row of y depend on the row of x, the weight, the bias and the
//! number of ranks, and on nothing else: not on M, the row's place, or the schedule that was chosen.
//! Schedules whose GEMMs or reductions are otherwise are left out, NCCL's reductions among them.
//! [`Reproducible::No`] takes the fastest.
//!
//! **Choice.** All ranks choose alike: by the figures of the machine that `doctor --measure` keeps, or those
//! of a known one, and by what [`ColumnParallelLinear::tune`] has measured. Rank 0 reads them for all.
//!
//! Ranks make the same layers in the same order, and call them in the same order with the same M.

/// What both layers have. A macro, because each names its own.
macro_rules! linear_methods {
    ($layer:ident) => {
        impl<B: ExecuteBackend> $layer<B> {
            /// Does the host work of first calls at these M: from then on a call only enqueues. Not
            /// collective.
            ///
            /// # Errors
            /// An M out of range; what the preparation of its steps reports.
            pub fn warm(
                &self,
                stream: &B::Stream,
                ms: impl IntoIterator<Item = usize>,
            ) -> Result<()> {
                self.linear().warm(stream, ms)
            }

            /// Waits until everything on `stream` has ended, and reports what went wrong in it.
            ///
            /// # Errors
            /// Waits for peers that timed out, and what the backend reports.
            pub fn synchronize(&self, stream: &B::Stream) -> Result<()> {
                self.linear().synchronize(stream)
            }

            /// What computes which M.
            pub fn choices(&self) -> Vec<Choice> {
                self.linear().choices()
            }

            /// The problem of the largest M.
            pub fn shape(&self) -> &Problem {
                &self.linear().problem
            }

            /// Bytes on this rank of memory that only this layer uses, without flags: where kernels take two
            /// stagings alternately. The rest is the arena's.
            pub fn own_bytes(&self) -> usize {
                self.linear().own_bytes()
            }
        }

        impl<B: ExecuteBackend> std::fmt::Debug for $layer<B> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.linear().name())
            }
        }
    };
}
use linear_methods;

pub mod choice;
mod column;
mod error;
mod linear;
mod row;
mod tune;

use crate::algorithms::{Capabilities, Configuration};
use crate::execute::{ExecuteBackend, ExecuteError, Executor};
use crate::select::Measurements;
use crate::simulate::Machine;
use std::sync::Arc;
use warpweave_comm::Measured;
use warpweave_comm::measured::Figures as Kept;
use warpweave_symm_mem::sync::Mutex;
use warpweave_symm_mem::{BackendKind, Exchange, Memory, ThreadExchange};

pub use column::{ColumnParallelLinear, Input};
pub use error::{LayerError, Result};
pub use linear::{Choice, Matrix};
pub use row::{Output, RowParallelLinear};
pub use tune::Trial;

/// Whether the bits of a row may depend on what is computed with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Reproducible {
    /// They do not: a row has the same bits at every M, at every place, and by every schedule.
    #[default]
    Yes,
    /// They may: the fastest schedule, with GEMMs of cuBLASLt, few rows of the hand-written kernel.
    No,
}

/// What can be chosen about a layer.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Options {
    /// Whether calls have a bias.
    pub bias: bool,
    /// Whether the bits of a row may depend on M.
    pub reproducible: Reproducible,
    /// Whether the weight is constant: nothing that a call is enqueued after writes it while it may still
    /// run. A GEMM of few rows then loads it while what comes before it in the stream ends
    /// ([`GemmProblem::constant_b`](warpweave_gemm::GemmProblem::constant_b)).
    pub constant_weight: bool,
    /// The only schedule, instead of a choice.
    pub schedule: Option<Configuration>,
}

impl Options {
    /// With a bias.
    #[must_use]
    pub fn with_bias(self) -> Self {
        Options { bias: true, ..self }
    }

    /// The fastest, whose bits may depend on M.
    #[must_use]
    pub fn not_reproducible(self) -> Self {
        Options {
            reproducible: Reproducible::No,
            ..self
        }
    }

    /// Promises that the weight [is constant](Self::constant_weight).
    #[must_use]
    pub fn with_constant_weight(self) -> Self {
        Options {
            constant_weight: true,
            ..self
        }
    }

    /// By this schedule at every M. Where results are reproducible it is one that
    /// [is batch-invariant](Configuration::is_batch_invariant).
    #[must_use]
    pub fn with_schedule(self, schedule: Configuration) -> Self {
        Options {
            schedule: Some(schedule),
            ..self
        }
    }
}

/// What the layers of an executor share: its peers, figures of the machine, and a row of zeros.
#[derive(Clone)]
pub struct Layers<B: ExecuteBackend>(Arc<Shared<B>>);

struct Shared<B: ExecuteBackend> {
    executor: Executor<B>,
    /// Of this rank alone: for layers that do not communicate.
    alone: Executor<B>,
    machine: Machine,
    capabilities: Capabilities,
    /// Where figures are kept, if they are.
    kept: Option<Measured>,
    /// By whether results are reproducible.
    measurements: Mutex<[Measurements; 2]>,
    /// For layers without a bias, as long as the longest.
    zeros: Mutex<Option<Arc<B::Memory>>>,
}

impl<B: ExecuteBackend> Layers<B> {
    /// Prepares for layers over the ranks of `executor`. Collective: rank 0 reads the figures of this
    /// machine, where `doctor --measure` or a tuning has kept some, and gives them to all.
    ///
    /// # Errors
    /// Errors of the exchange, and of the preparation of GEMMs.
    pub fn new(executor: &Executor<B>) -> Result<Self> {
        let (backend, exchange) = (executor.backend(), executor.exchange().as_ref());
        let kept = Measured::of_ranks(backend, exchange)?;
        let read = |figures: Kept, is_right: &dyn Fn(&str) -> Result<(), String>| {
            let text = match (exchange.rank(), &kept) {
                (0, Some(kept)) => {
                    kept.read(figures, |text| is_right(text).map(|()| text.to_owned()))
                }
                _ => None,
            };
            exchange.all_gather("layers.figures", text.unwrap_or_default().as_bytes())
        };
        let text = |all: Vec<Vec<u8>>| String::from_utf8_lossy(&all[0]).into_owned();
        let parses = |text: &str| {
            Machine::from_toml(text)
                .map(drop)
                .map_err(|e| e.to_string())
        };
        let machine = text(read(Kept::Machine, &parses)?);
        let parses = |text: &str| {
            Measurements::from_text(text)
                .map(drop)
                .map_err(|e| e.to_string())
        };
        let reproducible = text(read(Kept::InvariantSchedules, &parses)?);
        let fastest = text(read(Kept::Schedules, &parses)?);

        let nodes = exchange.nodes().map_err(ExecuteError::from)?;
        let of_a_node = nodes.even_size().unwrap_or(exchange.world());
        let machine = Machine::from_toml(&machine)
            .ok()
            .filter(|machine| machine.gpus() >= of_a_node);
        let of_one_node = || {
            let known = Machine::names().into_iter();
            let mut known = known.filter_map(|name| Machine::named(name).ok());
            known.find(|machine| machine.nodes == 1 && machine.gpus() >= of_a_node)
        };
        let machine = match machine.or_else(of_one_node) {
            Some(machine) => machine,
            None => Machine::named("nvl72").map_err(crate::select::SelectError::from)?,
        };
        let machine = match nodes.count() {
            1 => machine,
            count => Machine {
                gpus_per_node: of_a_node,
                ..machine.with_nodes(count)
            },
        };
        let sm90 = match B::KIND {
            BackendKind::Host => true,
            BackendKind::Cuda => backend.device().compute_capability == Some((9, 0)),
        };
        let everywhere = exchange.all_gather("layers.capabilities", &[u8::from(sm90)])?;
        let alone: Arc<dyn Exchange> = Arc::new(ThreadExchange::group(1).remove(0));
        let measurements =
            [reproducible, fastest].map(|text| Measurements::from_text(&text).unwrap_or_default());
        Ok(Layers(Arc::new(Shared {
            executor: executor.clone(),
            alone: Executor::new(backend, &alone)?,
            machine,
            // What multicast would add is the project's to ask for, schedule by schedule.
            capabilities: Capabilities {
                multicast: false,
                sm90: everywhere.iter().all(|rank| rank == &[1]),
            },
            kept,
            measurements: Mutex::new(measurements),
            zeros: Mutex::new(None),
        })))
    }

    /// What runs the layers.
    pub fn executor(&self) -> &Executor<B> {
        &self.0.executor
    }

    /// The machine that choices are made for.
    fn machine(&self) -> &Machine {
        &self.0.machine
    }

    /// Bytes on this rank of the arena that all layers share, and of what only captured graphs use of former
    /// ones. Weights and activations are the caller's.
    pub fn arena_bytes(&self) -> (usize, usize) {
        let (current, former) = self.0.executor.arena_bytes();
        let (alone, formerly) = self.0.alone.arena_bytes();
        (current + alone, former + formerly)
    }

    /// What is known of the machine, for results that are reproducible or not.
    pub fn figures(&self, reproducible: Reproducible) -> choice::Figures {
        choice::Figures {
            machine: self.0.machine.clone(),
            capabilities: self.0.capabilities,
            measurements: self.0.measurements.lock()[place(reproducible)].clone(),
        }
    }

    /// At least so many bytes of zeros.
    fn zeros(&self, bytes: usize) -> Result<Arc<B::Memory>, ExecuteError> {
        let mut zeros = self.0.zeros.lock();
        match zeros.as_ref().filter(|zeros| zeros.bytes() >= bytes) {
            Some(zeros) => Ok(zeros.clone()),
            None => Ok(zeros
                .insert(Arc::new(self.0.executor.backend().allocate(bytes)?))
                .clone()),
        }
    }
}

impl<B: ExecuteBackend> std::fmt::Debug for Layers<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Layers(figures of {})", self.0.machine.name)
    }
}

/// Where the measurements are.
fn place(reproducible: Reproducible) -> usize {
    usize::from(reproducible == Reproducible::No)
}
