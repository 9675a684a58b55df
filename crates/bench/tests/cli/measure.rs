//! `warpweave measure` on the host backend, by real processes.

use crate::job::{self, Said, has};

/// Measures with `world` ranks and gives the text of the machine and what a simulation on it says.
fn measured(world: usize) -> (String, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("host.toml");
    let path = file.to_str().unwrap();
    job::run_line(world, &format!("measure --device host --out {path}")).succeeded();
    let text = std::fs::read_to_string(&file).unwrap();
    let line = "plan simulate baselineCudaAllgatherMatmul --shape 64x64x64";
    let Said { code, out, err } = job::say(&format!("{line} --machine {path} --world {world}"));
    assert_eq!(code, Some(0), "{text}\n{err}");
    (text, out)
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
    for key in [
        "boost_us",
        "e4m3",
        "sm_start_us",
        "sm_start_gbs",
        "all-gather",
    ] {
        assert!(remarked(key), "{key}: {text}");
    }
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
    let run = |line: &str| {
        let outcome = job::run_line_in(2, line, &environment);
        outcome.succeeded();
        outcome.errors(0)
    };
    let out = folder.path().join("machine.toml");
    run(&format!("measure --device host --out {}", out.display()));
    let mut kept: Vec<_> = std::fs::read_dir(&cache)
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    kept.sort();
    let [costs, machine] = &kept[..] else {
        panic!("{kept:?}");
    };
    let text = std::fs::read_to_string(costs).unwrap();
    has(&text, &["all-reduce 2 two-shot ", "broadcast 2 packets "]);
    has(&text, &["all-to-all 2 staged "]);
    let written = std::fs::read_to_string(machine).unwrap();
    assert!(written.ends_with(&std::fs::read_to_string(&out).unwrap()));

    let bench = "bench --suite collectives --device host --sizes 4K --impl select --iterations 1";
    has(&run(bench), &[costs.to_str().unwrap()]);
    assert_eq!(
        std::fs::read_to_string(costs).unwrap(),
        text,
        "a part is not kept"
    );

    let line = "plan simulate baselineCudaAllgatherMatmul --world 2 --shape 64x64x64";
    let mut command = job::warpweave();
    let said = job::said(command.args(job::args(line)).envs(environment));
    has(&said.out, &["2 × host"]);
}

/// How many files a run of all collectives keeps, and the provenance of its report.
fn kept_by(more: &str) -> (usize, serde_json::Value) {
    let folder = tempfile::tempdir().unwrap();
    let (cache, json) = (folder.path().join("cache"), folder.path().join("run.json"));
    std::fs::create_dir(&cache).unwrap();
    let line = format!(
        "bench --suite collectives --device host --op broadcast --json {}{more}",
        json.display()
    );
    let env = [("WARPWEAVE_CACHE_DIR", cache.to_str().unwrap())];
    job::run_line_in(2, &line, &env).succeeded();
    let kept = std::fs::read_dir(cache).unwrap().count();
    (kept, job::read_json(json)["provenance"].clone())
}

#[test]
fn times_of_few_calls_are_not_kept() {
    let (kept, provenance) = kept_by("");
    assert_eq!((kept, &provenance["nodes"]), (1, &serde_json::Value::Null));
    let (kept, _) = kept_by(" --iterations 1");
    assert_eq!(kept, 0);
}

#[test]
fn what_cannot_be_kept_is_an_error_after_the_machine_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, out) = (folder.path().join("cache"), folder.path().join("out.toml"));
    std::fs::write(&cache, "a file where the folder should be").unwrap();
    let line = format!("measure --device host --out {}", out.display());
    let environment = [("WARPWEAVE_CACHE_DIR", cache.to_str().unwrap())];
    let outcome = job::run_line_in(1, &line, &environment);
    assert!(!outcome.ranks[0].status.success());
    has(&outcome.errors(0), &["keeping what was measured in"]);
    has(&std::fs::read_to_string(out).unwrap(), &["1 × host"]);
}
