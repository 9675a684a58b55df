//! Every example is run as a user would run it, and what it prints is read.
//!
//! `cargo test` builds the examples of the packages that it tests; in a bundle they lie next to the test
//! programs.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The program of an example, where cargo puts it or where a bundle has it.
fn program(package: &str, example: &str) -> PathBuf {
    let test = std::env::current_exe().expect("this program");
    let target = test.parent().and_then(Path::parent).expect("its folder");
    let places = [example.to_owned(), format!("{package}-{example}")];
    let places = places.map(|name| target.join("examples").join(name));
    let found = places.iter().find(|place| place.is_file());
    found
        .unwrap_or_else(|| {
            panic!(
                "`{example}` has not been built: cargo build -p warpweave-{package} --example {example}"
            )
        })
        .clone()
}

fn example(package: &str, name: &str) -> Command {
    let mut command = Command::new(program(package, name));
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .env("WARPWEAVE_TIMEOUT", "20");
    command
}

/// What it printed, if it ended well.
fn said(command: &mut Command) -> String {
    let output = command.output().expect("the example starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {text}{errors}", output.status);
    text
}

fn on_host(name: &str) -> String {
    said(example("warpweave", name).env("CUDA_VISIBLE_DEVICES", ""))
}

#[test]
fn two_processes_share_a_buffer() {
    let text = on_host("share_buffer");
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    let [zero, one] = lines[..] else {
        panic!("{text}")
    };
    let writer = |line: &str| line.rsplit(' ').next().unwrap().parse::<u32>().unwrap();
    assert!(
        zero.starts_with("rank 0 on host: written by rank 1, process "),
        "{text}"
    );
    assert!(
        one.starts_with("rank 1 on host: written by rank 0, process "),
        "{text}"
    );
    assert_ne!(writer(zero), writer(one), "two processes");
}

#[test]
fn launchers_start_the_two_processes_by_their_variables() {
    // Free a moment ago: the listener is gone by the end of the line.
    let address = TcpListener::bind("127.0.0.1:0").and_then(|port| port.local_addr());
    let store = address.unwrap().to_string();
    let variables: [[&str; 3]; 3] = [
        ["RANK", "WORLD_SIZE", "LOCAL_RANK"],
        [
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK",
        ],
        ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"],
    ];
    for [rank, world, local] in variables {
        let start = |me: &str| {
            let mut command = example("warpweave", "share_buffer");
            command
                .env("CUDA_VISIBLE_DEVICES", "")
                .env("WARPWEAVE_STORE", &store)
                .env("WARPWEAVE_JOB_TOKEN", "one for this test")
                .envs([(rank, me), (world, "2"), (local, me)]);
            command
        };
        let zero = start("0").spawn().unwrap();
        let one = said(&mut start("1"));
        let zero = String::from_utf8(zero.wait_with_output().unwrap().stdout).unwrap();
        assert!(one.contains("written by rank 0"), "{rank}: {one}");
        assert!(zero.contains("written by rank 1"), "{rank}: {zero}");
    }
}

/// Whether a launcher is here and says what it is.
fn is_here(launcher: &str, ask: &str, answer: &str) -> bool {
    let asked = Command::new(launcher)
        .arg(ask)
        .stdin(Stdio::null())
        .output();
    asked.is_ok_and(|output| {
        output.status.success() && String::from_utf8_lossy(&output.stdout).contains(answer)
    })
}

#[test]
fn launchers_that_are_here_start_the_two_processes() {
    let open_mpi = "--allow-run-as-root --oversubscribe -np 2";
    let torchrun = "--standalone --no-python --nproc-per-node 2";
    // `srun` needs an allocation, in which this may be run by hand.
    for (launcher, ask, answer, options) in [
        ("mpirun", "--version", "Open MPI", open_mpi),
        ("torchrun", "--help", "nproc", torchrun),
    ] {
        if !is_here(launcher, ask, answer) {
            println!("there is no {launcher}: only its variables were tried");
            continue;
        }
        let text = said(
            Command::new(launcher)
                .args(options.split(' '))
                .arg(program("warpweave", "share_buffer"))
                .env("CUDA_VISIBLE_DEVICES", "")
                .env("WARPWEAVE_TIMEOUT", "20")
                .stdin(Stdio::null()),
        );
        for rank in 0..2 {
            let written = format!("written by rank {rank}, process ");
            assert!(text.contains(&written), "{launcher}: {text}");
        }
    }
}

