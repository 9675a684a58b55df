//! Where a job runs: on the GPUs of this machine, or on its processors.

use std::fs;
use std::path::Path;

use crate::error::{Error, Result};
use crate::process;

/// The default number of ranks on the host.
pub const HOST_RANKS: usize = 4;
/// With more processes than this, one machine measures its own scheduler.
const MOST_RANKS: usize = 64;

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

#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct Asked {
    /// Where to run: all GPUs where there are some, else four host ranks
    #[arg(long, value_enum, default_value_t)]
    pub device: Wanted,
    /// Number of ranks [default: one per GPU, four on the host]
    #[arg(long, short = 'n')]
    pub ranks: Option<usize>,
}

/// Where a job runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chosen {
    pub cuda: bool,
    pub ranks: usize,
}

impl Chosen {
    /// The value of `--device` for the program that runs on every rank.
    pub fn name(self) -> &'static str {
        if self.cuda { "cuda" } else { "host" }
    }
}

/// Chooses device and ranks from the options and the GPUs of this machine; each of the other `hosts` is taken
/// to have as many. `cuda_by_default` says whether GPUs are the default.
pub fn choose(asked: Asked, hosts: usize, gpus: &Gpus, cuda_by_default: bool) -> Result<Chosen> {
    let cuda = match asked.device {
        Wanted::Host => false,
        Wanted::Auto if !cuda_by_default => false,
        _ if gpus.count > 0 => true,
        Wanted::Cuda if hosts > 0 && asked.ranks.is_some() => true,
        _ if hosts > 0 => {
            return Err(Error::Failed(format!(
                "--hosts: this machine shows no NVIDIA GPU ({}), which says nothing of the hosts; use --device \
                 cuda with --ranks, or --device host",
                gpus.looked
            )));
        }
        Wanted::Auto => false,
        Wanted::Cuda => {
            return Err(Error::Failed(format!(
                "--device cuda: this machine shows no NVIDIA GPU ({}); use --device host, or `cargo xtask \
                 doctor` to see what is missing",
                gpus.looked
            )));
        }
    };
    // Of each host.
    let (default, most) = match cuda {
        true if gpus.shared || gpus.count == 0 => (gpus.count, MOST_RANKS),
        true => (gpus.count, gpus.count),
        false => (HOST_RANKS, MOST_RANKS),
    };
    let hosts = hosts.max(1);
    let asked = asked.ranks.unwrap_or(default * hosts);
    if asked == 0 || asked > most * hosts {
        let limit = match asked {
            0 => "a job has at least one".into(),
            _ if most < MOST_RANKS => format!(
                "one rank a GPU, and this machine shows {most} ({}); set WARPWEAVE_OVERSUBSCRIBE=1 to \
                 share GPUs, or use --device host",
                gpus.looked
            ),
            _ => format!("a job has at most {most} on one machine"),
        };
        let on = match hosts {
            1 => String::new(),
            _ => format!(" on {hosts} hosts"),
        };
        return Err(Error::Usage(format!(
            "{asked} ranks asked for{on}: {limit}"
        )));
    }
    Ok(Chosen { cuda, ranks: asked })
}

/// The GPUs that a job started now could use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpus {
    pub count: usize,
    /// Where they were counted.
    pub looked: String,
    /// Whether several ranks may share one, as the ranks themselves read `WARPWEAVE_OVERSUBSCRIBE`.
    pub shared: bool,
}

impl Gpus {
    /// Counts them without loading the driver's library.
    pub fn find() -> Self {
        let (mut count, mut looked) = installed();
        if let Ok(list) = std::env::var("CUDA_VISIBLE_DEVICES") {
            count = count.min(visible(&list));
            looked = format!("{looked}, CUDA_VISIBLE_DEVICES={list}");
        }
        Self {
            count,
            looked,
            shared: std::env::var("WARPWEAVE_OVERSUBSCRIBE").is_ok_and(|value| value == "1"),
        }
    }
}

/// Counts the GPUs of this machine or container and names the place where it found them.
fn installed() -> (usize, String) {
    const PROC: &str = "/proc/driver/nvidia/gpus";
    // A container may show all GPUs of its machine in /proc and have the device nodes of some.
    let nodes = entries(Path::new("/dev"), is_gpu_node);
    if nodes > 0 {
        return (nodes, "/dev/nvidia*".into());
    }
    let listed = entries(Path::new(PROC), |_| true);
    if listed > 0 {
        return (listed, PROC.into());
    }
    let list = process::answer("nvidia-smi", &["-L"]).unwrap_or_default();
    let count = list.lines().filter(|line| line.starts_with("GPU ")).count();
    (count, format!("/dev/nvidia*, {PROC}, nvidia-smi -L"))
}

