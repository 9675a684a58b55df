//! Each collective, by the variant that the library chooses and by NCCL.

use warpweave_bench::clock::Clock;
use warpweave_bench::collectives::{DEFAULT_OPERATIONS, NcclBackend, alone};
use warpweave_bench::session::Session;
use warpweave_report::Bytes;

use super::sizes;
use crate::lockstep::Entry;
use crate::timed::on_device;

pub fn entries<'a, B: NcclBackend>(
    session: &'a Session<B>,
    clock: &'a Clock<'a, B>,
) -> Vec<Entry<'a>> {
    let mut entries = Vec::new();
    for operation in DEFAULT_OPERATIONS {
        for bytes in sizes::<B>() {
            for (by, by_nccl) in [("select", false), ("nccl", true)] {
                entries.push(Entry {
                    group: format!("collective/{operation}"),
                    name: format!("{by}/{}", Bytes(bytes)),
                    long: false,
                    make: Box::new(move || {
                        let row = alone(session, operation, bytes, by_nccl)?;
                        Ok(row.map(|row| on_device(clock, row)))
                    }),
                });
            }
        }
    }
    entries
}
