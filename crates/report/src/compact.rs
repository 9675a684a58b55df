//! A report without samples, in few bytes, as it is kept in `docs/results`.
//!
//! It is the same JSON with four changes. Numbers have five digits. A spread is `[median, p10, p90,
//! samples]`, and a median alone where only that is shown. Of consecutive objects that are alike in `kind`
//! and `status` the file has `{"columns": {…}}`: for each field a list of its values, or the value where all
//! share it; inner fields are named `outer.inner`. What follows from the rest is left out, and so is what is
//! its field's default.

use serde_json::{Map, Number, Value};

use crate::model::Report;
use crate::statistics::counted;

/// Fields of which only the median is kept.
const MEDIANS: [&str; 3] = ["graph_single_ms", "back_to_back_ms", "graph_ms"];

/// Fields that are left out where they are `false` or 0, which [`Document`](crate::Document) then takes.
const DEFAULTS: [&str; 4] = ["part", "wrong", "exact_elements", "tolerance"];

/// The report in its compact form; [`Document`](crate::Document) reads it.
pub fn pack(report: &Report) -> Value {
    let mut report = report.clone();
    let messages = report.is_of_collectives();
    for outcome in &mut report.results {
        let limit = outcome
            .limit
            .iter_mut()
            .map(|limit| &mut limit.gemm_algorithms);
        let rows = outcome.rows.iter_mut();
        let rows = rows.map(|row| {
            (row.samples, row.times_nccl) = Default::default();
            row.efficiency = row.efficiency.filter(|_| !messages);
            &mut row.algorithms
        });
        for names in rows.chain(limit).filter(|names| !names.is_empty()) {
            *names = vec![counted(names)];
        }
    }
    packed("", report.to_json())
}

fn packed(name: &str, value: Value) -> Value {
    match value {
        Value::Object(fields) if is_spread(&fields) => spread(name, &fields),
        Value::Object(fields) => {
            let fields = fields.into_iter().map(|(name, value)| {
                let value = packed(&name, value);
                (name, value)
            });
            let is_default = |(name, value): &(String, Value)| {
                is_empty_list(value)
                    || DEFAULTS.contains(&name.as_str())
                        && (*value == Value::Bool(false) || value.as_f64() == Some(0.0))
            };
            fields.filter(|field| !is_default(field)).collect()
        }
        Value::Array(values) => {
            let values: Vec<_> = values.into_iter().map(|value| packed("", value)).collect();
            let is_flat = |value: &Value| value.is_object() && value.get("rows").is_none();
            match values.len() > 1 && values.iter().all(is_flat) {
                true => in_columns(&values),
                false => Value::Array(values),
            }
        }
        Value::Number(number) => match name {
            "relative_error" | "tolerance" => rounded(&number, 3),
            _ => rounded(&number, 5),
        },
        other => other,
    }
}

fn is_empty_list(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty)
}

fn is_spread(fields: &Map<String, Value>) -> bool {
    fields.contains_key("median") && fields.contains_key("p90")
}

fn spread(name: &str, fields: &Map<String, Value>) -> Value {
    let number = |field: &str, digits| match &fields[field] {
        Value::Number(number) => rounded(number, digits),
        other => other.clone(),
    };
    let median = number("median", 5);
    match MEDIANS.contains(&name) || fields["samples"] == 1 {
        true => median,
        false => Value::Array(vec![
            median,
            number("p10", 4),
            number("p90", 4),
            fields["samples"].clone(),
        ]),
    }
}

/// A fraction rounded to so many significant digits; whole numbers as they are.
fn rounded(number: &Number, digits: usize) -> Value {
    if !number.is_f64() {
        return Value::Number(number.clone());
    }
    let value = number.as_f64().unwrap_or_default();
    let value: f64 = format!("{value:.*e}", digits - 1).parse().unwrap_or(value);
    match value.fract() == 0.0 && value.abs() < 1e15 {
        true => Value::from(value as i64),
        false => Value::from(value),
    }
}

