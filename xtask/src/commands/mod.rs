//! One file for each command.

pub mod bench;
pub mod bundle;
pub mod ci;
pub mod compare;
pub mod doctor;
pub mod launch;
pub mod plan;
pub mod report;
pub mod setup;
pub mod test;
pub mod timeline;
