//! The command line.

use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use warpweave_overlap::plan::Scaling;
use warpweave_report::Shape;
use warpweave_report::command::BASELINES;
use warpweave_symm_mem::DType;

use crate::inject::InjectedFault;
use crate::logging::LoggingArgs;
use crate::suite::{Settings, scaling};

/// Schedules that overlap communication and computation: measured, shown and proved.
///
/// `warpweave bench` runs once on every rank; `cargo xtask bench`, torchrun, mpirun and srun start it so.
#[derive(Debug, Parser)]
#[command(name = "warpweave", version)]
pub struct Cli {
    /// Output while the program runs.
    #[command(flatten)]
    pub logging: LoggingArgs,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measure implementations against each other, and verify every element of their results.
    Bench(Box<BenchArgs>),
    /// Measure the figures of this machine that `plan simulate --machine` takes.
    Measure(MeasureArgs),
    /// Run a plan once and write when each operation of each rank ran, with the prediction, for Perfetto.
    Timeline(TimelineArgs),
    /// What can be done with recorded results.
    #[command(flatten)]
    Recorded(warpweave_report::command::Command),
    /// Look at plans; no device is touched.
    #[command(subcommand)]
    Plan(PlanCommand),
}

/// Which backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Device {
    /// GPUs where there are any, else the host.
    Auto,
    /// Processes of this machine.
    Host,
    /// NVIDIA GPUs, one for each rank.
    Cuda,
}

/// Arguments of `warpweave bench`; the same on every rank.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// What is measured.
    #[command(flatten)]
    pub settings: Settings,
    /// Where to run.
    #[arg(long, value_enum, default_value = "auto")]
    pub device: Device,
    /// Sizes of a problem as MxNxK: an M×K matrix times a K×N matrix; may be given several times.
    #[arg(long = "shape", value_name = "MxNxK")]
    pub shapes: Vec<Shape>,
    /// Also write the report of all problems to this file as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Also write the report of all problems to this file as Markdown.
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Also write the report of all problems to this file as an HTML page that needs nothing else.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Suite collectives: also draw times over sizes to this file as SVG.
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Suite collectives: also write the variants' times to this file, as the library's `select` takes them.
    #[arg(long, value_name = "FILE")]
    pub costs: Option<PathBuf>,
    /// Figures of PyTorch's operators on the same machine, as further rows: what peers/torch_peers.py wrote.
    #[arg(long, value_name = "FILE")]
    pub peers: Option<PathBuf>,
    /// Keep the report of this run, if every row was right, as the baseline of this name.
    #[arg(long, value_name = "NAME")]
    pub save_baseline: Option<String>,
    /// The folder of the baselines.
    #[arg(long, value_name = "DIR", default_value = BASELINES)]
    pub baselines: PathBuf,
    /// Name the suites, what they reproduce and their implementations, check the other options, and do
    /// nothing else.
    #[arg(long)]
    pub list: bool,
    /// Print what peers are to measure for a run on so many GPUs, one line per problem, and do nothing else.
    #[arg(long, hide = true, value_name = "RANKS")]
    pub peer_problems: Option<usize>,
    /// Let a rank stall, die, miscalculate or take longer, as stall:RANK, kill:RANK, corrupt:RANK or
    /// slowLEAST-MOST:RANK in µs a call: for tests of what becomes of that.
    #[arg(long, hide = true)]
    pub inject: Option<InjectedFault>,
}

/// Arguments of `warpweave measure`; the same on every rank.
#[derive(Debug, Args)]
pub struct MeasureArgs {
    /// Where to run.
    #[arg(long, value_enum, default_value = "auto")]
    pub device: Device,
    /// Write the machine to this file, not to standard output.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// Arguments of `warpweave timeline`; the same on every rank.
#[derive(Debug, Args)]
pub struct TimelineArgs {
    /// The algorithm.
    pub name: String,
    /// Where to run.
    #[arg(long, value_enum, default_value = "auto")]
    pub device: Device,
    /// The machine of the prediction: one of the crate, or a TOML file that describes one; no prediction
    /// without.
    #[arg(long, value_name = "NAME|FILE")]
    pub machine: Option<String>,
    /// The file, JSON in Chrome's trace event format.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// The problem.
    #[command(flatten)]
    pub problem: ProblemArgs,
}

fn positive() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..)
}

