use super::*;
use crate::model::samples::has;
use crate::model::{Report, Status};

fn source(report: Report) -> Source {
    Source {
        name: "a.json".into(),
        document: Document::Report(Box::new(report)),
    }
}

#[test]
fn a_wrong_row_is_told_first_and_drawn_nowhere() {
    let mut report = Report::sample();
    let row = &mut report.results[0].rows[0];
    (row.status, row.reason) = (Status::Wrong, Some("rank 2: C[1, 2] <is> 3".into()));
    let html = page(&[source(report)]);
    let (head, body) = html.split_once("</header>").unwrap();
    has(
        head,
        &[
            "Results were wrong",
            "baselineCudaAllgatherMatmul",
            "C[1, 2] &lt;is&gt; 3",
        ],
    );
    assert!(body.contains("WRONG: the reason is below"), "{body}");
    assert!(
        !body.contains("baselineCudaAllgatherMatmul, one call"),
        "{body}"
    );
    assert!(body.contains("torch-fused, one call: 0.0400 ms"), "{body}");
}

#[test]
fn a_page_of_right_rows_says_so() {
    let html = page(&[source(Report::sample_of_collectives())]);
    has(
        &html,
        &[
            "Every row that ran was right",
            "packets was not run at 16M: 16777216 bytes | too many",
            "push, 16M: 164 µs",
        ],
    );
    assert!(!html.contains("NaN") && !html.contains("inf"), "{html}");
}

#[test]
fn worlds_of_different_files_are_put_together() {
    let of = |world: usize| {
        let mut report = Report::sample();
        report.results[0].world = world;
        source(report)
    };
    let alone = page(&[of(4), of(4)]);
    assert!(!alone.contains("Scaling over ranks"), "{alone}");
    let html = page(&[of(2), of(4)]);
    has(
        &html,
        &[
            "Scaling over ranks",
            "2 ranks: 412 TFLOP/s",
            "4 ranks: 412 TFLOP/s",
        ],
    );
    let mut wrong = of(2);
    if let Document::Report(report) = &mut wrong.document {
        report.results[0].rows[0].status = Status::Wrong;
    }
    let html = page(&[wrong, of(4)]);
    assert!(!html.contains("2 ranks: 412 TFLOP/s"), "{html}");
    let mut shared = of(2);
    if let Document::Report(report) = &mut shared.document {
        report.provenance.devices[0].distinct = Some(1);
    }
    let apart = page(&[shared, of(4)]);
    assert!(!apart.contains("Scaling over ranks"), "{apart}");
    let other = |world: usize| {
        let mut source = of(world);
        if let Document::Report(report) = &mut source.document {
            report.provenance.devices[0].name = "another".into();
        }
        source
    };
    let apart = page(&[of(2), other(4)]);
    assert!(!apart.contains("Scaling over ranks"), "{apart}");
}

#[test]
fn a_page_of_nothing_is_a_page() {
    let mut report = Report::sample();
    report.results.clear();
    let html = page(&[source(report)]);
    assert!(html.ends_with("</html>\n"), "{html}");
}
