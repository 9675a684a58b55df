#![doc = include_str!("../README.md")]

mod calls;
pub mod control;
pub mod failure;
mod journal;
mod machine;
mod state;
mod work;

pub use control::{Call, Control};
pub use failure::{Failure, When};
pub use machine::{ASYNCHRONOUS, DEVICES, GRANULARITY, MULTICAST_GRANULARITY, WITH, WITHOUT};
