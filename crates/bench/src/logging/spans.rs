//! When spans ran, in Chrome's trace event format, for Perfetto.
//!
//! A rank is a process of the trace, with its threads. Times are of the machine's clock, so the files of all
//! ranks of a machine fit on one timeline. An event is written when it happens: a rank that is killed leaves
//! a file without its last bracket, which Perfetto reads all the same.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use crate::progress::aside;

/// The file of a rank.
#[derive(Debug)]
pub struct Spans {
    path: PathBuf,
    /// `None` once it is complete, or could not be written.
    out: Mutex<Option<BufWriter<File>>>,
    rank: usize,
    /// The same moment by both clocks.
    began: (Instant, Duration),
}

/// The file of a rank among several: `spans.json` becomes `spans.rank2.json`.
pub(super) fn path_of(path: &Path, rank: Option<usize>) -> PathBuf {
    match (rank, path.extension()) {
        (None, _) => path.to_owned(),
        (Some(rank), None) => path.with_extension(format!("rank{rank}")),
        (Some(rank), Some(extension)) => {
            path.with_extension(format!("rank{rank}.{}", extension.to_string_lossy()))
        }
    }
}

impl Spans {
    /// Makes the file.
    pub fn create(path: &Path, rank: usize) -> io::Result<Self> {
        let mut out = BufWriter::new(File::create(path)?);
        let name = format!("rank {rank}");
        let process =
            json!({"name": "process_name", "ph": "M", "pid": rank, "args": {"name": name}});
        write!(out, "[\n{process}")?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Ok(Self {
            path: path.to_owned(),
            out: Mutex::new(Some(out)),
            rank,
            began: (Instant::now(), since.unwrap_or_default()),
        })
    }

    /// Writes what is left to be written. What is recorded afterwards is lost.
    pub fn finish(&self) {
        self.put(|out| out.write_all(b"\n]\n").and_then(|()| out.flush()));
        *self.locked() = None;
    }

    fn locked(&self) -> MutexGuard<'_, Option<BufWriter<File>>> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes by `put`. A full disk is a warning, and no reason to end otherwise than without a trace.
    fn put(&self, put: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) {
        let mut out = self.locked();
        if let Some(Err(error)) = out.as_mut().map(put) {
            *out = None;
            let path = self.path.display();
            let warning = format!("warning: {path} is incomplete: {error}\n");
            let _ = aside(|| io::stderr().write_all(warning.as_bytes()));
        }
    }

    fn write(&self, ph: &'static str, name: &str, metadata: &Metadata<'_>, args: Value) {
        let (instant, since) = self.began;
        let mut entry = json!({
            "name": name,
            "cat": metadata.target(),
            "ph": ph,
            "pid": self.rank,
            "tid": thread(),
            // µs since 1970.
            "ts": (since + instant.elapsed()).as_nanos() as f64 / 1e3,
            "args": args,
        });
        if ph == "i" {
            entry["s"] = "t".into();
        }
        self.put(|out| write!(out, ",\n{entry}"));
    }
}

/// A number of this thread, from 0.
fn thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static OWN: Cell<Option<usize>> = const { Cell::new(None) });
    OWN.with(|own| {
        let next = || NEXT.fetch_add(1, Ordering::Relaxed);
        let number = own.get().unwrap_or_else(next);
        own.set(Some(number));
        number
    })
}

/// The fields of a span or an event, in their order; of two with one name the last counts.
#[derive(Clone, Default)]
pub(super) struct Fields(pub Vec<(&'static str, Value)>);

impl Fields {
    fn add(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.push((field.name(), value.into()));
    }

    fn into_args(self) -> Value {
        let args = self.0.into_iter();
        Value::Object(args.map(|(name, value)| (name.into(), value)).collect())
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.add(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value);
    }
}

/// Writes when spans are entered and left, and events as instants.
impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for &'static Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            let mut fields = Fields::default();
            attributes.record(&mut fields);
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            values.record(fields);
        }
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            let fields = span.extensions().get::<Fields>().cloned();
            let args = fields.unwrap_or_default().into_args();
            self.write("B", span.name(), span.metadata(), args);
        }
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            let (name, metadata) = (span.name(), span.metadata());
            self.write("E", name, metadata, Map::new().into());
        }
    }

    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let args = fields.into_args();
        let message = args["message"].as_str();
        let name = message.unwrap_or(event.metadata().name()).to_owned();
        self.write("i", &name, event.metadata(), args);
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[test]
    fn spans_nest_and_carry_their_fields() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("spans.json");
        let spans: &'static Spans = Box::leak(Box::new(Spans::create(&path, 3).unwrap()));
        let subscriber = tracing_subscriber::registry().with(spans);
        tracing::subscriber::with_default(subscriber, || {
            let outer = tracing::info_span!("outer", bytes = 7, later = tracing::field::Empty);
            outer.record("later", "now");
            let _outer = outer.entered();
            tracing::info_span!("inner").in_scope(|| tracing::info!(step = 1, "said"));
        });
        spans.finish();
        spans.finish();
        let text = std::fs::read_to_string(&path).unwrap();
        let events: Vec<Value> = serde_json::from_str(&text).unwrap();
        let told: Vec<_> = events
            .iter()
            .map(|e| (e["ph"].as_str().unwrap(), e["name"].as_str().unwrap()))
            .collect();
        assert_eq!(
            told,
            [
                ("M", "process_name"),
                ("B", "outer"),
                ("B", "inner"),
                ("i", "said"),
                ("E", "inner"),
                ("E", "outer"),
            ]
        );
        assert_eq!(events[1]["args"], json!({"bytes": 7, "later": "now"}));
        assert!(events.iter().all(|event| event["pid"] == 3));
        let times: Vec<_> = events[1..]
            .iter()
            .map(|e| e["ts"].as_f64().unwrap())
            .collect();
        assert!(times.is_sorted() && times[0] > 1.6e15, "{times:?}");
    }

    #[test]
    fn each_rank_has_a_file_of_its_own() {
        let of = |path: &str, rank| path_of(Path::new(path), rank).to_str().unwrap().to_owned();
        assert_eq!(of("a/spans.json", None), "a/spans.json");
        assert_eq!(of("a/spans.json", Some(2)), "a/spans.rank2.json");
        assert_eq!(of("spans", Some(0)), "spans.rank0");
    }
}
