//! `cargo xtask bench`: one suite on all ranks, or with `--all DIR` all suites, which the owner of a machine
//! runs first and sends back.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use fs_err as fs;

use crate::device::Asked;
use crate::error::{Error, Result};
use crate::launch::{JobOptions, Launch};
use crate::output::print;
use crate::place::Place;
use crate::setup::Python;
use crate::{doctor, peers, process, warpweave};

#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "All other options are those of `warpweave bench`: cargo xtask bench -- --help"
)]
pub struct Options {
    #[command(flatten)]
    asked: Asked,
    /// The suite, see --list; `gemm` has one rank by default [default: the main one]
    #[arg(long)]
    suite: Option<String>,
    /// All suites, one after another, into this folder: their reports, a page of all, and what the machine
    /// is. The suite `quick` comes first, which checks every kernel on small data; if it fails, nothing is
    /// timed
    #[arg(long, value_name = "DIR", conflicts_with_all = ["suite", "list"])]
    all: Option<PathBuf>,
    /// PyTorch's operators as more rows: `torch` times them first, on the same problems and GPUs; a file has
    /// the figures of an earlier run
    #[arg(long, value_name = "torch|FILE")]
    peers: Option<PathBuf>,
    /// List the suites and implementations and run nothing
    #[arg(long)]
    list: bool,
    /// Keep the results, if all are right, as the baseline of this name, for `compare`
    #[arg(long, value_name = "NAME")]
    save_baseline: Option<OsString>,
    /// The folder of the baselines [default: target/warpweave/baselines]
    #[arg(long, value_name = "DIR")]
    baselines: Option<PathBuf>,
    #[command(flatten)]
    job: JobOptions,
    /// More options for the program that runs on every rank
    #[arg(last = true, value_name = "OPTIONS")]
    more: Vec<OsString>,
}

/// The suite without communication, which measures one device.
const OF_ONE_RANK: &str = "gemm";
/// The suite that checks every kernel on small data.
const FIRST: &str = "quick";
/// The folder of the short files and tables, in that of `--all`.
const SUMMARIES: &str = "summaries";
/// Options for a file that the next suite would write anew.
const OF_ONE_FILE: [&str; 6] = [
    "--json",
    "--markdown",
    "--report",
    "--plot",
    "--costs",
    "--spans",
];

impl Options {
    /// Where to run, as the options or the suite ask.
    fn asked(&self) -> Asked {
        let is_of_one = self.suite.as_deref() == Some(OF_ONE_RANK);
        Asked {
            ranks: self.asked.ranks.or(is_of_one.then_some(1)),
            ..self.asked
        }
    }

    /// Whether PyTorch is to be timed. Any other value of `--peers` is a file.
    fn wants_torch(&self) -> bool {
        self.peers.as_deref() == Some(Path::new("torch"))
    }

    /// The options for every rank.
    fn arguments(&self, baselines: PathBuf) -> Vec<OsString> {
        let mut args: Vec<OsString> = Vec::new();
        if let Some(suite) = &self.suite {
            args.extend(["--suite".into(), suite.into()]);
        }
        if let Some(file) = self.peers.as_ref().filter(|_| !self.wants_torch()) {
            args.extend(["--peers".into(), file.into()]);
        }
        if let Some(name) = &self.save_baseline {
            let folder = self.baselines.clone().unwrap_or(baselines);
            args.extend(["--save-baseline".into(), name.clone()]);
            args.extend(["--baselines".into(), folder.into()]);
        }
        args.extend(self.more.iter().cloned());
        args
    }
}

/// Measures one suite or all.
pub fn run(options: &Options) -> Result<()> {
    let place = Place::find()?;
    match &options.all {
        Some(folder) => all(options, &place, folder),
        None => measure(options, prepare(options, &place)?),
    }
}

