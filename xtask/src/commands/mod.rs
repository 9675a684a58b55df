//! One file for each command, and one for those of the program `warpweave`.

pub mod bench;
pub mod bundle;
pub mod candle;
pub mod ci;
pub mod doctor;
pub mod launch;
pub mod setup;
pub mod suites;
pub mod test;
pub mod warpweave;
