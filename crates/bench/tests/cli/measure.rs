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
