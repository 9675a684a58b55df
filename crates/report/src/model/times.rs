//! The times of a row, as they were taken.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::statistics::Spread;

/// Which of a row's times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Metric {
    /// A call by itself.
    #[serde(rename = "single_ms")]
    Single,
    /// A graph launch by itself.
    #[serde(rename = "graph_single_ms")]
    GraphSingle,
    /// One of several calls.
    #[serde(rename = "back_to_back_ms")]
    BackToBack,
    /// One of several graph launches.
    #[serde(rename = "graph_ms")]
    Graph,
}

impl Metric {
    /// All of them.
    pub const ALL: [Metric; 4] = [
        Metric::Single,
        Metric::GraphSingle,
        Metric::BackToBack,
        Metric::Graph,
    ];

    /// What is timed, in words.
    pub const fn title(self) -> &'static str {
        match self {
            Metric::Single => "one call",
            Metric::GraphSingle => "one graph launch",
            Metric::BackToBack => "calls back to back",
            Metric::Graph => "graph launches back to back",
        }
    }
}

/// The times of an implementation: for each sample the slowest rank's, in milliseconds.
///
/// In JSON files, where it stands as `samples` of a row, those without a time are left out.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Times(BTreeMap<Metric, Vec<f64>>);

impl Times {
    /// Adds samples of a kind.
    pub fn extend(&mut self, metric: Metric, samples: impl IntoIterator<Item = f64>) {
        self.0.entry(metric).or_default().extend(samples);
    }

    /// All of a kind, in the order in which they were taken.
    pub fn of(&self, metric: Metric) -> &[f64] {
        self.0.get(&metric).map_or(&[], Vec::as_slice)
    }

    /// The median and the spread of a kind.
    pub fn spread(&self, metric: Metric) -> Option<Spread> {
        Spread::of(self.of(metric))
    }
}
