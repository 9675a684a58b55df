//! Every figure in the tables of the results is in the recorded file that the text above it links.
//!
//! A table belongs to the files of `docs/results` that the paragraph above it links. Where that paragraph
//! says "in no file" instead, there is nothing to compare. The page on the fused kernels has mostly sweeps of
//! its own: there a table without a link is one of those.

use std::fs;

use serde_json::Value;
use warpweave_report::Document;

use crate::metadata::root;

/// A table with the paragraph above it.
struct Table {
    heading: String,
    above: String,
    head: String,
    /// Which columns hold numbers: those that are aligned to the right.
    numeric: Vec<bool>,
    rows: Vec<Vec<String>>,
}

fn tables(text: &str) -> Vec<Table> {
    let (mut tables, mut heading, mut above) = (Vec::<Table>::new(), String::new(), String::new());
    let mut in_table = false;
    for line in text.lines() {
        let is_row = line.starts_with('|');
        if is_row && !in_table {
            tables.push(Table {
                heading: heading.clone(),
                above: std::mem::take(&mut above),
                head: line.to_owned(),
                numeric: Vec::new(),
                rows: Vec::new(),
            });
        } else if is_row {
            let cells = line.trim_matches('|').split('|');
            let table = tables.last_mut().unwrap();
            if table.numeric.is_empty() {
                table.numeric = cells.map(|cell| cell.ends_with(':')).collect();
            } else {
                table.rows.push(cells.map(str::to_owned).collect());
            }
        } else if line.starts_with('#') {
            (heading, above) = (line.to_owned(), String::new());
        } else {
            // Of the paragraphs above a table the last.
            if above.ends_with("\n\n") {
                above.clear();
            }
            above = above + line + "\n";
        }
        in_table = is_row;
    }
    tables
}

/// The recorded files that `text` links.
fn files(text: &str) -> Vec<Value> {
    let links = text.split("](").skip(1).filter_map(|rest| {
        let name = rest.split(')').next()?.rsplit('/').next()?;
        let file = name.strip_suffix(".md").or(name.strip_suffix(".json"))?;
        let path = root()
            .join("docs/results")
            .join(file)
            .with_extension("json");
        match Document::from_json(&fs::read_to_string(path).ok()?).unwrap() {
            Document::Report(report) => Some(report.to_json()),
            Document::Timelines(_) => None,
        }
    });
    links.collect()
}

/// The median of a spread.
fn median(spread: &Value) -> Option<f64> {
    spread["median"].as_f64()
}

/// `M×N×K` and the element type, where `text` has them.
fn problem(text: &str) -> Option<([u64; 3], Option<&'static str>)> {
    let word = |word: &str| {
        let numbers = word.trim_matches(|c: char| !c.is_ascii_digit()).split('×');
        let numbers: Vec<u64> = numbers.map_while(|number| number.parse().ok()).collect();
        <[u64; 3]>::try_from(numbers).ok()
    };
    let shape = text.split_whitespace().find_map(word)?;
    let dtype = ["bf16", "f16"]
        .into_iter()
        .find(|dtype| text.contains(dtype));
    Some((shape, dtype))
}

/// Bytes, of a cell as `64 KiB`.
fn size(text: &str) -> Option<u64> {
    let (number, unit) = text.trim().split_once(' ')?;
    let unit = [("KiB", 1 << 10), ("MiB", 1 << 20)]
        .into_iter()
        .find(|(name, _)| *name == unit)?;
    Some(number.parse::<u64>().ok()? * unit.1)
}

/// The implementation of a row whose first cell is its name.
fn name(text: &str) -> Option<&str> {
    text.trim().strip_prefix('`')?.split('`').next()
}

/// The numbers of `value` but for what verification found.
fn numbers(value: &Value, found: &mut Vec<f64>) {
    match value {
        Value::Number(number) => found.extend(number.as_f64()),
        Value::Array(values) => values.iter().for_each(|value| numbers(value, found)),
        Value::Object(fields) => fields
            .iter()
            .filter(|(key, _)| !key.starts_with("verification"))
            .for_each(|(_, value)| numbers(value, found)),
        _ => {}
    }
}

/// All that a row of a table may quote: numbers of its problem, and ratios of single calls and of single
/// graph launches.
fn known(files: &[Value], above: &str, row: &[String]) -> Vec<f64> {
    let problem = problem(&row[0]).or_else(|| problem(above));
    let mut found = Vec::new();
    for result in files
        .iter()
        .filter_map(|file| file["results"].as_array())
        .flatten()
    {
        let shape = ["m", "n", "k"].map(|side| result["shape"][side].as_u64());
        let is_other = |(wanted, dtype): ([u64; 3], Option<&str>)| {
            shape != wanted.map(Some) || dtype.is_some_and(|dtype| result["dtype"] != dtype)
        };
        let is_of = match size(&row[0]) {
            Some(size) => result["size"] == size,
            None => !problem.is_some_and(is_other),
        };
        if !is_of {
            continue;
        }
        let rows = result["rows"].as_array().unwrap();
        match name(&row[0]) {
            Some(name) => rows
                .iter()
                .filter(|row| row["implementation"] == name)
                .for_each(|row| numbers(row, &mut found)),
            None => numbers(result, &mut found),
        }
        for field in ["single_ms", "graph_single_ms"] {
            let times: Vec<_> = rows.iter().filter_map(|row| median(&row[field])).collect();
            found.extend(times.iter().flat_map(|a| times.iter().map(move |b| a / b)));
        }
    }
    found
}

