//! What the fuzz targets and the seeded tests call: each entry takes any bytes, and panics only if a promise is broken.
//!
//! The folder `fuzz/` of this crate drives them with libFuzzer (`cargo fuzz`); `seeded` with mutations of the checked-in
//! corpus, for a bounded time and the same every time, in the tests. Not part of the crate as it is used.

mod packets;
mod places;
#[cfg(test)]
mod seeded;
mod store;

pub use packets::packets;
pub use places::places;
pub use store::{frames, session};
