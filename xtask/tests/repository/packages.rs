//! `cargo package` takes every crate, with all that it needs, and its README says what it offers.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::metadata::{cargo, files, folder, output, published, root};

#[test]
fn every_package_has_its_device_code_licences_and_readme() {
    for package in published() {
        let line = "package --list --allow-dirty --package";
        let args: Vec<_> = line.split(' ').chain([package.name.as_str()]).collect();
        let listed = output(root(), &args);
        let listed: BTreeSet<_> = listed.lines().map(str::to_owned).collect();
        let mut wanted: BTreeSet<_> = ["LICENSE-MIT", "LICENSE-APACHE", "README.md"]
            .map(str::to_owned)
            .into();
        for sources in ["src", "cuda", "examples", "machines", "benches"] {
            let paths = files(&folder(package).join(sources), &[""]);
            let inside = paths
                .iter()
                .map(|path| path.strip_prefix(folder(package)).unwrap());
            wanted.extend(inside.map(|path| path.display().to_string()));
        }
        let missing: Vec<_> = wanted.difference(&listed).collect();
        assert!(missing.is_empty(), "{} lacks {missing:?}", package.name);
        for (field, value) in [
            ("description", &package.description),
            ("license", &package.license),
            ("repository", &package.repository),
        ] {
            assert!(value.is_some(), "{} has no {field}", package.name);
        }
    }
}

#[test]
fn packages_are_made_without_a_warning() {
    let mut args = vec!["package", "--no-verify", "--allow-dirty"];
    for package in published() {
        args.extend(["--package", &package.name]);
    }
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("packages");
    let output = cargo(root(), &args, &[("CARGO_TARGET_DIR", &target)]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{text}");
    // The fake driver is not published, so the tests that need it stay at home.
    let expected = "ignoring test `fake_driver`";
    let warnings: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with("warning") && !line.contains(expected))
        .collect();
    assert!(warnings.is_empty(), "{warnings:#?}");
    for package in published() {
        let file = format!("package/{}-{}.crate", package.name, package.version);
        assert!(target.join(&file).is_file(), "{file}");
    }
}

#[test]
fn every_readme_has_an_example_that_is_compiled_and_names_every_feature() {
    for package in published() {
        let name = &package.name;
        let readme = fs::read_to_string(folder(package).join("README.md")).unwrap();
        let library = fs::read_to_string(folder(package).join("src/lib.rs")).unwrap();
        let included = library.contains(r#"doc = include_str!("../README.md")"#);
        assert!(included, "{name}: src/lib.rs does not include the README");
        let fences: Vec<_> = readme
            .lines()
            .filter(|line| line.starts_with("```"))
            .collect();
        // Every second fence ends a block.
        let starts = fences.iter().step_by(2);
        let compiled = |fence: &&&str| matches!(fence[3..].split(',').next(), Some("" | "rust"));
        let compiled: Vec<_> = starts.filter(compiled).collect();
        assert!(!compiled.is_empty(), "{name}: no example in the README");
        let ignored = compiled.iter().any(|fence| fence.contains("ignore"));
        assert!(!ignored, "{name}: an example of the README is not compiled");
        for feature in package.features.keys() {
            let named = readme.contains(&format!("`{feature}`"));
            assert!(named, "{name}: the README does not explain `{feature}`");
        }
    }
}
