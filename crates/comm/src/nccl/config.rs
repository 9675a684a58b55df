//! Options of a communicator, and the structure that passes them to NCCL.

use std::ffi::{CString, c_char, c_int, c_uint};
use std::mem::offset_of;
use std::ptr::null;
use std::time::Duration;

use super::version::NcclVersion;
use crate::error::{CommError, Result};

/// Whether a launch returns at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Launch {
    /// NCCL launches from a thread of its own, which is polled until the deadline: nothing hangs. Cannot be
    /// captured in a graph, since a capture belongs to one thread.
    #[default]
    NonBlocking,
    /// NCCL launches from the calling thread, with less latency, also into a graph. The first collective
    /// connects the ranks and has no deadline. Costs a second communicator, split from a non-blocking one
    /// that came up within the deadline.
    Blocking,
}

/// How many SMs a communicator may occupy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CtaPolicy {
    /// As many as are fastest.
    #[default]
    Default,
    /// Fewer, where registered buffers compensate. From 2.27.
    Efficiency,
    /// None: copy engines move the data where [`NcclComm::zero_cta`](super::NcclComm::zero_cta) applies;
    /// kernels do elsewhere. From 2.28.
    ZeroCta,
}

/// Options of a communicator.
#[derive(Clone, Debug)]
pub struct NcclOptions {
    /// Deadline of the initialization and of each launch.
    pub deadline: Duration,
    /// How launches are made.
    pub launch: Launch,
    /// How many SMs it may take. NCCL's variable `NCCL_CTA_POLICY` overrules it.
    pub cta_policy: CtaPolicy,
    /// The fewest thread blocks of a kernel, from 1; NCCL's choice when `None`. NCCL caps it at 32 or 64, by
    /// version.
    pub min_ctas: Option<u32>,
    /// The most thread blocks of a kernel, from 1; NCCL's choice when `None`.
    pub max_ctas: Option<u32>,
    /// The name in NCCL's logs and profilers. From 2.27.
    pub name: Option<String>,
    /// The traffic class of its packets on InfiniBand or RoCE. From 2.26.
    pub traffic_class: Option<u32>,
}

impl Default for NcclOptions {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(60),
            launch: Launch::default(),
            cta_policy: CtaPolicy::default(),
            min_ctas: None,
            max_ctas: None,
            name: None,
            traffic_class: None,
        }
    }
}

/// `ncclConfig_t` as of 2.28. Later versions append fields, and use defaults for fields beyond `size`.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
    /// From 2.26; padding before.
    traffic_class: c_int,
    /// This one and the next four from 2.27.
    comm_name: *const c_char,
    collnet_enable: c_int,
    cta_policy: c_int,
    shrink_share: c_int,
    nvls_ctas: c_int,
    /// This one and the next from 2.28.
    channels_per_net_peer: c_int,
    nvlink_centric_sched: c_int,
}

/// The sizes of the structure in the headers of the versions that changed it.
const SIZE_2_18: usize = offset_of!(Config, comm_name);
const SIZE_2_27: usize = offset_of!(Config, channels_per_net_peer);
const SIZE_2_28: usize = size_of::<Config>();
const _: () = assert!(SIZE_2_18 == 48 && SIZE_2_27 == 72 && SIZE_2_28 == 80);

const UNDEFINED: c_int = c_int::MIN;
/// More channels than any version has. NCCL accepts a minimum only with a maximum, and caps what is too
/// large.
const MOST_CTAS: u32 = 1024;

impl NcclOptions {
    /// The structure for a library of version `found`, and the name it points to, which must outlive the
    /// communicator.
    ///
    /// # Errors
    /// [`CommError::NcclTooOld`], [`CommError::InvalidArgument`].
    pub(super) fn config(
        &self,
        launch: Launch,
        found: NcclVersion,
    ) -> Result<(Config, Option<CString>)> {
        let from = |minor, what, asked: bool| {
            let needed = NcclVersion::of(2, minor);
            if asked && found < needed {
                return Err(CommError::NcclTooOld {
                    what,
                    found,
                    needed,
                });
            }
            Ok(())
        };
        let policy = self.cta_policy;
        from(26, "a traffic class", self.traffic_class.is_some())?;
        from(27, "a communicator's name", self.name.is_some())?;
        from(27, "a CTA policy", policy == CtaPolicy::Efficiency)?;
        from(28, "the zero-CTA policy", policy == CtaPolicy::ZeroCta)?;
        let (min, max) = self.ctas()?;
        let name = self.name.as_deref().map(CString::new).transpose();
        let name = name.map_err(|e| invalid("name", e.to_string()))?;
        let class = self.traffic_class.map(c_int::try_from).transpose();
        let class = class.map_err(|e| invalid("traffic class", e.to_string()))?;
        let (size, minor) = match found {
            v if v >= NcclVersion::of(2, 28) => (SIZE_2_28, 28),
            v if v >= NcclVersion::of(2, 27) => (SIZE_2_27, 27),
            v if v >= NcclVersion::of(2, 26) => (SIZE_2_18, 26),
            _ => (SIZE_2_18, 18),
        };
        let config = Config {
            size,
            magic: 0xcafe_beef,
            version: 20_000 + 100 * minor,
            blocking: c_int::from(launch == Launch::Blocking),
            cga_cluster_size: UNDEFINED,
            min_ctas: min,
            max_ctas: max,
            net_name: null(),
            split_share: UNDEFINED,
            traffic_class: class.unwrap_or(UNDEFINED),
            comm_name: name.as_ref().map_or(null(), |name| name.as_ptr()),
            collnet_enable: UNDEFINED,
            cta_policy: match policy {
                CtaPolicy::Default => UNDEFINED,
                CtaPolicy::Efficiency => 1,
                CtaPolicy::ZeroCta => 2,
            },
            shrink_share: UNDEFINED,
            nvls_ctas: UNDEFINED,
            channels_per_net_peer: UNDEFINED,
            nvlink_centric_sched: UNDEFINED,
        };
        Ok((config, name))
    }

