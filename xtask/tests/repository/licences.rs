//! The rules of `deny.toml`, without the tool and without a network: licences, bans, sources.
//!
//! `cargo xtask ci` runs cargo-deny itself where it is installed.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::DependencyKind;
use serde::Deserialize;
use spdx::{Expression, ParseMode};

use crate::metadata::{metadata, root};

#[derive(Deserialize)]
struct Rules {
    licenses: Licenses,
    bans: Bans,
    sources: Sources,
}

#[derive(Deserialize)]
struct Licenses {
    allow: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Bans {
    deny: Vec<Named>,
    skip: Vec<Named>,
}

#[derive(Deserialize)]
struct Named {
    #[serde(rename = "crate")]
    name: String,
    /// The packages that may depend on it, for their tests.
    #[serde(default)]
    wrappers: BTreeSet<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Sources {
    allow_registry: Vec<String>,
    allow_git: Vec<String>,
}

fn rules() -> Rules {
    let text = std::fs::read_to_string(root().join("deny.toml")).unwrap();
    toml::from_str(&text).unwrap()
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
    let allow = rules().licenses.allow;
    for package in &metadata().packages {
        let licence = package.license.as_deref().unwrap_or("none");
        let held = satisfied(licence, &allow);
        assert!(held, "{} {}: {licence}", package.name, package.version);
    }
}

#[test]
fn nothing_that_is_banned_is_there_and_nothing_twice_that_is_not_listed() {
    let bans = rules().bans;
    let mut versions: BTreeMap<&str, usize> = BTreeMap::new();
    for package in &metadata().packages {
        *versions.entry(&package.name).or_default() += 1;
    }
    let metadata = metadata();
    let resolve = metadata.resolve.as_ref().unwrap();
    for node in &resolve.nodes {
        let holder = metadata[&node.id].name.as_str();
        for dependency in &node.deps {
            let name = metadata[&dependency.pkg].name.as_str();
            let Some(banned) = bans.deny.iter().find(|banned| banned.name == name) else {
                continue;
            };
            let kinds = &dependency.dep_kinds;
            let is_for_tests = kinds.iter().all(|k| k.kind == DependencyKind::Development);
            assert!(
                is_for_tests && banned.wrappers.contains(holder),
                "{name} is banned in deny.toml, and {holder} has it"
            );
        }
    }
    let twice = versions.iter().filter(|(_, count)| **count > 1);
    let twice: BTreeSet<&str> = twice.map(|(name, _)| *name).collect();
    let listed: BTreeSet<&str> = bans.skip.iter().map(|skip| skip.name.as_str()).collect();
    let new: Vec<_> = twice.difference(&listed).collect();
    assert!(
        new.is_empty(),
        "in several versions, and not in bans.skip of deny.toml: {new:?}"
    );
}

#[test]
fn sources_are_allowed() {
    let Sources {
        allow_registry,
        allow_git,
    } = rules().sources;
    assert!(allow_git.is_empty(), "no packages from git");
    for package in &metadata().packages {
        let Some(source) = package.source.as_ref().map(|source| &source.repr) else {
            let own = package.manifest_path.starts_with(root());
            assert!(own, "{} lies outside of the workspace", package.name);
            continue;
        };
        let registry = source.strip_prefix("registry+").unwrap_or_default();
        let allowed = allow_registry.iter().any(|allowed| allowed == registry);
        assert!(allowed, "{} comes from {source}", package.name);
    }
}
