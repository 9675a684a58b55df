//! `warpweave bench`.

use std::io::Write;
use std::path::Path;

use warpweave_comm::{Job, Measured};
use warpweave_overlap::plan::{Problem, Scaling};
use warpweave_overlap::{Operation, algorithms};
use warpweave_report::baseline::Baselines;
use warpweave_report::file::{self, check_place};
use warpweave_report::peers::{self, Peers, torch_name};
use warpweave_report::{Document, Report, Source, markdown, page, print, width};
use warpweave_symm_mem::{BackendKind, DType};

use super::measure::{describes_a_machine, keep_costs};
use crate::cli::BenchArgs;
use crate::collectives::{self, NcclBackend};
use crate::error::{BenchError, Result};
use crate::job::{self, Part};
use crate::session::Session;
use crate::suite::{self, GEMM, Settings};
use crate::timing::Effort;

/// Prints what there is to measure, and refuses options with which a run would be refused: a launcher can ask
/// once, before it starts the ranks.
pub(super) fn list(args: &BenchArgs, out: &mut impl Write) -> Result<bool> {
    settings(args)?;
    for suite in suite::ALL {
        writeln!(out, "{}: {}", suite.name, suite.reproduces)?;
        for (name, summary) in suite.catalogue() {
            writeln!(out, "  {name:<32} {summary}")?;
        }
    }
    Ok(true)
}

/// Prints what peers are to measure in a run on `world` GPUs, one line per problem: the kind of its rows, the
/// sizes, the element type.
pub(super) fn peer_problems(args: &BenchArgs, world: usize, out: &mut impl Write) -> Result<bool> {
    let settings = settings(args)?;
    let kind = BackendKind::Cuda;
    if settings.suite.is_of_collectives() {
        let dtype = torch_name(settings.message_dtype().name());
        for size in settings.sizes_on(kind) {
            writeln!(out, "collectives {size} {dtype}")?;
        }
        return Ok(true);
    }
    let cases = settings.suite.cases(&settings.implementations)?;
    for operation in cases.iter().filter_map(|case| case.operation) {
        for (shape, dtype) in settings.problems_on(kind, world) {
            let dtype = torch_name(dtype.name());
            writeln!(out, "{} {shape} {dtype}", operation.name())?;
        }
    }
    Ok(true)
}

/// Takes this rank's part in a run. True if every row that ran was right.
pub(super) fn bench(args: &BenchArgs) -> Result<bool> {
    let settings = settings(args)?;
    let part = Bench { args, settings };
    job::take_part(&Job::from_env()?, args.device, args.inject, part)
}

/// What `args` ask for, where all of it exists.
fn settings(args: &BenchArgs) -> Result<Settings> {
    job::timeout()?;
    for (option, path) in [
        ("--json", &args.json),
        ("--markdown", &args.markdown),
        ("--report", &args.report),
        ("--plot", &args.plot),
        ("--costs", &args.costs),
    ] {
        if let Some(path) = path {
            check_place(option, path)?;
        }
    }
    let suite = args.settings.suite;
    if let Some(name) = &args.save_baseline {
        Baselines::new(&args.baselines).place(name, suite.name)?;
    }
    let dtype = args.settings.message_dtype();
    let of_collectives = suite.is_of_collectives();
    let of_operations = of_collectives && !suite.is_of_decode();
    let has_peers = of_operations || !suite.operations.is_empty();
    let peers = args.peers.is_some() || args.peer_problems.is_some();
    let Settings {
        sizes,
        operations,
        scales,
        ..
    } = &args.settings;
    for (option, is_foreign) in [
        ("--shape", of_collectives && !args.shapes.is_empty()),
        ("--sizes", !of_collectives && !sizes.is_empty()),
        ("--op", !of_operations && !operations.is_empty()),
        ("--scales", scales.is_some() && dtype != DType::E4m3),
        ("--plot", !of_collectives && args.plot.is_some()),
        ("--costs", !of_operations && args.costs.is_some()),
        ("--peers", !has_peers && peers),
    ] {
        if is_foreign {
            let why = format!("{option} does not apply to the suite {}", suite.name);
            return Err(BenchError::Usage(why));
        }
    }
    let scaling = args.settings.scaling(dtype);
    if peers && !matches!(scaling, Scaling::None | Scaling::Row) {
        let by = scaling.name();
        let why = format!("--peers has figures of scales by row, none by {by}");
        return Err(BenchError::Usage(why));
    }
    // Some algorithm of each operation.
    let takes_it = |operation: &Operation| {
        let problem = Problem::new(1, 1, 1, dtype).with_scaling(scaling);
        let candidates = algorithms::candidates(*operation);
        candidates.iter().any(|candidate| candidate.takes(&problem))
    };
    let takes_it = match suite.operations {
        [] => suite.name == GEMM.name,
        operations => operations.iter().all(takes_it),
    };
    if dtype == DType::E4m3 && !takes_it {
        let (suite, scales) = (suite.name, scaling.name());
        let why = format!("the suite {suite} takes no operands of e4m3 with scales by {scales}");
        return Err(BenchError::Usage(why));
    }
    suite.cases(&args.settings.implementations)?;
    let kinds = match of_collectives {
        true => vec![peers::COLLECTIVES],
        false => Operation::ALL.map(Operation::name).into(),
    };
    let peers = args.peers.as_deref();
    let peers = peers.map(|path| Peers::read(path, &kinds)).transpose()?;
    Ok(Settings {
        problems: args.shapes.iter().map(|&shape| (shape, dtype)).collect(),
        peers,
        ..args.settings.clone()
    })
}

