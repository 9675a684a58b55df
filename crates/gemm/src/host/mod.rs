//! Matrix products on the CPU: the reference that stands in for every provider on the host backend.

mod backend;
mod element;
mod panels;
mod reference;

pub use backend::HostPlan;
pub use element::Element;
pub use panels::{multiply, multiply_raw};
pub use reference::reference;
