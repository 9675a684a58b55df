#![doc = include_str!("../README.md")]
// The example is a build script: a whole program.
#![allow(clippy::needless_doctest_main)]

mod advisory;
mod architecture;
mod builder;
mod cache;
mod cargo;
mod command;
mod depfile;
mod environment;
mod error;
mod find;
mod fingerprint;
pub mod layout;
mod process;
mod slots;
mod trust;
mod version;

#[cfg(test)]
mod fake;

pub use architecture::{Architecture, Kind};
pub use builder::Builder;
pub use cargo::run;
pub use environment::Environment;
pub use error::{Error, Rejection, Result};
pub use find::{Cutlass, HostCompiler, Nvcc, Origin};
pub use version::{NEWEST, OLDEST, Version};