/// Measures all suites into `folder`. One that fails does not keep the others from being measured, unless it
/// is the first.
fn all(options: &Options, place: &Place, folder: &Path) -> Result<()> {
    for word in &options.more {
        let word = word.to_string_lossy();
        let option = word.split('=').next().unwrap_or_default();
        if OF_ONE_FILE.contains(&option) {
            let why = "is for one suite: with --all the next one would write over the file";
            return Err(Error::usage(format!("{option} {why}")));
        }
    }
    fs::create_dir_all(folder)?;
    let program = place.warpweave(place.choose(options.asked, options.job.hosts.len())?.cuda)?;
    let mut planned = Vec::new();
    for suite in suites(&program)? {
        let file = folder.join(&suite).with_extension("json");
        let mut one = options.clone();
        one.more.extend(["--json".into(), file.clone().into()]);
        one.suite = Some(suite.clone());
        let mut prepared = prepare(&one, place);
        if let (Err(Error::Usage(why)), true) = (&prepared, one.peers.is_some()) {
            // A suite of which PyTorch has nothing refuses its figures.
            eprintln!("{suite} without figures of others: {why}");
            one.peers = None;
            prepared = prepare(&one, place);
        }
        let prepared = prepared.map_err(|error| match error {
            Error::Usage(why) => Error::Usage(format!("suite {suite}: {why}")),
            other => other,
        });
        planned.push((suite, file, prepared?));
    }
    fs::write(folder.join("machine.txt"), doctor::examine().to_string())?;
    let (mut failed, mut reports) = (Vec::new(), Vec::new());
    for (suite, file, prepared) in planned {
        eprintln!("==== {suite}");
        let summary = folder.join(SUMMARIES).join(&suite);
        let of_earlier_run = [
            &file,
            &summary.with_extension("json"),
            &summary.with_extension("md"),
        ];
        for path in of_earlier_run.into_iter().filter(|path| path.exists()) {
            fs::remove_file(path)?;
        }
        match measure(options, prepared) {
            Ok(()) => {}
            Err(error @ (Error::Interrupted(_) | Error::Usage(_))) => return Err(error),
            // The results are in the files, where they cannot be printed.
            Err(error) if suite == FIRST && !matches!(error, Error::Output { .. }) => {
                return Err(Error::Failed(format!(
                    "{error}\nsuite {FIRST}, which checks every kernel on small data, failed: nothing was \
                     timed. {} says which row is wrong",
                    folder.display()
                )));
            }
            Err(error) => {
                eprintln!("error: suite {suite}: {error}");
                failed.push(suite);
            }
        }
        reports.extend(file.exists().then_some(file));
    }
    let page = page(&program, folder, reports);
    match failed[..] {
        [] => page,
        _ => {
            let why = page.map_or_else(|error| format!("{error}\n"), |()| String::new());
            let why = format!("{why}failed: {}", failed.join(", "));
            Err(Error::Failed(why))
        }
    }
}

/// The names of all suites, the one to begin with first.
fn suites(program: &Path) -> Result<Vec<String>> {
    let (text, status) = process::output(Command::new(program).args(["bench", "--list"]))?;
    process::succeeded("warpweave bench --list", status)?;
    // A suite begins a line, its implementations are indented.
    let names = text.lines().filter(|line| !line.starts_with(' '));
    let names = names.filter_map(|line| Some(line.split_once(':')?.0.to_owned()));
    let mut names: Vec<_> = names.collect();
    names.sort_by_key(|name| name != FIRST);
    Ok(names)
}

/// Puts the reports into one page in `folder`, and each into a short file and a table.
fn page(program: &Path, folder: &Path, mut reports: Vec<PathBuf>) -> Result<()> {
    reports.sort();
    let summaries = folder.join(SUMMARIES);
    fs::create_dir_all(&summaries)?;
    let mut command = Command::new(program);
    command.arg("report").args(reports);
    command.arg("--out").arg(folder.join("report.html"));
    command.arg("--summaries").arg(summaries);
    process::run(&mut command, "warpweave report")
}

/// A suite that can be measured.
struct Prepared {
    launch: Launch,
    cuda: bool,
    torch: Option<Python>,
    /// What `bench --list` prints.
    list: String,
}

