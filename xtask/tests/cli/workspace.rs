//! The commands that build, in a workspace of the same names whose crates compile in a second.

use std::fs;
use std::os::unix::fs::PermissionsExt;
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
    if has("--replaced") && has("--list") {
        // As a build with other features would, while the ranks are about to start.
        let program = std::env::current_exe().unwrap();
        std::fs::remove_file(program.with_file_name("warpweave")).unwrap();
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

/// The packages: folder, name, features.
const PACKAGES: [(&str, &str, &str); 10] = [
    ("xtask", "xtask", ""),
    ("crates/symm-mem", "warpweave-symm-mem", "nvcc"),
    ("crates/comm", "warpweave-comm", ""),
    ("crates/kernels", "warpweave-kernels", "nvcc"),
    ("crates/gemm", "warpweave-gemm", "nvcc cutlass"),
    ("crates/overlap", "warpweave-overlap", "nvcc"),
    ("crates/warpweave", "warpweave", "nvcc"),
    ("crates/bench", "warpweave-bench", "nvcc cutlass"),
    ("crates/report", "warpweave-report", ""),
    ("examples/rotate", "warpweave-example-rotate", "nvcc"),
];

const FILES: [(&str, &str); 11] = [
    (
        "Cargo.toml",
        "[workspace]\nresolver = \"3\"\nmembers = [\"crates/*\", \"examples/*\", \"xtask\"]\n",
    ),
    ("xtask/src/main.rs", "fn main() {}\n"),
    ("crates/kernels/src/lib.rs", TESTS),
    ("crates/gemm/tests/cuda.rs", DEVICE_TESTS),
    ("crates/gemm/examples/gemm_sweep.rs", "fn main() {}\n"),
    ("crates/bench/src/bin/warpweave.rs", RANK_PROGRAM),
    ("crates/bench/benches/layers.rs", ""),
    ("crates/report/src/bin/warpweave-report.rs", RANK_PROGRAM),
    ("target/toolchain/cuda-13.0/bin/nvcc", NVCC),
    ("target/toolchain/cuda-13.0/lib64/libcudart_static.a", ""),
    ("target/toolchain/cutlass-4.2/include/cutlass/cutlass.h", ""),
];

/// Only asked for its version.
const NVCC: &str = "#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n";

/// One workspace for all tests and all runs of them: its crates are built once.
fn workspace() -> &'static Path {
    static WORKSPACE: OnceLock<PathBuf> = OnceLock::new();
    WORKSPACE.get_or_init(|| {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("xtask-workspace");
        let write = |path: String, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            if fs::read_to_string(&path).ok().as_deref() != Some(text) {
                fs::write(&path, text).unwrap();
            }
            let mode = if text == NVCC { 0o755 } else { 0o644 };
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        for (folder, name, features) in PACKAGES {
            let features = features.split_whitespace().map(|feature| format!("{feature} = []\n"));
            let manifest = format!(
                "[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[features]\n{}",
                features.collect::<String>()
            );
            write(format!("{folder}/Cargo.toml"), &manifest);
            let library = format!("{folder}/src/lib.rs");
            if !FILES.iter().any(|(path, _)| *path == library) {
                write(library, "");
            }
        }
        for (path, text) in FILES {
            write(path.into(), text);
        }
        root
    })
}

/// One command at a time: a build with other features puts another program into the place of the one that
/// runs.
static ALONE: Mutex<()> = Mutex::new(());

fn run(program: &Path, line: &str, env: &[(&str, &str)]) -> Ended {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut command = Command::new(program);
    for name in ["CARGO_TARGET_DIR", "CARGO_MANIFEST_DIR", "RUSTFLAGS"] {
        command.env_remove(name);
    }
    command
        .args(line.split_whitespace())
        .current_dir(workspace())
        .envs([("CARGO_NET_OFFLINE", "true"), ("CUDA_VISIBLE_DEVICES", "")])
        // Of C++, which nothing here compiles, any program will do.
        .envs([("NVCC_CCBIN", "true"), ("CXX", "")])
        .envs(env.iter().copied())
        .stdin(Stdio::null());
    Ended::of(command)
}

fn xtask(line: &str) -> Ended {
    xtask_with(line, &[])
}

fn xtask_with(line: &str, env: &[(&str, &str)]) -> Ended {
    run(Path::new(env!("CARGO_BIN_EXE_xtask")), line, env)
}

#[test]
fn bench_starts_four_host_ranks_of_what_it_built() {
    let ended = xtask("bench --shape 8x8x8 --iterations 2");
    ended.printed("[0] nvcc=false bench --device host --shape 8x8x8 --iterations 2\n");
    let jobs = fs::read_dir(workspace().join("target/warpweave/logs")).unwrap();
    let has_four = |job: PathBuf| (0..4).all(|rank| job.join(format!("rank-{rank}.log")).is_file());
    assert!(jobs.flatten().any(|job| has_four(job.path())));
    xtask("bench --list").printed("fused-matmul\n");
}

