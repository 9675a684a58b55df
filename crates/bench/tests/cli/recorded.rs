//! What runs and predictions write, as `warpweave report` reads it.

use crate::job::{self, Said, has};
use crate::page::Page;

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
fn a_predicted_timeline_has_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (trace, html) = (path("trace.json"), path("report.html"));
    let traced = format!("plan trace pushChunks --shape 8192x3584x8192 --out {trace}");
    assert_eq!(job::say(&traced).code, Some(0));
    let Said { code, out, err } = job::say(&format!("report {trace} --out {html}"));
    assert_eq!(code, Some(0), "{err}");
    has(&out, &["report.html"]);
    let page = Page::parse(&std::fs::read_to_string(html).unwrap());
    let compared = page.agrees_with(&[job::read_json(trace)]);
    assert!(compared > 100, "only {compared} numbers were compared");
    page.tells_no_more_than_its_tables();
}
