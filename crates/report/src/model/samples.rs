//! Sample reports for tests.

use super::*;

/// Makes sure that `text` has all of `parts`.
#[track_caller]
pub(crate) fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part}: {text}");
    }
}

impl Row {
    /// A row of an implementation that cannot run here.
    pub(crate) fn not_run(implementation: &str, reason: String) -> Self {
        Self::new(implementation, Kind::Ours, Status::NotRun, Some(reason))
    }
}

impl Times {
    pub(crate) fn sample(taken: &[(Metric, &[f64])]) -> Self {
        let mut times = Self::default();
        for (metric, samples) in taken {
            times.extend(*metric, samples.iter().copied());
        }
        times
    }
}

impl Report {
    /// Plans: a row that ran, one that did not, and a mean.
    pub(crate) fn sample() -> Self {
        let ran = Row {
            transport: vec!["copy-engine push".into()],
            launches: Some(1),
            single_ms: Spread::of(&[0.05, 0.06, 0.07]),
            tflops: Some(412.3),
            back_to_back_ms: Spread::of(&[0.0511]),
            graph_ms: Spread::of(&[0.0498]),
            group: Some(0),
            algorithms: vec!["blocked".into()],
            samples: Times::sample(&[
                (Metric::Single, &[0.05, 0.06, 0.07]),
                (Metric::BackToBack, &[0.0511]),
                (Metric::Graph, &[0.0498]),
            ]),
            verification: Some(Verdict {
                relative_error: 2.1e-4,
                ..Verdict::default()
            }),
            ..Row::new("baselineCudaAllgatherMatmul", Kind::Ours, Status::Ok, None)
        };
        let peer = Row::of_peer("torch-fused", Spread::of(&[0.04]).unwrap_or_default());
        let not_run = Row::not_run(
            "multimemGatherScalarCompute",
            "multicast is off | `0`".into(),
        );
        let shape = Shape::new(64, 32, 16);
        let on = Operands::Matrices { shape };
        let outcome = Outcome::new(Some("all-gather-matmul".into()), on, "f16".into(), 4);
        Self {
            schema: PLANS.into(),
            suite: "fused-matmul".into(),
            reproduces: "somebody's figures".into(),
            provenance: Provenance::sample(),
            clock_ms: None,
            links: None,
            peers: None,
            results: vec![
                Outcome {
                    published: vec![Published {
                        shape,
                        dtype: "f16".into(),
                        what: "fused".into(),
                        ms: 0.043,
                        source: "8×H100, somebody".into(),
                    }],
                    groups: vec![Group {
                        baseline_ms: Spread::of(&[0.075]),
                        limit_ms: Some(0.05472),
                        ..Group::default()
                    }],
                    rows: vec![ran, not_run, peer],
                    ..outcome
                }
                .compared(),
            ],
            means: vec![Mean {
                implementation: "second".into(),
                baseline: "first".into(),
                dtype: "bf16".into(),
                problems: 10,
                times_baseline: 0.99,
                times_baseline_back_to_back: None,
            }],
            notes: vec![],
        }
    }

    /// Two sizes of a collective, with NCCL, a variant that ran, one that did not everywhere, and a peer.
    pub(crate) fn sample_of_collectives() -> Self {
        let row = |name: &str, kind, us: f64| Row {
            single_ms: Spread::of(&[us / 1e3, us / 1e3 * 1.1]),
            graph_single_ms: Spread::of(&[us / 1.25e3]).filter(|_| kind != Kind::Peer),
            samples: match kind {
                Kind::Peer => Times::default(),
                _ => Times::sample(&[
                    (Metric::Single, &[us / 1e3, us / 1e3 * 1.1]),
                    (Metric::GraphSingle, &[us / 1.25e3]),
                ]),
            },
            ..Row::new(name, kind, Status::Ok, None)
        };
        let outcome = |size: usize, rows| {
            let on = Operands::Message {
                size: Bytes(size),
                input_bytes: size,
                output_bytes: 4 * size,
            };
            Outcome {
                limit: Some(Limit::of_transfer(3 * size, 381.0)),
                selected: Some("push".into()),
                rows,
                ..Outcome::new(Some("all-gather".into()), on, "bf16".into(), 4)
            }
            .compared()
        };
        let small = vec![
            row("nccl", Kind::Nccl, 20.0),
            row("packets", Kind::Ours, 5.0),
            row("push", Kind::Ours, 8.0),
            row("torch-nccl", Kind::Peer, 21.0),
        ];
        let large = vec![
            row("nccl", Kind::Nccl, 188.0),
            Row::not_run("packets", "16777216 bytes | too many".into()),
            row("push", Kind::Ours, 156.0),
        ];
        Self {
            schema: COLLECTIVES.into(),
            suite: "collectives".into(),
            reproduces: String::new(),
            links: Some(Links {
                bandwidth_gb_s: 381.0,
                transport: "copy-engine push".into(),
            }),
            peers: Some("PyTorch 2.11.0".into()),
            results: vec![outcome(4096, small), outcome(16 << 20, large)],
            means: vec![],
            ..Self::sample()
        }
    }
}
