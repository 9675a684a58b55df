//! `cargo bench` from the root runs the benches of criterion and nothing else: it passes criterion's options
//! to every target that it runs, and the harness of the standard library ends with an error at the first of
//! them.

use std::fs;

use cargo_metadata::TargetKind;
use toml::{Table, Value};

use crate::metadata::metadata;

#[test]
fn cargo_bench_runs_the_benches_alone() {
    let (mut benches, mut others) = (0, Vec::new());
    for package in metadata().workspace_packages() {
        let text = fs::read_to_string(&package.manifest_path).unwrap();
        let manifest: Table = text.parse().unwrap();
        for target in &package.targets {
            // The section of the manifest, and whether `cargo bench` runs the target unless that says
            // otherwise.
            let (section, unless_set) = match target.kind[0] {
                TargetKind::Bin => ("bin", true),
                TargetKind::Bench => ("bench", true),
                TargetKind::Test => ("test", false),
                TargetKind::Example => ("example", false),
                TargetKind::CustomBuild => continue,
                _ => ("lib", true),
            };
            // A target that cargo found by its file's place may have no entry.
            let entry = match manifest.get(section) {
                Some(Value::Array(entries)) => {
                    let is_named = |entry: &&Value| entry["name"].as_str() == Some(&target.name);
                    entries.iter().find(is_named)
                }
                entry => entry,
            };
            let is_set = |field, default| {
                let value = entry.and_then(|entry| entry.get(field)?.as_bool());
                value.unwrap_or(default)
            };
            match is_set("bench", unless_set) {
                // With a main function of its own, as criterion's.
                true if section == "bench" && !is_set("harness", true) => benches += 1,
                true => others.push(format!("{} {section} {}", package.name, target.name)),
                false => {}
            }
        }
    }
    assert!(benches > 0);
    assert!(
        others.is_empty(),
        "`bench = false` is missing in the manifests of {others:?}"
    );
}
