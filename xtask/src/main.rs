//! `cargo xtask`: what people type.

fn main() {}
