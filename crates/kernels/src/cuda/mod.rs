//! Device code: loading and launching.
