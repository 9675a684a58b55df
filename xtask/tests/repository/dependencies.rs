//! The table of what each crate pulls in is what cargo resolves, and no dependency asks for more than the
//! workspace's rust-version. That the code builds with it is what `cargo xtask ci --only msrv` checks, with
//! that toolchain.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::metadata::{metadata, output, published, root};

/// The program is nobody's dependency.
const PROGRAM: &str = "warpweave-bench";

fn names(package: &str, depth: &[&str]) -> BTreeSet<String> {
    let mut args = vec!["tree", "--package", package, "--edges", "normal"];
    args.extend(["--prefix", "none", "--format", "{p}", "--locked"]);
    args.extend(["--target", "x86_64-unknown-linux-gnu"]);
    args.extend(depth);
    let text = output(root(), &args);
    let named = |line: &str| {
        let mut words = line.split_whitespace();
        Some(format!("{} {}", words.next()?, words.next()?))
    };
    text.lines().skip(1).filter_map(named).collect()
}

/// Names without versions, those of the workspace or the others.
fn list(of: &BTreeSet<String>, own: bool) -> String {
    let names = of.iter().filter_map(|entry| entry.split(' ').next());
    let names: Vec<_> = names
        .filter(|name| name.starts_with("warpweave") == own)
        .map(|name| name.strip_prefix("warpweave-").unwrap_or(name))
        .collect();
    match names.is_empty() {
        true => "–".into(),
        false => names.join(", "),
    }
}

#[test]
fn the_table_of_dependencies_is_what_cargo_resolves() {
    let mut table = String::from(
        "| crate | of the workspace | others, named by it | others in all |\n|---|---|---|---:|\n",
    );
    let packages = published().map(|package| package.name.as_str());
    let packages = packages.filter(|name| *name != PROGRAM).map(|name| {
        let all = names(name, &[]);
        let others = all.iter().filter(|name| !name.starts_with("warpweave"));
        (others.count(), name)
    });
    let mut packages: Vec<_> = packages.collect();
    packages.sort_by_key(|(all, name)| (*all, name.len()));
    for (all, package) in packages {
        let direct = names(package, &["--depth", "1"]);
        let (own, others) = (list(&direct, true), list(&direct, false));
        writeln!(table, "| `{package}` | {own} | {others} | {all} |").unwrap();
    }
    let readme = std::fs::read_to_string(root().join("crates/warpweave/README.md")).unwrap();
    assert!(
        readme.contains(&table),
        "crates/warpweave/README.md must have this table:\n{table}"
    );
}

#[test]
fn no_package_asks_for_more_than_the_rust_version() {
    let ours = env!("CARGO_PKG_RUST_VERSION");
    for package in metadata().workspace_packages() {
        let asked = package.rust_version.as_ref().map(ToString::to_string);
        let whole = asked.as_deref().and_then(|asked| asked.strip_prefix(ours));
        assert!(
            matches!(whole, Some("" | ".0")),
            "{}: {asked:?}",
            package.name
        );
    }
    let members = metadata().workspace_packages();
    let most = members
        .iter()
        .filter_map(|package| package.rust_version.as_ref())
        .max();
    let packages = metadata().packages.iter();
    let newer: Vec<_> = packages
        .filter(|package| package.rust_version.as_ref() > most)
        .map(|package| (&package.name, &package.rust_version))
        .collect();
    assert!(newer.is_empty(), "rust-version is {ours}, but {newer:?}");
}
