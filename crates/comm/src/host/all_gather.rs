//! An all-gather among processes or threads of one machine.

use std::ops::Range;
use std::sync::Arc;

use warpweave_symm_mem::host::{expect_signal, send_signal};
use warpweave_symm_mem::{DevicePtr, Error, Exchange, Host, Result, SignalPad, SymmetricBuffer};

/// "My bytes can be read."
const READY: usize = 0;
/// "I have read your bytes."
const FREE: usize = 1;

/// An all-gather of a fixed number of bytes from each rank, one after the other, as one piece of work on a stream.
///
/// Each rank copies its bytes to a symmetric buffer, says so, and copies the bytes of each peer from there to its
/// destination as they become ready. No rank leaves before every rank has entered. Credits guard the symmetric buffer, so
/// calls may follow each other with no other synchronisation.
#[derive(Debug)]
pub struct HostAllGather {
    device: Host,
    places: Vec<Range<usize>>,
    parts: SymmetricBuffer<Host>,
    pad: SignalPad<Host>,
}

impl HostAllGather {
    /// Prepares an all-gather to which rank `r` gives `bytes[r]` bytes. Collective: all ranks give the same `name` and
    /// `bytes`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `bytes` does not have one entry for each rank; what the allocation of symmetric
    /// memory reports.
    pub fn new(
        device: &Host,
        exchange: &Arc<dyn Exchange>,
        name: &str,
        bytes: &[usize],
    ) -> Result<Self> {
        if bytes.len() != exchange.world() {
            return Err(Error::InvalidArgument {
                what: "bytes of an all-gather",
                why: format!("{} sizes for {} ranks", bytes.len(), exchange.world()),
            });
        }
        let mut end = 0;
        let places: Vec<_> = bytes
            .iter()
            .map(|&bytes| {
                let start = end;
                end += bytes;
                start..end
            })
            .collect();
        let largest = bytes.iter().copied().max().unwrap_or(0);
        Ok(Self {
            device: device.clone(),
            places,
            parts: SymmetricBuffer::new(device, exchange, &format!("{name}.parts"), largest)?,
            pad: SignalPad::new(device, exchange, name, 2)?,
        })
    }

    /// Enqueues one all-gather on `stream`. A peer that does not come in time is in the record that
    /// [`HostAllGather::pad`] reports, and its bytes are left out.
    ///
    /// # Errors
    /// What the stream reports.
    ///
    /// # Safety
    /// - `src` holds this rank's bytes and `dst` those of all ranks, mapped until the work has ended; no unordered work
    ///   writes `src` or touches `dst`, and they do not overlap.
    /// - All ranks enqueue the same number of calls, on streams of the device given at the start; the calls of a rank are
    ///   ordered among each other.
    pub unsafe fn enqueue(
        &self,
        stream: &<Host as warpweave_symm_mem::Backend>::Stream,
        src: DevicePtr,
        dst: DevicePtr,
    ) -> Result<()> {
        let pad = self.pad.view();
        let places = self.places.clone();
        let rank = self.parts.rank();
        let parts: Vec<DevicePtr> = (0..places.len()).map(|p| self.parts.peer(p)).collect();
        self.device.launch(stream, "all_gather", move || {
            let peers = || (1..places.len()).map(|step| (rank + step) % places.len());
            let copy = |to: DevicePtr, from: DevicePtr, bytes: usize| {
                // SAFETY: the caller vouches for `src` and `dst`, the object owns `parts` and its drop waits for this
                // work. Signals keep writers of `parts` away from their readers.
                unsafe { std::ptr::copy_nonoverlapping(from.as_host::<u8>(), to.as_host(), bytes) }
            };
            let mine = &places[rank];
            for peer in peers() {
                // SAFETY: the pad is the object's own, with two slots; calls of this rank are ordered.
                unsafe { expect_signal(&pad, FREE, peer, 1) };
            }
            copy(parts[rank], src, mine.len());
            for peer in peers() {
                // SAFETY: as above.
                unsafe { send_signal(&pad, READY, peer) };
            }
            copy(dst.add(mine.start), src, mine.len());
            for peer in peers() {
                // SAFETY: as above.
                if unsafe { expect_signal(&pad, READY, peer, 0) } {
                    let place = &places[peer];
                    copy(dst.add(place.start), parts[peer], place.len());
                }
                // SAFETY: as above.
                unsafe { send_signal(&pad, FREE, peer) };
            }
            Ok(())
        })
    }

