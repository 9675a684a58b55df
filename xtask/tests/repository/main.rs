//! What holds of the repository as its users take it: packages, their benches, dependencies and licences, READMEs, guides, and
//! a project outside of it.

mod benches;
mod dependencies;
mod guides;
mod licences;
mod metadata;
mod outside;
mod packages;
