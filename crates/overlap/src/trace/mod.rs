//! Timelines for Perfetto and `chrome://tracing`.
//!
//! One file holds all ranks: a process is a rank, a thread a stream; the lanes of kernels have threads of their own below
//! the streams. An arrow leads from each signal to the wait that it ended. The format is Chrome's trace event format.

use crate::check::Site;
use crate::simulate::{Cause, Span, Timeline};
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

/// The timeline as JSON in Chrome's trace event format, one event a line.
pub fn trace(timeline: &Timeline) -> String {
    let threads = Threads::of(timeline);
    let mut events = threads.names();
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
            pid: span.rank,
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
                pid: at.rank,
                tid: threads.of_span(at),
                ts: rounded(ts),
                dur: None,
                id: Some(index),
                bp,
            };
            events.push(json!(arrow("s", from, from.start, None)));
            // Within the wait: at its very end the next slice begins.
            let within = (span.end - 1e-3).max(span.start);
            events.push(json!(arrow("f", span, within, Some("e"))));
        }
    }
    let lines: Vec<String> = events.iter().map(Value::to_string).collect();
    format!(
        "{{\"displayTimeUnit\":\"ns\",\"otherData\":{},\"traceEvents\":[\n{}\n]}}\n",
        json!({"plan": timeline.plan, "machine": timeline.machine, "times": "simulated"}),
        lines.join(",\n")
    )
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
}

impl Threads {
    fn of(timeline: &Timeline) -> Self {
        let spans = &timeline.spans;
        let used: BTreeSet<_> = spans.iter().map(|s| (s.rank, s.stream, lane(s))).collect();
        let most = |n: Option<usize>| n.map_or(0, |n| n + 1);
        Threads {
            streams: most(used.iter().map(|u| u.1).max()),
            lanes: most(used.iter().filter_map(|u| u.2).max()),
            used,
        }
    }

    fn of_span(&self, span: &Span) -> usize {
        self.id(span.stream, lane(span))
    }

    fn id(&self, stream: usize, lane: Option<usize>) -> usize {
        lane.map_or(stream, |lane| self.streams + stream * self.lanes + lane)
    }

    /// The entries that name processes and threads.
    fn names(&self) -> Vec<Value> {
        let name = |what: &str, pid: usize, tid: usize, name: String| json!({"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}});
        let ranks: BTreeSet<usize> = self.used.iter().map(|u| u.0).collect();
        let processes = ranks
            .iter()
            .map(|&rank| name("process_name", rank, 0, format!("rank {rank}")));
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
