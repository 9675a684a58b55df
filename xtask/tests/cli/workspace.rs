//! The commands that build, in a workspace of the same names whose crates compile in a second.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::Ended;

const RANK_PROGRAM: &str = r#"
fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| words.iter().any(|w| w == word);
    if has("nonsense") {
        eprintln!("no suite `nonsense`; there are: fused-matmul");
        std::process::exit(2);
    }
    if has("--list") {
        println!("fused-matmul");
        return;
    }
    let rank = std::env::var("WARPWEAVE_RANK").unwrap_or_default();
    println!("[{rank}] nvcc={} {}", cfg!(feature = "nvcc"), words.join(" "));
    if has("wrong") || (has("debug") && rank == "1") {
        std::process::exit(1);
    }
}
"#;

const TESTS: &str = r#"
#[test] fn passes() {}
#[test] #[ignore = "slow"] fn is_slow() { panic!("not to be run") }
"#;

const DEVICE_TESTS: &str = r#"
#[test] #[ignore = "needs a GPU"]
fn works() { assert_eq!(std::env::var("WARPWEAVE_TEST_DEVICE").unwrap(), "cuda") }
#[test] #[ignore = "needs a GPU"] fn ends() { assert!(std::env::var_os("FAIL").is_none()) }
"#;

/// One workspace for all tests and all runs of them: what it holds is built once.
fn workspace() -> &'static Path {
    static WORKSPACE: OnceLock<PathBuf> = OnceLock::new();
    WORKSPACE.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("xtask-workspace");
        let write = |path: &str, text: &str| {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            if fs::read_to_string(&path).ok().as_deref() != Some(text) {
                fs::write(path, text).unwrap();
            }
        };
        write(
            "Cargo.toml",
            "[workspace]\nresolver = \"3\"\nmembers = [\"crates/*\", \"examples/*\", \"xtask\"]\n",
        );
        let package = |name: &str, features: &str| {
            let head =
                format!("[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n");
            head + &features
                .split_whitespace()
                .fold("[features]\n".into(), |text, f| format!("{text}{f} = []\n"))
        };
        write("xtask/Cargo.toml", &package("xtask", ""));
        write("xtask/src/main.rs", "fn main() {}\n");
        for (name, features) in [
            ("symm-mem", "nvcc"),
            ("comm", ""),
            ("kernels", "nvcc"),
            ("gemm", "nvcc cutlass"),
            ("overlap", "nvcc"),
        ] {
            write(
                &format!("crates/{name}/Cargo.toml"),
                &package(&format!("warpweave-{name}"), features),
            );
            write(&format!("crates/{name}/src/lib.rs"), "");
        }
        write("crates/warpweave/Cargo.toml", &package("warpweave", "nvcc"));
        write("crates/warpweave/src/lib.rs", "");
        write(
            "examples/rotate/Cargo.toml",
            &package("warpweave-example-rotate", "nvcc"),
        );
        write("examples/rotate/src/lib.rs", "");
        write("crates/kernels/src/lib.rs", TESTS);
        write("crates/gemm/tests/cuda.rs", DEVICE_TESTS);
        write("crates/gemm/examples/gemm_sweep.rs", "fn main() {}\n");
        let bench = package("warpweave-bench", "nvcc cutlass");
        write(
            "crates/bench/Cargo.toml",
            &(bench + "[[bin]]\nname = \"warpweave\"\npath = \"src/main.rs\"\n"),
        );
        write("crates/bench/src/main.rs", RANK_PROGRAM);
        write("crates/bench/benches/layers.rs", "");
        write("target/toolchain/cuda-13.0/bin/nvcc", "");
        write("target/toolchain/cutlass-4.2/include/cutlass.h", "");
        folder
    })
}

/// One command at a time: a build with other features puts another program into the place of the one that
/// runs.
static ALONE: Mutex<()> = Mutex::new(());

