//! Collectives of the host backend: what NCCL is on GPUs.

use std::ops::Range;
use std::sync::Arc;

use warpweave_symm_mem::host::{Element, HostStream, expect_signal, send_signal};
use warpweave_symm_mem::{
    Backend, DType, DevicePtr, Error, Exchange, Host, Result, SignalPad, SymmetricBuffer,
    with_element,
};

use crate::collective::host::elements::{BATCH, reduce};
use crate::network::{Network, Transfer};

/// "My bytes can be read."
const READY: usize = 0;
/// "I have read your bytes."
const FREE: usize = 1;

/// What NCCL is on GPUs: collectives on any memory, in equal shards or not, each one work item on a stream.
///
/// No rank leaves a call before every rank has entered it, and calls may follow each other with no other
/// synchronization. Reductions are computed in f32, in the order of ranks, and rounded once. A peer that does
/// not arrive in time is recorded, and the call then leaves its destination unchanged.
///
/// # What the unsafe calls ask for
/// - Source and destination hold what the call reads and writes, mapped until the work has ended; no
///   unordered work writes the source or touches the destination. They may overlap.
/// - All ranks make the same calls in the same order, on streams of the device given at the start; the calls
///   of a rank are ordered among each other.
#[derive(Debug)]
pub struct HostCollectives {
    device: Host,
    rank: usize,
    world: usize,
    bytes: usize,
    medium: Medium,
}

/// How the input of a rank comes to the others.
#[derive(Debug)]
enum Medium {
    /// Each rank copies its input to a symmetric buffer, signals, and reads from the buffers of all. Credits
    /// guard the buffer.
    Memory {
        inputs: Box<SymmetricBuffer<Host>>,
        pad: Box<SignalPad<Host>>,
    },
    /// Each rank sends its input to those that read it.
    Network(Arc<Network>),
}

/// The input of a call: its bytes, what each rank reads of them, and what this rank reads of each rank's.
struct Input {
    bytes: usize,
    given: Vec<Range<usize>>,
    wanted: Vec<Range<usize>>,
}

impl HostCollectives {
    /// Prepares collectives with at most `bytes` bytes of input on each rank, of ranks that share memory.
    /// Collective: all ranks pass the same `name` and `bytes`.
    ///
    /// # Errors
    /// Errors of the allocation of symmetric memory.
    pub fn new(
        device: &Host,
        exchange: &Arc<dyn Exchange>,
        name: &str,
        bytes: usize,
    ) -> Result<Self> {
        let medium = Medium::Memory {
            inputs: SymmetricBuffer::new(device, exchange, &format!("{name}.inputs"), bytes)?
                .into(),
            pad: SignalPad::new(device, exchange, name, 2)?.into(),
        };
        Ok(Self::by(medium, device, exchange.as_ref(), bytes))
    }

    /// As [`HostCollectives::new`] by TCP, for ranks in several nodes.
    ///
    /// # Errors
    /// A peer that cannot be reached; what the exchange reports.
    pub fn over_network(
        device: &Host,
        exchange: &Arc<dyn Exchange>,
        name: &str,
        bytes: usize,
    ) -> Result<Self> {
        let network = Network::open(exchange.as_ref(), name, device.timeout())?;
        let medium = Medium::Network(Arc::new(network));
        Ok(Self::by(medium, device, exchange.as_ref(), bytes))
    }

    fn by(medium: Medium, device: &Host, exchange: &dyn Exchange, bytes: usize) -> Self {
        Self {
            device: device.clone(),
            rank: exchange.rank(),
            world: exchange.world(),
            bytes,
            medium,
        }
    }

    /// Most bytes of a rank's input.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reports the first call that failed, after `stream` was synchronised.
    ///
    /// # Errors
    /// [`Error::SignalFault`] naming the peer that did not come.
    pub fn check(&self, stream: &HostStream) -> Result<()> {
        match &self.medium {
            Medium::Memory { pad, .. } => pad.check(stream),
            Medium::Network(network) => network.check(),
        }
    }

