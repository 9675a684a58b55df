//! The CUDA backend on the fake driver: its calls in order, and each of them failing once.
//!
//! Every test starts this program again with the fake driver instead of libcuda and lets it run `child`, so
//! that a hang, an abort or the driver's state is confined to that process.

mod child;
mod exchange;
mod injection;
mod machines;
mod processes;
mod rules;
mod scenarios;

use child::{Child, ROLE};
use scenarios::{SCENARIOS, Scenario};
use warpweave_fake_driver::WITH;

#[test]
fn scenarios_leave_nothing_behind() {
    for needs in ["", "fabric", "pools"] {
        Child::new("sound").set(WITH, needs).run();
    }
}

#[test]
fn nothing_is_taken_away_under_work() {
    let asynchronous = || Child::new("sound").set(warpweave_fake_driver::ASYNCHRONOUS, "1");
    for needs in ["", "fabric", "pools"] {
        asynchronous().set(WITH, needs).run();
    }
    asynchronous().multicast().run();
}

#[test]
fn scenarios_with_multicast_leave_nothing_behind() {
    Child::new("sound").multicast().run();
}

#[test]
fn a_driver_of_cuda_12_8_does_everything() {
    Child::new("sound").without("cuMemcpyBatchAsync_v2").run();
}

/// CUDA 12.2: copies of a batch are enqueued one by one.
#[test]
fn a_driver_of_the_branch_r535_does_everything() {
    let older = || {
        machines::SINCE_12_2
            .into_iter()
            .fold(Child::new("sound"), Child::without)
    };
    older().run();
    older().multicast().run();
}

#[test]
fn an_allocation_makes_these_calls() {
    Child::new("calls").run();
}

#[test]
fn every_call_that_fails_is_a_typed_error_on_every_rank() {
    for scenario in SCENARIOS.iter().filter(|s| !s.multicast) {
        injection("injection", scenario).run();
    }
}

#[test]
fn every_multicast_call_that_fails_is_a_typed_error_on_every_rank() {
    for scenario in SCENARIOS.iter().filter(|s| s.multicast) {
        injection("injection", scenario).multicast().run();
    }
}

#[test]
fn processes_share_buffers_whatever_fails() {
    processes::start("buffer-2");
}

#[test]
fn processes_share_plain_memory_whatever_fails() {
    processes::start("plain-memory");
}

#[test]
fn processes_share_virtual_memory_whatever_fails() {
    processes::start("virtual-memory");
}

#[test]
fn processes_share_multicast_objects_whatever_fails() {
    processes::start("multicast");
}

#[test]
fn processes_share_fabric_memory_whatever_fails() {
    processes::start("fabric-memory");
}

#[test]
fn processes_on_several_hosts_share_buffers_whatever_fails() {
    processes::start("hosts");
}

#[test]
fn processes_take_nothing_away_under_work() {
    for scenario in SCENARIOS
        .iter()
        .filter(|s| s.world > 1 && s.needs != "pools")
    {
        processes::start_asynchronous(scenario.name);
    }
}

#[test]
fn a_lost_context_is_a_typed_error_on_every_rank() {
    for name in ["buffer-2", "pad", "graph", "plain-memory", "pool"] {
        injection("lost", Scenario::named(name)).run();
    }
    injection("lost", Scenario::named("multicast"))
        .multicast()
        .run();
}

#[test]
fn busy_streams_are_looked_at_again() {
    for name in ["buffer-2", "graph", "plain-memory"] {
        injection("busy", Scenario::named(name)).run();
    }
}

/// A child that runs a scenario many times. It uses a small granularity, because it allocates much, and one
/// device per rank: otherwise a rank's calls would depend on the state of the others' streams.
fn injection(role: &str, scenario: &Scenario) -> Child {
    Child::new(role)
        .set(
            warpweave_fake_driver::DEVICES,
            &scenario.world.max(2).to_string(),
        )
        .set("PART", scenario.name)
        .set(WITH, scenario.needs)
        .set(warpweave_fake_driver::GRANULARITY, "65536")
}

#[test]
fn the_driver_enforces_its_rules() {
    Child::new("rules").run();
}

#[test]
fn the_driver_keeps_memory_from_being_taken_away_under_work() {
    Child::new("work_rules")
        .set(warpweave_fake_driver::ASYNCHRONOUS, "1")
        .run();
}

#[test]
fn the_driver_enforces_the_rules_of_multicast() {
    Child::new("multicast_rules").multicast().run();
}

#[test]
fn machines_that_lack_something_get_an_answer() {
    let lacks = |what| Child::new("machine").set("LACKS", what);
    lacks("device")
        .set(warpweave_fake_driver::DEVICES, "0")
        .run();
    lacks("vmm")
        .set(warpweave_fake_driver::WITHOUT, "vmm")
        .run();
    lacks("descriptor")
        .set(warpweave_fake_driver::WITHOUT, "descriptor")
        .run();
    lacks("peer")
        .set(warpweave_fake_driver::WITHOUT, "peer")
        .run();
    lacks("permission").run();
    lacks("multicast")
        .set(warpweave_fake_driver::WITHOUT, "multicast")
        .multicast()
        .run();
}

#[test]
fn ranks_on_several_hosts_without_fabric_handles_get_an_answer() {
    use warpweave_fake_driver::WITHOUT;
    let lacks = |what| Child::new("hosts").set("LACKS", what);
    lacks("fabric").run();
    lacks("imex").set(WITH, "fabric").set(WITHOUT, "imex").run();
    lacks("switch")
        .set(WITH, "fabric")
        .set("WARPWEAVE_FABRIC_HANDLES", "0")
        .run();
    lacks("imex of a rank").set(WITH, "fabric").run();
}

#[test]
fn a_driver_that_lacks_a_function_gets_an_answer() {
    for function in machines::missing() {
        Child::new("machine")
            .set("LACKS", function)
            .without(function)
            .multicast()
            .run();
    }
    Child::new("machine")
        .set("LACKS", "events")
        .without("cuEventElapsedTime")
        .without("cuEventElapsedTime_v2")
        .run();
}

#[test]
#[cfg_attr(not(feature = "nvcc"), ignore = "needs the feature nvcc")]
fn a_copy_after_a_failed_wait_copies_nothing() {
    Child::new("stopped")
        .set(warpweave_fake_driver::ASYNCHRONOUS, "1")
        .run();
}

/// Entry point of the child processes of the tests above.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let driver = child::loaded();
    match role.as_str() {
        "sound" => scenarios::all_are_sound(&driver),
        "stopped" => scenarios::nothing_is_copied(&driver),
        "calls" => scenarios::calls_of_an_allocation(&driver),
        "injection" => injection::run(&driver),
        "lost" => injection::lost(&driver),
        "busy" => injection::busy(&driver),
        "process" => processes::run(&driver),
        "rules" => rules::enforced(&driver),
        "work_rules" => rules::enforced_under_work(&driver),
        "multicast_rules" => rules::multicast_enforced(&driver),
        "machine" => machines::answer(&driver),
        "hosts" => scenarios::answer_of_hosts(&driver),
        other => panic!("no role {other}"),
    }
}
