//! One file for each command, and one for those that are handed on.

pub mod bench;
pub mod bundle;
pub mod candle;
pub mod ci;
pub mod compare;
pub mod doctor;
pub mod hand_over;
pub mod launch;
pub mod setup;
pub mod test;
pub mod timeline;
