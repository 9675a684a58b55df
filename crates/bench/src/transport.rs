//! The names of transports in reports.

use warpweave_overlap::plan::{Plan, Transport};
use warpweave_symm_mem::BackendKind;

/// The transports of a plan on a backend.
pub fn names(kind: BackendKind, plan: &Plan) -> Vec<String> {
    let transports = plan.transports().into_iter();
    transports.map(|transport| name(kind, transport)).collect()
}

/// The name of a transport on a backend; its substitute on the host has a name of its own.
pub fn name(kind: BackendKind, transport: Transport) -> String {
    match (kind, transport) {
        (BackendKind::Cuda, Transport::CopyEngine) => "copy-engine push".into(),
        (BackendKind::Cuda, transport) => transport.to_string(),
        (BackendKind::Host, Transport::Nccl) => "host all-gather".into(),
        (BackendKind::Host, Transport::CopyEngine) => "host push".into(),
        (BackendKind::Host, Transport::ThreadLoads) => "host loads".into(),
        (BackendKind::Host, Transport::Multimem | Transport::MulticastCopy) => {
            "host stores to all".into()
        }
        (BackendKind::Host, other) => format!("host {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_transport_of_the_host_has_the_name_of_a_gpus() {
        for transport in [
            Transport::Nccl,
            Transport::CopyEngine,
            Transport::ThreadLoads,
            Transport::Multimem,
            Transport::MulticastCopy,
        ] {
            assert!(name(BackendKind::Host, transport).starts_with("host "));
            assert!(!name(BackendKind::Cuda, transport).contains("host"));
        }
    }
}
