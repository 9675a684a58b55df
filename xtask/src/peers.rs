//! `cargo xtask bench --peers torch`: times PyTorch's operators on the problems of the run before its ranks
//! start.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use fs_err as fs;

use crate::error::{Error, Result};
use crate::launch::Launch;
use crate::launch::log::LogFolder;
use crate::process;
use crate::setup::Python;

/// The script for every rank. It is compiled in, for bundles.
const SCRIPT: &str = include_str!("../../crates/bench/peers/torch_peers.py");

/// Times PyTorch's operators on as many ranks as `bench`, the launch that follows. Returns the file for its
/// `--peers`.
pub fn measure(python: &Python, bench: &Launch) -> Result<PathBuf> {
    let LogFolder(folder) = LogFolder::create(&bench.logs()?, "peers")?;
    let (script, figures) = (folder.join("torch_peers.py"), folder.join("torch.json"));
    fs::write(&script, SCRIPT)?;
    let ranks = bench.ranks.to_string();
    let problems = answer(bench, &["--peer-problems", &ranks])?;
    if problems.is_empty() {
        return Err(Error::usage(
            "--peers torch: this suite has nothing that PyTorch has an operator for",
        ));
    }
    let mut args: Vec<OsString> = vec![script.into(), "--json".into(), figures.clone().into()];
    for problem in problems.lines() {
        args.push("--problem".into());
        args.extend(problem.split(' ').map(OsString::from));
    }
    Launch {
        label: "torch",
        program: python.0.clone(),
        _kept: None,
        args,
        ranks: bench.ranks,
        job: bench.job.clone(),
    }
    .run()?;
    Ok(figures)
}

/// What the program of `bench` prints with `more` options, with which it measures nothing. An option that it
/// does not know is then one message, not one from every rank.
pub fn answer(bench: &Launch, more: &[&str]) -> Result<String> {
    let mut command = Command::new(&bench.program);
    match process::output(command.args(&bench.args).args(more))? {
        (text, status) if status.success() => Ok(text),
        (_, status) => Err(Error::usage(format!(
            "`warpweave bench` refused these options with {status}: its message is above"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::JobOptions;
    use crate::process::tests::script;

    #[test]
    fn every_rank_gets_the_problems_of_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let output = path("output").display().to_string();
        // In the place of Python: the first rank writes the figures, each writes its arguments.
        let python = format!(
            r#"case "$*" in *import*) exit 0 ;; esac
test -s "$1" || exit 7
echo "$*" > {output}.$WARPWEAVE_RANK.$WARPWEAVE_WORLD_SIZE
[ $WARPWEAVE_RANK = 0 ] && echo '{{}}' > "$3" || true"#
        );
        script(&path("python"), &python);
        let program = r#"[ "$*" = "bench --suite gemm --peer-problems 2" ] && exit 0
[ "$*" = "bench --suite quick --peer-problems 2" ] || exit 2
echo all-gather-matmul 8x6x4 bfloat16
echo collectives 64K float16"#;
        script(&path("warpweave"), program);
        let mut bench = Launch {
            label: "bench",
            program: path("warpweave"),
            _kept: None,
            args: ["bench", "--suite", "quick"].map(OsString::from).into(),
            ranks: 2,
            job: JobOptions {
                logs: Some(path("logs")),
                ..Default::default()
            },
        };
        let python = Python::with_torch(vec![path("python")]).unwrap();
        let figures = measure(&python, &bench).unwrap();
        assert_eq!(fs::read_to_string(&figures).unwrap(), "{}\n");
        for rank in 0..2 {
            let args = fs::read_to_string(format!("{output}.{rank}.2")).unwrap();
            let (_, args) = args.split_once(" --json ").unwrap();
            let expected = format!(
                "{} --problem all-gather-matmul 8x6x4 bfloat16 --problem collectives 64K float16\n",
                figures.display()
            );
            assert_eq!(args, expected);
        }
        bench.args[2] = "gemm".into();
        let nothing = measure(&python, &bench).unwrap_err().to_string();
        assert!(nothing.contains("has an operator"), "{nothing}");
        bench.args.push("--wrong".into());
        let refused = measure(&python, &bench).unwrap_err();
        assert!(matches!(refused, Error::Usage(_)), "{refused}");
    }

    #[test]
    fn a_python_without_pytorch_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("python");
        script(&path, "exit 1");
        let error = Python::with_torch(vec![path, "/none/python".into()]).unwrap_err();
        let message = error.to_string();
        for expected in ["/none/python", "WARPWEAVE_PYTHON", "--peers FILE"] {
            assert!(message.contains(expected), "{message}");
        }
    }
}
