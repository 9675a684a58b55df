//! `cargo xtask bench`: one suite, or with `--all DIR` all, which the owner of a machine runs first and sends
//! back.

use std::path::{Path, PathBuf};
use std::process::Command;

use fs_err as fs;

use super::bench::{self, Options};
use crate::doctor;
use crate::error::{Error, Result};
use crate::place::Place;
use crate::process;

/// Checks every kernel on small data.
const FIRST: &str = "quick";

/// Measures one suite or all.
pub fn run(options: &Options) -> Result<()> {
    let place = Place::find()?;
    match &options.all {
        Some(folder) => all(options, &place, folder),
        None => bench::suite(options, &place),
    }
}

/// Measures all suites into `folder`. One that fails does not keep the others from being measured, unless it
/// is the first.
fn all(options: &Options, place: &Place, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    let program = place.warpweave(place.choose(options.asked)?.cuda)?;
    fs::write(folder.join("machine.txt"), doctor::examine().to_string())?;
    let mut failed = Vec::new();
    for suite in suites(&program)? {
        eprintln!("==== {suite}");
        let file = folder.join(&suite).with_extension("json");
        let mut one = options.clone();
        one.more.extend(["--json".into(), file.into()]);
        one.suite = Some(suite.clone());
        let mut end = bench::suite(&one, place);
        if let (Err(Error::Usage(why)), true) = (&end, one.peers.is_some()) {
            // A suite of which PyTorch has nothing refuses its figures.
            eprintln!("{suite} without figures of others: {why}");
            one.peers = None;
            end = bench::suite(&one, place);
        }
        match end {
            Ok(()) => {}
            Err(error @ (Error::Interrupted(_) | Error::Usage(_))) => return Err(error),
            Err(error) if suite == FIRST => {
                return Err(Error::failed(format!(
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
    }
    page(&program, folder)?;
    match failed[..] {
        [] => Ok(()),
        _ => Err(Error::failed(format!("failed: {}", failed.join(", ")))),
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

/// Puts all reports in `folder` into one page, and each into a short file and a table.
fn page(program: &Path, folder: &Path) -> Result<()> {
    let files = fs::read_dir(folder)?.collect::<std::io::Result<Vec<_>>>()?;
    let mut reports: Vec<PathBuf> = files.into_iter().map(|file| file.path()).collect();
    reports.retain(|path| path.extension().is_some_and(|name| name == "json"));
    reports.sort();
    let summaries = folder.join("summaries");
    fs::create_dir_all(&summaries)?;
    let mut command = Command::new(program);
    command.arg("report").args(reports);
    command.arg("--out").arg(folder.join("report.html"));
    command.arg("--summaries").arg(summaries);
    process::run(&mut command, "warpweave report")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bundle::{Bundle, Manifest, WARPWEAVE};
    use crate::process::tests::script;

    /// Stands for a bundle whose program writes reports; the suite `broken` fails.
    fn bundle(root: &Path, broken: &str) -> Place {
        let program = format!(
            r#"case "$*" in
"bench --list") printf 'recipes: nine shapes\n  ringPut   a ring\n{FIRST}: small\nlayers: of models\n' ;;
*--list) ;;
report*) echo "$*" >> {root}/asked ;;
*) while [ "$1" != --suite ]; do shift; done; echo $2 >> {root}/asked
   while [ "$1" != --json ]; do shift; done; echo '{{}}' > $2
   case $2 in */{broken}.json) exit 1 ;; esac ;;
esac"#,
            root = root.display()
        );
        fs::create_dir_all(root.join("bin")).unwrap();
        script(&root.join(WARPWEAVE), &program);
        Manifest::new(Vec::new(), Vec::new()).write(root).unwrap();
        Place::Bundle(Bundle::in_folder(root).unwrap().unwrap())
    }

    fn measured(broken: &str) -> (Result<()>, String) {
        let root = tempfile::tempdir().unwrap();
        let place = bundle(root.path(), broken);
        let folder = root.path().join("all");
        let line = format!("-n1 --device host --grace 1 --all {}", folder.display());
        let mut options = bench::tests::parsed(&line).unwrap();
        options.job.logs = Some(root.path().join("logs"));
        let end = all(&options, &place, &folder);
        let asked = fs::read_to_string(root.path().join("asked")).unwrap();
        let asked = asked.replace(&format!("{}/", folder.display()), "");
        (end, asked)
    }

    #[test]
    fn all_suites_are_measured_and_one_that_fails_is_named_at_the_end() {
        let (end, asked) = measured("recipes");
        let reports = "layers.json quick.json recipes.json --out report.html --summaries summaries";
        assert_eq!(asked, format!("quick\nrecipes\nlayers\nreport {reports}\n"));
        assert_eq!(end.unwrap_err().to_string(), "failed: recipes");
    }

    #[test]
    fn nothing_is_timed_with_kernels_that_are_wrong_on_small_data() {
        let (end, asked) = measured(FIRST);
        assert_eq!(asked, "quick\n");
        let message = end.unwrap_err().to_string();
        assert!(message.contains("nothing was timed"), "{message}");
    }
}