/// What can be done with a plan.
#[derive(Debug, Subcommand)]
pub enum PlanCommand {
    /// Print the plan of one rank.
    Show {
        /// The algorithm.
        name: String,
        /// The rank.
        #[arg(long, default_value_t = 0)]
        rank: usize,
        /// Number of ranks.
        #[arg(long, default_value_t = 4, value_parser = positive())]
        world: usize,
        /// The problem.
        #[command(flatten)]
        problem: ProblemArgs,
    },
    /// Prove the plans of all ranks: no race, no deadlock, also when calls follow each other back to back.
    Check {
        /// The algorithm, or `all`.
        name: String,
        /// Numbers of ranks, by comma.
        #[arg(long, value_delimiter = ',', default_value = "2,4,8", value_parser = positive())]
        world: Vec<usize>,
        /// Calls that follow each other.
        #[arg(long, default_value_t = 3, value_parser = positive())]
        calls: usize,
        /// The problem.
        #[command(flatten)]
        problem: ProblemArgs,
    },
    /// Predict how long the plans of all ranks take on a machine, and the critical path.
    Simulate(SimulateArgs),
    /// Say which algorithm is fastest for a problem on a machine, and why.
    Explain {
        /// What is computed, such as all-gather-matmul.
        operation: warpweave_overlap::Operation,
        /// Where, by how many ranks and on what.
        #[command(flatten)]
        choice: ChoiceArgs,
        /// The problem.
        #[command(flatten)]
        problem: ProblemArgs,
    },
    /// Compare what would be selected for each measured problem, without its measurement, with the fastest.
    Evaluate {
        /// Where and on what.
        #[command(flatten)]
        choice: ChoiceArgs,
        /// As for a machine on which multicast may be used.
        #[arg(long)]
        multicast: bool,
    },
    /// Compare predictions with all measurements, the largest error first.
    Compare(CompareArgs),
    /// Write the predicted timeline of all ranks for Perfetto.
    Trace {
        /// What to simulate.
        #[command(flatten)]
        simulate: SimulateArgs,
        /// The file, JSON in Chrome's trace event format.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
}

/// The basis of a choice.
#[derive(Clone, Debug, Args)]
pub struct ChoiceArgs {
    /// A machine of the crate, or a TOML file that describes one [default: this one if it was measured, else
    /// h200x4]
    #[arg(long, value_name = "NAME|FILE")]
    pub machine: Option<String>,
    /// Number of ranks; `evaluate` takes that of each measurement.
    #[arg(long, default_value_t = 4, value_parser = positive())]
    pub world: usize,
    /// What was measured: reports of `bench --json`, or lines of configuration, world, MxNxK, element type
    /// and µs.
    #[arg(long, value_name = "FILE,…", value_delimiter = ',')]
    pub measured: Vec<PathBuf>,
    /// The machine's GPUs are not of compute capability 9.0.
    #[arg(long)]
    pub no_sm90: bool,
}

/// What is compared.
#[derive(Clone, Debug, Args)]
pub struct CompareArgs {
    /// A machine of the crate, or a TOML file that describes one.
    #[arg(long, value_name = "NAME|FILE", default_value = "h200x4")]
    pub machine: String,
    /// What was measured: reports of `bench --json`, or lines of configuration, world, MxNxK, element type
    /// and µs.
    #[arg(long, value_name = "FILE,…", value_delimiter = ',', required = true)]
    pub measured: Vec<PathBuf>,
    /// Rows at most, those of the largest errors.
    #[arg(long, default_value_t = usize::MAX, hide_default_value = true)]
    pub rows: usize,
}

/// What to simulate, and on what.
#[derive(Clone, Debug, Args)]
pub struct SimulateArgs {
    /// The algorithm.
    pub name: String,
    /// A machine of the crate (h200x4, h200x8, h100x8, h200x4-2nodes, nvl72), or a TOML file that describes
    /// one [default: this one if it was measured, else h200x4]
    #[arg(long, value_name = "NAME|FILE")]
    pub machine: Option<String>,
    /// Number of ranks.
    #[arg(long, default_value_t = 4, value_parser = positive())]
    pub world: usize,
    /// Calls that follow each other.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub calls: u16,
    /// The problem.
    #[command(flatten)]
    pub problem: ProblemArgs,
}

/// The problem of a plan.
#[derive(Clone, Copy, Debug, Args)]
pub struct ProblemArgs {
    /// Sizes of an M×K matrix times a K×N matrix.
    #[arg(long, value_name = "MxNxK", default_value = "1028x1160x1032")]
    pub shape: Shape,
    /// Element type.
    #[arg(long, default_value = "f16")]
    pub dtype: DType,
    /// With e4m3: what has a scale [default: row].
    #[arg(long, value_name = "tensor|row|block", value_parser = scaling)]
    pub scales: Option<Scaling>,
    /// Plan for a machine on which multicast may be used.
    #[arg(long)]
    pub multicast: bool,
}
