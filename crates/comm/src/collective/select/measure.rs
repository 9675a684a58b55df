//! Measurement of the variants on this machine.

use std::sync::Arc;
use std::time::Duration;

use warpweave_symm_mem::multicast::MulticastBuffer;
use warpweave_symm_mem::{DType, Exchange, Result, SymmetricBuffer};

use super::costs::Costs;
use crate::collective::Collectives;
use crate::collective::backend::CollectiveKernels;
use crate::collective::call::{Call, Operand};
use crate::collective::operation::Operation;
use crate::collective::variant::Variant;

/// Calls to take the median of.
const CALLS: usize = 9;

/// A delay on the device that lets the host get ahead, so that no launch is waited for.
const LEAD: Duration = Duration::from_micros(200);

impl<B: CollectiveKernels> Collectives<B> {
    /// Times every variant of `operations` that can do them on symmetric operands, with multicast addresses
    /// where the guard allows them, at each [size](Operation::size), with all ranks aligned before each call:
    /// medians of the slowest rank. Collective; takes about a second for each gigabyte.
    ///
    /// # Errors
    /// Errors of the backend and the exchange; a fault of a peer.
    pub fn measure(
        &self,
        stream: &B::Stream,
        exchange: &Arc<dyn Exchange>,
        operations: &[Operation],
        sizes: &[usize],
    ) -> Result<Costs> {
        let mut costs = Costs::default();
        let calls = operations.iter().flat_map(|&operation| {
            let sizes = sizes.iter().map(move |&size| (operation, size));
            sizes.filter(|&(operation, _)| operation != Operation::Barrier)
        });
        if self.world == 1 {
            return Ok(costs);
        }
        for (operation, size) in calls {
            let dtype = DType::Bf16;
            let chunks = operation.size(dtype.size(), self.world);
            let count = size.div_ceil(chunks).max(1);
            let bytes = |elements: usize| elements * dtype.size();
            let (inputs, outputs) = operation.elements(count, self.world);
            let (inputs, outputs) = (bytes(inputs), bytes(outputs));
            let buffer = |name, bytes| SymmetricBuffer::new(&self.backend, exchange, name, bytes);
            let (input, output) = (
                buffer("measure.in", inputs)?,
                buffer("measure.out", outputs)?,
            );
            let multicast = (
                self.multicast(exchange, &input)?,
                self.multicast(exchange, &output)?,
            );
            let (input, output) = match &multicast {
                (Some(of_input), Some(of_output)) => (
                    Operand::multicast(&input, of_input, 0, inputs)?,
                    Operand::multicast(&output, of_output, 0, outputs)?,
                ),
                _ => (
                    Operand::symmetric(&input, 0, inputs)?,
                    Operand::symmetric(&output, 0, outputs)?,
                ),
            };
            let call = Call {
                operation,
                dtype,
                count,
                root: 0,
                input,
                output,
            };
            for &variant in Variant::of(operation) {
                if self.validate(&call, variant).is_ok() {
                    let time = self.time(stream, exchange.as_ref(), &call, variant)?;
                    costs.insert(
                        operation,
                        variant,
                        self.world,
                        bytes(count) * chunks / dtype.size(),
                        time,
                    );
                }
            }
            for multicast in [multicast.0, multicast.1].into_iter().flatten() {
                multicast.close(exchange.as_ref())?;
            }
            exchange.barrier("measure.end")?;
        }
        Ok(costs)
    }

    /// The multicast object over `buffer`, where the guard of every rank allows one. Collective.
    fn multicast(
        &self,
        exchange: &Arc<dyn Exchange>,
        buffer: &SymmetricBuffer<B>,
    ) -> Result<Option<MulticastBuffer<B>>> {
        match MulticastBuffer::new(&self.backend, exchange, buffer) {
            Ok(multicast) => Ok(Some(multicast)),
            Err(error) if error.is_unavailable() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The median time of the slowest rank, in microseconds.
    fn time(
        &self,
        stream: &B::Stream,
        exchange: &dyn Exchange,
        call: &Call,
        variant: Variant,
    ) -> Result<f64> {
        let backend = &self.backend;
        let events = (0..CALLS)
            .map(|_| Ok((backend.event()?, backend.event()?)))
            .collect::<Result<Vec<_>>>()?;
        for (start, end) in &events {
            backend.delay(stream, LEAD)?;
            self.barrier(stream)?;
            backend.record(start, stream)?;
            // SAFETY: the operands are those of `measure`, which synchronises before it frees them; nothing
            // else uses them.
            unsafe { self.enqueue(stream, call, variant)? };
            backend.record(end, stream)?;
        }
        backend.synchronize(stream)?;
        self.check(stream)?;
        let mine = events.iter().map(|(start, end)| {
            let time = backend.elapsed(start, end)?.as_secs_f64() * 1e6;
            Ok(time.to_le_bytes())
        });
        let mine = mine.collect::<Result<Vec<[u8; 8]>>>()?.concat();
        let all = exchange.all_gather("measure.times", &mine)?;
        let slowest = |index: usize| {
            let of = |bytes: &Vec<u8>| {
                let bytes = bytes.get(8 * index..8 * index + 8)?;
                bytes.try_into().ok().map(f64::from_le_bytes)
            };
            all.iter().filter_map(of).fold(0.0, f64::max)
        };
        let mut times: Vec<f64> = (0..CALLS).map(slowest).collect();
        times.sort_by(f64::total_cmp);
        // A clock that does not tick during a call measures nothing.
        Ok(times[CALLS / 2].max(1e-3))
    }
}
