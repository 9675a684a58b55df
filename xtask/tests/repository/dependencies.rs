//! The table of what each crate pulls in is what cargo resolves, and no dependency asks for more than the
//! workspace's rust-version. That the code builds with it is what `cargo xtask ci --only msrv` checks, with
//! that toolchain.

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

/// Major, minor and patch of a `rust-version`, which may leave out the patch.
fn numbers(version: &str) -> [u32; 3] {
    let mut numbers = version.split('.').map(|number| number.parse().unwrap());
    std::array::from_fn(|_| numbers.next().unwrap_or(0))
}

#[test]
fn no_package_asks_for_more_than_the_rust_version() {
    let ours = env!("CARGO_PKG_RUST_VERSION");
    for package in metadata().members() {
        assert_eq!(
            package.rust_version.as_deref(),
            Some(ours),
            "{}",
            package.name
        );
    }
    let newer: Vec<_> = metadata()
        .packages
        .iter()
        .filter_map(|package| Some((&package.name, package.rust_version.as_deref()?)))
        .filter(|(_, asked)| numbers(asked) > numbers(ours))
        .collect();
    assert!(newer.is_empty(), "rust-version is {ours}, but {newer:?}");
}
