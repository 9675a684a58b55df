//! The program with its processes: the same tokens, a lost rank, Ctrl-C.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

const PROGRAM: &str = env!("CARGO_BIN_EXE_warpweave-example-llama");

/// Longer than the program takes to see that a rank is lost, shorter than the deadline of a wait for a peer.
const SOON: Duration = Duration::from_secs(8);

#[test]
fn without_arguments_it_ends_with_the_same_tokens() {
    let output = Command::new(PROGRAM).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(text.ends_with("the same tokens\n"), "{text}");
    assert!(text.contains("Warpweave, 4 ranks"), "{text}");
}

#[test]
fn the_bench_writes_its_report() {
    let folder = tempfile::tempdir().unwrap();
    let mut bench = Command::new(PROGRAM);
    bench.args([
        "bench", "--ranks", "2", "--layers", "1", "--rounds", "1", "--steps", "2", "--tune",
        "--report",
    ]);
    let output = bench.arg(folder.path()).output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = fs::read_to_string(folder.path().join("figures.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let figures = json["figures"].as_array().unwrap();
    // Two prompts and two batch sizes: batch-invariant, without communication, and with the fastest layers.
    assert_eq!(figures.len(), 12);
    assert!(
        figures
            .iter()
            .all(|figure| figure["seconds"].as_f64().unwrap() > 0.0),
        "{text}"
    );
    for name in ["tables.md", "prefill.svg", "decode.svg"] {
        let text = fs::read_to_string(folder.path().join(name)).unwrap();
        for way in [
            "Warpweave without communication",
            "Warpweave, not batch-invariant",
        ] {
            assert!(text.contains(way), "{name}: {text}");
        }
    }
}

#[test]
fn a_lost_rank_is_named_and_ends_the_job() {
    let (job, ranks) = started();
    kill_process(ranks[2], Signal::KILL).unwrap();
    let killed = Instant::now();
    let output = job.output();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("error: rank 2 of 4 was killed by signal 9"),
        "{text}"
    );
    // As do the ranks that are left.
    assert!(text.contains("lost rank 2"), "{text}");
    assert!(killed.elapsed() < SOON, "took {:?}", killed.elapsed());
    assert!(ranks.iter().all(|rank| is_gone(*rank)));
}

#[test]
fn an_interrupt_ends_all_ranks() {
    let (job, ranks) = started();
    kill_process(Pid::from_child(&job.child), Signal::INT).unwrap();
    let interrupted = Instant::now();
    let output = job.output();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{text}");
    assert_eq!(text, "error: interrupted; all ranks have ended\n");
    assert!(
        interrupted.elapsed() < SOON,
        "took {:?}",
        interrupted.elapsed()
    );
    assert!(ranks.iter().all(|rank| is_gone(*rank)));
}

#[test]
fn one_rank_alone_writes_its_tokens() {
    let folder = checkpoint();
    let tokens = |ranks: &str| -> Vec<Vec<u32>> {
        let file = folder.path().join("tokens.json");
        let mut run = run(folder.path(), "8");
        let output = run.args(["--ranks", ranks, "--json"]).arg(&file).output();
        assert!(output.unwrap().status.success());
        let text = fs::read_to_string(&file).unwrap();
        fs::remove_file(&file).unwrap();
        serde_json::from_str(&text).unwrap()
    };
    let alone = tokens("0");
    assert_eq!(alone.len(), 2);
    assert_eq!(alone, tokens("2"));
}

#[test]
fn an_interrupt_ends_one_rank_alone_during_a_prompt() {
    let folder = checkpoint();
    let mut command = run(folder.path(), "8");
    command.args(["--ranks", "0", "--rows", "100000"]);
    // All in one step, which takes far longer than a test may.
    let prompt = vec!["so"; 4000].join(" ");
    for _ in 0..20 {
        command.args(["--prompt", &prompt]);
    }
    let child = command.spawn().unwrap();
    let began = Instant::now();
    while !catches_interrupts(child.id()) {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "it does not begin"
        );
        thread::sleep(Duration::from_millis(50));
    }
    thread::sleep(Duration::from_secs(1));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let interrupted = Instant::now();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{text}");
    assert!(
        interrupted.elapsed() < SOON,
        "took {:?}",
        interrupted.elapsed()
    );
}

