//! The exchange of the job: what everything collective on the host is made of.

use std::fs::File;
use std::os::fd::AsFd;

use warpweave_bench::session::{ExecuteBackend, Session};

use crate::lockstep::{Entry, Made};
use crate::timed::on_host;

pub fn entries<B: ExecuteBackend>(session: &Session<B>) -> Vec<Entry<'_>> {
    let entry = |name: &str, make| Entry {
        group: "exchange".into(),
        name: name.into(),
        long: false,
        make,
    };
    vec![
        entry("barrier", Box::new(|| bytes(session, 0))),
        entry("all-gather/64", Box::new(|| bytes(session, 64))),
        entry("all-gather/64K", Box::new(|| bytes(session, 64 << 10))),
        entry("descriptors", Box::new(|| descriptors(session))),
    ]
}

fn bytes<B: ExecuteBackend>(session: &Session<B>, count: usize) -> Made<'_> {
    let mine = vec![session.rank() as u8; count];
    Ok(Ok(on_host(session, move || {
        session.exchange.all_gather("bench", &mine)?;
        Ok(())
    })))
}

fn descriptors<B: ExecuteBackend>(session: &Session<B>) -> Made<'_> {
    let file = File::open("/dev/null")?;
    Ok(Ok(on_host(session, move || {
        session.exchange.all_gather_fds("bench", &[file.as_fd()])?;
        Ok(())
    })))
}