/// Builds what runs on every rank, and has it check the options.
fn prepare(options: &Options, place: &Place) -> Result<Prepared> {
    let chosen = place.choose(options.asked(), options.job.hosts.len())?;
    let wants_torch = options.wants_torch() && !options.list;
    if wants_torch && !chosen.cuda {
        return Err(Error::usage(
            "--peers torch: PyTorch's operators run on GPUs only; --peers FILE takes figures that were \
             measured before",
        ));
    }
    let with_torch = || Python::with_torch(Python::candidates());
    let torch = wants_torch.then(with_torch).transpose()?;
    let args = options.arguments(place.results("baselines"));
    let launch = warpweave::launch("bench", place, chosen, &options.job, args)?;
    let list = peers::answer(&launch, &["--list"])?;
    Ok(Prepared {
        launch,
        cuda: chosen.cuda,
        torch,
        list,
    })
}

/// Starts the ranks and waits for them.
fn measure(options: &Options, prepared: Prepared) -> Result<()> {
    let Prepared {
        mut launch,
        cuda,
        torch,
        list,
    } = prepared;
    if options.list {
        return print(list);
    }
    let plural = if launch.ranks == 1 { "" } else { "s" };
    let on = if cuda { "GPUs" } else { "the host backend" };
    eprintln!("{} rank{plural} on {on}", launch.ranks);
    // Of other hosts this machine knows nothing.
    if cuda && launch.job.hosts.is_empty() {
        for lacks in doctor::missing_libraries() {
            eprintln!("warning: {lacks}");
        }
    }
    match torch.map(|python| peers::measure(&python, &launch)) {
        Some(Ok(figures)) => launch.args.extend(["--peers".into(), figures.into()]),
        // Of all suites, PyTorch has operators for some.
        Some(Err(error)) if options.all.is_some() && !matches!(error, Error::Interrupted(_)) => {
            eprintln!("without figures of PyTorch: {error}");
        }
        Some(Err(error)) => return Err(error),
        None => {}
    }
    launch.run()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bundle::{Bundle, WARPWEAVE};
    use crate::process::tests::script;
    use std::time::Duration;

    fn parsed(line: &str) -> std::result::Result<Options, clap::Error> {
        let words = format!("xtask bench {line}");
        let line = crate::parsed(words.split(' ').map(OsString::from))?;
        let crate::Command::Bench(options) = line.command else {
            unreachable!("{words}")
        };
        Ok(*options)
    }

    #[test]
    fn options_reach_the_ranks_under_their_own_names() {
        for (line, expected) in [
            ("-n3 --suite quick", "--suite quick"),
            (
                "--shape 8x8x8 --ranks 2 --suite a --impl a,b --timeout=9 --nvtx --log debug -- --more here",
                "--suite a --shape 8x8x8 --impl a,b --nvtx --log debug --more here",
            ),
            (
                "--nvtx=lib/libnvtx3interop.so.1 --list",
                "--nvtx=lib/libnvtx3interop.so.1",
            ),
            // PyTorch is timed first: then its figures are in a file.
            ("--peers torch --op a", "--op a"),
            ("--peers ./torch", "--peers ./torch"),
            (
                "--save-baseline old",
                "--save-baseline old --baselines kept",
            ),
            (
                "--save-baseline old --baselines here",
                "--save-baseline old --baselines here",
            ),
            ("--baselines here --json a", "--json a"),
        ] {
            let args = parsed(line).unwrap().arguments("kept".into());
            assert_eq!(args.join(&OsString::from(" ")), expected, "{line}");
        }
    }

    #[test]
    fn suites_of_one_device_start_one_rank() {
        for (line, expected) in [
            ("--suite gemm", Some(1)),
            ("--suite gemm --ranks 4", Some(4)),
            ("--suite fused-matmul", None),
            ("--list", None),
        ] {
            assert_eq!(parsed(line).unwrap().asked().ranks, expected, "{line}");
        }
    }

    #[test]
    fn job_options_are_ours_alone() {
        let options = parsed("--json out --timeout 1.5 --grace 0 --port 7000").unwrap();
        assert_eq!(options.job.port, Some(7000));
        assert_eq!(options.job.timeout, Some(Duration::from_millis(1500)));
        assert_eq!(options.job.grace, Duration::ZERO);
        let default = parsed("--list").unwrap().job;
        assert_eq!(default.grace, Duration::from_secs(20));
        for wrong in [
            "--timeout -1",
            "--grace soon",
            "--port 0",
            "--device tpu",
            "--grace",
        ] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }

    /// Stands for a bundle whose program writes reports; the suite `broken` fails, `layers` before it has
    /// written one. That suite refuses shapes, and the page fails next to a file `no-page`.
    fn bundle(root: &Path, broken: &str) -> Place {
        let program = format!(
            r#"case "$*" in
"bench --list") printf 'recipes: nine shapes\n  ringPut   a ring\n{FIRST}: small\nlayers: of models\n' ;;
*"--suite layers"*--shape*--list) exit 2 ;;
*--list) ;;
report*) (echo "$*"; ls {root}/all/summaries) >> {root}/asked; test ! -e {root}/no-page ;;
*) while [ "$1" != --suite ]; do shift; done; echo $2 >> {root}/asked
   [ $2 = layers ] && [ {broken} = layers ] && exit 1
   while [ "$1" != --json ]; do shift; done; echo '{{}}' > $2
   case $2 in */{broken}.json) exit 1 ;; esac ;;
