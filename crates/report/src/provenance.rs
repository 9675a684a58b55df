//! Where numbers come from: enough to judge them by, and no date, which says nothing about a machine.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::statistics::distinct;

/// The backend of processes and memory of one machine, as reports name it.
pub const HOST: &str = "host";

/// The machine and the software of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// `host` or `cuda`.
    pub backend: String,
    /// The devices of the ranks: each name once, with the number of ranks that have it.
    pub devices: Vec<Devices>,
    /// Number of ranks, each with a device.
    pub ranks: usize,
    /// Number of nodes: ranks of one share memory.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub nodes: usize,
    /// The machine around rank 0's device.
    pub host: HostMachine,
    /// Version of CUDA up to which the driver goes, as `13.0`.
    pub cuda: Option<String>,
    /// Version of the NVIDIA driver.
    pub driver: Option<String>,
    /// Version of NCCL, where it is there.
    pub nccl: Option<String>,
    /// Version of cuBLASLt, where it is there.
    pub cublaslt: Option<String>,
    /// Version of this program.
    pub version: String,
    /// The commit that was built, with `+` if files had been changed.
    pub commit: String,
    /// The cargo features it was built with.
    #[serde(default)]
    pub features: Vec<String>,
}

/// What a fact is called, and the fact.
pub type Fact = (&'static str, String);

fn or_none(version: &Option<String>) -> String {
    version.as_deref().unwrap_or("none").to_owned()
}

/// Ranks whose devices have the same name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Devices {
    /// The name, as the driver gives it.
    pub name: String,
    /// How many ranks.
    pub count: usize,
    /// How many devices, where ranks share some.
    pub distinct: Option<usize>,
}

fn one() -> usize {
    1
}

fn is_one(nodes: &usize) -> bool {
    *nodes == 1
}

/// A machine without its GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostMachine {
    /// Name and release of the kernel, as `Linux 6.8.0`.
    pub system: String,
    /// Model of the processor, where the kernel tells it.
    pub processor: Option<String>,
    /// Cores that the process may use.
    pub cores: usize,
}

impl Provenance {
    /// As `4 × NVIDIA H200`, or `4 ranks on 1 × NVIDIA H200` where they share it.
    pub fn devices(&self) -> String {
        let each = self.devices.iter().map(|of| match of.distinct {
            Some(distinct) => format!("{} ranks on {distinct} × {}", of.count, of.name),
            None => format!("{} × {}", of.count, of.name),
        });
        each.collect::<Vec<_>>().join(" + ")
    }

    /// Whether ranks share a device: their times say little of the machine.
    pub fn is_shared(&self) -> bool {
        self.devices.iter().any(|of| of.distinct.is_some())
    }

    /// What makes times comparable.
    pub fn machine(&self) -> Vec<Fact> {
        let HostMachine {
            processor, cores, ..
        } = &self.host;
        vec![
            ("backend", self.backend.to_string()),
            ("devices", self.devices()),
            ("ranks", self.ranks.to_string()),
            ("nodes", self.nodes.to_string()),
            ("processor", or_none(processor)),
            ("cores", cores.to_string()),
        ]
    }

    /// What runs on the machine.
    pub fn software(&self) -> Vec<Fact> {
        let features = (!self.features.is_empty()).then(|| self.features.join(","));
        vec![
            ("kernel", self.host.system.clone()),
            ("CUDA", or_none(&self.cuda)),
            ("driver", or_none(&self.driver)),
            ("NCCL", or_none(&self.nccl)),
            ("cuBLASLt", or_none(&self.cublaslt)),
            ("warpweave", self.version.to_string()),
            ("commit", self.commit.to_string()),
            ("features", or_none(&features)),
        ]
    }

    #[cfg(test)]
    pub(crate) fn sample() -> Self {
        Self {
            backend: "host".into(),
            devices: Devices::counted(&["host"; 4].map(|name| (name.to_owned(), None))),
            ranks: 4,
            nodes: 1,
            host: HostMachine {
                system: "Linux 6.8.0".into(),
                processor: Some("a processor".into()),
                cores: 8,
            },
            cuda: None,
            driver: None,
            nccl: None,
            cublaslt: None,
            version: "0.0.0".into(),
            commit: "unknown".into(),
            features: vec![],
        }
    }
}

