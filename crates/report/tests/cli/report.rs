//! `report`: the page of real results, read by a parser.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;
use warpweave_report::{Document, compact, summary};

use crate::page::Page;

/// Runs the command in `folder` on these files and options. Its status, and what it said.
fn report(folder: &Path, words: &[impl AsRef<std::ffi::OsStr>]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warpweave-report"));
    let output = command
        .arg("report")
        .args(words)
        .current_dir(folder)
        .output()
        .unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    (output.status.code(), out, err)
}

/// Everything that the project has recorded.
fn recorded() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results");
    let files = std::fs::read_dir(folder).unwrap();
    let mut files: Vec<_> = files.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| {
        path.extension()
            .is_some_and(|extension| extension == "json")
    });
    files.sort();
    files
}

/// A timeline that was measured on two H200s, with its prediction.
fn measured_timeline() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/measured_timeline.json")
}

/// The file as the types that write it have it, whichever layout it is in.
fn read(path: &PathBuf) -> Value {
    match Document::read(path).unwrap() {
        Document::Report(report) => report.to_json(),
        Document::Timelines(_) => {
            serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
        }
    }
}

/// A page of all results of the project, and of a timeline that was measured and predicted.
pub struct Written {
    pub folder: TempDir,
    pub page: PathBuf,
    pub files: Vec<Value>,
}

pub fn written() -> Written {
    let folder = tempfile::tempdir().unwrap();
    let files = [recorded(), vec![measured_timeline()]].concat();
    let (code, out, err) = report(folder.path(), &files);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("report.html"), "{out}");
    Written {
        page: folder.path().join("report.html"),
        files: files.iter().map(read).collect(),
        folder,
    }
}

/// As many as the files have: the page shows all of them.
pub const NUMBERS: usize = 4000;

#[test]
fn the_page_has_every_number_of_its_files() {
    let written = written();
    let html = std::fs::read_to_string(&written.page).unwrap();
    let page = Page::parse(&html);
    let compared = page.agrees_with(&written.files);
    assert!(compared > NUMBERS, "only {compared} numbers were compared");
    assert!(page.told.len() > 1500, "{} marks", page.told.len());
    page.tells_no_more_than_its_tables();
}

#[test]
fn the_page_needs_nothing_else_and_is_open_to_all() {
    let written = written();
    let html = std::fs::read_to_string(&written.page).unwrap();
    for foreign in ["http", "src=", "url(", "@import", "<script", "<link"] {
        assert!(!html.contains(foreign), "{foreign}");
    }
    let dom = tl::parse(&html, tl::ParserOptions::default()).unwrap();
    let parser = dom.parser();
    let count = |selector: &str| dom.query_selector(selector).into_iter().flatten().count();
    assert!(count("svg[role=img]") > 20);
    assert_eq!(count("svg[role=img]"), count("svg[aria-label]"));
    assert_eq!(count("figure"), count("figcaption"));
    assert_eq!(count("table"), count("caption"));
    assert_eq!(count("th"), count("th[scope]"));
    assert_eq!(count("h1"), 1);
    for link in dom.query_selector("a").unwrap() {
        let link = link.get(parser).unwrap().as_tag().unwrap();
        let to = link
            .attributes()
            .get("href")
            .flatten()
            .unwrap()
            .as_utf8_str();
        let id = to.strip_prefix('#').unwrap();
        assert!(dom.get_element_by_id(id).is_some(), "{to}");
    }
    for ground in ["prefers-color-scheme:dark", "color-scheme:light dark"] {
        assert!(html.contains(ground), "{ground}");
    }
}

#[test]
fn what_did_not_run_stands_there_with_the_reason() {
    let written = written();
    let html = std::fs::read_to_string(&written.page).unwrap();
    let reasons: Vec<_> = written
        .files
        .iter()
        .filter_map(|file| file["results"].as_array())
        .flatten()
        .flat_map(|result| result["rows"].as_array().unwrap())
        .filter(|row| row["status"] == "not-run")
        .map(|row| {
            (
                row["implementation"].as_str().unwrap(),
                row["reason"].as_str().unwrap(),
            )
        })
        .collect();
    assert!(!reasons.is_empty());
    for (name, reason) in reasons {
        let reason = reason
            .replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;")
            .replace('"', "&quot;");
        assert!(
            html.contains(name) && html.contains(&reason),
            "{name}: {reason}"
        );
    }
}

#[test]
fn other_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other.json");
    std::fs::write(&other, "{\"schema\": \"warpweave-bench/99\"}").unwrap();
    for (file, status, why) in [
        (other.as_path(), 2, "warpweave-bench/99"),
        (Path::new("nowhere.json"), 1, "nowhere.json"),
    ] {
        let (code, _, err) = report(folder.path(), &[file]);
        assert_eq!(code, Some(status), "{err}");
        assert!(err.contains(why), "{err}");
        assert!(!folder.path().join("report.html").exists());
    }
}

#[test]
fn recorded_collectives_have_a_drawing() {
    let folder = tempfile::tempdir().unwrap();
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results");
    let drawing = |file: &str| {
        let file = recorded.join(file).into_os_string();
        let options = ["--out", "page.html", "--plot", "times.svg"].map(Into::into);
        report(folder.path(), &[vec![file], options.into()].concat())
    };
    let (code, _, err) = drawing("gemm-1xh200.json");
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("of the suite collectives"), "{err}");
    let file = "collectives-4xh200.json";
    let (code, _, err) = drawing(file);
    assert_eq!(code, Some(0), "{err}");
    let drawn = std::fs::read_to_string(folder.path().join("times.svg")).unwrap();
    let Document::Report(report) = Document::read(&recorded.join(file)).unwrap() else {
        panic!("no report")
    };
    assert_eq!(report.plot().as_ref(), Some(&drawn));
    for (outcome, row) in report.rows() {
        if let Some(ms) = row.ms().filter(|ms| *ms >= 0.1) {
            let name = &row.implementation;
            let told = format!(
                "<title>{name}, {}: {:.0} µs</title>",
                outcome.size(),
                ms * 1e3
            );
            assert!(drawn.contains(&told), "{told}");
        }
    }
}

