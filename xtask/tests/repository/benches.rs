//! `cargo bench` from the root runs the benches of criterion and nothing else: it passes criterion's options
//! to every target that it runs, and the harness of the standard library ends with an error at the first of
//! them.

use std::fs;

use cargo_metadata::{Package, Target, TargetKind};

use crate::metadata::metadata;

/// Whether `cargo bench` runs a target: libraries and programs unless their manifest says no, others if it
/// says yes.
fn is_run(manifest: &toml::Table, target: &Target) -> bool {
    // The name of the section in the manifest. A target that cargo found by its file's place may have none.
    let (section, unless_said) = match target.kind[0] {
        TargetKind::Bin => ("bin", true),
        TargetKind::Bench => ("bench", true),
        TargetKind::Test => ("test", false),
        TargetKind::Example => ("example", false),
        TargetKind::CustomBuild => return false,
        _ => ("lib", true),
    };
    let named = |entry: &&toml::Value| {
        section == "lib" || entry.get("name").and_then(|name| name.as_str()) == Some(&target.name)
    };
    let entry = match manifest.get(section) {
        Some(toml::Value::Array(entries)) => entries.iter().find(named),
        entry => entry,
    };
    let said = entry.and_then(|entry| entry.get("bench")?.as_bool());
    said.unwrap_or(unless_said)
}

/// Whether a bench has a main function of its own, as criterion's do.
fn has_own_main(manifest: &toml::Table, target: &Target) -> bool {
    let benches = manifest.get("bench").and_then(toml::Value::as_array);
    benches.into_iter().flatten().any(|bench| {
        bench.get("name").and_then(toml::Value::as_str) == Some(&target.name)
            && bench.get("harness").and_then(toml::Value::as_bool) == Some(false)
    })
}

fn manifest(package: &Package) -> toml::Table {
    let text = fs::read_to_string(&package.manifest_path).unwrap();
    text.parse().unwrap()
}

#[test]
fn cargo_bench_runs_the_benches_alone() {
    let (mut benches, mut others) = (Vec::new(), Vec::new());
    for package in metadata().workspace_packages() {
        let manifest = manifest(package);
        for target in &package.targets {
            if is_run(&manifest, target) {
                let takes_options =
                    target.is_kind(TargetKind::Bench) && has_own_main(&manifest, target);
                let list = if takes_options {
                    &mut benches
                } else {
                    &mut others
                };
                list.push(format!(
                    "{} {:?} {}",
                    package.name, target.kind, target.name
                ));
            }
        }
    }
    assert!(!benches.is_empty());
    assert!(
        others.is_empty(),
        "`bench = false` is missing in the manifests of {others:?}"
    );
}