    /// The pad whose words the ranks signal, with the record of the first wait that failed.
    pub fn pad(&self) -> &SignalPad<Host> {
        &self.pad
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warpweave_symm_mem::{Backend, Memory, ThreadExchange};

    fn on_ranks<T: Send + 'static>(
        world: usize,
        run: impl Fn(Arc<dyn Exchange>) -> Result<T> + Send + Sync + 'static,
    ) -> Vec<T> {
        let run = Arc::new(run);
        let ranks: Vec<_> = ThreadExchange::group(world)
            .into_iter()
            .map(|exchange| {
                let run = run.clone();
                std::thread::spawn(move || run(Arc::new(exchange)))
            })
            .collect();
        ranks
            .into_iter()
            .map(|rank| rank.join().unwrap().unwrap())
            .collect()
    }

    /// What rank `rank` gives in call `call`.
    fn bytes(rank: usize, call: usize, len: usize) -> Vec<u8> {
        (0..len)
            .map(|i| (i * 7 + rank * 31 + call * 101) as u8)
            .collect()
    }

    #[test]
    fn back_to_back_calls_gather_uneven_parts() {
        for world in [1, 2, 5] {
            let sizes: Vec<usize> = (0..world).map(|rank| 1000 + 13 * rank).collect();
            let wanted: Vec<Vec<u8>> = (0..4)
                .map(|call| (0..world).flat_map(|r| bytes(r, call, sizes[r])).collect())
                .collect();
            let got = on_ranks(world, move |exchange| {
                let device = Host::new();
                let stream = device.stream(Default::default())?;
                let rank = exchange.rank();
                let gather = HostAllGather::new(&device, &exchange, "gather", &sizes)?;
                let total: usize = sizes.iter().sum();
                let src = device.allocate(4 * sizes[rank])?;
                let dst = device.allocate(4 * total)?;
                for call in 0..4 {
                    let from = src.address().add(call * sizes[rank]);
                    // SAFETY: the fourth part of `src` that belongs to the call.
                    unsafe { device.upload(&stream, from, &bytes(rank, call, sizes[rank]))? };
                }
                for call in 0..4 {
                    let from = src.address().add(call * sizes[rank]);
                    // SAFETY: each call has its own parts of both buffers, which outlive the download.
                    unsafe { gather.enqueue(&stream, from, dst.address().add(call * total))? };
                }
                let mut all = vec![0; 4 * total];
                // SAFETY: the whole of `dst`.
                unsafe { device.download(&stream, dst.address(), &mut all)? };
                gather.pad().check(&stream)?;
                exchange.barrier("end")?;
                Ok(all)
            });
            for all in got {
                assert_eq!(all, wanted.concat(), "world {world}");
            }
        }
    }

    #[test]
    fn a_rank_that_stays_away_is_named() {
        let got = on_ranks(2, |exchange| {
            let device = Host::with_timeout(std::time::Duration::from_millis(200));
            let stream = device.stream(Default::default())?;
            let gather = HostAllGather::new(&device, &exchange, "gather", &[8, 8])?;
            let memory = device.allocate(24)?;
            let mut fault = None;
            if exchange.rank() == 0 {
                let (src, dst) = (memory.address(), memory.address().add(8));
                // SAFETY: eight bytes and sixteen behind them.
                unsafe { gather.enqueue(&stream, src, dst)? };
                device.synchronize(&stream)?;
                fault = gather.pad().check(&stream).err();
            }
            exchange.barrier("end")?;
            Ok(fault.map(|error| error.to_string()))
        });
        let fault = got[0].as_deref().unwrap();
        assert!(
            fault.contains("rank 0 waited") && fault.contains("for rank 1"),
            "{fault}"
        );
    }
}
