//! A report without samples, in few bytes, as it is kept in `docs/results`.
//!
//! It is the same JSON with four changes. Numbers have five digits, percentiles three. Of times back to back
//! and of graph launches the file has the median alone. What follows from the rest is left out, and so is
//! what is its field's default. A list of objects is a table, `{"of": n, "columns": {…}}`:
//!
//! - A column is a list of `n` values, `null` where an object lacks the field. `outer.inner` is a field of an
//!   object within.
//! - If all objects have the same value, the column is that value, or `{"each": value}` for a list. In a
//!   table of one object the values stand as they are.
//! - If the values are lists of `m` objects each, the column is a table of `m` whose values are columns of
//!   `n`: in `results` with the same rows, a row's times at all sizes follow each other.
//!
//! Results of other operations, or with other rows, are tables of their own, in one list.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::model::Report;
use crate::statistics::counted;

/// Fields of which only the median is kept.
const MEDIANS: [&str; 3] = ["graph_single_ms", "back_to_back_ms", "graph_ms"];

/// Fields that are left out where they are `false` or 0, which [`Document`](crate::Document) then takes.
const DEFAULTS: [&str; 4] = ["part", "wrong", "exact_elements", "tolerance"];

/// The report in its compact form; [`Document`](crate::Document) reads it.
pub fn pack(report: &Report) -> Value {
    let mut report = report.clone();
    for outcome in &mut report.results {
        outcome.best = None;
        outcome.leave_out();
        let limit = outcome.limit.iter_mut();
        let limit = limit.map(|limit| &mut limit.gemm_algorithms);
        let rows = outcome.rows.iter_mut();
        let rows = rows.map(|row| {
            (row.samples, row.times_nccl) = Default::default();
            (row.times_baseline, row.efficiency) = (None, None);
            &mut row.algorithms
        });
        for names in rows.chain(limit).filter(|names| !names.is_empty()) {
            *names = vec![counted(names)];
        }
    }
    tabled(rounded("", report.to_json()))
}

/// Numbers with fewer digits, medians instead of spreads, without defaults.
fn rounded(name: &str, value: Value) -> Value {
    match value {
        Value::Object(fields) => match fields.get("median") {
            Some(median) if MEDIANS.contains(&name) || fields["samples"] == 1 => {
                rounded("median", median.clone())
            }
            _ => {
                let fields = fields.into_iter();
                let fields = fields.filter(|(name, value)| !is_default(name, value));
                let fields = fields.map(|(name, value)| (name.clone(), rounded(&name, value)));
                fields.collect()
            }
        },
        Value::Array(values) => values.into_iter().map(|value| rounded("", value)).collect(),
        Value::Number(number) if number.is_f64() => {
            let digits = match name {
                "relative_error" | "tolerance" | "p10" | "p90" => 3,
                _ => 5,
            };
            with_digits(number.as_f64().unwrap_or_default(), digits)
        }
        other => other,
    }
}

fn is_default(name: &str, value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty)
        || DEFAULTS.contains(&name) && (*value == Value::Bool(false) || value.as_f64() == Some(0.0))
}

/// `value` with this many significant digits.
fn with_digits(value: f64, digits: usize) -> Value {
    let value: f64 = format!("{value:.*e}", digits - 1).parse().unwrap_or(value);
    match value.fract() == 0.0 && value.abs() < 1e15 {
        true => Value::from(value as i64),
        false => Value::from(value),
    }
}

/// All lists of objects as tables.
fn tabled(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields
                .into_iter()
                .map(|(name, value)| (name, tabled(value)));
            fields.collect()
        }
        Value::Array(values) if is_of_objects(&values) => {
            let mut tables: Vec<_> = values
                .chunk_by(are_alike)
                .map(|run| table(&[run]))
                .collect();
            match tables.len() {
                1 => tables.remove(0),
                _ => tables.into(),
            }
        }
        other => other,
    }
}

fn is_of_objects(values: &[Value]) -> bool {
    !values.is_empty() && values.iter().all(Value::is_object)
}

fn are_alike(a: &Value, b: &Value) -> bool {
    let implementations = |value: &Value| -> Option<Vec<Value>> {
        let rows = value.get("rows")?.as_array()?.iter();
        Some(rows.map(|row| row["implementation"].clone()).collect())
    };
    a.get("operation") == b.get("operation") && implementations(a) == implementations(b)
}

/// The table of a list, or of several that are equally long.
fn table(lists: &[&[Value]]) -> Value {
    let of = lists[0].len();
    let flat = |list: &&[Value]| list.iter().map(flattened).collect();
    let lists: Vec<Vec<_>> = lists.iter().map(flat).collect();
    let names: BTreeSet<_> = lists.iter().flatten().flat_map(Map::keys).collect();
    let columns = names.into_iter().map(|name| {
        let cell = |at: usize| {
            let values = lists.iter().map(|list| list[at].get(name).cloned());
            let mut values: Vec<_> = values.map(Option::unwrap_or_default).collect();
            match values.len() {
                1 => values.remove(0),
                _ => column(values),
            }
        };
        (name.clone(), column((0..of).map(cell).collect()))
    });
    json!({"of": of, "columns": columns.collect::<Map<_, _>>()})
}

