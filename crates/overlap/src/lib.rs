#![doc = include_str!("../README.md")]

pub mod algorithms;
pub mod check;
pub mod error;
pub mod execute;
mod former;
pub mod kernels;
pub mod layers;
pub mod operation;
pub mod plan;
pub mod schedule;
pub mod select;
pub mod show;
pub mod simulate;
pub mod timeline;
pub mod trace;

pub use algorithms::Configuration;
pub use check::{Checked, Report, Violation, check};
pub use error::PlanError;
pub use operation::Operation;
pub use plan::{Plan, PlanBuilder, Problem};
pub use schedule::{Schedule, ScheduleError};
pub use select::select;
pub use show::show;
pub use simulate::{Machine, simulate};
pub use timeline::Timeline;
pub use trace::trace;
