//! The guides speak of what there is: every error has its entry, every link its file.

use std::fs;
use std::path::PathBuf;

use cargo_metadata::TargetKind;

use crate::metadata::{files, folder, metadata, root};

/// The error types that users meet, and where they are.
const ERRORS: [(&str, &str); 15] = [
    ("symm-mem/src/error.rs", "Error"),
    ("symm-mem/src/exchange/error.rs", "ExchangeError"),
    ("comm/src/error.rs", "CommError"),
    ("comm/src/store/refusal.rs", "Refusal"),
    ("kernels/src/error.rs", "Error"),
    ("gemm/src/error.rs", "Error"),
    ("overlap/src/error.rs", "PlanError"),
    ("overlap/src/execute/error.rs", "ExecuteError"),
    ("overlap/src/layers/error.rs", "LayerError"),
    ("overlap/src/schedule/error.rs", "ScheduleError"),
    ("overlap/src/simulate/error.rs", "SimulateError"),
    ("overlap/src/select/mod.rs", "SelectError"),
    ("nvcc/src/error.rs", "Error"),
    ("bench/src/error.rs", "BenchError"),
    ("report/src/error.rs", "ReportError"),
];

/// The variants of an enum: names at one level of indentation, as rustfmt writes them.
fn variants(source: &str, name: &str) -> Vec<String> {
    let head = format!("pub enum {name} {{");
    let body = source.split_once(&head).map_or("", |(_, rest)| rest);
    let body = body.split("\n}").next().unwrap_or_default();
    let variant = |line: &str| {
        let line = line.strip_prefix("    ")?;
        let named = line.starts_with(|letter: char| letter.is_ascii_uppercase());
        let end = line.find(|letter: char| !letter.is_ascii_alphanumeric());
        named.then(|| line[..end.unwrap_or(line.len())].to_owned())
    };
    body.lines().filter_map(variant).collect()
}

#[test]
fn every_error_has_one_entry() {
    let guide = fs::read_to_string(root().join("docs/guides/troubleshooting.md")).unwrap();
    let entries = guide
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let entries: Vec<_> = entries.flat_map(|names| names.split(", ")).collect();
    let mut wrong = Vec::new();
    for (path, name) in ERRORS {
        let source = fs::read_to_string(root().join("crates").join(path)).unwrap();
        let variants = variants(&source, name);
        assert!(variants.len() > 1, "{path} has no `{name}`: {variants:?}");
        let krate = path.split('/').next().unwrap();
        // Several crates have an `Error`: the entry names the crate.
        let shown = match name {
            "Error" => format!("{}::Error", krate.replace('-', "_")),
            name => name.to_owned(),
        };
        for variant in variants {
            let entry = format!("`{shown}::{variant}`");
            if entries.iter().filter(|name| **name == entry).count() != 1 {
                wrong.push(entry);
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "docs/guides/troubleshooting.md lacks, or has twice, {wrong:#?}"
    );
}

#[test]
fn every_link_leads_to_a_file() {
    let found = files(root(), &[".md"]);
    assert!(found.len() > 10);
    let mut broken = Vec::new();
    for path in found {
        let text = fs::read_to_string(&path).unwrap();
        // Code has brackets too.
        let prose: Vec<_> = text.split("```").step_by(2).collect();
        for target in prose.join("").split("](").skip(1) {
            let target = target.split(')').next().unwrap_or_default();
            let file = target.split('#').next().unwrap_or_default();
            // Links to items, which rustdoc checks, and to the network.
            let other = target.contains("::") || target.contains("://");
            let is_path = file.contains('/') || file.contains('.');
            if !other && is_path && !path.parent().unwrap().join(file).exists() {
                broken.push(format!("{}: {target}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// The programs of a bundle, as `cargo xtask bundle DIR` names them.
fn bundled() -> Vec<String> {
    let mut programs = vec!["xtask".to_owned(), "bin/warpweave".to_owned()];
    for package in metadata().workspace_packages() {
        let folder = folder(package).file_name().unwrap().display();
        for target in &package.targets {
            let kind = match target.kind[0] {
                TargetKind::Test => "tests",
                TargetKind::Bench => "benches",
                TargetKind::Example => "examples",
                _ => continue,
            };
            programs.push(format!("bin/{kind}/{folder}-{}", target.name));
        }
    }
    programs
}

#[test]
fn every_program_of_a_bundle_that_a_guide_names_is_in_it() {
    let (bundled, mut found, mut missing) = (bundled(), 0, Vec::new());
    for path in files(root(), &[".md"]) {
        let text = fs::read_to_string(&path).unwrap();
        // Neither another folder as `$OUT_DIR/`, nor `DIR/NAME`, which stands for any file.
        let words = text.split(|c: char| c.is_whitespace() || "`()".contains(c));
        let programs = words.filter_map(|word| word.strip_prefix("DIR/"));
        for program in programs.filter(|program| program.contains(char::is_lowercase)) {
            found += 1;
            if !bundled.iter().any(|name| name == program) {
                missing.push(format!("{}: DIR/{program}", path.display()));
            }
        }
    }
    assert!(found > 10, "{found}");
    assert!(missing.is_empty(), "{missing:#?}");
}

/// The files of source with these ends.
fn sources(ends: &[&str]) -> Vec<PathBuf> {
    let folders = ["crates", "examples", "xtask"].map(|folder| root().join(folder));
    let found: Vec<_> = folders.iter().flat_map(|of| files(of, ends)).collect();
    assert!(found.len() > 500);
    found
}

#[test]
fn every_source_file_that_a_comment_names_is_there() {
    let ends = [".rs", ".cu", ".cuh", ".h"];
    let found = sources(&ends);
    let mut missing = Vec::new();
    for path in &found {
        let text = fs::read_to_string(path).unwrap();
        let comments = text.lines().map(str::trim_start);
        for line in comments.filter(|line| line.starts_with("//")) {
            // Every second piece is in backticks.
            for name in line.split('`').skip(1).step_by(2) {
                let is_file = ends[..3].iter().any(|end| name.ends_with(end));
                let is_path = !name.starts_with(".")
                    && !name.contains(|c: char| c.is_whitespace() || "*<>$".contains(c));
                let of_example = name.starts_with("name.") || name.starts_with("mistral.");
                let is_there = || found.iter().any(|file| file.ends_with(name));
                if is_file && is_path && !of_example && !is_there() {
                    missing.push(format!("{}: {name}", path.display()));
                }
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

/// Code does by its formatter, but for what stands in strings; rows of tables cannot be broken.
#[test]
fn comments_keep_to_110_columns() {
    let mut long = Vec::new();
    for path in sources(&[".rs", ".cu", ".cuh", ".h", ".py"]) {
        let text = fs::read_to_string(&path).unwrap();
        for (line, number) in text.lines().zip(1..) {
            let is_comment = line.trim_start().starts_with(['/', '#']) && !line.contains("//! |");
            if is_comment && line.chars().count() > 110 {
                long.push(format!("{}:{number}", path.display()));
            }
        }
    }
    assert!(long.is_empty(), "{long:#?}");
}

#[test]
fn every_guide_and_example_is_in_the_readme() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let guides = fs::read_dir(root().join("docs/guides")).unwrap();
    let examples = fs::read_dir(root().join("crates/warpweave/examples")).unwrap();
    for entry in guides.chain(examples).flatten() {
        let name = entry.file_name().into_string().unwrap();
        assert!(readme.contains(&name), "README.md does not name {name}");
    }
}