/// The inverse of [`cell`].
fn column(cells: Vec<Value>) -> Value {
    let lists = cells.iter().map(|cell| cell.as_array().map(Vec::as_slice));
    if let Some(lists) = lists.collect::<Option<Vec<_>>>() {
        let is_alike = |list: &&[Value]| is_of_objects(list) && list.len() == lists[0].len();
        if lists.iter().all(is_alike) {
            return table(&lists);
        }
    }
    match &cells[0] {
        alone if cells.len() == 1 => alone.clone(),
        first if cells.iter().any(|cell| cell != first) => cells.into_iter().map(tabled).collect(),
        list @ (Value::Array(_) | Value::Object(_)) => json!({"each": list}),
        shared => shared.clone(),
    }
}

/// With fields of objects within as `outer.inner`.
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

/// The JSON with an object for each that stands in a table.
pub fn unpack(value: Value) -> Value {
    match value {
        Value::Object(_) if is_table(&value) => objects(&value, Value::clone),
        Value::Object(fields) => {
            let fields = fields
                .into_iter()
                .map(|(name, value)| (name, unpack(value)));
            fields.collect()
        }
        Value::Array(values) => {
            let each = values.into_iter().flat_map(|value| {
                let is_table = is_table(&value);
                match unpack(value) {
                    Value::Array(objects) if is_table => objects,
                    value => vec![value],
                }
            });
            each.collect()
        }
        other => other,
    }
}

fn is_table(value: &Value) -> bool {
    value.get("columns").is_some()
}

/// The objects of a table, of whose cells `read` gives the fields.
fn objects(table: &Value, read: impl Fn(&Value) -> Value) -> Value {
    let of = table["of"].as_u64().unwrap_or(0) as usize;
    let object = |at| {
        let mut object = Value::Null;
        for (name, column) in table["columns"].as_object().into_iter().flatten() {
            let value = read(&cell(column, of, at));
            if !value.is_null() {
                let names = name.split('.');
                *names.fold(&mut object, |outer, inner| &mut outer[inner]) = value;
            }
        }
        object
    };
    (0..of).map(object).collect()
}

/// The value of object `at` in a column of `of` objects.
fn cell(column: &Value, of: usize, at: usize) -> Value {
    match column {
        column if is_table(column) => objects(column, |inner| cell(inner, of, at)),
        alone if of == 1 => alone.clone(),
        Value::Array(cells) => unpack(cells.get(at).cloned().unwrap_or_default()),
        Value::Object(shared) => shared.get("each").cloned().unwrap_or_default(),
        shared => shared.clone(),
    }
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
    fn what_objects_share_is_written_once() {
        let mut report = Report::sample_of_collectives();
        let packed = pack(&report);
        let rows = &packed["results"][0]["columns"]["rows"]["columns"];
        assert_eq!(rows["kind"], json!(["nccl", "ours", "ours", "peer"]));
        assert_eq!(
            (&rows["status"], &rows["single_ms.p90"][1]),
            (&json!("ok"), &json!(0.00545))
        );
        // Where implementations are the same at all sizes, they are named once, too.
        report.results[0].rows.pop();
        let results = &pack(&report)["results"];
        assert_eq!(
            (&results["of"], &results["columns"]["world"]),
            (&json!(2), &json!(4))
        );
        let rows = &results["columns"]["rows"]["columns"];
        assert_eq!(rows["implementation"], json!(["nccl", "packets", "push"]));
        assert_eq!(rows["status"], json!(["ok", ["ok", "not-run"], "ok"]));
        assert_eq!(rows["single_ms.p90"][1], json!([0.00545, null]));
        let again = read(&packed);
        let peer = again.results[0].rows.last().unwrap();
        assert_eq!(
            (peer.kind, peer.median(Metric::Single)),
            (Kind::Peer, Some(0.02205))
        );
        assert!(again.results[0].rows[1].times_nccl.single.is_some());
    }

    #[test]
    fn tables_of_tables_are_read_as_they_were() {
        let list = |of: [Value; 2]| json!({"operation": "x", "of": of});
        let (a, b) = (
            json!({"x": {"y": {"z": 1}}}),
            json!({"names": ["one", "two"]}),
        );
        for lists in [
            vec![list([a.clone(), b.clone()]), list([b.clone(), b.clone()])],
            vec![
                list([a.clone(), a.clone()]),
                json!({"operation": "x", "of": [b]}),
            ],
            vec![list([a.clone(), b.clone()]); 2],
            vec![list([a.clone(), b.clone()]), json!({"operation": "x"})],
            vec![list([a.clone(), b.clone()])],
            vec![list([b.clone(), b.clone()]), json!({"operation": "y"})],
        ] {
            let lists = Value::Array(lists);
            assert_eq!(unpack(tabled(lists.clone())), lists);
        }
    }
}
