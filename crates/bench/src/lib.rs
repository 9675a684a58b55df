//! The warpweave binary: suites of plans timed with one clock and verified.