fn in_columns(values: &[Value]) -> Value {
    let rows: Vec<_> = values.iter().map(flattened).collect();
    let alike = |a: &Map<String, Value>, b: &Map<String, Value>| {
        ["kind", "status"]
            .iter()
            .all(|field| a.get(*field) == b.get(*field))
    };
    let mut all = Vec::new();
    for run in rows.chunk_by(alike) {
        let mut columns = Map::new();
        for name in run.iter().flat_map(Map::keys) {
            let cell = |row: &Map<String, Value>| row.get(name).cloned().unwrap_or_default();
            let cells: Vec<_> = run.iter().map(cell).collect();
            let shared = !cells[0].is_array() && cells.iter().all(|cell| *cell == cells[0]);
            let column = if shared {
                cells[0].clone()
            } else {
                cells.into()
            };
            columns.insert(name.clone(), column);
        }
        match columns.values().any(Value::is_array) && run.len() > 1 {
            true => all.push(Value::from_iter([("columns", Value::Object(columns))])),
            false => all.extend(run.iter().cloned().map(|row| nested(row).into())),
        }
    }
    all.into()
}

fn flattened(value: &Value) -> Map<String, Value> {
    let mut flat = Map::new();
    for (name, value) in value.as_object().into_iter().flatten() {
        match value {
            Value::Object(_) => {
                let inner = flattened(value).into_iter();
                flat.extend(inner.map(|(inner, value)| (format!("{name}.{inner}"), value)));
            }
            other => drop(flat.insert(name.clone(), other.clone())),
        }
    }
    flat
}

/// `outer.inner` as `inner` within `outer`, without what is null.
fn nested(flat: Map<String, Value>) -> Map<String, Value> {
    let mut fields = Map::new();
    for (name, value) in flat.into_iter().filter(|(_, value)| !value.is_null()) {
        match name.split_once('.') {
            None => drop(fields.insert(name, value)),
            Some((outer, inner)) => {
                let outer = fields.entry(outer).or_insert_with(|| Map::new().into());
                outer[inner] = value;
            }
        }
    }
    fields
}

/// The JSON with an object for each that stands in columns.
pub fn unpack(value: Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .into_iter()
            .map(|(name, value)| (name, unpack(value)))
            .collect(),
        Value::Array(values) => {
            let each = values
                .into_iter()
                .flat_map(|value| match value.get("columns") {
                    Some(Value::Object(columns)) => rows(columns),
                    _ => vec![unpack(value)],
                });
            Value::Array(each.collect())
        }
        other => other,
    }
}

fn rows(columns: &Map<String, Value>) -> Vec<Value> {
    let count = columns
        .values()
        .find_map(Value::as_array)
        .map_or(0, Vec::len);
    let row = |at: usize| {
        let cell = |value: &Value| match value.as_array() {
            Some(values) => values.get(at).cloned().unwrap_or_default(),
            None => value.clone(),
        };
        let flat = columns
            .iter()
            .map(|(name, value)| (name.clone(), cell(value)));
        nested(flat.collect()).into()
    };
    (0..count).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Document, Kind, Metric};

    fn read(packed: &Value) -> Report {
        match Document::from_json(&packed.to_string()).unwrap() {
            Document::Report(report) => *report,
            Document::Timelines(_) => panic!("no report"),
        }
    }

    #[test]
    fn all_but_the_samples_is_read_again() {
        for mut report in [Report::sample(), Report::sample_of_collectives()] {
            let again = read(&pack(&report));
            assert_eq!(pack(&again), pack(&report));
            // Five digits may round to other three: the samples of plans have fewer.
            if report.is_of_collectives() {
                continue;
            }
            let (mut told, mut wanted) = (Vec::new(), Vec::new());
            crate::markdown(&again, &mut told).unwrap();
            for outcome in &mut report.results {
                outcome
                    .rows
                    .iter_mut()
                    .for_each(|row| row.samples = Default::default());
            }
            crate::markdown(&report, &mut wanted).unwrap();
            assert_eq!(String::from_utf8(told), String::from_utf8(wanted));
        }
    }

    #[test]
    fn what_rows_share_is_written_once() {
        let packed = pack(&Report::sample_of_collectives());
        let small = &packed["results"][0]["rows"];
        let ours = &small[1]["columns"];
        assert_eq!(
            ours["implementation"],
            serde_json::json!(["packets", "push"])
        );
        assert_eq!(
            (&ours["kind"], &ours["status"]),
            (&"ours".into(), &"ok".into())
        );
        assert_eq!(
            ours["single_ms"][0],
            serde_json::json!([0.00525, 0.00505, 0.00545, 2])
        );
        let again = read(&packed);
        let peer = again.results[0].rows.last().unwrap();
        assert_eq!(
            (peer.kind, peer.median(Metric::Single)),
            (Kind::Peer, Some(0.02205))
        );
        assert!(again.results[0].rows[1].times_nccl.single.is_some());
    }
}
