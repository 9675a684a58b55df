//! Running work, and launching graphs.

use cudarc::driver::sys::CUresult as R;

use crate::journal::{Outcome, refuse, require};
use crate::state::object::Object;
use crate::state::space::Piece;
use crate::state::work::{Item, Work};
use crate::state::{Driver, lock};

impl Driver {
    /// Checks a range that code of `context` will read.
    pub fn to_read(&self, context: u64, at: u64, bytes: usize) -> Outcome<Vec<Piece>> {
        let pieces = self.to_write(context, at, bytes)?;
        require(
            !pieces.iter().any(Piece::is_multicast),
            R::CUDA_ERROR_ILLEGAL_ADDRESS,
            format!("a read through the multicast address {at:#x}"),
        )?;
        Ok(pieces)
    }

    /// Checks a range that code of `context` will write.
    pub fn to_write(&self, context: u64, at: u64, bytes: usize) -> Outcome<Vec<Piece>> {
        self.space
            .pieces(at, bytes, |region| self.may_touch(context, region))
    }

    fn read(&self, context: u64, at: u64, bytes: usize) -> Outcome<Vec<u8>> {
        self.to_read(context, at, bytes)?;
        let mut out = vec![0; bytes];
        // SAFETY: the range is mapped as plain memory that this process may access; unmapping takes the same
        // lock.
        unsafe { std::ptr::copy_nonoverlapping(at as *const u8, out.as_mut_ptr(), bytes) };
        Ok(out)
    }

    fn write(&self, context: u64, at: u64, bytes: &[u8]) -> Outcome {
        let mut rest = bytes;
        for piece in self.to_write(context, at, bytes.len())? {
            let (now, later) = rest.split_at(piece.bytes);
            rest = later;
            match &piece.object.table {
                Some(table) => require(
                    Object::store_to_all(table, piece.offset, now),
                    R::CUDA_ERROR_ILLEGAL_ADDRESS,
                    "a multicast store met a device with nothing bound there",
                )?,
                // SAFETY: as in `read`.
                None => unsafe {
                    std::ptr::copy_nonoverlapping(now.as_ptr(), piece.at as *mut u8, now.len());
                },
            }
        }
        Ok(())
    }
}

/// Runs `work` for `context`.
///
/// # Safety
/// The host memory of the work is valid; the parameters of a kernel have its types.
pub(crate) unsafe fn run(context: u64, work: &Work) -> Outcome {
    match *work {
        Work::Copy { to, from, bytes } => {
            let driver = lock();
            let data = driver.read(context, from, bytes)?;
            driver.write(context, to, &data)
        }
        Work::Fill { to, value, bytes } => lock().write(context, to, &vec![value; bytes]),
        Work::Upload { to, from, bytes } => {
            // SAFETY: the caller's obligation.
            let data = unsafe { std::slice::from_raw_parts(from as *const u8, bytes) };
            lock().write(context, to, data)
        }
        Work::Download { to, from, bytes } => {
            let data = lock().read(context, from, bytes)?;
            // SAFETY: the caller's obligation.
            unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to as *mut u8, bytes) };
            Ok(())
        }
        Work::Kernel(ref kernel) => kernel.run(context),
    }
}

/// Enqueues `work`: it runs now, runs on the stream's thread, or is captured.
///
/// # Safety
/// As for [`run`], until the work has ended; if it is captured, until the last launch of the graph has.
pub(crate) unsafe fn submit(stream: u64, work: Work) -> Outcome {
    let mut driver = lock();
    let Some((context, work)) = driver.enqueue(stream, work)? else {
        return Ok(());
    };
    if driver.machine.asynchronous {
        driver.append((stream, context), [Item::Run(work)]);
        return Ok(());
    }
    drop(driver);
    // SAFETY: the caller's obligation.
    unsafe { run(context, &work) }
}

/// Launches an instantiated graph.
///
/// # Safety
/// As for [`submit`], for all that was captured.
pub(crate) unsafe fn replay(stream: u64, exec: u64) -> Outcome {
    let mut driver = lock();
    let context = driver.stream_context(stream)?;
    driver.refuse_in_capture(stream, "cuGraphLaunch")?;
    let Some(work) = driver.execs.get(&exec).map(|exec| exec.work.clone()) else {
        return refuse(
            R::CUDA_ERROR_INVALID_HANDLE,
            format!("there is no instantiated graph {exec:#x}"),
        );
    };
    if driver.machine.asynchronous {
        driver.append((stream, context), work.iter().cloned().map(Item::Run));
        return Ok(());
    }
    drop(driver);
    for work in work.iter() {
        // SAFETY: the caller's obligation.
        unsafe { run(context, work)? };
    }
    Ok(())
}
