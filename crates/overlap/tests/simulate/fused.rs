//! One launch that gathers and multiplies costs the longer of what it sends and its product, which loses by sending.

use crate::machines::unthrottled;
use warpweave_overlap::algorithms;
use warpweave_overlap::plan::Problem;
use warpweave_overlap::{Machine, simulate};
use warpweave_symm_mem::DType;

fn total(machine: &Machine, chunks: usize, problem: &Problem) -> f64 {
    let name = format!("fusedAllGather:chunks={chunks}");
    let plans = algorithms::find(&name).unwrap().plans(4, problem).unwrap();
    simulate(&plans, machine, 1).unwrap().total()
}

#[test]
fn rows_that_come_in_time_cost_what_their_sending_takes_from_the_product() {
    let machine = unthrottled();
    for (m, n, k) in [
        (16384, 6656, 16384),
        (16384, 3584, 8192),
        (32768, 8192, 16384),
    ] {
        let (alone, _) = machine.product((m, n, k), DType::Bf16);
        let sent = (3 * m / 4 * k * 2) as f64 / (machine.link.sm_push_gbs * 1e3);
        let whole = alone + 0.63 * sent;
        for chunks in [4, 8] {
            let total = total(&machine, chunks, &Problem::new(m, n, k, DType::Bf16));
            assert!(
                (whole..1.02 * whole + 50.0).contains(&total),
                "{chunks} chunks, {m}x{n}x{k}: {total} µs, the product and its loss {whole}"
            );
        }
    }
}

/// Three peers' rows leave at the rate of one thread a block, not at three times that.
#[test]
fn rows_that_come_late_cost_what_it_takes_to_send_them() {
    let machine = unthrottled();
    let (m, n, k) = (16384, 8, 16384);
    let sent = (3 * m / 4 * k * 2) as f64 / (machine.link.sm_push_gbs * 1e3);
    for chunks in [1, 4] {
        let total = total(&machine, chunks, &Problem::new(m, n, k, DType::Bf16));
        assert!(
            (sent..1.15 * sent + 50.0).contains(&total),
            "{chunks} chunks: {total} µs, the rows {sent}"
        );
    }
}
