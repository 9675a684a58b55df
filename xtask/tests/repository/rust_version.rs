//! The workspace's rust-version: every package has it, and no dependency asks for more.
//!
//! That the code builds with it is told by `cargo xtask ci --only msrv`, which needs that toolchain.

use crate::metadata::metadata;

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