fn entries(folder: &Path, is_one: impl Fn(&str) -> bool) -> usize {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_one = |entry: &fs::DirEntry| entry.file_name().to_str().is_some_and(&is_one);
    entries.filter(is_one).count()
}

fn is_gpu_node(name: &str) -> bool {
    name.strip_prefix("nvidia")
        .is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

/// The devices that a `CUDA_VISIBLE_DEVICES` lets through: those before the first invalid one, as the driver
/// reads it.
fn visible(list: &str) -> usize {
    list.split(',')
        .map(str::trim)
        .take_while(|name| !name.is_empty() && !name.starts_with('-'))
        .count()
}

#[cfg(test)]
mod tests {
    use super::Wanted::{Auto, Cuda, Host};
    use super::*;

    fn cuda(ranks: usize) -> Chosen {
        Chosen { cuda: true, ranks }
    }

    fn host(ranks: usize) -> Chosen {
        Chosen { cuda: false, ranks }
    }

    fn gpus(count: usize) -> Gpus {
        Gpus {
            count,
            looked: "a test".into(),
            shared: false,
        }
    }

    #[test]
    fn what_was_asked_for_is_given_and_auto_takes_all_gpus_or_four_host_ranks() {
        for (device, ranks, on, by_default, expected) in [
            (Auto, None, 8, true, cuda(8)),
            (Auto, None, 0, true, host(4)),
            (Auto, None, 8, false, host(4)),
            (Auto, Some(2), 8, true, cuda(2)),
            (Host, Some(7), 8, true, host(7)),
            (Cuda, None, 2, false, cuda(2)),
        ] {
            let chosen = choose(Asked { device, ranks }, 0, &gpus(on), by_default).unwrap();
            assert_eq!(chosen, expected, "{device:?} {ranks:?} of {on}");
        }
    }

    #[test]
    fn what_cannot_be_given_is_refused() {
        for (device, ranks, on, expected) in [
            (Cuda, None, 0, "no NVIDIA GPU (a test)"),
            (Auto, Some(5), 4, "5 ranks asked for: one rank a GPU"),
            (Auto, Some(5), 4, "WARPWEAVE_OVERSUBSCRIBE=1"),
            (
                Host,
                Some(0),
                0,
                "0 ranks asked for: a job has at least one",
            ),
            (Host, Some(1000), 0, "1000 ranks asked for"),
        ] {
            let refused = choose(Asked { device, ranks }, 0, &gpus(on), true);
            let message = refused.unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn each_of_several_hosts_has_as_many_gpus_as_this_machine() {
        for (device, ranks, on, expected) in [
            (Auto, None, 8, Ok(cuda(16))),
            (Auto, Some(16), 8, Ok(cuda(16))),
            (Auto, Some(18), 8, Err("18 ranks asked for on 2 hosts: one")),
            (Host, None, 8, Ok(host(8))),
            (Auto, Some(16), 0, Err("use --device cuda with --ranks")),
            (Cuda, None, 0, Err("use --device cuda with --ranks")),
            (Cuda, Some(16), 0, Ok(cuda(16))),
        ] {
            let chosen = choose(Asked { device, ranks }, 2, &gpus(on), true);
            match (chosen.map_err(|error| error.to_string()), expected) {
                (Err(message), Err(part)) => assert!(message.contains(part), "{message}"),
                (chosen, expected) => assert_eq!(chosen, expected.map_err(Into::into)),
            }
        }
    }

    #[test]
    fn gpus_are_shared_only_when_that_is_allowed() {
        for (shared, ranks, expected) in [
            (true, Some(4), Some(cuda(4))),
            (true, None, Some(cuda(1))),
            (false, Some(4), None),
        ] {
            let gpus = Gpus { shared, ..gpus(1) };
            let device = Cuda;
            let chosen = choose(Asked { device, ranks }, 0, &gpus, true).ok();
            assert_eq!(chosen, expected, "{shared} {ranks:?}");
        }
    }

    #[test]
    fn visible_devices_are_read_as_the_driver_reads_them() {
        for (list, expected) in [
            ("0,1,3", 3),
            ("GPU-1f, GPU-2a", 2),
            ("0,-1,2", 1),
            ("", 0),
            ("-1", 0),
        ] {
            assert_eq!(visible(list), expected, "{list}");
        }
    }

    #[test]
    fn only_numbered_nodes_are_gpus() {
        assert!(is_gpu_node("nvidia0") && is_gpu_node("nvidia15"));
        assert!(!is_gpu_node("nvidiactl") && !is_gpu_node("nvidia-uvm") && !is_gpu_node("nvidia"));
    }
}
