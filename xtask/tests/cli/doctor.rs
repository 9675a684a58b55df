//! What `doctor` finds and advises.

use std::process::Command;

use crate::Ended;

fn xtask(args: &[&str], variables: &[(&str, &str)]) -> Ended {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(args)
        .envs(variables.iter().copied())
        .output();
    output.unwrap().into()
}

#[test]
fn a_machine_that_runs_these_tests_runs_the_host_backend() {
    let done = xtask(&["doctor", "--json"], &[]);
    done.ends(0, &[]);
    let report: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!(report["host_backend"], true);
    let findings = report["findings"].as_array().unwrap();
    let names: Vec<&str> = findings
        .iter()
        .map(|finding| finding["name"].as_str().unwrap())
        .collect();
    let expected = "memory rustc nvcc CUTLASS libcuda NCCL cuBLASLt multicast";
    for name in expected.split(' ') {
        assert!(names.contains(&name), "{name} is not among {names:?}");
    }
}

#[test]
fn what_is_missing_comes_with_a_way_to_get_it() {
    let variables = [
        ("WARPWEAVE_CUTLASS", "/nonexistent"),
        ("WARPWEAVE_NCCL", "/nonexistent/libnccl.so.2"),
    ];
    let done = xtask(&["doctor", "--json"], &variables);
    let report: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!(
        (&report["device_code"], &report["cuda_backend"]),
        (&false.into(), &false.into())
    );
    let missing: Vec<_> = report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|finding| finding["state"] == "missing")
        .collect();
    assert!(missing.iter().any(|finding| finding["name"] == "CUTLASS"));
    assert!(missing.iter().any(|finding| finding["name"] == "NCCL"));
    for finding in missing {
        assert!(
            finding["advice"]
                .as_str()
                .is_some_and(|advice| !advice.is_empty()),
            "{finding}"
        );
    }
}
