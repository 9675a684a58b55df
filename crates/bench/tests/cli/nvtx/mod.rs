//! `--nvtx`: the ranges that a profiler gets are the spans.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::job::{self, Said, has};

const LIBRARY: &str = include_str!("library.rs");

/// Compiles a library of NVTX's functions that keeps a journal for each process in the `folder`; `None`, and
/// word of it, where there is no compiler, as in a bundle.
fn library(folder: &Path) -> Option<PathBuf> {
    let (source, file) = (folder.join("library.rs"), folder.join("libnvtx.so"));
    std::fs::write(&source, LIBRARY).unwrap();
    let rustc = std::env::var_os("RUSTC").unwrap_or("rustc".into());
    let out = Command::new(rustc)
        .args(["--edition", "2024", "--crate-type", "cdylib", "-o"])
        .args([&file, &source])
        .env("FOLDER", folder.join("journals"))
        .output();
    let Ok(out) = out else {
        // What tests print is shown of failed ones only; this is written past that.
        let told = "SKIPPED: no rustc on the path to compile a library in the place of NVTX\n";
        std::io::stderr().write_all(told.as_bytes()).unwrap();
        return None;
    };
    assert!(out.status.success(), "{out:?}");
    std::fs::create_dir(folder.join("journals")).unwrap();
    Some(file)
}

/// How often each span was entered, from the file of a rank.
fn entered(spans: &Path) -> BTreeMap<String, usize> {
    let text = std::fs::read_to_string(spans).unwrap();
    let events: Vec<Value> = serde_json::from_str(&text).unwrap();
    let mut counts = BTreeMap::new();
    for event in events.iter().filter(|event| event["ph"] == "B") {
        let name = event["name"].as_str().unwrap().to_owned();
        *counts.entry(name).or_default() += 1;
    }
    counts
}

/// How often a range of each name was opened, from a process's journal, in which each is closed on its
/// thread.
fn opened(journal: &str) -> BTreeMap<String, usize> {
    let (mut counts, mut depths) = (BTreeMap::new(), BTreeMap::<_, usize>::new());
    for line in journal.lines() {
        let (thread, text) = line.split_once(' ').unwrap();
        let depth = depths.entry(thread).or_default();
        if text == "pop" {
            *depth = depth.checked_sub(1).expect("nothing is closed twice");
        } else {
            *depth += 1;
            let name = text.split(' ').next().unwrap().to_owned();
            *counts.entry(name).or_default() += 1;
        }
    }
    assert!(depths.values().all(|&depth| depth == 0), "{depths:?}");
    counts
}

#[test]
fn ranges_are_the_spans_of_each_rank() {
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = library(folder.path()) else {
        return;
    };
    let spans = folder.path().join("spans.json");
    let line = "bench --device host --shape 16x16x16 --impl naiveRemoteRead --iterations 1";
    let (spans_file, library) = (spans.display(), library.display());
    let line = format!("{line} --spans {spans_file} --nvtx={library}");
    job::run_line(2, &line).succeeded();
    let journals = std::fs::read_dir(folder.path().join("journals")).unwrap();
    let journals = journals.map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap());
    let journals: Vec<_> = journals.collect();
    assert_eq!(journals.len(), 2);
    for journal in &journals {
        let alloc = journal
            .lines()
            .find(|line| line.contains("symm.alloc"))
            .unwrap();
        assert!(
            alloc.contains(" bytes=") && alloc.contains(" world=2"),
            "{alloc}"
        );
    }
    let mut opened: Vec<_> = journals.iter().map(|journal| opened(journal)).collect();
    let mut entered: Vec<_> = (0..2)
        .map(|rank| entered(&folder.path().join(format!("spans.rank{rank}.json"))))
        .collect();
    opened.sort();
    entered.sort();
    assert_eq!(opened, entered);
    assert!(
        opened[0].contains_key("bench.problem") && opened[0].contains_key("plan.op"),
        "{opened:?}"
    );
}

#[test]
fn a_missing_library_is_an_error_before_anything_runs() {
    for (file, why) in [
        ("/nonexistent/libnvtx.so", "/nonexistent/libnvtx.so"),
        ("libc.so.6", "nvtxRangePushA"),
    ] {
        let Said { code, out, err } = job::say(&format!("bench --list --nvtx={file}"));
        assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
        has(
            &err,
            &[
                why,
                "libnvtx3interop.so.1",
                "LD_LIBRARY_PATH",
                "--nvtx=FILE",
            ],
        );
    }
}
