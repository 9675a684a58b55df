//! The binary on recorded results, and its pages in a browser.

mod browser;
mod page;
mod report;
