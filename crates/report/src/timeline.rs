//! Timelines from files, as `warpweave timeline` and `warpweave plan trace` write them in Chrome's trace
//! event format.

use serde::Deserialize;

use crate::statistics::distinct;

/// The timelines of a file.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "File")]
pub struct Trace {
    /// Such as a predicted and a measured one.
    pub timelines: Vec<Timeline>,
}

/// One timeline.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// What it is of.
    pub about: About,
    /// A track for each stream of each rank, followed by those of the lanes of its kernels.
    pub tracks: Vec<Track>,
}

/// What a timeline is of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct About {
    /// The plan.
    pub plan: String,
    /// Where it ran, or the machine of the prediction.
    pub machine: String,
    /// Where the times come from, as `measured` or `simulated`.
    pub times: String,
}

/// The slices of a stream, or of a lane of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Track {
    /// As `rank 0`.
    pub process: String,
    /// As `stream 1, lane 0`.
    pub thread: String,
    /// In order of time.
    pub slices: Vec<Slice>,
}

/// An operation, or a part of one, that took time.
#[derive(Clone, Debug, PartialEq)]
pub struct Slice {
    /// What ran.
    pub name: String,
    /// When it began, µs.
    pub start: f64,
    /// How long it took, µs.
    pub duration: f64,
}

#[derive(Deserialize)]
struct File {
    #[serde(rename = "otherData", default)]
    other: Other,
    #[serde(rename = "traceEvents")]
    events: Vec<Event>,
}

#[derive(Default, Deserialize)]
struct Other {
    #[serde(default)]
    timelines: Vec<About>,
}

#[derive(Deserialize)]
struct Event {
    name: String,
    ph: String,
    pid: u64,
    #[serde(default)]
    tid: u64,
    #[serde(default)]
    ts: f64,
    #[serde(default)]
    dur: f64,
    #[serde(default)]
    args: Args,
}

#[derive(Default, Deserialize)]
struct Args {
    name: Option<String>,
}

impl From<File> for Trace {
    fn from(file: File) -> Self {
        let named = |what: &'static str| {
            let events = file.events.iter();
            let named = events.filter(move |e| e.ph == "M" && e.name == what);
            named.map(|e| (e, e.args.name.as_deref().unwrap_or_default()))
        };
        // `rank 0` of one timeline, `rank 0, measured on host` of several.
        let processes = named("process_name").map(|(event, full)| {
            let (rank, label) = full.split_once(", ").unwrap_or((full, ""));
            (event.pid, (rank, label))
        });
        let processes: Vec<_> = processes.collect();
        let mut abouts = file.other.timelines.into_iter();
        let labels = distinct(processes.iter().map(|(_, (_, label))| *label));
        let timelines = labels.into_iter().map(|own| {
            let tracks = named("thread_name").filter_map(|(event, thread)| {
                let of_track = |e: &&Event| e.ph == "X" && (e.pid, e.tid) == (event.pid, event.tid);
                let (_, (rank, label)) = processes.iter().find(|(pid, _)| *pid == event.pid)?;
                if *label != own {
                    return None;
                }
                let slices = file.events.iter().filter(of_track).map(Slice::of);
                let mut track = Track {
                    process: (*rank).into(),
                    thread: thread.into(),
                    slices: slices.collect(),
                };
                track.slices.sort_by(|a, b| a.start.total_cmp(&b.start));
                Some(track)
            });
            Timeline {
                tracks: tracks.collect(),
                about: abouts.next().unwrap_or_default(),
            }
        });
        Self {
            timelines: timelines.collect(),
        }
    }
}

impl Slice {
    fn of(event: &Event) -> Self {
        Self {
            name: event.name.clone(),
            start: event.ts,
            duration: event.dur,
        }
    }
}

impl Timeline {
    /// When the last slice ends, µs.
    pub fn end(&self) -> f64 {
        let slices = self.tracks.iter().flat_map(|track| &track.slices);
        slices.map(|s| s.start + s.duration).fold(0.0, f64::max)
    }
}