    /// Makes the group usable again after a fault. Collective; no rank may have calls under way.
    ///
    /// # Errors
    /// [`Error::SignalFault`] if a rank is lost; errors of the exchange.
    pub fn recover(&self, stream: &HostStream, exchange: &dyn Exchange) -> Result<()> {
        match &self.medium {
            Medium::Memory { pad, .. } => pad.recover(stream, exchange).map(drop),
            Medium::Network(network) => {
                network.recover(exchange)?;
                self.device.resume_waits(stream)
            }
        }
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
        let bytes = bytes.to_vec();
        let given = bytes[self.rank];
        let input = Input {
            bytes: given,
            given: vec![0..given; self.world],
            wanted: bytes.iter().map(|&bytes| 0..bytes).collect(),
        };
        // SAFETY: the caller's obligations.
        unsafe {
            self.enqueue(stream, "all_gather", src, input, move |inputs| {
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
        let size = dtype.size();
        let (mine, count) = (starts[self.rank] * size, counts[self.rank]);
        let segments = starts.iter().zip(counts);
        let input = Input {
            bytes: counts.iter().sum::<usize>() * size,
            given: segments
                .map(|(start, n)| start * size..(start + n) * size)
                .collect(),
            wanted: vec![mine..mine + count * size; self.world],
        };
        // SAFETY: the caller's obligations.
        unsafe {
            self.enqueue(stream, "reduce_scatter", src, input, move |inputs| {
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
        let bytes = count * dtype.size();
        let input = Input {
            bytes,
            given: vec![0..bytes; self.world],
            wanted: vec![0..bytes; self.world],
        };
        // SAFETY: the caller's obligations.
        unsafe {
            self.enqueue(stream, "all_reduce", src, input, move |inputs| {
                reduce_elements(dtype, inputs, dst, count)
            })
        }
    }

    /// Start of each rank's segment.
    fn starts(&self, sizes: &[usize]) -> Result<Vec<usize>> {
        if sizes.len() != self.world {
            return Err(Error::InvalidArgument {
                what: "segments of a collective",
                why: format!("{} sizes for {} ranks", sizes.len(), self.world),
            });
        }
        let mut end = 0;
        let start = |size: &usize| {
            end += size;
            end - size
        };
        Ok(sizes.iter().map(start).collect())
    }

    /// Brings the `input` at `src` to the peers, and calls `take` with the addresses of all ranks' inputs
    /// once what this rank reads of them is there.
    ///
    /// # Safety
    /// As [`HostCollectives`] says; `take` keeps to what the input says that this rank reads.
    unsafe fn enqueue(
        &self,
        stream: &HostStream,
        name: &'static str,
        src: DevicePtr,
        input: Input,
        take: impl Fn(&[DevicePtr]) -> Result<()> + Send + Sync + 'static,
    ) -> Result<()> {
        // Of all ranks, as far as this one reads them: what one refuses, all do.
        let ends = input.wanted.iter().map(|range| range.end);
        let most = ends.fold(input.bytes, usize::max);
        if most > self.bytes {
            return Err(Error::InvalidArgument {
                what: "size of a collective",
                why: format!("{most} bytes of a rank, and {} at most", self.bytes),
            });
        }
        // SAFETY: the caller's obligations.
        unsafe {
            match &self.medium {
                Medium::Memory { inputs, pad } => {
                    self.by_memory(stream, name, (src, input.bytes), (inputs, pad), take)
                }
                Medium::Network(network) => {
                    self.by_network(stream, name, (src, input), network.clone(), take)
                }
            }
        }
    }

    /// # Safety
    /// As for [`HostCollectives::enqueue`].
    unsafe fn by_memory(
        &self,
        stream: &HostStream,
        name: &'static str,
        (src, bytes): (DevicePtr, usize),
        (inputs, pad): (&SymmetricBuffer<Host>, &SignalPad<Host>),
        take: impl Fn(&[DevicePtr]) -> Result<()> + Send + Sync + 'static,
    ) -> Result<()> {
        let (pad, inputs) = (pad.view(), inputs.addresses());
        let (rank, world) = (self.rank, self.world);
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

    /// # Safety
    /// As for [`HostCollectives::enqueue`].
    unsafe fn by_network(
        &self,
        stream: &HostStream,
        name: &'static str,
        (src, input): (DevicePtr, Input),
        network: Arc<Network>,
        take: impl Fn(&[DevicePtr]) -> Result<()> + Send + Sync + 'static,
    ) -> Result<()> {
        let (rank, device) = (self.rank, self.device.clone());
        self.device.launch(stream, name, move || {
            let own = match input.bytes {
                0 => &[],
                // SAFETY: the caller vouches for the source, which nothing writes meanwhile.
                bytes => unsafe { std::slice::from_raw_parts(src.as_host::<u8>(), bytes) },
            };
            let transfer = Transfer {
                name,
                given: input
                    .given
                    .iter()
                    .map(|range| &own[range.clone()])
                    .collect(),
                wanted: input.wanted.iter().map(Range::len).collect(),
            };
            let Some(mut received) = network.transfer(&transfer, || device.is_stopped()) else {
                // Peers in this node, whose data this call was to bring, must not wait for it.
                device.stop_waits();
                return Ok(());
            };
            // The destination may overlap it.
            received[rank] = own[input.wanted[rank].clone()].to_vec();
            // As if each input were all there: `take` reads no more of it than has come.
            let parts = received.iter().zip(&input.wanted);
            let whole = |(bytes, range): (&Vec<u8>, &Range<usize>)| {
                DevicePtr((bytes.as_ptr() as u64).wrapping_sub(range.start as u64))
            };
            let inputs: Vec<_> = parts.map(whole).collect();
            take(&inputs)
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
                gather.check(&stream)?;
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
                fault = gather.check(&stream).err();
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
            sums.check(&stream)?;
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
    fn calls_that_do_not_fit_are_refused_on_all_ranks() {
        let got = on_ranks(2, |exchange| {
            let device = Host::with_timeout(std::time::Duration::from_millis(200));
            let stream = device.stream(Default::default())?;
            let collectives = HostCollectives::new(&device, &exchange, "small", 8)?;
            let memory = device.allocate(24)?;
            let (src, dst) = (memory.address(), memory.address().add(8));
            // SAFETY: a refused call touches nothing; eight bytes and sixteen after them.
            let refused = unsafe {
                [
                    collectives.all_gather(&stream, (src, dst), &[4]),
                    collectives.all_gather(&stream, (src, dst), &[4, 12]),
                    collectives.all_reduce(&stream, DType::F32, (src, dst), 3),
                ]
            };
            exchange.barrier("end")?;
            Ok(refused.map(|refused| refused.unwrap_err().to_string()))
        });
        for [other, gather, reduce] in got {
            assert!(other.contains("1 sizes for 2 ranks"), "{other}");
            assert!(gather.contains("12 bytes"), "{gather}");
            assert!(reduce.contains("12 bytes"), "{reduce}");
        }
    }
}
