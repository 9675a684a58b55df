//! `cargo xtask bench --peers torch`: times PyTorch's operators on the problems of the run before its ranks
//! start.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, Result};
use crate::launch::Launch;
use crate::setup::Python;

/// The script for every rank. It is compiled in, for bundles.
const SCRIPT: &str = include_str!("../../crates/bench/peers/torch_peers.py");

/// Times PyTorch's operators on as many ranks as `bench`, the launch that follows. Returns the file for its
/// `--peers`.
pub fn measure(python: &Python, bench: &Launch) -> Result<PathBuf> {
    let folder = bench.logs.join("peers");
    let (script, figures) = (folder.join("torch_peers.py"), folder.join("torch.json"));
    fs::create_dir_all(&folder).map_err(Error::file("cannot make", &folder))?;
    fs::write(&script, SCRIPT).map_err(Error::file("cannot write", &script))?;
    let mut args: Vec<OsString> = vec![script.into(), "--json".into(), figures.clone().into()];
    for problem in problems(&bench.program, &bench.args, bench.ranks)?.lines() {
        args.push("--problem".into());
        args.extend(problem.split(' ').map(OsString::from));
    }
    Launch {
        label: "torch",
        program: python.program().into(),
        args,
        hosts: bench.hosts.clone(),
        logs: bench.logs.clone(),
        ..*bench
    }
    .run()?;
    Ok(figures)
}

/// The problems of the program, one a line: operation, sizes, element type.
fn problems(program: &Path, args: &[OsString], ranks: usize) -> Result<String> {
    let mut command = Command::new(program);
    command.args(args).arg("--peer-problems");
    command.arg(ranks.to_string());
    command.stderr(std::process::Stdio::inherit());
    let output = command.output().map_err(Error::not_started(program))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(Error::Refused {
            program: "warpweave bench",
            status: output.status,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::tests::script;

    #[test]
    fn every_rank_gets_the_problems_of_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let said = path("said").display().to_string();
        // In the place of Python: the first rank writes the figures, each says what it was told.
        let python = format!(
            r#"case "$*" in *import*) exit 0 ;; esac
test -s "$1" || exit 7
echo "$*" > {said}.$WARPWEAVE_RANK.$WARPWEAVE_WORLD_SIZE
[ $WARPWEAVE_RANK = 0 ] && echo '{{}}' > "$3" || true"#
        );
        script(&path("python"), &python);
        let program = r#"[ "$*" = "bench --suite quick --peer-problems 2" ] || exit 2
echo all-gather-matmul 8x6x4 bfloat16
echo collectives 64K float16"#;
        script(&path("warpweave"), program);
        let mut bench = Launch {
            label: "bench",
            program: path("warpweave"),
            args: ["bench", "--suite", "quick"].map(OsString::from).into(),
            ranks: 2,
            hosts: Vec::new(),
            port: None,
            logs: path("logs"),
            patience: Default::default(),
        };
        let python = Python::with_torch_of([path("python").into()]).unwrap();
        let figures = measure(&python, &bench).unwrap();
        assert_eq!(fs::read_to_string(&figures).unwrap(), "{}\n");
        for rank in 0..2 {
            let told = fs::read_to_string(format!("{said}.{rank}.2")).unwrap();
            let (_, told) = told.split_once(" --json ").unwrap();
            let expected = format!(
                "{} --problem all-gather-matmul 8x6x4 bfloat16 --problem collectives 64K float16\n",
                figures.display()
            );
            assert_eq!(told, expected);
        }
        bench.args.push("--wrong".into());
        let refused = measure(&python, &bench).unwrap_err();
        assert!(matches!(refused, Error::Refused { .. }), "{refused}");
    }

    #[test]
    fn a_python_without_pytorch_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("python");
        script(&path, "exit 1");
        let error = Python::with_torch_of([path.into(), "/none/python".into()]).unwrap_err();
        let told = error.to_string();
        for word in ["/none/python", "WARPWEAVE_PYTHON", "--peers FILE"] {
            assert!(told.contains(word), "{told}");
        }
    }
}
