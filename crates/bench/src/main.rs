//! The binary that runs on every rank.

fn main() {}
