//! Collectives of the host backend, among processes or threads of one machine: what NCCL is on GPUs.

use std::sync::Arc;

use warpweave_symm_mem::host::{Element, HostStream, expect_signal, send_signal};
use warpweave_symm_mem::{
    DType, DevicePtr, Error, Exchange, Host, Result, SignalPad, SymmetricBuffer, with_element,
};

use crate::collective::host::elements::{BATCH, reduce};

/// "My bytes can be read."
const READY: usize = 0;
/// "I have read your bytes."
const FREE: usize = 1;

/// What NCCL is on GPUs: collectives on any memory, in equal shards or not, each one work item on a stream.
///
/// Each rank copies its input to a symmetric buffer, signals, and reads from the buffers of all. No rank
/// leaves before every rank has entered. Credits guard the buffer, so calls may follow each other with no
/// other synchronization. Reductions are computed in f32, in the order of ranks, and rounded once. A peer
/// that does not arrive in time is recorded in [`HostCollectives::pad`], and the call then leaves its
/// destination unchanged.
///
/// # What the unsafe calls ask for
/// - Source and destination hold what the call reads and writes, mapped until the work has ended; no
///   unordered work writes the source or touches the destination. They may overlap.
/// - All ranks make the same calls in the same order, on streams of the device given at the start; the calls
///   of a rank are ordered among each other.
#[derive(Debug)]
pub struct HostCollectives {
    device: Host,
    inputs: SymmetricBuffer<Host>,
    pad: SignalPad<Host>,
}

impl HostCollectives {
    /// Prepares collectives with at most `bytes` bytes of input on each rank. Collective: all ranks pass the
    /// same `name` and `bytes`.
    ///
    /// # Errors
    /// Errors of the allocation of symmetric memory.
    pub fn new(
        device: &Host,
        exchange: &Arc<dyn Exchange>,
        name: &str,
        bytes: usize,
    ) -> Result<Self> {
        Ok(Self {
            device: device.clone(),
            inputs: SymmetricBuffer::new(device, exchange, &format!("{name}.inputs"), bytes)?,
            pad: SignalPad::new(device, exchange, name, 2)?,
        })
    }

    /// Most bytes of a rank's input.
    pub fn bytes(&self) -> usize {
        self.inputs.bytes()
    }

    /// The pad that the ranks signal, with the record of the first failed wait.
    pub fn pad(&self) -> &SignalPad<Host> {
        &self.pad
    }

    /// Gathers `bytes[r]` bytes at `src` of each rank `r`, contiguously at `dst` of every rank.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `bytes` does not have one entry for each rank, or too large a one.
    ///
    /// # Safety
    /// As [`HostCollectives`] says.
    pub unsafe fn all_gather(
        &self,
        stream: &HostStream,
        (src, dst): (DevicePtr, DevicePtr),
        bytes: &[usize],
    ) -> Result<()> {
        let starts = self.starts(bytes)?;
        let (given, bytes) = (bytes[self.inputs.rank()], bytes.to_vec());
        // SAFETY: the caller's obligations.
        unsafe {
            self.enqueue(stream, "all_gather", (src, given), move |inputs| {
                for ((input, &bytes), start) in inputs.iter().zip(&bytes).zip(&starts) {
                    copy(dst.add(*start), *input, bytes);
                }
                Ok(())
            })
        }
    }

    /// Reduces all elements at `src` over the ranks and scatters the result: rank `r` gets `counts[r]`
    /// elements at `dst`.
    ///
    /// # Errors
    /// As [`HostCollectives::all_gather`].
    ///
    /// # Safety
    /// As [`HostCollectives`] says.
    pub unsafe fn reduce_scatter(
        &self,
        stream: &HostStream,
        dtype: DType,
        (src, dst): (DevicePtr, DevicePtr),
        counts: &[usize],
    ) -> Result<()> {
        let starts = self.starts(counts)?;
        let rank = self.inputs.rank();
        let (mine, count) = (starts[rank] * dtype.size(), counts[rank]);
        let given = counts.iter().sum::<usize>() * dtype.size();
        // SAFETY: the caller's obligations.
        unsafe {
            self.enqueue(stream, "reduce_scatter", (src, given), move |inputs| {
                let from: Vec<_> = inputs.iter().map(|part| part.add(mine)).collect();
                reduce_elements(dtype, &from, dst, count)
            })
        }
    }