/// The table has the numbers of the file beside it, which have fewer digits than those that were measured.
#[test]
fn a_summary_is_that_of_the_file_beside_it() {
    fn with_more_digits(value: &mut Value) {
        match value {
            Value::Number(number) if number.is_f64() => {
                *value = (number.as_f64().unwrap() * 1.000_037).into();
            }
            Value::Array(values) => values.iter_mut().for_each(with_more_digits),
            Value::Object(fields) => fields.values_mut().for_each(with_more_digits),
            _ => {}
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let summaries = folder.path().join("summaries");
    std::fs::create_dir(&summaries).unwrap();
    for recorded in recorded() {
        let mut measured = read(&recorded);
        with_more_digits(&mut measured);
        let name = Path::new(recorded.file_name().unwrap());
        std::fs::write(folder.path().join(name), measured.to_string()).unwrap();
        let options = ["--summaries", "summaries"].map(Path::new);
        let (code, _, err) = report(folder.path(), &[&[name], &options[..]].concat());
        assert_eq!(code, Some(0), "{err}");
        let written = summaries.join(name);
        let Document::Report(report) = Document::read(&written).unwrap() else {
            panic!("{written:?} is no report")
        };
        let mut table = Vec::new();
        summary(&report, &mut table).unwrap();
        let beside = std::fs::read(written.with_extension("md")).unwrap();
        assert!(table == beside, "{name:?}");
    }
}

/// The text of a report with samples.
fn with_samples() -> String {
    let mut report = read(&recorded()[0]);
    report["results"][0]["rows"][0]["samples"] = serde_json::json!({"single_ms": [0.1, 0.2]});
    report.to_string()
}

#[test]
fn no_file_that_is_read_is_lost_and_none_is_written_twice() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let text = with_samples();
    for name in ["before/b.json", "after/b.json", "b.txt"] {
        std::fs::create_dir_all(file(name).parent().unwrap()).unwrap();
        std::fs::write(file(name), &text).unwrap();
    }
    std::fs::create_dir(file("short")).unwrap();
    std::os::unix::fs::symlink(file("before"), file("link")).unwrap();
    for (line, option, why) in [
        (
            "before/b.json --summaries before",
            "--summaries before/b.json",
            "one of the files",
        ),
        (
            "before/b.json --summaries link",
            "--summaries link/b.json",
            "one of the files",
        ),
        (
            "before/b.json --out after/../before/b.json",
            "--out",
            "one of the files",
        ),
        (
            "before/b.json --out a.html --plot ./a.html",
            "--plot ./a.html",
            "two files",
        ),
        (
            "before/b.json after/b.json --summaries short",
            "--summaries short/b.json",
            "two files",
        ),
        (
            "before/b.json b.txt --summaries short",
            "--summaries short/b.md",
            "two files",
        ),
        (
            "before/b.json --summaries none",
            "--summaries none/b.json",
            "there is no folder none",
        ),
    ] {
        let words: Vec<_> = line.split(' ').collect();
        let (code, out, err) = report(folder.path(), &words);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{line}: {err}");
        assert!(err.contains(option) && err.contains(why), "{line}: {err}");
        for name in ["report.html", "short/b.json", "a.html"] {
            assert!(!file(name).exists(), "{line}: {name}");
        }
        for name in ["before/b.json", "after/b.json", "b.txt"] {
            assert_eq!(
                std::fs::read_to_string(file(name)).unwrap(),
                text,
                "{line}: {name}"
            );
        }
    }
    // One without samples is written anew, by its own summary alone.
    let (code, _, err) = report(folder.path(), &["before/b.json", "--summaries", "short"]);
    assert_eq!(code, Some(0), "{err}");
    let short = std::fs::read(file("short/b.json")).unwrap();
    let (code, _, err) = report(folder.path(), &["short/b.json", "--summaries", "short"]);
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(std::fs::read(file("short/b.json")).unwrap(), short);
    let words = ["before/b.json", "short/b.json", "--summaries", "short"];
    let (code, _, err) = report(folder.path(), &words);
    assert_eq!(code, Some(2), "{err}");
    let (code, _, err) = report(folder.path(), &["before/b.json", "after/b.json"]);
    assert_eq!(code, Some(0), "{err}");
    let html = std::fs::read_to_string(file("report.html")).unwrap();
    assert!(html.contains(">before/b.json<") && html.contains(">after/b.json<"));
}

/// The files of `docs/results` are what `report --summaries` writes: JSON without samples, and its table.
#[test]
fn recorded_results_are_summaries() {
    let mut differ = Vec::new();
    for path in recorded() {
        let Document::Report(report) = Document::read(&path).unwrap() else {
            panic!("{path:?} is no report")
        };
        let mut table = Vec::new();
        summary(&report, &mut table).unwrap();
        let json = format!("{}\n", compact::pack(&report)).into_bytes();
        for (path, content) in [(path.clone(), json), (path.with_extension("md"), table)] {
            if std::fs::read(&path).ok().as_ref() != Some(&content) {
                differ.push(path);
            }
        }
    }
    let again = "cargo xtask report docs/results/*.json --summaries docs/results";
    assert!(differ.is_empty(), "{again} writes them anew: {differ:?}");
}
