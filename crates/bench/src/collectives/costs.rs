//! The table of times by which the library selects a variant, made from a report.

use warpweave_comm::collective::{Costs, Operation, Variant};
use warpweave_report::{Kind, Operands, Outcome, Row, Status};

/// The times of the variants that were right, as the library's `select` takes them; see [`Costs`].
pub fn costs(results: &[Outcome]) -> Costs {
    let mut costs = Costs::default();
    for outcome in results {
        let named = |o: &Operation| outcome.operation.as_deref() == Some(o.name());
        let operation = Operation::ALL.into_iter().find(named);
        let (Some(operation), Operands::Message { input_bytes, .. }) = (operation, outcome.on)
        else {
            continue;
        };
        let right = |row: &&Row| row.kind == Kind::Ours && row.status == Status::Ok;
        for row in outcome.rows.iter().filter(right) {
            if let (Ok(variant), Some(ms)) = (row.implementation.parse::<Variant>(), row.ms()) {
                costs.insert(operation, variant, outcome.world, input_bytes, ms * 1e3);
            }
        }
    }
    costs
}

#[cfg(test)]
mod tests {
    use warpweave_report::Bytes;
    use warpweave_report::statistics::Spread;

    use super::*;

    #[test]
    fn costs_are_those_of_variants_that_were_right() {
        let row = |name: &str, kind, status, us: f64| Row {
            single_ms: Spread::of(&[us / 1e3]),
            ..Row::new(name, kind, status, None)
        };
        let outcome = |size: usize, rows| {
            let on = Operands::Message {
                size: Bytes(size),
                input_bytes: size,
                output_bytes: 4 * size,
            };
            Outcome {
                rows,
                ..Outcome::new(Some("all-gather".into()), on, "bf16".into(), 4)
            }
        };
        let results = [
            outcome(
                4096,
                vec![
                    row("nccl", Kind::Nccl, Status::Ok, 21.0),
                    row("packets", Kind::Ours, Status::Ok, 5.25),
                    row("push", Kind::Ours, Status::Wrong, 8.4),
                    row("torch-nccl", Kind::Peer, Status::Ok, 22.0),
                ],
            ),
            outcome(
                16 << 20,
                vec![
                    Row::new("packets", Kind::Ours, Status::NotRun, None),
                    row("push", Kind::Ours, Status::Ok, 163.8),
                ],
            ),
        ];
        let text = costs(&results).to_string();
        let expected = "all-gather 4 packets 4096=5.2\nall-gather 4 push 16777216=163.8\n";
        assert_eq!(text, expected);
        assert_eq!(text.parse::<Costs>().unwrap().to_string(), text);
    }
}
