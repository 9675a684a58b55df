//! One rank of a group, with the memory of its scripts.

use std::sync::Arc;

use warpweave_comm::collective::Call;
use warpweave_comm::{CollectiveKernels, CollectiveOptions, Collectives, Operand};
use warpweave_symm_mem::host::encode;
use warpweave_symm_mem::multicast::MulticastBuffer;
use warpweave_symm_mem::{DType, DevicePtr, Exchange, Memory, Priority, Result, SymmetricBuffer};

use crate::case::{Case, Limits};

/// Bytes on either side of an operand that a call must leave alone.
pub const MARGIN: usize = 64;

/// How much memory a rank has.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub options: CollectiveOptions,
    /// Bytes of the largest operand.
    pub room: usize,
    /// Bytes of inputs and results that are kept until they are compared.
    pub batch: usize,
    /// Steps that a rank enqueues at most before it waits for the others.
    pub ahead: usize,
}

impl Sizes {
    /// Small, so that boundaries are reached soon.
    pub const SMALL: Sizes = Sizes {
        options: CollectiveOptions {
            packet_bytes: 6 << 10,
            sentinel_bytes: 6 << 10,
            staging_bytes: 128 << 10,
            max_blocks: 128,
            early_dependents: true,
        },
        room: 1 << 20,
        batch: 8 << 20,
        ahead: usize::MAX,
    };
}

/// What a test says of an error.
pub fn message(error: impl ToString) -> String {
    error.to_string()
}

pub struct Rank<B: CollectiveKernels> {
    pub backend: B,
    pub exchange: Arc<dyn Exchange>,
    pub stream: B::Stream,
    pub collectives: Collectives<B>,
    pub sizes: Sizes,
    multicast: Option<MulticastBuffer<B>>,
    shared: SymmetricBuffer<B>,
    own: B::Memory,
    /// Inputs of the calls of a batch.
    pub sources: B::Memory,
    /// What those calls made of their memory.
    pub logs: B::Memory,
    /// The same for the calls of a graph, whose addresses are fixed.
    pub feeds: B::Memory,
    pub results: B::Memory,
}

/// The memory of a call's operands and of the windows around them: (address, bytes).
pub struct CallMemory {
    pub call: Call,
    pub output: (DevicePtr, usize),
    /// Where the input lies by itself.
    pub input: Option<(DevicePtr, usize)>,
    /// Where the operands begin in the windows.
    pub input_at: usize,
    pub output_at: usize,
}

impl<B: CollectiveKernels> Rank<B> {
    pub fn new(backend: B, exchange: Arc<dyn Exchange>, sizes: Sizes) -> Result<Self> {
        let region = Self::region(&sizes);
        let shared = SymmetricBuffer::new(&backend, &exchange, "operands", 2 * region)?;
        let multicast = match MulticastBuffer::new(&backend, &exchange, &shared) {
            Ok(multicast) => Some(multicast),
            Err(error) if error.is_unavailable() => None,
            // Unavailable on another rank.
            Err(warpweave_symm_mem::Error::PeerFailed { .. }) => None,
            Err(error) => return Err(error),
        };
        Ok(Rank {
            stream: backend.stream(Priority::Normal)?,
            collectives: Collectives::new(&backend, &exchange, "conformance", sizes.options)?,
            multicast,
            shared,
            own: backend.allocate(2 * region)?,
            sources: backend.allocate(sizes.batch)?,
            logs: backend.allocate(sizes.batch)?,
            feeds: backend.allocate(sizes.batch)?,
            results: backend.allocate(sizes.batch)?,
            backend,
            exchange,
            sizes,
        })
    }

    fn region(sizes: &Sizes) -> usize {
        (sizes.room + 4 * MARGIN).next_multiple_of(256)
    }

    pub fn rank(&self) -> usize {
        self.exchange.rank()
    }

    /// Waits for the other ranks. Stands between what allocates, frees or captures and the next call: on a
    /// device that ranks share it may wait for all work, and so for a peer that waits for this rank.
    pub fn meet(&self) -> Result<(), String> {
        self.exchange.barrier("meet").map_err(message)
    }

    /// Waits for the calls so far.
    pub fn finish(&self) -> Result<(), String> {
        self.backend.synchronize(&self.stream).map_err(message)?;
        self.collectives.check(&self.stream).map_err(message)
    }

