//! The driver, the GPUs, and whether multicast may be used.

use std::fs;

use super::libraries::by_loader;
use super::{Answer, Finding, Use, doubtful, missing, present};
use crate::process;

/// The driver branch of CUDA 13.0.
const BRANCH: u32 = 580;
const DRIVER_ADVICE: &str = "install NVIDIA's driver, branch 580 or newer; in a container, start it \
    with the GPUs (as `docker run --gpus all`)";

/// Driver, GPUs and multicast, without loading the driver's library.
pub fn examine() -> Vec<Finding> {
    let multicast = multicast(|name| std::env::var(name).ok());
    vec![
        ("driver", Use::Cuda, driver()),
        ("libcuda", Use::Cuda, libcuda()),
        ("GPUs", Use::Cuda, gpus()),
        ("multicast", Use::Optional, multicast),
    ]
}

fn driver() -> Answer {
    const FILE: &str = "/proc/driver/nvidia/version";
    let text = fs::read_to_string(FILE).unwrap_or_default();
    let Some(version) = driver_version(&text) else {
        return missing(format!("no {FILE}"), DRIVER_ADVICE);
    };
    let branch = version.split('.').next().map(str::parse::<u32>);
    if matches!(branch, Some(Ok(branch)) if branch < BRANCH) {
        let advice = "older than branch 580, which CUDA 13.0 needs: update it, or build with an nvcc \
            12.8 or 12.9 (WARPWEAVE_NVCC) and use the CUDA 12 libraries";
        return doubtful(version, advice);
    }
    present(version)
}

/// The version in `/proc/driver/nvidia/version`: the first part of its first line with only digits and
/// dots.
fn driver_version(text: &str) -> Option<String> {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let is_version = |word: &&str| word.contains('.') && word.split('.').all(is_number);
    let mut words = text.lines().next()?.split_whitespace();
    words.find(is_version).map(str::to_owned)
}

fn libcuda() -> Answer {
    match by_loader(&["libcuda.so.1", "libcuda.so"]) {
        // The toolkit's stub has the name without a version and answers every call with an error.
        Some(path) if path.components().any(|part| part.as_os_str() == "stubs") => {
            missing(format!("{} is a stub", path.display()), DRIVER_ADVICE)
        }
        Some(path) => present(path.display().to_string()),
        None => missing("no libcuda.so.1", DRIVER_ADVICE),
    }
}

fn gpus() -> Answer {
    let query = "--query-gpu=name,memory.total,compute_cap";
    let listed = process::answer("nvidia-smi", &[query, "--format=csv,noheader"]);
    let listed = models(&listed.unwrap_or_default());
    if !listed.is_empty() {
        return present(listed.join("; "));
    }
    let counted = crate::device::Gpus::find();
    if counted.count > 0 {
        return present(format!("{} ({})", counted.count, counted.looked));
    }
    let found = format!("none in {}", counted.looked);
    missing(found, "jobs run on the processors")
}

/// The GPUs in the output of nvidia-smi, each model once.
fn models(listed: &str) -> Vec<String> {
    let mut counted: Vec<(String, usize)> = Vec::new();
    for line in listed.lines() {
        let columns: Vec<_> = line.trim().rsplitn(3, ", ").collect();
        if let [capability, memory, name] = columns[..] {
            let model = format!("{name}, {memory}, compute capability {capability}");
            match counted.iter_mut().find(|(known, _)| *known == model) {
                Some((_, count)) => *count += 1,
                None => counted.push((model, 1)),
            }
        }
    }
    let shown = counted
        .iter()
        .map(|(model, count)| format!("{count} x {model}"));
    shown.collect()
}

/// Whether a rank with these variables may use NVLink multicast.
fn multicast(variable: impl Fn(&str) -> Option<String>) -> Answer {
    let is = |name: &str, value: &str| variable(name).is_some_and(|set| set.trim() == value);
    let refused = [
        ("NCCL_NVLS_ENABLE", "0"),
        ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"),
        ("NVSHMEM_DISABLE_NVLS", "1"),
    ];
    let set = refused.iter().filter(|(name, value)| is(name, value));
    let set: Vec<_> = set.map(|(name, value)| format!("{name}={value}")).collect();
    let refused = set.join(", ");
    let wanted = is("WARPWEAVE_MULTICAST", "1");
    match (wanted, refused.is_empty()) {
        (true, true) => present("allowed by WARPWEAVE_MULTICAST=1"),
        (true, false) => doubtful(
            format!("WARPWEAVE_MULTICAST=1 is overruled by {refused}"),
            "whoever runs this machine has turned it off: leave it so",
        ),
        (false, false) => present(format!("off: {refused}")),
        (false, true) => present(
            "off; WARPWEAVE_MULTICAST=1 turns it on, on machines whose fabric is not shared",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    #[test]
    fn the_drivers_version_is_read() {
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  \
            (a@b)\nGCC version: 13.2";
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104  Sat Aug 19";
        for (text, expected) in [
            (open, Some("580.95.05")),
            (closed, Some("535.104")),
            ("", None),
            ("NVRM version: unknown", None),
        ] {
            assert_eq!(driver_version(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn equal_gpus_are_counted() {
        let listed = "NVIDIA H200, 143771 MiB, 9.0\nNVIDIA H200, 143771 MiB, 9.0\nNVIDIA A100, 81920 MiB, \
            8.0\n";
        let expected = [
            "2 x NVIDIA H200, 143771 MiB, compute capability 9.0",
            "1 x NVIDIA A100, 81920 MiB, compute capability 8.0",
        ];
        assert_eq!(models(listed), expected);
        assert!(models("No devices were found\n").is_empty());
    }

    #[test]
    fn the_guard_overrules_the_option() {
        let on = ("WARPWEAVE_MULTICAST", "1");
        for (set, state, expected) in [
            (vec![], State::Present, "off;"),
            (vec![on], State::Present, "allowed"),
            (
                vec![on, ("NCCL_NVLS_ENABLE", "0")],
                State::Doubtful,
                "WARPWEAVE_MULTICAST=1 is overruled by NCCL_NVLS_ENABLE=0",
            ),
            (
                vec![("NVSHMEM_DISABLE_NVLS", "1")],
                State::Present,
                "off: NVSHMEM_DISABLE_NVLS=1",
            ),
        ] {
            let value = |name: &str| set.iter().find(|(known, _)| *known == name);
            let answer = multicast(|name| value(name).map(|(_, value)| value.to_string()));
            assert_eq!(answer.state, state, "{set:?}");
            assert!(answer.found.starts_with(expected), "{}", answer.found);
        }
    }
}