    fn ctas(&self) -> Result<(c_int, c_int)> {
        let (min, max) = (self.min_ctas, self.max_ctas);
        let range = 1..=max.unwrap_or(MOST_CTAS).min(MOST_CTAS);
        if max.is_some_and(|max| !(1..=MOST_CTAS).contains(&max)) {
            return Err(invalid("max_ctas", format!("not in 1..={MOST_CTAS}")));
        }
        match min {
            Some(min) if !range.contains(&min) => {
                Err(invalid("min_ctas", format!("{min} is not in {range:?}")))
            }
            Some(min) => Ok((min as c_int, *range.end() as c_int)),
            None => Ok((UNDEFINED, max.map_or(UNDEFINED, |max| max as c_int))),
        }
    }
}

fn invalid(what: &'static str, why: String) -> CommError {
    CommError::InvalidArgument { what, why }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(options: &NcclOptions, minor: u32) -> Result<Config> {
        let found = NcclVersion {
            patch: 3,
            ..NcclVersion::of(2, minor)
        };
        Ok(options.config(Launch::Blocking, found)?.0)
    }

    #[test]
    fn each_version_gets_the_size_and_the_number_that_it_knows() {
        let of = |minor| {
            let config = config(&NcclOptions::default(), minor).expect("plain options");
            (config.size, config.version)
        };
        assert_eq!([of(18), of(25)], [(48, 21800); 2]);
        assert_eq!(of(26), (48, 22600));
        assert_eq!(of(27), (72, 22700));
        assert_eq!([of(28), of(31)], [(80, 22800); 2]);
    }

    #[test]
    fn what_an_old_library_does_not_know_is_refused_with_both_versions() {
        let asks = [
            (
                27,
                28,
                NcclOptions {
                    cta_policy: CtaPolicy::ZeroCta,
                    ..NcclOptions::default()
                },
            ),
            (
                26,
                27,
                NcclOptions {
                    cta_policy: CtaPolicy::Efficiency,
                    ..NcclOptions::default()
                },
            ),
            (
                26,
                27,
                NcclOptions {
                    name: Some("gather".into()),
                    ..NcclOptions::default()
                },
            ),
            (
                25,
                26,
                NcclOptions {
                    traffic_class: Some(3),
                    ..NcclOptions::default()
                },
            ),
        ];
        for (old, new, options) in asks {
            let error = config(&options, old).err().expect("too old").to_string();
            assert!(error.contains(&format!("2.{new}.0")), "{error}");
            assert!(error.contains(&format!("2.{old}.3")), "{error}");
            config(&options, new).expect("new enough");
        }
    }

    #[test]
    fn a_minimum_of_blocks_comes_with_a_maximum() {
        let of = |min_ctas, max_ctas| {
            let options = NcclOptions {
                min_ctas,
                max_ctas,
                ..NcclOptions::default()
            };
            config(&options, 28).map(|config| (config.min_ctas, config.max_ctas))
        };
        assert_eq!(of(None, None).expect("both free"), (UNDEFINED, UNDEFINED));
        assert_eq!(of(None, Some(4)).expect("one free"), (UNDEFINED, 4));
        assert_eq!(of(Some(4), None).expect("one free"), (4, 1024));
        assert_eq!(of(Some(4), Some(4)).expect("both given"), (4, 4));
        for (min, max) in [
            (Some(0), None),
            (Some(5), Some(4)),
            (None, Some(0)),
            (Some(2000), None),
            (Some(1), Some(2000)),
        ] {
            let error = of(min, max).expect_err("out of range");
            assert!(
                matches!(error, CommError::InvalidArgument { .. }),
                "{error}"
            );
        }
    }
}
