#![doc = include_str!("../README.md")]

pub mod algorithms;
pub mod check;
pub mod error;
pub mod execute;
pub mod plan;
pub mod show;
pub mod simulate;
pub mod trace;

pub use check::{Report, Violation, check};
pub use error::PlanError;
pub use plan::{Plan, PlanBuilder, Problem};
pub use show::show;
pub use simulate::{Machine, Timeline, simulate};
pub use trace::trace;