#[test]
fn ranks_are_of_the_program_that_was_built_for_them() {
    let ended = xtask("bench --ranks 1 --replaced");
    ended.printed("[0] nvcc=false bench --device host --replaced\n");
    let folder = fs::read_dir(workspace().join("target/release")).unwrap();
    let mut names = folder
        .flatten()
        .map(|file| file.file_name().into_string().unwrap());
    let left = names.find(|name| name.starts_with("warpweave.") && name.ends_with(".run"));
    assert_eq!(left, None);
}

#[test]
fn bench_fails_with_its_ranks_and_refuses_what_no_rank_knows() {
    xtask("bench --log debug").failed(1, &["rank 1 of 4 exited with status 1"]);
    let ended = xtask("bench --suite nonsense");
    ended.failed(2, &[]);
    let messages = ended.err.matches("there are: fused-matmul").count();
    assert_eq!(messages, 1, "printed once: {}", ended.err);
    xtask("bench --device cuda").failed(1, &["no NVIDIA GPU", "doctor"]);
}

#[test]
fn other_commands_pass_their_words_and_the_answer() {
    let baselines = workspace()
        .join("target/warpweave/baselines")
        .display()
        .to_string();
    let kept = format!("--baselines {baselines}");
    for (line, printed) in [
        (
            "plan check all --world 2,4",
            "[] nvcc=false plan check all --world 2,4".to_owned(),
        ),
        (
            "report a.json --out b.html",
            "[] nvcc=false report a.json --out b.html".to_owned(),
        ),
        (
            "timeline ring --shape 8x8x8 --ranks 2",
            "[0] nvcc=false timeline --device host ring --shape 8x8x8".to_owned(),
        ),
        (
            "doctor --measure --out m.toml -n 2",
            "[0] nvcc=false measure --device host --out m.toml".to_owned(),
        ),
        (
            "bench --save-baseline before",
            format!("[0] nvcc=false bench --device host --save-baseline before {kept}"),
        ),
        (
            "compare before after --threshold 3",
            format!("[] nvcc=false compare {kept} --threshold 3 -- before after"),
        ),
    ] {
        xtask(line).printed(&(printed + "\n"));
    }
    for line in ["plan check wrong", "compare before wrong"] {
        xtask(line).failed(1, &[]);
    }
}

#[test]
fn tests_are_counted_in_the_last_line() {
    let ended = xtask("test --device host");
    ended.succeeded();
    let last = ended.out.lines().last();
    assert_eq!(last, Some("1 passed, 0 failed, 3 skipped"));
}

#[test]
fn what_is_missing_is_named_with_what_to_do() {
    let no_cargo = [("CARGO", "/no/such/cargo")];
    xtask_with("plan check all", &no_cargo).failed(1, &["/no/such/cargo", "install Rust"]);
    // What cannot be built is no regression.
    xtask_with("compare a b", &no_cargo).failed(2, &[]);

    let none = ("WARPWEAVE_PYTHON", "/no/such/python");
    let target = tempfile::tempdir().unwrap();
    let elsewhere = ("CARGO_TARGET_DIR", target.path().to_str().unwrap());
    let cures = [
        "install python3 with pip",
        "WARPWEAVE_PYTHON",
        "CUDA_HOME",
        "WARPWEAVE_CUTLASS",
    ];
    let ended = xtask_with("setup", &[elsewhere, none]);
    ended.failed(1, &[&["/no/such/python"][..], &cures].concat());
    assert!(!target.path().join("toolchain/cuda-13.0").exists());
    // Nothing else looks for Python.
    for line in ["bench --list", "bench --ranks 1", "plan check all"] {
        xtask_with(line, &[none]).succeeded();
    }

    let nowhere = tempfile::tempdir().unwrap();
    let mut outside = crate::xtask(&["plan", "check", "all"]);
    outside
        .current_dir(nowhere.path())
        .env_remove("CARGO_MANIFEST_DIR");
    Ended::of(outside).failed(1, &["no Warpweave workspace"]);
}

