//! Descriptions of machines.

use warpweave_overlap::simulate::{Gemm, Latency, Machine, SimulateError};
use warpweave_symm_mem::DType;

/// `h200x4` with GEMMs that never throttle, and round figures instead of fitted ones.
pub fn unthrottled() -> Machine {
    let mut machine = Machine::named("h200x4").unwrap();
    machine.gemm = Gemm {
        boost_us: 1e9,
        throttled: 0.87,
        launch_us: 2.5,
        memory_us: 0.0,
        during_transfers: 0.95,
        ..machine.gemm
    };
    machine.gemm.sustained_tflops.bf16 = 795.0;
    machine.gpu.memory_gbs = 4000.0;
    machine.link.copy_engine_gbs = 388.0;
    machine.latency = Latency {
        launch_us: 1.5,
        copy_us: 6.5,
        pull_us: 0.0,
        next_copy_us: 3.0,
        signal_us: 2.7,
        wait_us: 1.0,
        event_us: 2.5,
        by_kernel: true,
        during_gemm_us: 5.0,
        overtaken_us: 0.0,
        during_gemm_waves: Default::default(),
    };
    machine
}

const H200: &str = include_str!("../../machines/h200x4.toml");

#[test]
fn every_machine_of_the_crate_can_be_read_under_its_name() {
    for name in Machine::names() {
        assert_eq!(Machine::named(name).unwrap().name, name);
    }
    let error = Machine::named("h300").unwrap_err().to_string();
    assert!(error.contains("h300") && error.contains("nvl72"), "{error}");
}

/// Machines that were measured with the release before have figures that are not used any more.
#[test]
fn machines_of_the_release_before_are_read() {
    for (before, now) in [
        (
            "sms = 0.16\nby_engine = { all-gather = 30000000 }",
            "sms = 0.16",
        ),
        (
            "during_gemm_us = 4.3\nduring_gemm_waves = 0.14",
            "during_gemm_us = 4.3",
        ),
    ] {
        assert!(H200.contains(now));
        let machine = Machine::from_toml(&H200.replace(now, before)).unwrap();
        assert_eq!(machine, Machine::named("h200x4").unwrap());
    }
}

#[test]
fn operands_that_stay_in_l2_are_read_sooner_than_those_of_memory() {
    let time = |l2_mb, n| {
        let mut machine = Machine::named("h200x4").unwrap();
        machine.gpu.l2_mb = l2_mb;
        machine.gemm_time((64, n, 2048), DType::Bf16).0
    };
    // 35 MB, and 70.
    assert!(time(36.0, 8192) < 0.8 * time(0.0, 8192));
    assert_eq!(time(36.0, 16384), time(0.0, 16384));
}

#[test]
fn figures_that_are_none_are_refused() {
    for (right, wrong) in [
        ("copy_engine_gbs = 378", "copy_engine_gbs = 0"),
        ("copy_engine_gbs = 378", "copy_engine_gbs = nan"),
        ("\ncopy_us = 11", "\ncopy_us = -1"),
        ("nodes = 1", "nodes = 0"),
        ("copy_engines = 4", "copy_engines = 0"),
        ("concurrent_copies = 0.6", "concurrent_copies = 1.5"),
        ("mixed = 0.45", "mixed = 0"),
        ("event_us = 4.1", "event = 4.1"),
        ("during_gemm_us = 4.3", "during_gemm_us = -4.3"),
        ("[4096, 8.4]", "[4096, 0]"),
        ("[4096, 8.4]", "[65537, 8.4]"),
        ("ranks = 4", "ranks = 1"),
        ("sms = 0.19", "sms = 2"),
        ("during_gemms = 0.8", "during_gemms = 0"),
        ("all-gather = [", "all-gathers = ["),
        ("nodes = 1", "nodes = = 1"),
    ] {
        assert!(H200.contains(right), "{right}");
        let found = Machine::from_toml(&H200.replace(right, wrong));
        assert!(
            matches!(found, Err(SimulateError::Malformed { .. })),
            "{wrong}: {found:?}"
        );
    }
}