fn run(program: &Path, line: &str, env: &[(&str, &str)]) -> Ended {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let output = Command::new(program)
        .args(line.split_whitespace())
        .current_dir(workspace())
        .env_remove("CARGO_TARGET_DIR")
        .env_remove("CARGO_MANIFEST_DIR")
        .env_remove("RUSTFLAGS")
        .env("CARGO_NET_OFFLINE", "true")
        .env("CUDA_VISIBLE_DEVICES", "")
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    output.into()
}

fn xtask(line: &str) -> Ended {
    run(Path::new(env!("CARGO_BIN_EXE_xtask")), line, &[])
}

fn logs_of_jobs() -> Vec<PathBuf> {
    let folder = fs::read_dir(workspace().join("target/warpweave/logs")).unwrap();
    folder.flatten().map(|entry| entry.path()).collect()
}

#[test]
fn bench_starts_four_host_ranks_of_what_it_built() {
    let ended = xtask("bench --shape 8x8x8 --iterations 2");
    ended.ends(0, &[]);
    assert_eq!(
        ended.out,
        "[0] nvcc=false bench --device host --shape 8x8x8 --iterations 2\n"
    );
    let four = |job: &PathBuf| (0..4).all(|rank| job.join(format!("rank-{rank}.log")).is_file());
    assert!(logs_of_jobs().iter().any(four));

    let ended = xtask("bench --cuda-features --ranks 1");
    ended.says("[0] nvcc=true bench --device host\n");
    let ended = xtask("bench --list");
    ended.says("fused-matmul\n");
}

#[test]
fn bench_fails_with_its_ranks_and_refuses_what_no_rank_knows() {
    let ended = xtask("bench --log debug");
    ended.ends(1, &["rank 1 of 4 exited with status 1"]);

    let ended = xtask("bench --suite nonsense");
    assert_eq!(ended.code, Some(2));
    assert_eq!(
        ended.err.matches("there are: fused-matmul").count(),
        1,
        "said once: {}",
        ended.err
    );

    let ended = xtask("bench --device cuda");
    ended.ends(1, &["no NVIDIA GPU", "doctor"]);
}

#[test]
fn plan_and_report_pass_their_words_and_the_answer() {
    for line in ["plan check all --world 2,4", "report a.json --out b.html"] {
        let ended = xtask(line);
        let told = format!("[] nvcc=false {line}\n");
        assert_eq!((ended.code, ended.out), (Some(0), told));
    }
    assert_eq!(xtask("plan check wrong").code, Some(1));
}

#[test]
fn baselines_are_kept_in_the_target_folder_and_a_comparison_passes_its_answer() {
    let ended = xtask("bench --save-baseline before");
    ended.ends(0, &[]);
    let folder = workspace().join("target/warpweave/baselines");
    let folder = folder.display();
    assert_eq!(
        ended.out,
        format!("[0] nvcc=false bench --device host --save-baseline before --baselines {folder}\n")
    );
    let ended = xtask("compare before after --threshold 3");
    assert_eq!(
        (ended.code, ended.out),
        (
            Some(0),
            format!("[] nvcc=false compare --baselines {folder} --threshold 3 -- before after\n")
        )
    );
    assert_eq!(xtask("compare before wrong").code, Some(1));
    // What cannot be built is no regression.
    let program = Path::new(env!("CARGO_BIN_EXE_xtask"));
    let ended = run(program, "compare a b", &[("CARGO", "/no/such/cargo")]);
    ended.ends(2, &[]);
}

#[test]
fn tests_are_counted_in_the_last_line() {
    let ended = xtask("test --device host");
    assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
    assert_eq!(
        ended.out.lines().last(),
        Some("1 passed, 0 failed, 3 skipped")
    );
}

#[test]
fn without_cargo_the_message_says_what_to_do() {
    let program = Path::new(env!("CARGO_BIN_EXE_xtask"));
    let ended = run(program, "plan check all", &[("CARGO", "/no/such/cargo")]);
    ended.ends(1, &["/no/such/cargo", "install Rust"]);
}