impl Devices {
    /// Each name once, with how many ranks have it. A rank's device is given as its name and, where ranks may
    /// share one, what tells it from others.
    pub fn counted(ranks: &[(String, Option<Vec<u8>>)]) -> Vec<Self> {
        let names = distinct(ranks.iter().map(|(name, _)| name));
        let of = |name: &String| {
            let own = || ranks.iter().filter(|(other, _)| other == name);
            let known = distinct(own().filter_map(|(_, identity)| identity.as_ref())).len();
            let count = own().count();
            Self {
                name: name.clone(),
                count,
                distinct: Some(known).filter(|known| (1..count).contains(known)),
            }
        };
        names.into_iter().map(of).collect()
    }
}

impl HostMachine {
    /// The machine of this process.
    pub fn this() -> Self {
        let system = rustix::system::uname();
        let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Self {
            system: format!(
                "{} {}",
                system.sysname().to_string_lossy(),
                system.release().to_string_lossy()
            ),
            processor: processor(&cpus),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

fn processor(cpuinfo: &str) -> Option<String> {
    let fields = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    let mut models = fields.filter(|(field, _)| field.trim() == "model name");
    models.next().map(|(_, model)| model.trim().to_owned())
}

impl fmt::Display for Provenance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.devices())?;
        if self.nodes > 1 {
            write!(f, ", {} nodes", self.nodes)?;
        }
        for (name, version) in self.software().into_iter().skip(1).take(4) {
            if version != "none" {
                write!(f, ", {name} {version}")?;
            }
        }
        let HostMachine {
            system,
            processor,
            cores,
        } = &self.host;
        if let Some(processor) = processor {
            write!(f, ", {processor}")?;
        }
        write!(
            f,
            ", {cores} cores, {system}, warpweave {} ({})",
            self.version, self.commit
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_ranks_share_are_counted_once_and_no_other_machine_is_the_same() {
        let on = |gpus: [u8; 4]| {
            let devices = gpus.map(|gpu| ("H200".to_owned(), Some(vec![gpu])));
            Provenance {
                devices: Devices::counted(&devices),
                ..Provenance::sample()
            }
        };
        let (own, shared) = (on([1, 2, 3, 4]), on([1, 1, 1, 2]));
        assert_eq!(own.devices(), "4 × H200");
        assert_eq!(shared.devices(), "4 ranks on 2 × H200");
        assert!(shared.is_shared() && !own.is_shared());
        assert_ne!(shared.machine(), own.machine());
        let nodes = Provenance {
            nodes: 2,
            ..own.clone()
        };
        assert!(
            nodes.to_string().starts_with("4 × H200, 2 nodes, "),
            "{nodes}"
        );
        assert_ne!(nodes.machine(), own.machine());
    }

    #[test]
    fn provenance_that_was_recorded_before_is_of_one_node_and_its_own_devices() {
        let mut json = serde_json::to_value(Provenance::sample()).unwrap();
        assert!(json["nodes"].is_null());
        json["devices"][0]
            .as_object_mut()
            .unwrap()
            .remove("distinct");
        let read: Provenance = serde_json::from_value(json).unwrap();
        assert_eq!(read, Provenance::sample());
    }

    #[test]
    fn devices_of_different_names_are_all_told() {
        let names = ["H200", "H100", "H200"].map(|name| (name.to_owned(), None));
        let devices = Devices::counted(&names);
        let of = |name: &str, count| Devices {
            name: name.into(),
            count,
            distinct: None,
        };
        assert_eq!(devices, [of("H200", 2), of("H100", 1)]);
        let text = Provenance {
            devices,
            cuda: Some("13.0".into()),
            ..Provenance::sample()
        };
        let text = text.to_string();
        assert!(
            text.starts_with("2 × H200 + 1 × H100, CUDA 13.0, "),
            "{text}"
        );
        assert!(text.ends_with("warpweave 0.0.0 (unknown)"), "{text}");
    }

    #[test]
    fn the_processor_is_the_first_one() {
        let text =
            "processor\t: 0\nmodel name\t: AMD EPYC 9654\nprocessor\t: 1\nmodel name\t: other\n";
        assert_eq!(processor(text).as_deref(), Some("AMD EPYC 9654"));
        assert_eq!(processor("Hardware : BCM2711"), None);
    }
}
