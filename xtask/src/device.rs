//! Where a job runs: on the GPUs of this machine, or on its processors.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::error::{Error, Result};

/// Ranks of a job on the host unless told otherwise.
pub const HOST_RANKS: usize = 4;
/// More real processes than this on one machine say more about its scheduler than about a schedule.
const MOST_HOST_RANKS: usize = 64;

/// What `--device` asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Wanted {
    /// The GPUs where there are some, else the host.
    #[default]
    Auto,
    /// Processes on this machine's processors.
    Host,
    /// The NVIDIA GPUs.
    Cuda,
}

/// What a job gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// Whether that is GPUs.
    pub cuda: bool,
    /// Number of ranks.
    pub ranks: usize,
}

impl Chosen {
    /// The value of `--device` for the program that runs on every rank.
    pub fn name(self) -> &'static str {
        if self.cuda { "cuda" } else { "host" }
    }
}

/// Chooses device and ranks from what was asked for and the GPUs that are there. `cuda_by_default` says whether GPUs
/// are taken without being asked for.
pub fn choose(
    wanted: Wanted,
    ranks: Option<usize>,
    gpus: &Gpus,
    cuda_by_default: bool,
) -> Result<Chosen> {
    let cuda = match wanted {
        Wanted::Host => false,
        Wanted::Auto => cuda_by_default && gpus.count > 0,
        Wanted::Cuda if gpus.count == 0 => {
            return Err(Error::NoGpu {
                looked: gpus.looked.clone(),
            });
        }
        Wanted::Cuda => true,
    };
    let (default, most) = if cuda {
        (gpus.count, gpus.count)
    } else {
        (HOST_RANKS, MOST_HOST_RANKS)
    };
    let asked = ranks.unwrap_or(default);
    if asked == 0 || asked > most {
        let limit = match (asked, cuda) {
            (0, _) => "a job has at least one".into(),
            (_, true) => {
                format!(
                    "one rank a GPU, and this machine shows {most} ({}); --device host takes more",
                    gpus.looked
                )
            }
            (_, false) => format!("a job on the host has at most {most}"),
        };
        return Err(Error::Ranks { asked, limit });
    }
    Ok(Chosen { cuda, ranks: asked })
}

/// The GPUs that a job started now could use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpus {
    /// How many.
    pub count: usize,
    /// Where they were counted.
    pub looked: String,
}

impl Gpus {
    /// Counts them without loading the driver's library.
    pub fn find() -> Self {
        let installed = Self::installed();
        match std::env::var("CUDA_VISIBLE_DEVICES") {
            Ok(list) => Self {
                count: visible(&list).min(installed.count),
                looked: format!("{}, CUDA_VISIBLE_DEVICES={list}", installed.looked),
            },
            Err(_) => installed,
        }
    }

    fn installed() -> Self {
        const PROC: &str = "/proc/driver/nvidia/gpus";
        // A container may show all GPUs of its machine in /proc and have the device nodes of some.
        let nodes = entries(Path::new("/dev"), is_gpu_node);
        if nodes > 0 {
            return Self {
                count: nodes,
                looked: "/dev/nvidia*".into(),
            };
        }
        let listed = entries(Path::new(PROC), |_| true);
        if listed > 0 {
            return Self {
                count: listed,
                looked: PROC.into(),
            };
        }
        let tool = Command::new("nvidia-smi")
            .arg("-L")
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output();
        let count = tool
            .ok()
            .filter(|answer| answer.status.success())
            .map_or(0, |answer| {
                String::from_utf8_lossy(&answer.stdout)
                    .lines()
                    .filter(|line| line.starts_with("GPU "))
                    .count()
            });
        Self {
            count,
            looked: format!("/dev/nvidia*, {PROC}, nvidia-smi -L"),
        }
    }
}

fn entries(folder: &Path, is_one: impl Fn(&str) -> bool) -> usize {
    let Ok(entries) = fs::read_dir(folder) else {
        return 0;
    };
    entries
        .flatten()
        .filter(|entry| entry.file_name().to_str().is_some_and(&is_one))
        .count()
}

fn is_gpu_node(name: &str) -> bool {
    name.strip_prefix("nvidia")
        .is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

/// The devices that a `CUDA_VISIBLE_DEVICES` lets through: those before the first invalid one, as the driver reads it.
fn visible(list: &str) -> usize {
    list.split(',')
        .map(str::trim)
        .take_while(|name| !name.is_empty() && !name.starts_with('-'))
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpus(count: usize) -> Gpus {
        Gpus {
            count,
            looked: "a test".into(),
        }
    }

    #[test]
    fn auto_takes_all_gpus_or_four_host_ranks() {
        assert_eq!(
            choose(Wanted::Auto, None, &gpus(8), true).unwrap(),
            Chosen {
                cuda: true,
                ranks: 8
            }
        );
        assert_eq!(
            choose(Wanted::Auto, None, &gpus(0), true).unwrap(),
            Chosen {
                cuda: false,
                ranks: 4
            }
        );
        assert_eq!(
            choose(Wanted::Auto, None, &gpus(8), false).unwrap(),
            Chosen {
                cuda: false,
                ranks: 4
            }
        );
        assert_eq!(
            choose(Wanted::Auto, Some(2), &gpus(8), true).unwrap(),
            Chosen {
                cuda: true,
                ranks: 2
            }
        );
    }

    #[test]
    fn what_was_asked_for_is_given_or_refused() {
        assert_eq!(
            choose(Wanted::Host, Some(7), &gpus(8), true).unwrap(),
            Chosen {
                cuda: false,
                ranks: 7
            }
        );
        assert_eq!(
            choose(Wanted::Cuda, None, &gpus(2), false).unwrap(),
            Chosen {
                cuda: true,
                ranks: 2
            }
        );
        assert!(matches!(
            choose(Wanted::Cuda, None, &gpus(0), true),
            Err(Error::NoGpu { .. })
        ));
        assert!(matches!(
            choose(Wanted::Auto, Some(5), &gpus(4), true),
            Err(Error::Ranks { asked: 5, .. })
        ));
        assert!(matches!(
            choose(Wanted::Host, Some(0), &gpus(0), true),
            Err(Error::Ranks { asked: 0, .. })
        ));
        assert!(matches!(
            choose(Wanted::Host, Some(1000), &gpus(0), true),
            Err(Error::Ranks { .. })
        ));
    }

    #[test]
    fn visible_devices_are_read_as_the_driver_reads_them() {
        assert_eq!(visible("0,1,3"), 3);
        assert_eq!(visible("GPU-1f, GPU-2a"), 2);
        assert_eq!(visible("0,-1,2"), 1);
        assert_eq!(visible(""), 0);
        assert_eq!(visible("-1"), 0);
    }

    #[test]
    fn only_numbered_nodes_are_gpus() {
        assert!(is_gpu_node("nvidia0") && is_gpu_node("nvidia15"));
        assert!(!is_gpu_node("nvidiactl") && !is_gpu_node("nvidia-uvm") && !is_gpu_node("nvidia"));
    }
}
