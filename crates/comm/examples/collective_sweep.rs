//! Every variant of the collectives checked, then timed beside NCCL, on all GPUs of this machine, one thread a rank.
//!
//! `cargo run --release --example collective_sweep --features nvcc [OPERATION[,OPERATION…] [LARGEST [BLOCKS]]]`: single calls and graph
//! replays in microseconds, ranks aligned on the device before each, the slowest rank, medians.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use half::bf16;
use warpweave_comm::collective::{Call, Operation, Variant};
use warpweave_comm::nccl::{Element, Launch, ReduceOp};
use warpweave_comm::{
    CollectiveOptions, Collectives, Communicator, NcclComm, NcclLibrary, NcclOptions, Operand,
};
use warpweave_symm_mem::{
    Backend, Cuda, DType, DevicePtr, Exchange, Memory, Priority, SignalPad, SymmetricBuffer,
};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;
type Stream = <Cuda as Backend>::Stream;
type Mark = <Cuda as Backend>::Event;

const SIZES: [usize; 9] = [
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
    64 << 20,
    256 << 20,
];

/// Sets of inputs, of which each call takes the next.
const SETS: usize = 2;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let operations: Vec<Operation> = match args.first() {
        Some(names) => Operation::ALL
            .into_iter()
            .filter(|operation| names.split(',').any(|name| name == operation.name()))
            .collect(),
        None => vec![
            Operation::AllGather,
            Operation::ReduceScatter,
            Operation::AllReduce,
        ],
    };
    let largest = match args.get(1) {
        Some(bytes) => bytes.parse()?,
        None => 256 << 20,
    };
    let blocks = match args.get(2) {
        Some(blocks) => blocks.parse()?,
        None => CollectiveOptions::default().max_blocks,
    };
    let world = Cuda::device_count()?;
    let ranks: Vec<_> = Communicator::threads(world)?
        .into_iter()
        .map(|communicator| {
            let operations = operations.clone();
            std::thread::spawn(move || -> Result<()> {
                let rank = communicator.rank();
                let done = Sweep::new(communicator, blocks)
                    .and_then(|sweep| sweep.tables(&operations, largest));
                if let Err(error) = &done {
                    eprintln!("rank {rank}: {error}");
                    std::process::exit(1);
                }
                done
            })
        })
        .collect();
    for rank in ranks {
        rank.join().map_err(|_| "a rank panicked")??;
    }
    Ok(())
}

struct Sweep {
    communicator: Communicator,
    exchange: Arc<dyn Exchange>,
    backend: Cuda,
    stream: Stream,
    collectives: Collectives<Cuda>,
    nccl: NcclComm,
    clock: SignalPad<Cuda>,
    marks: Vec<(Mark, Mark)>,
}

/// What is timed.
#[derive(Clone, Copy)]
enum Way {
    Ours(Variant),
    Nccl,
}

struct Buffers {
    input: SymmetricBuffer<Cuda>,
    output: SymmetricBuffer<Cuda>,
}

impl Sweep {
    fn new(communicator: Communicator, blocks: u32) -> Result<Self> {
        let backend = Cuda::new(communicator.rank())?;
        let exchange: Arc<dyn Exchange> = communicator.shared_exchange();
        let options = CollectiveOptions {
            staging_bytes: 256 << 20,
            max_blocks: blocks,
            ..CollectiveOptions::default()
        };
        let collectives = Collectives::new(&backend, &exchange, "sweep", options)?;
        backend.bind()?;
        let options = NcclOptions {
            launch: Launch::Blocking,
            ..NcclOptions::default()
        };
        let nccl = NcclComm::init(&NcclLibrary::load()?, exchange.as_ref(), options)?;
        let marks = (0..64).map(|_| Ok((backend.event()?, backend.event()?)));
        Ok(Self {
            clock: SignalPad::new(&backend, &exchange, "clock", 1)?,
            marks: marks.collect::<Result<_>>()?,
            stream: backend.stream(Priority::Normal)?,
            communicator,
            exchange,
            backend,
            collectives,
            nccl,
        })
    }

    fn tables(&self, operations: &[Operation], largest: usize) -> Result<()> {
        let rank = self.collectives.rank();
        if rank == 0 {
            let world = self.collectives.world();
            println!("{} x {}", world, self.backend.device().name);
        }
        self.floors()?;
        for &operation in operations {
            let variants = Variant::of(operation);
            if rank == 0 {
                let names: Vec<_> = variants.iter().map(|variant| variant.name()).collect();
                println!("{operation}: bytes a rank | nccl | {}", names.join(" | "));
            }
            for bytes in SIZES.into_iter().filter(|&bytes| bytes <= largest) {
                self.row(operation, bytes)?;
            }
        }
        self.communicator.barrier()?;
        Ok(())
    }

