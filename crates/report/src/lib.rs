#![doc = include_str!("../README.md")]

pub mod baseline;
pub mod command;
pub mod compact;
mod document;
pub mod error;
pub mod file;
mod model;
pub mod peers;
mod plot;
mod provenance;
mod sizes;
pub mod statistics;
pub mod timeline;
mod view;

pub use document::Document;
pub use error::{ReportError, Result};
pub use model::*;
pub use provenance::{Devices, Fact, HOST, HostMachine, Provenance};
pub use sizes::{Bytes, Shape};
pub use view::{SELECT, Source, markdown, page, print, summary, width};