#[test]
fn a_toolchain_of_the_users_own_is_taken_and_what_it_lacks_provided() {
    let root = workspace().join("target/toolchain");
    let own = |name: &str| root.join(name).display().to_string();
    let (cuda, cutlass) = (own("cuda-13.0"), own("cutlass-4.2"));
    let target = tempfile::tempdir().unwrap();
    let folder = target.path().join("bundle").display().to_string();
    let line = format!("bundle --no-tests {folder}");
    let env = [
        ("CARGO_TARGET_DIR", target.path().to_str().unwrap()),
        ("WARPWEAVE_PYTHON", "/no/such/python"),
        ("CUDA_HOME", &cuda),
        ("WARPWEAVE_CUTLASS", &cutlass),
    ];
    // Without CUTLASS, which only Python can provide.
    xtask_with(&line, &env[..3]).failed(1, &["/no/such/python"]);
    let wrong = ("WARPWEAVE_CUTLASS", "/no/such/cutlass");
    xtask_with(&line, &[&env[..3], &[wrong]].concat()).failed(1, &["/no/such/cutlass"]);
    xtask_with(&line, &env).succeeded();
    assert!(!target.path().join("toolchain/cuda-13.0").exists());
}

#[test]
fn a_missing_compiler_of_cpp_is_told_before_anything_is_downloaded() {
    let target = tempfile::tempdir().unwrap();
    let env = [
        ("CARGO_TARGET_DIR", target.path().to_str().unwrap()),
        ("WARPWEAVE_PYTHON", "/no/such/python"),
        ("PATH", "/no/such"),
        ("NVCC_CCBIN", ""),
    ];
    xtask_with("bundle folder", &env).failed(1, &["no C++ host compiler", "g++ or clang++"]);
    // And before that, that the folder is not to be filled.
    xtask_with("bundle crates", &env).failed(2, &["crates holds something that is no bundle"]);
}

#[test]
fn bench_on_gpus_tells_which_libraries_it_lacks() {
    let folder = tempfile::tempdir().unwrap();
    let smi = folder.path().join("nvidia-smi");
    fs::write(&smi, "#!/bin/sh\necho 'GPU 0: one'\n").unwrap();
    fs::set_permissions(&smi, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!(
        "{}:{}",
        folder.path().display(),
        std::env::var("PATH").unwrap()
    );
    let env = [
        ("PATH", path.as_str()),
        ("CUDA_VISIBLE_DEVICES", "0"),
        ("WARPWEAVE_NCCL", "/no/such/libnccl.so.2"),
        ("WARPWEAVE_CUBLASLT", "libcublasLt.so"),
    ];
    let ended = xtask_with("bench", &env);
    ended.printed("[0] nvcc=true bench --device cuda\n");
    let lacks =
        "warning: no NCCL (/no/such/libnccl.so.2 (WARPWEAVE_NCCL)): what needs it is not measured";
    assert!(
        ended.err.contains(lacks) && !ended.err.contains("cuBLASLt"),
        "{}",
        ended.err
    );
}

#[test]
fn what_runs_leave_is_in_the_target_directory_that_cargo_is_configured_for() {
    let target = tempfile::tempdir().unwrap();
    let elsewhere = ("CARGO_BUILD_TARGET_DIR", target.path().to_str().unwrap());
    xtask_with("bench --ranks 1", &[elsewhere]).succeeded();
    assert!(target.path().join("warpweave/logs").is_dir());
}

#[test]
fn a_bundle_runs_without_cargo() {
    let folder = tempfile::tempdir().unwrap();
    let made = folder.path().join("made/bundle");
    let ended = xtask(&format!("bundle --pack {}", made.display()));
    ended.succeeded();
    let archive = made.with_extension("tar.xz");
    let unpack = format!("tar -xJf {}", archive.display());
    assert!(
        ended.out.contains(&unpack) && ended.out.contains("MiB"),
        "{}",
        ended.out
    );
    assert!(fs::metadata(&archive).unwrap().len() > 0);
    // As the output says, in another folder.
    let mut shell = Command::new("sh");
    shell.args(["-c", &unpack]).current_dir(folder.path());
    assert!(shell.status().unwrap().success());
    let bundle = folder.path().join("bundle");
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

    // The workspace has a dummy for xtask: this one replaces it.
    let program = bundle.join("xtask");
    fs::copy(env!("CARGO_BIN_EXE_xtask"), &program).unwrap();
    let no_cargo = [("CARGO", "/no/such/cargo")];
    let ended = run(&program, "bench --ranks 2", &no_cargo);
    ended.printed("[0] nvcc=true bench --device host\n");
    assert!(bundle.join("logs").is_dir());
    run(&program, "test --device host", &no_cargo).failed(2, &[]);

    // A bundle may be made anew in its place, and nothing else is overwritten.
    let thesis = bundle.join("thesis.tex");
    fs::write(&thesis, "years of work").unwrap();
    xtask(&format!(
        "bundle --no-tests --features= {}",
        bundle.display()
    ))
    .succeeded();
    assert!(!bundle.join("bin/tests").exists() && thesis.is_file());
    xtask("bundle crates").failed(2, &[]);
    assert!(workspace().join("crates/gemm/src/lib.rs").is_file());
}
