//! Output while the program runs: lines on standard error, spans for Perfetto, ranges for profilers.
//!
//! `--log`, or `RUST_LOG`, says what is logged on which rank ([`LogFilter`]); a line names its rank. `--spans
//! FILE` writes when the spans of all layers ran, one file per rank ([`Spans`]). `--nvtx` makes NVTX ranges
//! of the same spans ([`Nvtx`]). None of them costs anything where it is not asked for.

mod filter;
mod nvtx;
mod spans;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::OnceLock;

use clap::Args;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};
use warpweave_comm::Job;
use warpweave_report::file;

use crate::error::Result;
use crate::progress::aside;

pub use filter::LogFilter;
pub use nvtx::Nvtx;
pub use spans::Spans;

/// Spans of this project, whatever is logged.
const OWN: &str = "warpweave=trace";

/// Output while the program runs.
#[derive(Debug, Args)]
pub struct LoggingArgs {
    /// What is logged to standard error, as `info`, `warpweave_overlap=debug` or, by ranks,
    /// `warn;0:info;2-3:debug`.
    #[arg(
        long,
        global = true,
        env = "RUST_LOG",
        default_value = "warn",
        value_name = "FILTER"
    )]
    pub log: LogFilter,
    /// Write when the spans of all layers ran to this file, for Perfetto; each of several ranks to its own,
    /// as `FILE` with `.rank0` before its extension.
    #[arg(long, global = true, value_name = "FILE")]
    pub spans: Option<PathBuf>,
    /// Make NVTX ranges of the spans of all layers, for `nsys profile`; by the library of this file, else by
    /// CUDA's.
    #[arg(long, global = true, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    pub nvtx: Option<Option<PathBuf>>,
}

static SPANS: OnceLock<Spans> = OnceLock::new();

/// Starts logging for this process, which is a rank if its environment says so. To be called once, before
/// anything else.
pub fn start(args: &LoggingArgs) -> Result<()> {
    // The command that needs the environment reports what is wrong with it.
    let job = Job::from_env().ok().filter(|job| job.world() > 1);
    let rank = job.map(|job| job.rank());
    let spans = match &args.spans {
        Some(path) => {
            let path = spans::path_of(path, rank);
            let spans = Spans::create(&path, rank.unwrap_or(0));
            let spans = spans.map_err(file::at(&path))?;
            Some(SPANS.get_or_init(|| spans))
        }
        None => None,
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(io::stderr().is_terminal())
        .with_writer(move || Aside(rank))
        .with_filter(args.log.of(rank.unwrap_or(0)));
    let spans = spans.map(|spans| spans.with_filter(EnvFilter::new(OWN)));
    let nvtx = args.nvtx.as_ref();
    let nvtx = nvtx.map(|file| Nvtx::load(file.as_deref())).transpose()?;
    let nvtx = nvtx.map(|nvtx| nvtx.with_filter(EnvFilter::new(OWN)));
    tracing_subscriber::registry()
        .with(lines)
        .with(spans)
        .with(nvtx)
        .init();
    Ok(())
}

/// Completes the file of spans. What is recorded afterwards is lost.
pub fn finish() {
    if let Some(spans) = SPANS.get() {
        spans.finish();
    }
}

/// Standard error, with bars out of the way. A line begins with the rank, where there are several.
struct Aside(Option<usize>);

impl Write for Aside {
    /// Comes once for each event, with all of its line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let rank = self.0.map(|rank| format!("[rank {rank}] "));
        let whole = [rank.unwrap_or_default().as_bytes(), line].concat();
        aside(|| io::stderr().write_all(&whole))?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
