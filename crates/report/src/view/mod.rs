//! Views of a report. All have the same sections, tables and sentences.

pub(crate) mod drawing;
mod markdown;
pub(crate) mod page;
mod sections;
pub(crate) mod sentences;
mod summary;
pub(crate) mod table;
pub(crate) mod terminal;

pub use markdown::markdown;
pub use page::{Source, page};
pub use summary::summary;
pub use table::SELECT;
pub use terminal::{print, width};
