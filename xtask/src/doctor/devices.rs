//! The driver, the GPUs, the launchers, and whether multicast may be used.

use std::fs;

use super::libraries::by_loader;
use super::probe;
use super::{Answer, Finding, Use, doubtful, missing, present};

/// The driver branch of CUDA 13.0.
const BRANCH: u32 = 580;
const DRIVER_ADVICE: &str = "install NVIDIA's driver, branch 580 or newer; in a container, start it \
    with the GPUs (as `docker run --gpus all`)";

/// Driver and GPUs, without loading the driver's library.
pub fn examine() -> Vec<Finding> {
    [
        ("driver", driver()),
        ("libcuda", libcuda()),
        ("GPUs", gpus()),
    ]
    .map(|(name, answer)| answer.about(name, Use::Cuda))
    .into()
}

fn driver() -> Answer {
    const FILE: &str = "/proc/driver/nvidia/version";
    let text = fs::read_to_string(FILE).unwrap_or_default();
    let Some(version) = driver_version(&text) else {
        return missing(format!("no {FILE}"), DRIVER_ADVICE);
    };
    let branch: Option<u32> = version
        .split('.')
        .next()
        .and_then(|branch| branch.parse().ok());
    if branch.is_some_and(|branch| branch < BRANCH) {
        let advice = "older than branch 580, which CUDA 13.0 needs: update it, or build with an nvcc \
            12.8 or 12.9 (WARPWEAVE_NVCC) and use the CUDA 12 libraries";
        return doubtful(version, advice);
    }
    present(version)
}

/// The version in `/proc/driver/nvidia/version`: the first part of its first line with only digits and
/// dots.
fn driver_version(text: &str) -> Option<String> {
    let is_version = |word: &&str| {
        word.split('.').count() >= 2
            && word
                .split('.')
                .all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
    };
    text.lines()
        .next()?
        .split_whitespace()
        .find(is_version)
        .map(str::to_owned)
}

fn libcuda() -> Answer {
    match by_loader("libcuda.so.1").or_else(|| by_loader("libcuda.so")) {
        // The toolkit's stub has the name without a version and answers every call with an error.
        Some(path) if path.components().any(|part| part.as_os_str() == "stubs") => {
            missing(format!("{} is a stub", path.display()), DRIVER_ADVICE)
        }
        Some(path) => present(path.display().to_string()),
        None => missing("no libcuda.so.1", DRIVER_ADVICE),
    }
}

fn gpus() -> Answer {
    let query = [
        "--query-gpu=name,memory.total,compute_cap",
        "--format=csv,noheader",
    ];
    let listed = probe::answer("nvidia-smi", query)
        .map(|text| models(&text))
        .unwrap_or_default();
    if !listed.is_empty() {
        return present(listed.join("; "));
    }
    let counted = crate::device::Gpus::find();
    if counted.count > 0 {
        return present(format!("{} ({})", counted.count, counted.looked));
    }
    missing(
        format!("none in {}", counted.looked),
        "jobs run on the processors",
    )
}

/// The GPUs in the output of nvidia-smi, one line a model.
fn models(listed: &str) -> Vec<String> {
    let mut counted: Vec<(String, usize)> = Vec::new();
    for line in listed
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
    {
        let mut fields = line.split(", ");
        let (Some(name), Some(memory), Some(capability)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let model = format!("{name}, {memory}, compute capability {capability}");
        match counted.iter_mut().find(|(known, _)| *known == model) {
            Some((_, count)) => *count += 1,
            None => counted.push((model, 1)),
        }
    }
    counted
        .into_iter()
        .map(|(model, count)| format!("{count} x {model}"))
        .collect()
}

/// Other launchers of ranks. `cargo xtask launch` needs none of them on one machine.
pub fn launchers() -> Vec<Finding> {
    [
        ("torchrun", "comes with PyTorch"),
        ("mpirun", "install Open MPI or MPICH"),
        ("srun", "comes with SLURM"),
    ]
    .into_iter()
    .map(|(name, advice)| {
        let answer = match probe::in_path(name) {
            Some(path) => present(path.display().to_string()),
            None => {
                let advice = format!("{advice}; one machine needs only `cargo xtask launch`");
                missing("not in PATH", advice)
            }
        };
        answer.about(name, Use::Optional)
    })
    .collect()
}

/// Whether a rank with these variables may use NVLink multicast.
pub fn multicast(variable: impl Fn(&str) -> Option<String>) -> Answer {
    let is = |name: &str, value: &str| variable(name).is_some_and(|set| set.trim() == value);
    let refused: Vec<String> = [
        ("NCCL_NVLS_ENABLE", "0"),
        ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"),
        ("NVSHMEM_DISABLE_NVLS", "1"),
    ]
    .into_iter()
    .filter(|(name, value)| is(name, value))
    .map(|(name, value)| format!("{name}={value}"))
    .collect();
    let wanted = is("WARPWEAVE_MULTICAST", "1");
    match (wanted, refused.is_empty()) {
        (true, true) => present("allowed by WARPWEAVE_MULTICAST=1"),
        (true, false) => doubtful(
            format!(
                "WARPWEAVE_MULTICAST=1 is overruled by {}",
                refused.join(", ")
            ),
            "whoever runs this machine has turned it off: leave it so",
        ),
        (false, false) => present(format!("off: {}", refused.join(", "))),
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
        assert_eq!(driver_version(open).as_deref(), Some("580.95.05"));
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104  Sat Aug 19";
        assert_eq!(driver_version(closed).as_deref(), Some("535.104"));
        assert_eq!(driver_version(""), None);
        assert_eq!(driver_version("NVRM version: unknown"), None);
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
    fn the_guard_overrules_the_wish() {
        let with = |set: &[(&str, &str)]| {
            let set: Vec<(String, String)> = set
                .iter()
                .map(|(a, b)| (a.to_string(), b.to_string()))
                .collect();
            let answer = multicast(move |name| {
                set.iter()
                    .find(|(known, _)| known == name)
                    .map(|(_, value)| value.clone())
            });
            answer.about("multicast", Use::Optional)
        };
        assert!(with(&[]).found.starts_with("off;"));
        assert!(
            with(&[("WARPWEAVE_MULTICAST", "1")])
                .found
                .starts_with("allowed")
        );
        let overruled = with(&[("WARPWEAVE_MULTICAST", "1"), ("NCCL_NVLS_ENABLE", "0")]);
        assert_eq!(overruled.state, State::Doubtful);
        assert!(overruled.found.contains("NCCL_NVLS_ENABLE=0"));
        assert!(
            with(&[("NVSHMEM_DISABLE_NVLS", "1")])
                .found
                .starts_with("off: NVSHMEM_DISABLE_NVLS=1")
        );
    }
}
