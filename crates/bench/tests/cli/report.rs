//! `warpweave report`: the page of real results, read by a parser.

use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;
use warpweave_bench::report::{Document, compact, summary};

use crate::job::{self, Said, has};
use crate::page::Page;

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

/// A timeline that was measured on two H200s.
fn measured_timeline() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/measured_timeline.json")
}

/// The file as the types that write it have it, whichever layout it is in.
fn read(path: &PathBuf) -> Value {
    match Document::read(path).unwrap() {
        Document::Report(report) => report.to_json(),
        Document::Timelines(_) => job::read_json(path),
    }
}

/// A page of all results of the project, of a timeline that was measured and of one that is predicted.
pub struct Written {
    pub folder: TempDir,
    pub page: PathBuf,
    pub files: Vec<Value>,
}

pub fn written() -> Written {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (trace, page) = (path("trace.json"), path("report.html"));
    let traced = format!("plan trace pushChunks --shape 8192x3584x8192 --out {trace}");
    assert_eq!(job::say(&traced).code, Some(0));
    let mut command = job::warpweave();
    let files = [recorded(), vec![measured_timeline(), trace.into()]].concat();
    command.arg("report").args(&files).args(["--out", &page]);
    let Said { code, out, err } = job::said(&mut command);
    assert_eq!(code, Some(0), "{err}");
    has(&out, &["report.html"]);
    Written {
        page: page.into(),
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
fn a_run_writes_the_page_of_its_own_report() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (json, html) = (path("run.json"), path("run.html"));
    let line = "bench --device host --shape 16x16x16 --iterations 1 --impl naiveRemoteRead";
    job::run_line(2, &format!("{line} --json {json} --report {html}")).succeeded();
    let json = job::read_json(json);
    let page = Page::parse(&std::fs::read_to_string(html).unwrap());
    let compared = page.agrees_with(&[json]);
    assert!(compared >= 4, "only {compared} numbers were compared");
    page.tells_no_more_than_its_tables();
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
        let mut command = job::warpweave();
        command.arg("report").arg(file).current_dir(folder.path());
        let Said { code, err, .. } = job::said(&mut command);
        assert_eq!(code, Some(status), "{err}");
        has(&err, &[why]);
        assert!(!folder.path().join("report.html").exists());
    }
}

#[test]
fn recorded_collectives_have_a_drawing() {
    let folder = tempfile::tempdir().unwrap();
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results");
    let report = |file: &str| {
        let mut command = job::warpweave();
        command.arg("report").arg(recorded.join(file));
        command.args(["--out", "page.html", "--plot", "times.svg"]);
        job::said(command.current_dir(folder.path()))
    };
    let Said { code, err, .. } = report("gemm-1xh200.json");
    assert_eq!(code, Some(2), "{err}");
    has(&err, &["of the suite collectives"]);
    let file = "collectives-4xh200.json";
    let Said { code, err, .. } = report(file);
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
