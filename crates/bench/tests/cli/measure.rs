//! `warpweave measure` on the host backend, by real processes.

use crate::job;

use std::time::Duration;

const PATIENT: Duration = Duration::from_secs(30);
const LIMIT: Duration = Duration::from_secs(120);

/// Measures with `world` ranks and gives the text of the machine and what a simulation on it says.
fn measured(world: usize) -> (String, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("host.toml");
    let path = file.to_str().unwrap();
    let args = ["measure", "--device", "host", "--out", path];
    let outcome = job::run(&job::all(world, &args), PATIENT, LIMIT);
    for (rank, output) in outcome.ranks.iter().enumerate() {
        assert!(output.status.success(), "{}", outcome.errors(rank));
    }
    let text = std::fs::read_to_string(&file).unwrap();
    let args = ["plan", "simulate", "baselineCudaAllgatherMatmul"];
    let output = job::warpweave()
        .args(args)
        .args(["--machine", path, "--world", &world.to_string()])
        .args(["--shape", "64x64x64"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}\n{output:?}");
    (text, said)
}

#[test]
fn four_host_ranks_measure_a_machine_that_simulates() {
    let (text, said) = measured(4);
    assert!(
        said.contains("4 × host") && said.contains("simulated"),
        "{said}"
    );
    assert!(text.starts_with("gpus_per_node = 4\n"), "{text}");
    // There is no NCCL on the host: its times stay, and say so. Our own were measured.
    let remarked = |key: &str| {
        let lines: Vec<&str> = text.lines().collect();
        let at = lines
            .iter()
            .position(|line| line.starts_with(&format!("{key} = ")));
        lines[at.unwrap() - 1].starts_with("# not measured: ")
    };
    assert!(remarked("boost_us") && remarked("all-gather"), "{text}");
    for key in [
        "copy_engine_gbs",
        "concurrent_copies",
        "pulls_gbs",
        "memory_gbs",
        "copy_us",
    ] {
        assert!(!remarked(key), "{key}: {text}");
    }
    let ours = text
        .split("[collectives.symmetric_memory.times]")
        .nth(1)
        .unwrap();
    assert!(
        !ours.split('[').next().unwrap().contains("not measured"),
        "{text}"
    );
}

#[test]
fn one_rank_alone_measures_what_it_can() {
    let (text, said) = measured(1);
    assert!(said.contains("1 × host"), "{said}");
    assert!(text.contains("# not measured: one rank alone"), "{text}");
}

#[test]
fn what_was_measured_is_kept_and_used_without_being_asked() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    let environment = [
        ("WARPWEAVE_CACHE_DIR", cache.to_str().unwrap()),
        // Little enough for the pipes, which are read at the end.
        ("RUST_LOG", "warpweave_comm::measured=info"),
    ];
    let run = |args: &[&str]| {
        let outcome = job::run_in(&job::all(2, args), &environment, PATIENT, LIMIT);
        for (rank, output) in outcome.ranks.iter().enumerate() {
            assert!(output.status.success(), "{}", outcome.errors(rank));
        }
        outcome.errors(0)
    };
    let out = folder.path().join("machine.toml");
    run(&[
        "measure",
        "--device",
        "host",
        "--out",
        out.to_str().unwrap(),
    ]);
    let mut kept: Vec<_> = std::fs::read_dir(&cache)
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    kept.sort();
    let [costs, machine] = &kept[..] else {
        panic!("{kept:?}");
    };
    let text = std::fs::read_to_string(costs).unwrap();
    for line in [
        "all-reduce 2 two-shot ",
        "broadcast 2 packets ",
        "all-to-all 2 staged ",
    ] {
        assert!(text.contains(line), "{text}");
    }
    let written = std::fs::read_to_string(machine).unwrap();
    assert!(written.ends_with(&std::fs::read_to_string(&out).unwrap()));

    let bench = job::args("bench --suite collectives --device host --sizes 4K");
    let log = run(&[&bench[..], &["--impl", "select", "--iterations", "1"]].concat());
    assert!(log.contains(costs.to_str().unwrap()), "{log}");
    assert_eq!(
        std::fs::read_to_string(costs).unwrap(),
        text,
        "a part is not kept"
    );

    let simulated = job::warpweave()
        .args(job::args(
            "plan simulate baselineCudaAllgatherMatmul --world 2",
        ))
        .args(["--shape", "64x64x64"])
        .envs(environment)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&simulated.stdout);
    assert!(said.contains("2 × host"), "{simulated:?}");
}

#[test]
fn what_cannot_be_kept_is_an_error_after_the_machine_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, out) = (folder.path().join("cache"), folder.path().join("out.toml"));
    std::fs::write(&cache, "a file where the folder should be").unwrap();
    let args = [
        "measure",
        "--device",
        "host",
        "--out",
        out.to_str().unwrap(),
    ];
    let environment = [("WARPWEAVE_CACHE_DIR", cache.to_str().unwrap())];
    let outcome = job::run_in(&job::all(1, &args), &environment, PATIENT, LIMIT);
    assert!(!outcome.ranks[0].status.success());
    let said = outcome.errors(0);
    assert!(said.contains("keeping what was measured in"), "{said}");
    assert!(std::fs::read_to_string(out).unwrap().contains("1 × host"));
}
