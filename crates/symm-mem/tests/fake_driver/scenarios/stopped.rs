//! Copies after a wait that fails.

use std::time::Duration;

use warpweave_fake_driver::Control;
use warpweave_symm_mem::{Backend, Memory, Priority, Result, SignalPad, SymmetricBuffer};

use super::bodies::{BYTES, arrived, read, signal, wait, write};
use super::{Kept, Rank, Scenario};

/// What rank 1 has in its memory, and what rank 0 would copy there.
const THEIRS: u8 = 1;
const MINE: u8 = 9;

/// Rank 0 waits for rank 1's memory and copies to it. Rank 1 gives it only in the last call.
fn copy(rank: &Rank) -> Result<Kept> {
    let device = rank.device()?;
    let recv = SymmetricBuffer::new(&device, &rank.exchange, "recv", BYTES)?;
    let pad = SignalPad::new(&device, &rank.exchange, "p", 1)?;
    let send = device.allocate(BYTES)?;
    let stream = device.stream(Priority::Normal)?;
    write(&device, recv.local(), &[THEIRS; BYTES])?;
    write(&device, send.address(), &[MINE; BYTES])?;
    rank.barrier("ready")?;
    let call = || {
        wait(&device, &stream, pad.view(), 0, 1, 0)?;
        // SAFETY: the ranges live, and rank 1 gives its own before the copy or never.
        unsafe { device.copy_unless_stopped(&stream, recv.peer(1), send.address(), BYTES) }
    };
    let graph = match rank.rank {
        0 => Some(device.capture(&stream, call)?),
        _ => None,
    };
    // SAFETY: what was captured lives until the stream is empty.
    let replay = |graph| unsafe { device.launch_graph(graph, &stream) };
    for captured in [false, true] {
        if let Some(graph) = &graph {
            if captured {
                replay(graph)?
            } else {
                call()?
            };
            device.synchronize(&stream)?;
            assert!(pad.check(&stream).is_err(), "nobody has signalled");
        }
        rank.barrier("given up")?;
        if rank.rank == 1 {
            arrived(rank, &read(&device, recv.local(), BYTES)?, THEIRS)?;
        }
        rank.barrier("seen")?;
        pad.recover(&stream, rank.exchange.as_ref())?;
    }
    match &graph {
        Some(graph) => replay(graph)?,
        None => signal(&device, &stream, pad.view(), 0, 0)?,
    }
    device.synchronize(&stream)?;
    pad.check(&stream)?;
    rank.barrier("copied")?;
    if rank.rank == 1 {
        arrived(rank, &read(&device, recv.local(), BYTES)?, MINE)?;
    }
    rank.barrier("done")?;
    Ok(Box::new((graph, recv, pad, send, stream, device)))
}

/// A copy that was enqueued or captured before the wait failed copies nothing.
pub fn nothing_is_copied(driver: &Control) {
    let scenario = Scenario::of("stopped", 2, copy);
    let ended = scenario.run(driver, None, Duration::from_millis(300));
    assert!(ended.iter().all(|e| e.outcome.is_ok()), "{ended:?}");
    assert_eq!(driver.faults(), [""; 0]);
    assert_eq!(driver.live(), [""; 0]);
}
