#![doc = include_str!("../README.md")]

mod calls;
pub mod control;
mod journal;
mod machine;
mod state;

pub use control::{Call, Control, Failure, When};
pub use machine::{ASYNCHRONOUS, DEVICES, GRANULARITY, MULTICAST_GRANULARITY, WITH, WITHOUT};