struct Bench<'a> {
    args: &'a BenchArgs,
    settings: Settings,
}

impl Part for Bench<'_> {
    fn run<B: NcclBackend>(self, session: &Session<B>) -> Result<bool> {
        let (args, settings, first) = (self.args, self.settings, session.rank() == 0);
        let suite = settings.suite;
        let kept = match suite.is_of_collectives() && !suite.is_of_decode() {
            true => Measured::of_ranks(&session.backend, session.exchange.as_ref())?,
            false => None,
        };
        let each = |report: &Report| {
            if let Some(path) = args.json.as_ref().filter(|_| first) {
                // What was measured is worth more, and it is tried again at the end.
                let written = file::write(path, json(report)?);
                let _ = written.inspect_err(|error| eprintln!("warning: {error}"));
            }
            Ok(())
        };
        let report = suite::run(session, &settings, each)?;
        let told = if first { tell(&report, args) } else { Ok(()) };
        // What was left out would never be selected again.
        let is_whole = settings.implementations.is_empty() && settings.sizes.is_empty();
        let calls = |asked| Effort::of_collectives(B::KIND, asked).iterations;
        let is_whole = is_whole && calls(settings.iterations) >= calls(None);
        let is_kept = is_whole && report.is_right() && describes_a_machine(&report.provenance);
        if let Some(kept) = kept.filter(|_| first && is_kept) {
            keep_costs(&kept, collectives::costs(&report.results))?;
        }
        told?;
        Ok(report.is_right())
    }
}

fn json(report: &Report) -> Result<Vec<u8>> {
    let mut json = serde_json::to_vec_pretty(report).map_err(std::io::Error::from)?;
    json.push(b'\n');
    Ok(json)
}

/// Keeps the report as a baseline, where that is wanted and every row that ran was right.
///
/// # Errors
/// [`BenchError::NothingToSave`]: none ran. A baseline of that name stays as it is.
fn save(report: &Report, args: &BenchArgs) -> Result<()> {
    let Some(name) = &args.save_baseline else {
        return Ok(());
    };
    if !report.is_right() {
        eprintln!("baseline {name} is not saved: a row is wrong");
        return Ok(());
    }
    if !report.has_run() {
        return Err(BenchError::NothingToSave { name: name.clone() });
    }
    let place = Baselines::new(&args.baselines).save(name, &report.suite, &json(report)?)?;
    eprintln!("saved as baseline {name}: {}", place.display());
    Ok(())
}

/// Prints the report, keeps it as a baseline, and writes it to the files that are wanted. What fails keeps
/// nothing else from being tried; the last error is returned, the others are printed.
fn tell(report: &Report, args: &BenchArgs) -> Result<()> {
    let mut out = std::io::stdout();
    let printed = print(report, width(), &mut out).and_then(|()| out.flush());
    if !report.has_run() {
        eprintln!("warning: nothing was measured: no row ran, and the report says why");
    }
    let mut ends = vec![printed.map_err(Into::into), save(report, args)];
    let mut write = |path: &Path, content: Vec<u8>| {
        ends.push(file::write(path, content).map_err(Into::into));
    };
    if let Some(path) = &args.json {
        write(path, json(report)?);
    }
    if let Some(path) = &args.markdown {
        let mut text = Vec::new();
        markdown(report, &mut text)?;
        write(path, text);
    }
    if let Some(path) = &args.report {
        let source = Source {
            name: args.json.as_deref().map_or("none".into(), file::name),
            document: Document::Report(Box::new(report.clone())),
        };
        write(path, page(&[source]).into());
    }
    if let (Some(path), Some(drawing)) = (&args.plot, report.plot()) {
        write(path, drawing.into());
    }
    if let Some(path) = &args.costs {
        let by = "operation, ranks, variant, bytes=microseconds; single calls, medians of the slowest rank";
        let (provenance, costs) = (&report.provenance, collectives::costs(&report.results));
        write(path, format!("# {by}\n# {provenance}\n{costs}").into());
    }
    let mut errors = ends
        .into_iter()
        .filter_map(Result::err)
        .collect::<Vec<BenchError>>();
    let last = errors.pop();
    errors.iter().for_each(|error| eprintln!("error: {error}"));
    last.map_or(Ok(()), Err)
}
