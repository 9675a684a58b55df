//! Timelines for Perfetto and `chrome://tracing`.
//!
//! One file holds all ranks, and any number of timelines, such as a predicted and a measured one: a process
//! is a rank of one of them, a thread a stream; the lanes of kernels have threads of their own below the
//! streams. An arrow leads from each signal to the wait that it ended, where that is known. The format is
//! Chrome's trace event format.

use crate::check::Site;
use crate::timeline::{Cause, Span, Timeline};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// One entry of the file.
#[derive(Serialize)]
struct Event<'a> {
    name: &'a str,
    cat: &'static str,
    ph: &'static str,
    pid: usize,
    tid: usize,
    /// µs, in steps of a nanosecond.
    ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bp: Option<&'static str>,
}

/// The timelines as JSON in Chrome's trace event format, one event a line.
///
/// Of several timelines, the ranks of the first come first; the names of the processes say which is which.
pub fn trace(timelines: &[&Timeline]) -> String {
    let mut events = Vec::new();
    for (number, timeline) in timelines.iter().enumerate() {
        let before = &timelines[..number];
        let first = First {
            process: before.iter().map(|t| t.world).sum(),
            arrow: before.iter().map(|t| t.spans.len()).sum(),
        };
        let label = match timelines.len() {
            1 => String::new(),
            _ => format!(", {} on {}", timeline.origin, timeline.machine),
        };
        let threads = Threads::of(timeline, first);
        events.extend(threads.names(&label));
        events.extend(slices(timeline, &threads, first));
    }
    let lines: Vec<String> = events.iter().map(Value::to_string).collect();
    let about: Vec<Value> = timelines
        .iter()
        .map(|t| json!({"plan": t.plan, "machine": t.machine, "times": t.origin.to_string()}))
        .collect();
    format!(
        "{{\"displayTimeUnit\":\"ns\",\"otherData\":{},\"traceEvents\":[\n{}\n]}}\n",
        json!({"timelines": about}),
        lines.join(",\n")
    )
}

/// The numbers from which a timeline of a file counts.
#[derive(Clone, Copy)]
struct First {
    process: usize,
    arrow: usize,
}

/// The steps that take time, and arrows from signals to waits.
fn slices(timeline: &Timeline, threads: &Threads, first: First) -> Vec<Value> {
    let mut events = Vec::new();
    let ends: BTreeMap<(usize, usize, usize), f64> = timeline
        .spans
        .iter()
        .filter_map(|s| match s.site {
            Site::End(op) => Some(((s.rank, s.call, op), s.end)),
            _ => None,
        })
        .collect();
    // A signal takes no time within a kernel, but an arrow needs something to leave from.
    let signals: BTreeSet<usize> = timeline
        .spans
        .iter()
        .filter(|s| s.cause == Cause::Signal)
        .filter_map(|s| s.after)
        .collect();
    for (index, span) in timeline.spans.iter().enumerate() {
        let end = match span.site {
            Site::CallerWrites | Site::CallerReads | Site::End(_) => continue,
            Site::Begin(op) => ends.get(&(span.rank, span.call, op)).copied(),
            Site::Op(_) | Site::Effect { .. } => None,
        };
        let end = end.unwrap_or(span.end);
        if end <= span.start && !signals.contains(&index) {
            continue;
        }
        let event = |ph| Event {
            name: &span.text,
            cat: "plan",
            ph,
            pid: first.process + span.rank,
            tid: threads.of_span(span),
            ts: rounded(span.start),
            dur: None,
            id: None,
            bp: None,
        };
        events.push(json!(Event {
            dur: Some(rounded(rounded(end) - rounded(span.start))),
            ..event("X")
        }));
        if let (Cause::Signal, Some(signal)) = (span.cause, span.after) {
            let from = &timeline.spans[signal];
            let arrow = |ph, at: &Span, ts, bp| Event {
                name: "signal",
                cat: "signal",
                ph,
                pid: first.process + at.rank,
                tid: threads.of_span(at),
                ts: rounded(ts),
                dur: None,
                id: Some(first.arrow + index),
                bp,
            };
            events.push(json!(arrow("s", from, from.start, None)));
            // Within the wait: at its very end the next slice begins.
            let within = (span.end - 1e-3).max(span.start);
            events.push(json!(arrow("f", span, within, Some("e"))));
        }
    }
    events
}

fn rounded(micros: f64) -> f64 {
    (micros * 1e3).round() / 1e3
}

/// The threads of each rank: its streams, then the lanes of its kernels by stream.
struct Threads {
    /// Streams of all ranks, at least.
    streams: usize,
    /// Rank, stream and lane.
    used: BTreeSet<(usize, usize, Option<usize>)>,
    lanes: usize,
    first: First,
}

impl Threads {
    fn of(timeline: &Timeline, first: First) -> Self {
        let spans = &timeline.spans;
        let used: BTreeSet<_> = spans.iter().map(|s| (s.rank, s.stream, lane(s))).collect();
        let most = |n: Option<usize>| n.map_or(0, |n| n + 1);
        Threads {
            streams: most(used.iter().map(|u| u.1).max()),
            lanes: most(used.iter().filter_map(|u| u.2).max()),
            used,
            first,
        }
    }

    fn of_span(&self, span: &Span) -> usize {
        self.id(span.stream, lane(span))
    }

    fn id(&self, stream: usize, lane: Option<usize>) -> usize {
        lane.map_or(stream, |lane| self.streams + stream * self.lanes + lane)
    }

    /// The entries that name processes and threads.
    fn names(&self, label: &str) -> Vec<Value> {
        let pid = |rank| self.first.process + rank;
        let name = |what: &str, rank: usize, tid: usize, name: String| {
            let args = json!({"name": name});
            json!({"name": what, "ph": "M", "pid": pid(rank), "tid": tid, "args": args})
        };
        let ranks: BTreeSet<usize> = self.used.iter().map(|u| u.0).collect();
        let processes = ranks
            .iter()
            .map(|&rank| name("process_name", rank, 0, format!("rank {rank}{label}")));
        let threads = self.used.iter().map(|&(rank, stream, lane)| {
            let lane_name = lane.map_or(String::new(), |lane| format!(", lane {lane}"));
            let id = self.id(stream, lane);
            name(
                "thread_name",
                rank,
                id,
                format!("stream {stream}{lane_name}"),
            )
        });
        processes.chain(threads).collect()
    }
}

fn lane(span: &Span) -> Option<usize> {
    match span.site {
        Site::Effect { lane, .. } => Some(lane),
        _ => None,
    }
}
