//! Pulls by copy engine from several peers.

use warpweave_overlap::plan::{Problem, Scaling};
use warpweave_overlap::{Machine, simulate};
use warpweave_symm_mem::DType;

use crate::schedules;

/// With a GEMM between two peers each is pulled from as a ring pulls, the scales of its rows too.
#[test]
fn pulls_are_slow_only_without_gemms_between_them() {
    let bf16 = Problem::new(8192, 3584, 8192, DType::Bf16);
    let e4m3 = Problem::new(8192, 3584, 8192, DType::E4m3).with_scaling(Scaling::Row);
    for problem in [bf16, e4m3] {
        let depends = |name: &str, change: fn(&mut Machine)| {
            let plans = schedules::plans(name, 4, &problem);
            let mut machine = Machine::named("h200x4").unwrap();
            let before = simulate(&plans, &machine, 1).unwrap().total();
            change(&mut machine);
            before != simulate(&plans, &machine, 1).unwrap().total()
        };
        let back_to_back = |name| depends(name, |machine| machine.link.pulls_gbs /= 2.0);
        let at_once = |name| depends(name, |machine| machine.link.pulls_streams_gbs /= 2.0);
        let [one, four] = ["1", "4"].map(|n| format!("directExchangePipeline:streams={n}"));
        assert_eq!(
            (back_to_back(&one), at_once(&one)),
            (false, false),
            "{problem:?}"
        );
        assert_eq!(
            (back_to_back(&four), at_once(&four)),
            (false, true),
            "{problem:?}"
        );
    }
}
