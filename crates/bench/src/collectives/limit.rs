//! What no implementation can beat: the bytes that must come into a GPU over what copy engines push, of the same run.

use warpweave_comm::collective::Operation;

use super::operation::least_bytes;
use super::report::Limit;
use crate::limit::Links;

/// The limit of an operation on inputs of `bytes`; `None` where nothing travels.
pub(super) fn limit(
    operation: Operation,
    bytes: usize,
    world: usize,
    links: Option<&Links>,
) -> Option<Limit> {
    let least = least_bytes(operation, bytes, world);
    let links = links.filter(|_| least > 0)?;
    Some(Limit {
        bytes: least,
        ms: least as f64 / links.bandwidth_gb_s / 1e6,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_bytes_over_bandwidth() {
        let links = Links {
            bandwidth_gb_s: 400.0,
            transport: "copy-engine push".into(),
        };
        let of = |operation, world| limit(operation, 400_000_000, world, Some(&links));
        let gather = of(Operation::AllGather, 4).unwrap();
        assert_eq!((gather.bytes, gather.ms), (1_200_000_000, 3.0));
        assert_eq!(of(Operation::AllReduce, 4).unwrap().ms, 1.5);
        assert!(of(Operation::AllGather, 1).is_none());
        assert!(limit(Operation::AllGather, 8, 4, None).is_none());
    }
}