/// The figures of a cell: what has a point or three digits. Neither code nor the target of a link has any.
fn figures(cell: &str) -> Vec<&str> {
    let words = cell
        .split('`')
        .step_by(2)
        .flat_map(|text| text.split("](").enumerate());
    let words = words.map(|(place, text)| match place {
        0 => text,
        _ => text.split_once(')').map_or("", |(_, after)| after),
    });
    words
        .flat_map(|text| text.split(|c: char| !c.is_ascii_digit() && c != '.'))
        .map(|word| word.trim_matches('.'))
        .filter(|word| word.contains('.') || word.len() > 2)
        .collect()
}

/// Whether `value`, in ms or in µs, rounds to `figure`.
fn rounds_to(value: f64, figure: &str) -> bool {
    let digits = figure.split_once('.').map_or(0, |(_, digits)| digits.len());
    let half = 0.5 * 10f64.powi(-(digits as i32)) * (1.0 + 1e-6);
    let shown: f64 = figure.parse().unwrap();
    [value, value * 1e3]
        .iter()
        .any(|value| (value - shown).abs() <= half)
}

#[test]
fn every_figure_of_a_table_is_in_a_recorded_file() {
    let mut wrong = Vec::new();
    let mut checked = 0;
    let documents = [
        ("README.md", true),
        ("docs/results/README.md", true),
        ("docs/fused-kernel.md", false),
    ];
    for (document, links_files) in documents {
        let text = fs::read_to_string(root().join(document)).unwrap();
        for table in tables(&text) {
            let files = files(&table.above);
            let is_excused =
                files.is_empty() && (!links_files || table.above.contains("in no file"));
            for row in &table.rows {
                let known = known(&files, &table.above, row);
                let cells = row
                    .iter()
                    .zip(&table.numeric)
                    .filter(|(_, numeric)| **numeric);
                for figure in cells.flat_map(|(cell, _)| figures(cell)) {
                    checked += 1;
                    let is_known = known.iter().any(|&value| rounds_to(value, figure));
                    if !is_known && !is_excused {
                        wrong.push(format!(
                            "{document}, {}: {figure} of {}",
                            table.heading,
                            row[0].trim()
                        ));
                    }
                }
            }
        }
    }
    assert!(checked > 400, "{checked}");
    assert!(
        wrong.is_empty(),
        "in no file that the paragraph above the table links:\n{}",
        wrong.join("\n")
    );
}

/// What PyTorch's operators compute is not verified. The first page says so above each table of theirs.
#[test]
fn figures_of_pytorch_are_named_as_not_verified() {
    let has_peers = |file: &Value| file.to_string().contains(r#""kind":"peer""#);
    let text = fs::read_to_string(root().join("README.md")).unwrap();
    let mut tables = tables(&text);
    tables.retain(|table| {
        let mut cells = table.rows.iter().flatten().chain([&table.head]);
        cells.any(|cell| cell.contains("PyTorch")) && files(&table.above).iter().any(has_peers)
    });
    assert!(tables.len() > 1);
    for Table { above, head, .. } in tables {
        // Lines break between any two words.
        let above = above.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            above.contains("PyTorch") && above.contains("not verified"),
            "{head}"
        );
    }
}

#[test]
fn the_results_have_no_two_sections_of_one_title() {
    let text = fs::read_to_string(root().join("docs/results/README.md")).unwrap();
    let mut titles: Vec<_> = text.lines().filter(|line| line.starts_with('#')).collect();
    let all = titles.len();
    titles.sort_unstable();
    titles.dedup();
    assert_eq!(titles.len(), all, "{titles:#?}");
}

#[test]
fn a_figure_is_found_by_its_digits() {
    assert!(rounds_to(0.449472, "0.449") && !rounds_to(0.449472, "0.450"));
    assert!(rounds_to(0.0284, "28.4") && rounds_to(0.154, "154") && !rounds_to(0.154, "153"));
    assert_eq!(
        figures(" 0.375 (0.85), [one](a-1.5.md) kernel in 16 `x=0.25` "),
        ["0.375", "0.85"]
    );
    assert_eq!(
        problem("gather, 8×16×32 in f16"),
        Some(([8, 16, 32], Some("f16")))
    );
    assert_eq!((size("64 KiB"), size("4096×1×2")), (Some(65536), None));
}
