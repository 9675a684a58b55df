//! What communicates on the host backend, ranks as threads or as processes: one program, since each links
//! the whole crate. The collectives of every backend are in `conformance`.

mod agreement;
mod crowd;
mod hostile;
mod hosts;
mod launchers;
mod losses;
mod measured;
mod multicast;
mod operands;
mod p2p;
mod p2p_processes;
mod processes;
mod recovery;
mod select;
#[path = "../transfers/mod.rs"]
mod transfers;