    /// Reduces `count` elements at `src` over the ranks, to `dst` of every rank.
    ///
    /// # Errors
    /// As [`HostCollectives::all_gather`].
    ///
    /// # Safety
    /// As [`HostCollectives`] says.
    pub unsafe fn all_reduce(
        &self,
        stream: &HostStream,
        dtype: DType,
        (src, dst): (DevicePtr, DevicePtr),
        count: usize,
    ) -> Result<()> {
        let given = count * dtype.size();
        // SAFETY: the caller's obligations.
        unsafe {
            self.enqueue(stream, "all_reduce", (src, given), move |inputs| {
                reduce_elements(dtype, inputs, dst, count)
            })
        }
    }

    /// Start of each rank's segment.
    fn starts(&self, sizes: &[usize]) -> Result<Vec<usize>> {
        if sizes.len() != self.inputs.world() {
            return Err(Error::InvalidArgument {
                what: "segments of a collective",
                why: format!("{} sizes for {} ranks", sizes.len(), self.inputs.world()),
            });
        }
        let mut end = 0;
        let start = |size: &usize| {
            end += size;
            end - size
        };
        Ok(sizes.iter().map(start).collect())
    }

    /// Publishes `bytes` at `src` to the peers and calls `take` once all ranks have published.
    ///
    /// # Safety
    /// As [`HostCollectives`] says; `take` keeps to what all ranks gave.
    unsafe fn enqueue(
        &self,
        stream: &HostStream,
        name: &'static str,
        (src, bytes): (DevicePtr, usize),
        take: impl Fn(&[DevicePtr]) -> Result<()> + Send + Sync + 'static,
    ) -> Result<()> {
        if bytes > self.bytes() {
            return Err(Error::InvalidArgument {
                what: "size of a collective",
                why: format!("{bytes} bytes of a rank, and {} at most", self.bytes()),
            });
        }
        let pad = self.pad.view();
        let inputs = self.inputs.addresses();
        let (rank, world) = (self.inputs.rank(), self.inputs.world());
        self.device.launch(stream, name, move || {
            let peers = || (1..world).map(|step| (rank + step) % world);
            // SAFETY: the pad is the object's own, with two slots, and its drop waits for this work; calls of
            // this rank are ordered. What is copied the caller vouches for, and signals keep writers of
            // inputs from their readers.
            unsafe {
                for peer in peers() {
                    expect_signal(&pad, FREE, peer, 1);
                }
                copy(inputs[rank], src, bytes);
                for peer in peers() {
                    send_signal(&pad, READY, peer);
                }
                let mut all_arrived = true;
                for peer in peers() {
                    all_arrived &= expect_signal(&pad, READY, peer, 0);
                }
                let taken = match all_arrived {
                    true => take(&inputs),
                    false => Ok(()),
                };
                for peer in peers() {
                    send_signal(&pad, FREE, peer);
                }
                taken
            }
        })
    }
}

/// # Safety
/// Both ranges are mapped, nothing writes the one or touches the other meanwhile.
unsafe fn copy(to: DevicePtr, from: DevicePtr, bytes: usize) {
    // SAFETY: the caller's obligation.
    unsafe { std::ptr::copy(from.as_host::<u8>(), to.as_host(), bytes) }
}