    /// New memory that holds `values`, on the device when the stream gets there.
    pub fn filled(&self, values: &[f32]) -> Result<B::Memory, String> {
        let memory = self.backend.allocate(4 * values.len()).map_err(message)?;
        // SAFETY: all of new memory.
        let uploaded = unsafe {
            let bytes = encode(DType::F32, values);
            self.backend.upload(&self.stream, memory.address(), &bytes)
        };
        uploaded.map_err(message).map(|()| memory)
    }

    /// All bytes of `memory`.
    pub fn read(&self, memory: &B::Memory) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; memory.bytes()];
        // SAFETY: all of the memory.
        let read = unsafe {
            self.backend
                .download(&self.stream, memory.address(), &mut bytes)
        };
        read.map_err(message).map(|()| bytes)
    }

    pub fn world(&self) -> usize {
        self.exchange.world()
    }

    pub fn limits(&self) -> Limits {
        Limits {
            world: self.world(),
            packet_bytes: self.collectives.packet_bytes(),
            sentinel_bytes: self.collectives.sentinel_bytes(),
            staging_bytes: self.sizes.options.staging_bytes,
            multicast: self.multicast.is_some(),
        }
    }

    pub fn close(self) -> Result<()> {
        self.backend.synchronize(&self.stream)?;
        if let Some(multicast) = self.multicast {
            multicast.close(self.exchange.as_ref())?;
        }
        self.collectives
            .close(&self.stream, self.exchange.as_ref())?;
        self.shared.close(self.exchange.as_ref())
    }

    /// Bytes of a window with `bytes` of an operand, the same on all ranks.
    fn window(case: &Case, bytes: usize) -> usize {
        2 * MARGIN + (case.offset + 1) * case.dtype.size() + bytes
    }

    /// Bytes that a call keeps of its input and of its results.
    pub fn kept(&self, case: &Case) -> (usize, usize) {
        let (input, output) = case.bytes(self.world());
        let results = match case.in_place {
            true => Self::window(case, input.max(output)),
            false => Self::window(case, input) + Self::window(case, output),
        };
        (input.next_multiple_of(256), results.next_multiple_of(256))
    }

    pub fn place(&self, case: &Case) -> Result<CallMemory> {
        let (input_bytes, output_bytes) = case.bytes(self.world());
        let size = case.dtype.size();
        let region = Self::region(&self.sizes);
        let chunk = case.count * size;
        // This rank's chunk of the larger operand, where the smaller one lies.
        let part = |bytes: usize, rank: usize| match case.in_place
            && bytes < input_bytes.max(output_bytes)
        {
            true => rank * chunk,
            false => 0,
        };
        let is_shared = |reached: bool| match case.in_place {
            true => case.reach.input || case.reach.output,
            false => reached,
        };
        let offset = |shared: bool| {
            let skew = usize::from(!shared && case.offset > 0) * (self.rank() % 2);
            MARGIN + (case.offset + skew) * size
        };
        let operand = |first: usize, reached: bool, bytes: usize| -> Result<Operand> {
            let shared = is_shared(reached);
            let at = |rank: usize| first + offset(shared) + part(bytes, rank);
            let own = match shared {
                true => self.shared.local(),
                false => self.own.address(),
            };
            match (&self.multicast, reached) {
                (_, false) => Ok(Operand::local(own.add(at(self.rank())))),
                (Some(multicast), true) if part(bytes, 1) == 0 => {
                    Operand::multicast(&self.shared, multicast, at(0), bytes)
                }
                _ => {
                    let addresses = (0..self.world())
                        .map(|rank| self.shared.range(rank, at(rank), bytes))
                        .collect::<Result<Vec<_>>>()?;
                    Operand::shared(&addresses, self.rank())
                }
            }
        };
        let input_first = if case.in_place { 0 } else { region };
        let input = operand(input_first, case.reach.input, input_bytes)?;
        let output = operand(0, case.reach.output, output_bytes)?;
        let window = |operand: &Operand, reached: bool, bytes: usize| {
            let before = offset(is_shared(reached)) + part(bytes, self.rank());
            (DevicePtr(operand.address().0 - before as u64), before)
        };
        let (output_window, output_at) = window(&output, case.reach.output, output_bytes);
        let (input_window, input_at) = window(&input, case.reach.input, input_bytes);
        let bytes = match case.in_place {
            true => input_bytes.max(output_bytes),
            false => output_bytes,
        };
        Ok(CallMemory {
            call: Call {
                operation: case.operation,
                dtype: case.dtype,
                count: case.count,
                root: case.root,
                input,
                output,
            },
            output: (output_window, Self::window(case, bytes)),
            input: (!case.in_place).then(|| (input_window, Self::window(case, input_bytes))),
            input_at,
            output_at,
        })
    }
}