#[test]
fn a_part_of_the_variables_is_an_error_that_names_the_rest() {
    let output = example("warpweave", "share_buffer")
        .env("WARPWEAVE_RANK", "0")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("missing: WARPWEAVE_WORLD_SIZE"), "{text}");
}

#[test]
fn an_all_reduce_takes_fifty_lines() {
    let text = on_host("all_reduce");
    assert_eq!(
        text,
        "4 ranks: each of the 100000 sums is 10 on every rank\n"
    );
    let source = include_str!("../examples/all_reduce.rs");
    let code = |line: &&str| !line.trim().is_empty() && !line.trim().starts_with("//");
    let lines = source.lines().filter(code).count();
    assert!(lines <= 50, "{lines} lines");
}

#[test]
fn a_tensor_parallel_mlp_is_that_of_one_rank() {
    let text = on_host("tensor_parallel_mlp");
    for rank in 0..4 {
        let line = format!("rank {rank} of 4 on host: 12 steps of ");
        assert!(text.contains(&line), "{text}");
    }
    assert_eq!(
        text.matches("elements of y as on one rank").count(),
        4,
        "{text}"
    );
}

#[test]
fn batches_of_any_size_allocate_nothing_and_a_tuning_is_remembered() {
    let folder = std::env::temp_dir().join(format!("warpweave-layers-{}", std::process::id()));
    let run = |tune: &[&str]| {
        said(
            example("warpweave", "varying_batch")
                .args(tune)
                .env("CUDA_VISIBLE_DEVICES", "")
                .env("WARPWEAVE_CACHE_DIR", &folder),
        )
    };
    let schedules = |text: &str| {
        let line = text.lines().find(|line| line.starts_with("schedules: "));
        line.expect(text).to_owned()
    };
    let by_model = run(&[]);
    for part in [
        "weights: 32768 bytes on each rank, held once",
        "device allocations during 400 calls: 0",
        "rows: bit-equal at every m",
    ] {
        assert!(by_model.contains(part), "no `{part}` in: {by_model}");
    }
    let kept = || std::fs::read_dir(&folder).map_or(0, Iterator::count);
    assert_eq!(kept(), 0, "nothing was measured");
    let tuned = run(&["--tune"]);
    assert_eq!(kept(), 1);
    // Another process chooses as the one that measured.
    assert_eq!(schedules(&run(&[])), schedules(&tuned));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_plan_of_ones_own_is_printed_proved_broken_and_run() {
    let text = on_host("own_plan");
    for part in [
        "%Plan shift { (rank 0 of 4)",
        "shift, 8 ranks, 3 calls back to back: holds",
        "without the credit: race on recv@0[0..16, 0..64]",
        "a schedule that fails",
        "rank 3: 5 calls, each with the block of rank 2",
    ] {
        assert!(text.contains(part), "no `{part}` in: {text}");
    }
}

#[test]
fn adopting_cudarc_says_so_where_there_is_no_gpu() {
    let text = said(example("symm-mem", "adopt").env("CUDA_VISIBLE_DEVICES", ""));
    assert!(text.starts_with("nothing to show here: "), "{text}");
}

#[test]
#[ignore = "needs two GPUs and the feature nvcc"]
fn cuda_examples_run_on_gpus() {
    for name in ["share_buffer", "tensor_parallel_mlp"] {
        let text = said(&mut example("warpweave", name));
        assert!(
            text.contains("NVIDIA") && !text.contains("on host"),
            "{text}"
        );
    }
    assert!(said(&mut example("warpweave", "all_reduce")).contains("on every rank"));
    assert!(said(&mut example("warpweave", "own_plan")).contains("with the block of rank 0"));
    let text = said(&mut example("symm-mem", "adopt"));
    assert!(text.contains("arrived in its slice"), "{text}");
}
