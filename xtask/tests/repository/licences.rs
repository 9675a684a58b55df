//! The rules of `deny.toml`, without the tool and without a network: licences, bans, sources.
//!
//! `cargo xtask ci` runs cargo-deny itself where it is installed.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::DependencyKind;
use spdx::{Expression, ParseMode};
use toml::{Table, Value};

use crate::metadata::{metadata, root};

/// A section of `deny.toml`.
fn rules(section: &str) -> Table {
    let text = std::fs::read_to_string(root().join("deny.toml")).unwrap();
    let mut rules: Table = text.parse().unwrap();
    rules.remove(section).unwrap().try_into().unwrap()
}

/// The texts of a list, or of the field `crate` of its tables.
fn texts(list: &Value) -> BTreeSet<String> {
    let text = |entry: &Value| {
        entry
            .get("crate")
            .unwrap_or(entry)
            .as_str()
            .unwrap()
            .to_owned()
    };
    list.as_array().unwrap().iter().map(text).collect()
}

/// Whether what `allow` has satisfies the SPDX expression. Older crates have a slash for OR.
fn satisfied(expression: &str, allow: &BTreeSet<String>) -> bool {
    let mode = ParseMode {
        allow_slash_as_or_operator: true,
        ..ParseMode::STRICT
    };
    let parsed = Expression::parse_mode(expression, mode)
        .unwrap_or_else(|error| panic!("`{expression}` is no SPDX expression: {error}"));
    parsed.evaluate(|licence| allow.contains(&licence.to_string()))
}

#[test]
fn expressions_are_read_as_spdx_means_them() {
    let allow = ["MIT", "Unicode-3.0"].map(str::to_owned).into();
    for (expression, expected) in [
        ("MIT", true),
        ("GPL-3.0-only", false),
        ("Apache-2.0 OR MIT", true),
        ("Unlicense/MIT", true),
        ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
        ("MIT AND Apache-2.0", false),
        ("MIT OR Apache-2.0 AND GPL-3.0-only", true),
        ("MIT WITH LLVM-exception", false),
    ] {
        assert_eq!(satisfied(expression, &allow), expected, "{expression}");
    }
}

#[test]
fn licences_are_allowed() {
    let allow = texts(&rules("licenses")["allow"]);
    for package in &metadata().packages {
        let licence = package.license.as_deref().unwrap_or("none");
        let is_allowed = satisfied(licence, &allow);
        assert!(
            is_allowed,
            "{} {}: {licence}",
            package.name, package.version
        );
    }
}

#[test]
fn nothing_that_is_banned_is_there_and_nothing_twice_that_is_not_listed() {
    let bans = rules("bans");
    // The packages that may depend on a banned one, for their tests.
    let wrappers = |ban: &Value| ban.get("wrappers").map(texts).unwrap_or_default();
    let denied = bans["deny"].as_array().unwrap();
    let metadata = metadata();
    for node in &metadata.resolve.as_ref().unwrap().nodes {
        let user = metadata[&node.id].name.as_str();
        for dependency in &node.deps {
            let name = metadata[&dependency.pkg].name.as_str();
            let Some(ban) = denied
                .iter()
                .find(|ban| ban["crate"].as_str() == Some(name))
            else {
                continue;
            };
            let mut kinds = dependency.dep_kinds.iter();
            let is_for_tests = kinds.all(|kind| kind.kind == DependencyKind::Development);
            assert!(
                is_for_tests && wrappers(ban).contains(user),
                "{name} is banned in deny.toml, and {user} has it"
            );
        }
    }
    let mut versions: BTreeMap<&str, usize> = BTreeMap::new();
    for package in &metadata.packages {
        *versions.entry(&package.name).or_default() += 1;
    }
    let listed = texts(&bans["skip"]);
    let several = versions.iter().filter(|(_, count)| **count > 1);
    let new: Vec<_> = several
        .filter(|(name, _)| !listed.contains(**name))
        .collect();
    assert!(
        new.is_empty(),
        "in several versions, and not in bans.skip of deny.toml: {new:?}"
    );
}

#[test]
fn sources_are_allowed() {
    let sources = rules("sources");
    assert!(
        texts(&sources["allow-git"]).is_empty(),
        "no packages from git"
    );
    let registries = texts(&sources["allow-registry"]);
    for package in &metadata().packages {
        let Some(source) = package.source.as_ref().map(|source| &source.repr) else {
            let own = package.manifest_path.starts_with(root());
            assert!(own, "{} lies outside of the workspace", package.name);
            continue;
        };
        let registry = source.strip_prefix("registry+").unwrap_or_default();
        let is_allowed = registries.contains(registry);
        assert!(is_allowed, "{} comes from {source}", package.name);
    }
}