#[test]
fn without_python_the_message_says_what_to_install_instead() {
    let program = Path::new(env!("CARGO_BIN_EXE_xtask"));
    let target = tempfile::tempdir().unwrap();
    let variables = [
        ("CARGO_TARGET_DIR", target.path().to_str().unwrap()),
        ("WARPWEAVE_PYTHON", "/no/such/python"),
    ];
    let ended = run(program, "setup", &variables);
    ended.ends(1, &[]);
    assert!(!target.path().join("toolchain/cuda-13.0").exists());
    for word in [
        "/no/such/python",
        "install python3 with pip",
        "WARPWEAVE_PYTHON",
        "CUDA_HOME",
        "WARPWEAVE_CUTLASS",
    ] {
        assert!(ended.err.contains(word), "no `{word}` in: {}", ended.err);
    }
}

#[test]
fn nothing_else_looks_for_python() {
    let program = Path::new(env!("CARGO_BIN_EXE_xtask"));
    let none = [("WARPWEAVE_PYTHON", "/no/such/python")];
    for line in ["bench --list", "bench --ranks 1", "plan check all"] {
        let ended = run(program, line, &none);
        assert_eq!(ended.code, Some(0), "{line}: {}", ended.err);
    }
}

#[test]
fn outside_a_workspace_the_message_says_so() {
    let nowhere = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["plan", "check", "all"])
        .current_dir(nowhere.path())
        .env_remove("CARGO_MANIFEST_DIR")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8(output.stderr)
            .unwrap()
            .contains("no Warpweave workspace")
    );
}

#[test]
fn a_bundle_runs_without_cargo() {
    let folder = tempfile::tempdir().unwrap();
    let made = folder.path().join("made/bundle");
    let ended = xtask(&format!("bundle --pack {}", made.display()));
    ended.ends(0, &[]);
    let archive = made.with_extension("tar.xz");
    let unpack = format!("tar -xJf {}", archive.display());
    assert!(ended.out.contains(&unpack), "{}", ended.out);
    assert!(fs::metadata(&archive).unwrap().len() > 0);
    // As the output says, in another folder.
    let mut shell = Command::new("sh");
    shell.args(["-c", &unpack]).current_dir(folder.path());
    assert!(shell.status().unwrap().success());
    let bundle = folder.path().join("bundle");
    assert!(ended.out.contains("MiB"), "{}", ended.out);
    for file in [
        "xtask",
        "bundle.json",
        "bin/warpweave",
        "bin/tests/gemm-cuda",
        "bin/benches/bench-layers",
        "bin/examples/gemm-gemm_sweep",
    ] {
        assert!(bundle.join(file).is_file(), "{file}");
    }
    let tests = fs::read_dir(bundle.join("bin/tests")).unwrap().count();
    assert_eq!(tests, 1, "only the programs with tests for GPUs");

    // The workspace's xtask is a stand-in: this one takes its place.
    let program = bundle.join("xtask");
    fs::copy(env!("CARGO_BIN_EXE_xtask"), &program).unwrap();
    let no_cargo = [("CARGO", "/no/such/cargo")];
    let ended = run(&program, "bench --ranks 2", &no_cargo);
    ended.says("[0] nvcc=true bench --device host\n");
    assert!(bundle.join("logs").is_dir());
    let ended = run(&program, "test --device host", &no_cargo);
    ended.ends(2, &[]);

    // A bundle may be made anew in its place, and nothing else is overwritten.
    let ended = xtask(&format!(
        "bundle --no-tests --features= {}",
        bundle.display()
    ));
    ended.ends(0, &[]);
    assert!(!bundle.join("bin/tests").exists());
    assert_eq!(xtask("bundle crates").code, Some(2));
    assert!(workspace().join("crates/gemm/src/lib.rs").is_file());
}