    /// What any call costs: nothing, a launch, a meeting.
    fn floors(&self) -> Result<()> {
        let nothing = self.measure(|_| Ok(()), 31)?;
        let launch = self.measure(
            |_| Ok(self.backend.delay(&self.stream, Duration::ZERO)?),
            31,
        )?;
        let meeting = self.measure(|_| Ok(self.collectives.barrier(&self.stream)?), 31)?;
        if self.collectives.rank() == 0 {
            println!(
                "nothing {nothing:.1} us, an empty launch {launch:.1}, a barrier {meeting:.1}"
            );
        }
        Ok(())
    }

    fn row(&self, operation: Operation, bytes: usize) -> Result<()> {
        let world = self.collectives.world();
        let dtype = DType::Bf16;
        let count = match operation {
            Operation::ReduceScatter | Operation::AllToAll => bytes / world / dtype.size(),
            _ => bytes / dtype.size(),
        };
        let (inputs, outputs) = operation.elements(count, world);
        let (inputs, outputs) = (inputs * dtype.size(), outputs * dtype.size());
        let buffers = Buffers {
            input: SymmetricBuffer::new(&self.backend, &self.exchange, "in", SETS * inputs)?,
            output: SymmetricBuffer::new(&self.backend, &self.exchange, "out", outputs)?,
        };
        for set in 0..SETS {
            let values = encode(self.collectives.rank(), set, inputs / dtype.size());
            let to = buffers.input.local().add(set * inputs);
            // SAFETY: the set's part of the input.
            unsafe { self.backend.upload(&self.stream, to, &values)? };
        }
        let call = |set: usize| -> Result<Call> {
            let (offset, bytes) = ((set % SETS) * inputs, inputs);
            Ok(Call {
                operation,
                dtype,
                count,
                root: 0,
                input: Operand::symmetric(&buffers.input, offset, bytes)?,
                output: Operand::symmetric(&buffers.output, 0, outputs)?,
            })
        };
        let ways: Vec<_> = std::iter::once(Way::Nccl)
            .chain(Variant::of(operation).iter().map(|&v| Way::Ours(v)))
            .collect();
        let iterations = if bytes > 16 << 20 { 9 } else { 41 };
        let mut line = format!("{:>9}", bytes);
        for way in ways {
            if let Way::Ours(variant) = way
                && let Err(error) = self.probe(&call(0)?, variant)
            {
                if self.collectives.rank() == 0 && !line.contains("!") {
                    eprintln!("  {variant}: {error}");
                }
                line += " |       -";
                continue;
            }
            let good = self.verify(way, &call(1)?, outputs)?;
            let single = self.measure(|i| self.enqueue(way, &call(i)?), iterations)?;
            let calls: Vec<_> = (0..SETS).map(call).collect::<Result<_>>()?;
            let graphs = calls
                .iter()
                .map(|call| {
                    Ok(self.backend.capture(&self.stream, || {
                        self.enqueue(way, call).map_err(|error| {
                            warpweave_symm_mem::Error::InvalidArgument {
                                what: "captured call",
                                why: error.to_string(),
                            }
                        })
                    })?)
                })
                .collect::<Result<Vec<_>>>()?;
            let graph = self.measure(
                |i| Ok(self.backend.launch_graph(&graphs[i % SETS], &self.stream)?),
                iterations,
            )?;
            line += &format!(
                " | {single:7.1} {graph:7.1}{}",
                if good { "" } else { " WRONG" }
            );
        }
        if self.collectives.rank() == 0 {
            println!("{line}");
        }
        self.communicator.barrier()?;
        Ok(())
    }

    /// Whether all ranks can do it.
    fn probe(&self, call: &Call, variant: Variant) -> Result<()> {
        self.collectives.validate(call, variant)?;
        // SAFETY: as in `enqueue`.
        Ok(unsafe { self.collectives.enqueue(&self.stream, call, variant)? })
    }

