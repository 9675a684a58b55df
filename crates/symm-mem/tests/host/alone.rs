//! A test in a process of its own.

use std::process::Command;

const ALONE: &str = "WARPWEAVE_TEST_ALONE";

/// Runs `body` in a process that runs nothing but the calling test, whose name is `test`.
pub fn alone(test: &str, body: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some() {
        return body();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture"])
        .env(ALONE, "1");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    // By a name that no test has, none would fail.
    let ran = output.status.success() && said.contains("1 passed");
    assert!(ran, "{test}: {}\n{said}{errors}", output.status);
}
