//! An all-reduce over symmetric memory in fifty lines: ranks are threads here, processes with
//! `Communicator::init()`.
use std::error::Error;
use warpweave::comm::collective::{Call, CollectiveKernels, Operation};
use warpweave::comm::{Collectives, Communicator, Operand};
use warpweave::symm_mem::{Cuda, DType, Host, SymmetricBuffer};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;
const COUNT: usize = 100_000; // elements, f32
const BYTES: usize = 4 * COUNT;

fn all_reduce<B: CollectiveKernels>(backend: B, comm: &Communicator) -> Outcome<Vec<u8>> {
    let (exchange, stream) = (comm.shared_exchange(), backend.stream(Default::default())?);
    let collectives = Collectives::new(&backend, &exchange, "example", Default::default())?;
    let values = SymmetricBuffer::new(&backend, &exchange, "values", BYTES)?;
    let call = Call {
        operation: Operation::AllReduce,
        dtype: DType::F32,
        count: COUNT,
        root: 0,
        input: Operand::symmetric(&values, 0, BYTES)?,
        output: Operand::symmetric(&values, 0, BYTES)?, // in place
    };
    let mine = (comm.rank() as f32 + 1.0).to_ne_bytes().repeat(COUNT);
    let mut sums = vec![0; BYTES];
    // SAFETY: the operands are mapped until `close`, and all ranks make the same call.
    unsafe {
        backend.upload(&stream, values.local(), &mine)?;
        collectives.run(&stream, &call)?; // in the variant that is the fastest for this size and world
        backend.download(&stream, values.local(), &mut sums)?;
    }
    collectives.check(&stream)?; // did all ranks come in time?
    collectives.close(&stream, exchange.as_ref())?;
    values.close(exchange.as_ref())?;
    Ok(sums)
}

fn main() -> Outcome<()> {
    let gpus = Cuda::device_count().unwrap_or(0).min(8);
    let on_gpus = gpus > 1 && cfg!(feature = "nvcc");
    let world = if on_gpus { gpus } else { 4 };
    let rank = move |comm: Communicator| match on_gpus {
        true => all_reduce(Cuda::new(comm.rank())?, &comm),
        false => all_reduce(Host::new(), &comm),
    };
    let comms = Communicator::threads(world)?.into_iter();
    let threads: Vec<_> = comms.map(|c| std::thread::spawn(move || rank(c))).collect();
    let sum = (world * (world + 1) / 2) as f32;
    for thread in threads {
        let sums = thread.join().expect("no rank panics")?;
        assert_eq!(sums, sum.to_ne_bytes().repeat(COUNT));
    }
    println!("{world} ranks: each of the {COUNT} sums is {sum} on every rank");
    Ok(())
}
