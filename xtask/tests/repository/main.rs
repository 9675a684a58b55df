//! What is true of the repository as its users take it: packages, their benches, dependencies, licences and
//! rust-version, READMEs, guides, the figures of the results, and a project outside of it.

mod benches;
mod dependencies;
mod figures;
mod guides;
mod licences;
mod metadata;
mod outside;
mod packages;