esac"#,
            root = root.display()
        );
        fs::create_dir_all(root.join("bin")).unwrap();
        script(&root.join(WARPWEAVE), &program);
        Bundle::write(root, Vec::new(), Vec::new()).unwrap();
        Place::Bundle(Bundle::in_folder(root).unwrap().unwrap())
    }

    /// How `--all` ends with `more` options and `files` in its folder, and what it asked the program for.
    fn measured(broken: &str, more: &str, files: &[&str]) -> (Result<()>, String) {
        let root = tempfile::tempdir().unwrap();
        let place = bundle(root.path(), broken);
        let folder = root.path().join("all");
        fs::create_dir_all(folder.join("summaries")).unwrap();
        for file in files {
            fs::write(folder.join(file), "old").unwrap();
        }
        let line = format!(
            "-n1 --device host --grace 1 --all {}{more}",
            folder.display()
        );
        let mut options = parsed(&line).unwrap();
        options.job.logs = Some(root.path().join("logs"));
        let end = all(&options, &place, &folder);
        let asked = fs::read_to_string(root.path().join("asked")).unwrap_or_default();
        let asked = asked.replace(&format!("{}/", folder.display()), "");
        (end, asked)
    }

    #[test]
    fn all_suites_are_measured_and_one_that_fails_is_named_at_the_end() {
        let (end, asked) = measured("recipes", "", &[]);
        let reports = "layers.json quick.json recipes.json --out report.html --summaries summaries";
        assert_eq!(asked, format!("quick\nrecipes\nlayers\nreport {reports}\n"));
        assert_eq!(end.unwrap_err().to_string(), "failed: recipes");
        let (end, _) = measured("recipes", "", &["../no-page"]);
        let message = end.unwrap_err().to_string();
        assert!(message.ends_with("failed: recipes"), "{message}");
    }

    #[test]
    fn a_page_of_all_suites_has_nothing_of_earlier_runs() {
        let (end, asked) = measured(
            "layers",
            "",
            &[
                "layers.json",
                "recipes.json",
                "foreign.json",
                "summaries/layers.json",
                "summaries/layers.md",
            ],
        );
        let reports = "quick.json recipes.json --out report.html --summaries summaries";
        assert_eq!(asked, format!("quick\nrecipes\nlayers\nreport {reports}\n"));
        assert_eq!(end.unwrap_err().to_string(), "failed: layers");
    }

    #[test]
    fn options_that_a_suite_refuses_are_refused_before_the_first() {
        for (more, expected) in [
            (" --shape 8x8x8", "suite layers: "),
            (" --markdown all.md", "--markdown is for one suite"),
            (" --spans=spans.json", "--spans is for one suite"),
        ] {
            let (end, asked) = measured("none", more, &[]);
            assert_eq!(asked, "", "{more}");
            let error = end.unwrap_err();
            assert!(
                matches!(&error, Error::Usage(why) if why.starts_with(expected)),
                "{error}"
            );
        }
    }

    #[test]
    fn nothing_is_timed_with_kernels_that_are_wrong_on_small_data() {
        let (end, asked) = measured(FIRST, "", &[]);
        assert_eq!(asked, "quick\n");
        let message = end.unwrap_err().to_string();
        assert!(message.contains("nothing was timed"), "{message}");
    }
}