    fn enqueue(&self, way: Way, call: &Call) -> Result<()> {
        let (input, output) = (call.input.address().0, call.output.address().0);
        let stream = self.stream.raw();
        // SAFETY: the operands are parts of the row's buffers, which outlive its work; all work is on one stream.
        unsafe {
            match way {
                Way::Ours(variant) => self.collectives.enqueue(&self.stream, call, variant)?,
                Way::Nccl => {
                    let (n, element, sum) = (call.count, Element::Bf16, ReduceOp::Sum);
                    match call.operation {
                        Operation::AllGather => {
                            self.nccl.all_gather(input, output, n, element, stream)?
                        }
                        Operation::ReduceScatter => self
                            .nccl
                            .reduce_scatter(input, output, n, element, sum, stream)?,
                        Operation::AllReduce => self
                            .nccl
                            .all_reduce(input, output, n, element, sum, stream)?,
                        Operation::Broadcast => self
                            .nccl
                            .broadcast(input, output, n, element, call.root, stream)?,
                        _ => {}
                    }
                }
            }
        }
        Ok(())
    }

    fn verify(&self, way: Way, call: &Call, bytes: usize) -> Result<bool> {
        let mut got = vec![0; bytes];
        let output = call.output.address();
        // SAFETY: the whole output.
        unsafe { self.backend.fill(&self.stream, output, 0xff, bytes)? };
        self.backend.synchronize(&self.stream)?;
        self.communicator.barrier()?;
        self.enqueue(way, call)?;
        // SAFETY: as above.
        unsafe { self.backend.download(&self.stream, output, &mut got)? };
        self.collectives.check(&self.stream)?;
        if matches!(way, Way::Nccl) {
            return Ok(true);
        }
        let (world, rank) = (self.collectives.world(), self.collectives.rank());
        let n = call.count;
        let sum = |i: usize| (0..world).map(|r| value(r, 1, i)).sum::<f32>();
        let wanted = |i: usize| match call.operation {
            Operation::AllGather => value(i / n, 1, i % n),
            Operation::ReduceScatter => sum(rank * n + i),
            Operation::AllReduce => sum(i),
            Operation::Broadcast => value(call.root, 1, i),
            Operation::AllToAll => value(i / n, 1, rank * n + i % n),
            Operation::Barrier => 0.0,
        };
        let wrong = got
            .chunks_exact(2)
            .enumerate()
            .find(|(i, b)| bf16::from_le_bytes([b[0], b[1]]) != bf16::from_f32(wanted(*i)));
        if let Some((i, b)) = wrong {
            let got = bf16::from_le_bytes([b[0], b[1]]);
            eprintln!("rank {rank}: element {i} is {got} and not {}", wanted(i));
        }
        let all = self
            .communicator
            .all_gather_bytes("verdict", &[u8::from(wrong.is_none())])?;
        Ok(all.iter().all(|verdict| verdict == &[1]))
    }

    /// Median over calls of the slowest rank's time, in microseconds.
    fn measure(&self, call: impl Fn(usize) -> Result<()>, calls: usize) -> Result<f64> {
        let peers: Vec<usize> = (0..self.collectives.world())
            .filter(|&peer| peer != self.collectives.rank())
            .collect();
        for i in 0..calls {
            let (start, end) = &self.marks[i];
            self.backend
                .delay(&self.stream, Duration::from_micros(150))?;
            self.clock.signal(&self.stream, 0, &peers)?;
            self.clock.wait(&self.stream, 0, &peers, 0)?;
            self.backend.record(start, &self.stream)?;
            call(i)?;
            self.backend.record(end, &self.stream)?;
        }
        self.backend.synchronize(&self.stream)?;
        self.collectives.check(&self.stream)?;
        let mine = self.marks[..calls].iter().map(|(start, end)| {
            let time = self.backend.elapsed(start, end)?;
            Ok((time.as_secs_f64() * 1e6).to_le_bytes())
        });
        let mine: Vec<[u8; 8]> = mine.collect::<Result<_>>()?;
        let all = self
            .communicator
            .all_gather_bytes("times", &mine.concat())?;
        let mut slowest: Vec<f64> = (0..calls)
            .map(|i| {
                let of = |bytes: &Vec<u8>| {
                    bytes[8 * i..][..8]
                        .try_into()
                        .map_or(f64::NAN, f64::from_le_bytes)
                };
                all.iter().map(of).fold(0.0, f64::max)
            })
            .collect();
        slowest.sort_by(f64::total_cmp);
        Ok(slowest[calls / 2])
    }
}

/// A small integer, so that sums are exact.
fn value(rank: usize, set: usize, index: usize) -> f32 {
    ((index * 7 + index / 61 + rank * 13 + set * 29) % 31) as f32 - 15.0
}

fn encode(rank: usize, set: usize, len: usize) -> Vec<u8> {
    (0..len)
        .flat_map(|i| bf16::from_f32(value(rank, set, i)).to_le_bytes())
        .collect()
}

#[allow(dead_code)]
fn address(memory: &impl Memory) -> DevicePtr {
    memory.address()
}
