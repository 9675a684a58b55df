//! `xtask` as people and programs call it.

mod doctor;
mod launch;
mod workspace;
