//! The table of what each crate pulls in is what cargo resolves.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::metadata::{metadata, root, said};

/// The program is nobody's dependency.
const PROGRAM: &str = "warpweave-bench";

fn names(package: &str, depth: &[&str]) -> BTreeSet<String> {
    let mut args = vec!["tree", "--package", package, "--edges", "normal"];
    args.extend(["--prefix", "none", "--format", "{p}", "--locked"]);
    args.extend(["--target", "x86_64-unknown-linux-gnu"]);
    args.extend(depth);
    let text = said(root(), &args);
    let named = |line: &str| {
        let mut words = line.split_whitespace();
        Some(format!("{} {}", words.next()?, words.next()?))
    };
    text.lines().skip(1).filter_map(named).collect()
}

/// Names without versions, those of the workspace or the others.
fn list(of: &BTreeSet<String>, own: bool) -> String {
    let name = |entry: &String| entry.split(' ').next().unwrap_or_default().to_owned();
    let is_own = |name: &String| name.starts_with("warpweave") == own;
    let names: Vec<_> = of.iter().map(name).filter(is_own).collect();
    let short = |name: &String| match name.strip_prefix("warpweave-") {
        Some(short) => short.to_owned(),
        None => name.clone(),
    };
    match names.is_empty() {
        true => "–".into(),
        false => names.iter().map(short).collect::<Vec<_>>().join(", "),
    }
}

#[test]
fn the_table_of_dependencies_is_what_cargo_resolves() {
    let mut table = String::from(
        "| crate | of the workspace | others, named by it | others in all |\n|---|---|---|---:|\n",
    );
    let mut packages: Vec<_> = metadata()
        .published()
        .map(|package| package.name.as_str())
        .filter(|name| *name != PROGRAM)
        .collect();
    let in_all = |package: &&str| {
        let all = names(package, &[]);
        all.iter()
            .filter(|name| !name.starts_with("warpweave"))
            .count()
    };
    packages.sort_by_key(|package| (in_all(package), package.len()));
    for package in packages {
        let direct = names(package, &["--depth", "1"]);
        let (own, others) = (list(&direct, true), list(&direct, false));
        writeln!(
            table,
            "| `{package}` | {own} | {others} | {} |",
            in_all(&package)
        )
        .unwrap();
    }
    let readme = std::fs::read_to_string(root().join("crates/warpweave/README.md")).unwrap();
    assert!(
        readme.contains(&table),
        "crates/warpweave/README.md must have this table:\n{table}"
    );
}