/// Reduces `count` elements of each source.
///
/// # Safety
/// As for [`copy`], for each source.
unsafe fn reduce_elements(
    dtype: DType,
    from: &[DevicePtr],
    to: DevicePtr,
    count: usize,
) -> Result<()> {
    unsafe fn of<T: Element>(from: &[DevicePtr], to: DevicePtr, count: usize) {
        let mut sums = [T::default(); BATCH];
        for start in (0..count).step_by(BATCH) {
            let sums = &mut sums[..BATCH.min(count - start)];
            // SAFETY: the caller's obligation, for a part of the elements.
            unsafe {
                let sources = from.iter().map(|part| part.as_host::<T>().add(start));
                reduce(sources.map(<*mut T>::cast_const), sums);
                let to = to.as_host::<T>().add(start);
                std::ptr::copy_nonoverlapping(sums.as_ptr(), to, sums.len());
            }
        }
    }
    // SAFETY: the caller's obligation.
    unsafe {
        with_element!(dtype, T => of::<T>(from, to, count));
    }
    Ok(())
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

    /// The input of rank `rank` in call `call`.
    fn bytes(rank: usize, call: usize, len: usize) -> Vec<u8> {
        (0..len)
            .map(|i| (i * 7 + rank * 31 + call * 101) as u8)
            .collect()
    }

    #[test]
    fn back_to_back_calls_gather_uneven_segments() {
        for world in [1, 2, 5] {
            let sizes: Vec<usize> = (0..world).map(|rank| 1000 + 13 * rank).collect();
            let wanted: Vec<Vec<u8>> = (0..4)
                .map(|call| (0..world).flat_map(|r| bytes(r, call, sizes[r])).collect())
                .collect();
            let got = on_ranks(world, move |exchange| {
                let device = Host::new();
                let stream = device.stream(Default::default())?;
                let rank = exchange.rank();
                let gather = HostCollectives::new(&device, &exchange, "gather", 1052)?;
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
                    unsafe {
                        gather.all_gather(
                            &stream,
                            (from, dst.address().add(call * total)),
                            &sizes,
                        )?
                    };
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
            let gather = HostCollectives::new(&device, &exchange, "gather", 8)?;
            let memory = device.allocate(24)?;
            let mut fault = None;
            if exchange.rank() == 0 {
                let (src, dst) = (memory.address(), memory.address().add(8));
                // SAFETY: eight bytes and sixteen after them.
                unsafe { gather.all_gather(&stream, (src, dst), &[8, 8])? };
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

    #[test]
    fn reduces_uneven_shards_also_in_place() {
        // Rank r gives 10 * i + r at place i of seven: ranks 0 to 2 get three, two and two of the results.
        let counts = [3, 2, 2];
        let sum = |i: usize| 30.0 * i as f32 + 3.0;
        let got = on_ranks(3, move |exchange| {
            let device = Host::new();
            let stream = device.stream(Default::default())?;
            let rank = exchange.rank();
            let sums = HostCollectives::new(&device, &exchange, "sums", 28)?;
            let memory = device.allocate(28)?;
            let given: Vec<f32> = (0..7).map(|i| (10 * i + rank) as f32).collect();
            let given: Vec<u8> = given.into_iter().flat_map(f32::to_ne_bytes).collect();
            let first: usize = counts[..rank].iter().sum();
            let own = memory.address().add(4 * first);
            let (mut shard, mut all) = (vec![0; 4 * counts[rank]], vec![0; 28]);
            // SAFETY: seven elements in 28 bytes, of which `own` are this rank's.
            unsafe {
                device.upload(&stream, memory.address(), &given)?;
                sums.reduce_scatter(&stream, DType::F32, (memory.address(), own), &counts)?;
                device.download(&stream, own, &mut shard)?;
                device.upload(&stream, memory.address(), &given)?;
                let in_place = (memory.address(), memory.address());
                sums.all_reduce(&stream, DType::F32, in_place, 7)?;
                device.download(&stream, memory.address(), &mut all)?;
            }
            sums.pad().check(&stream)?;
            exchange.barrier("end")?;
            Ok((first, shard, all))
        });
        let bytes = |range: std::ops::Range<usize>| -> Vec<u8> {
            range.flat_map(|i| sum(i).to_ne_bytes()).collect()
        };
        for (rank, (first, shard, all)) in got.into_iter().enumerate() {
            assert_eq!(shard, bytes(first..first + counts[rank]), "rank {rank}");
            assert_eq!(all, bytes(0..7), "rank {rank}");
        }
    }

    #[test]
    fn calls_that_do_not_fit_are_refused() {
        let got = on_ranks(1, |exchange| {
            let device = Host::new();
            let stream = device.stream(Default::default())?;
            let collectives = HostCollectives::new(&device, &exchange, "small", 8)?;
            let nowhere = (DevicePtr::NULL, DevicePtr::NULL);
            // SAFETY: a refused call touches nothing.
            let refused = unsafe {
                [
                    collectives.all_gather(&stream, nowhere, &[4, 4]),
                    collectives.all_reduce(&stream, DType::F32, nowhere, 3),
                ]
            };
            Ok(refused.map(|refused| refused.unwrap_err().to_string()))
        });
        assert!(got[0][0].contains("2 sizes for 1 ranks"), "{}", got[0][0]);
        assert!(got[0][1].contains("12 bytes"), "{}", got[0][1]);
    }
}