#[test]
fn a_rank_that_cannot_load_its_weights_ends_the_job() {
    let folder = checkpoint();
    let second = folder.path().join("model-00002-of-00002.safetensors");
    fs::OpenOptions::new()
        .write(true)
        .open(second)
        .unwrap()
        .set_len(20_000)
        .unwrap();
    let output = run(folder.path(), "8").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("error: tensor `model.layers."), "{text}");
    assert!(text.contains("truncated"), "{text}");
}

/// Whether a process has a handler of SIGINT.
fn catches_interrupts(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = u64::from_str_radix(caught.unwrap().trim(), 16).unwrap();
    caught >> (Signal::INT.as_raw() - 1) & 1 == 1
}

struct Job {
    child: Child,
    _folder: tempfile::TempDir,
}

impl Job {
    fn output(self) -> Output {
        self.child.wait_with_output().unwrap()
    }
}

fn checkpoint() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let made = Command::new(PROGRAM)
        .arg("make")
        .arg(folder.path())
        .status()
        .unwrap();
    assert!(made.success());
    folder
}

fn run(checkpoint: &Path, tokens: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.arg("run").arg("--checkpoint").arg(checkpoint);
    command.args([
        "--prompt",
        "a",
        "--prompt",
        "we weave",
        "--tokens",
        tokens,
        "--temperature",
        "1",
    ]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A job in the middle of its work, and its ranks.
fn started() -> (Job, Vec<Pid>) {
    let folder = checkpoint();
    // Without an end of text it would generate for half a minute.
    let config = folder.path().join("config.json");
    let text = fs::read_to_string(&config).unwrap();
    let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
    value["eos_token_id"] = serde_json::Value::Null;
    fs::write(&config, value.to_string()).unwrap();
    let child = run(folder.path(), "4000").spawn().unwrap();
    let began = Instant::now();
    let ranks = loop {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "the ranks do not begin"
        );
        thread::sleep(Duration::from_millis(50));
        let ranks = ranks(child.id());
        // Tokens are generated by many short steps of the streams' threads, which loading has none of.
        if ranks.len() == 4 && ranks.iter().all(|rank| switches(*rank) > 2000) {
            break ranks;
        }
    };
    (
        Job {
            child,
            _folder: folder,
        },
        ranks,
    )
}

/// The processes of the ranks, by rank.
fn ranks(parent: u32) -> Vec<Pid> {
    let children =
        fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    let mut ranks = Vec::new();
    for child in children.split_whitespace() {
        let mut environment = Vec::new();
        let file = fs::File::open(format!("/proc/{child}/environ"));
        if file
            .and_then(|mut file| file.read_to_end(&mut environment))
            .is_err()
        {
            continue;
        }
        let environment = String::from_utf8_lossy(&environment).into_owned();
        let rank = environment
            .split('\0')
            .find_map(|variable| variable.strip_prefix("WARPWEAVE_RANK="));
        if let Some(rank) = rank.and_then(|rank| rank.parse::<usize>().ok()) {
            ranks.push((rank, Pid::from_raw(child.parse().unwrap()).unwrap()));
        }
    }
    ranks.sort_unstable_by_key(|(rank, _)| *rank);
    ranks.into_iter().map(|(_, process)| process).collect()
}

/// How often the threads of a process have waited for something.
fn switches(process: Pid) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero()));
    let statuses = tasks
        .into_iter()
        .flatten()
        .flatten()
        .map(|task| task.path().join("status"));
    let texts = statuses.filter_map(|status| fs::read_to_string(status).ok());
    let counts = texts.filter_map(|text| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse::<u64>().ok()
    });
    counts.sum()
}

fn is_gone(process: Pid) -> bool {
    !Path::new(&format!("/proc/{}", process.as_raw_nonzero())).exists()
}
