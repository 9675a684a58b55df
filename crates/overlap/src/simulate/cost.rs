//! What each step costs on a machine.

use super::collectives::incoming;
use super::machine::Machine;
use super::sharing::{Loads, Resource};
use crate::check::Site;
use crate::check::program::Node;
use crate::plan::{
    Collective, Effect, Kernel, MulticastRegion, OpKind, Plan, Provider, Region, Transport, shard,
};

/// What a step costs alone.
#[derive(Clone, Debug, Default)]
pub(super) struct Cost {
    /// Before it runs, µs.
    pub(super) latency: f64,
    /// How long it runs at full speed, µs.
    pub(super) time: f64,
    /// What it takes while it runs.
    pub(super) loads: Loads,
    /// The peer of a copy between ranks that needs an engine of this rank; for a local copy the rank itself.
    pub(super) engine: Option<usize>,
    /// Whether that copy pulls.
    pub(super) pulls: bool,
    /// Whether it is a matrix product of the tensor cores, which heats.
    pub(super) gemm: bool,
    /// Whether it is a signal or a wait that is an operation of a stream: a kernel of one block.
    pub(super) handshake: bool,
}

impl Cost {
    fn latency(latency: f64) -> Cost {
        Cost {
            latency,
            ..Cost::default()
        }
    }

    /// Of a transfer that somebody hears of once it has arrived.
    pub(super) fn arriving(mut self) -> Cost {
        self.latency += ARRIVAL_US;
        self
    }

    /// Of a transfer that one thread of each block makes, for all peers: together they get, or give, what one would.
    pub(super) fn by_one_thread(mut self, link: Resource) -> Cost {
        for (resource, share) in &mut self.loads {
            if *resource == link {
                *share = 1.0;
            }
        }
        self
    }
}

/// The way of a bulk copy to the other end of a link and back, and what counts those of a launch: `docs/fused-kernel.md` has it by clocks
/// in the kernel.
const ARRIVAL_US: f64 = 3.0;

/// Bytes over GB/s, in µs.
pub(super) fn micros(bytes: f64, gbs: f64) -> f64 {
    bytes / (gbs * 1e3)
}

pub(super) struct Costs<'a> {
    pub(super) machine: &'a Machine,
    pub(super) plan: &'a Plan,
}

impl Costs<'_> {
    pub(super) fn of(&self, node: &Node<'_>) -> Cost {
        let t = &self.machine.latency;
        match node.site {
            Site::CallerWrites | Site::CallerReads => Cost::default(),
            Site::Begin(op) => match &self.plan.ops[op].kind {
                OpKind::Kernel { .. } => Cost::latency(t.launch_us),
                _ => Cost::default(),
            },
            Site::Effect { op, lane, index } => match &self.plan.ops[op].kind {
                OpKind::Kernel { kernel, lanes } => self.effect(kernel, &lanes[lane][index..]),
                _ => Cost::default(),
            },
            Site::End(op) | Site::Op(op) => {
                let kind = &self.plan.ops[op].kind;
                Cost {
                    handshake: matches!(kind, OpKind::Signal { .. } | OpKind::Wait { .. }),
                    ..self.op(kind)
                }
            }
        }
    }

    fn op(&self, kind: &OpKind) -> Cost {
        let t = &self.machine.latency;
        let link = &self.machine.link;
        match kind {
            OpKind::Copy { src, dst } => {
                let rate = link.copy_engine_gbs;
                let mut cost = self.transfer(src.rank, &[dst.rank], self.bytes(dst), rate);
                cost.latency += t.copy_us;
                let own = self.plan.rank;
                let peer = if src.rank == own { dst.rank } else { src.rank };
                cost.engine = Some(peer);
                if peer != own {
                    cost.loads.push((Resource::Engines(own), 1.0));
                }
                if src.rank != own && self.pulls_from_several() {
                    cost.pulls = true;
                    let ends = [own, src.rank].map(|gpu| (Resource::Pulls(gpu), 1.0));
                    cost.loads.extend(ends);
                }
                cost
            }
            OpKind::MulticastCopy { src, dst } => {
                let mut cost = self.multicast(dst, src.rank, link.copy_engine_gbs);
                cost.latency += t.copy_us;
                cost.engine = Some(self.plan.rank);
                cost
            }
            OpKind::Gemm {
                a,
                c,
                batch,
                provider,
                ..
            } => {
                // The tiles of a batch fill the device like those of one product with as many rows.
                let shape = (c.rows.len() * batch.count, c.cols.len(), a.cols.len());
                let dtype = self.plan.buffers[c.buffer.0].dtype;
                let (mut time, busy) = self.machine.gemm_time(shape, dtype);
                if *provider == Provider::Cutlass {
                    time /= self.machine.gemm.cutlass;
                }
                Cost {
                    latency: self.machine.gemm.launch_us,
                    time,
                    loads: vec![
                        (Resource::Sms(self.plan.rank), busy),
                        (Resource::Power(self.plan.rank), busy),
                    ],
                    gemm: true,
                    ..Cost::default()
                }
            }
            OpKind::Reduce { srcs, dst } => {
                let own = self.plan.rank;
                let (here, there): (Vec<_>, Vec<_>) = srcs.iter().partition(|s| s.rank == own);
                let mut cost = self.local(self.bytes(dst) * (here.len() + 1) as f64 / 2.0);
                cost.latency = t.launch_us;
                cost.loads.push((Resource::Sms(own), 1.0));
                // Loads from peers run beside those from here.
                for src in there {
                    let pull = self.transfer(src.rank, &[own], self.bytes(src), link.sm_pull_gbs);
                    cost.time = cost.time.max(pull.time);
                    cost.loads.extend(pull.loads);
                }
                cost
            }
            OpKind::Collective {
                collective,
                src,
                dst,
                ranks,
                transport,
            } => self.collective(
                *collective,
                self.bytes(src).max(self.bytes(dst)),
                ranks,
                *transport,
            ),
            OpKind::Signal { .. } => Cost::latency(t.launch_us),
            OpKind::Wait { .. } => Cost::latency(t.wait_us),
            OpKind::Record { .. } => Cost::default(),
            OpKind::WaitEvent { .. } => Cost::latency(t.event_us),
            // The lanes have their own costs.
            OpKind::Kernel { .. } => Cost::default(),
        }
    }

    /// Whether the plan pulls from more than one peer. Ranks that pull from one alone, as in a ring, are as quick as if they pushed;
    /// those that go from one to the next come to meet at one that serves several.
    fn pulls_from_several(&self) -> bool {
        let pulled = |kind: &OpKind| match kind {
            OpKind::Copy { src, dst, .. } if src.rank != dst.rank && dst.rank == self.plan.rank => {
                Some(src.rank)
            }
            _ => None,
        };
        let mut peers = self.plan.ops.iter().filter_map(|op| pulled(&op.kind));
        let first = peers.next();
        peers.any(|peer| Some(peer) != first)
    }

    /// A collective whose larger side has `whole` bytes.
    fn collective(
        &self,
        collective: Collective,
        whole: f64,
        ranks: &[usize],
        transport: Transport,
    ) -> Cost {
        if ranks.len() < 2 {
            let mut cost = self.local(whole);
            cost.latency = self.machine.latency.launch_us;
            return cost;
        }
        let (own, machine) = (self.plan.rank, self.machine);
        let library = machine.collectives.of(transport);
        let mut time = library.time(collective, whole, ranks.len());
        let bytes = incoming(collective, whole, ranks.len());
        if ranks.iter().any(|&r| !machine.same_node(ranks[0], r)) {
            // A ring through all nodes goes at the pace of its slowest link.
            time = time.max(micros(bytes, machine.network.gbs)) + machine.network.latency_us;
        }
        let share = (micros(bytes, machine.link.gbs) / time).min(1.0);
        let mut loads = vec![
            (Resource::LinkOut(own), share),
            (Resource::LinkIn(own), share),
            (Resource::Sms(own), library.sms),
        ];
        self.add_power(&mut loads);
        Cost {
            time,
            loads,
            ..Cost::default()
        }
    }

    /// What a transfer takes from products, by its part of the links: out of a GPU and into it one half each.
    fn add_power(&self, loads: &mut Loads) {
        let taken = (1.0 / self.machine.gemm.during_transfers - 1.0) / 2.0;
        let ends: Loads = loads
            .iter()
            .filter_map(|&(resource, share)| match resource {
                Resource::LinkOut(gpu) | Resource::LinkIn(gpu) => {
                    Some((Resource::Power(gpu), taken * share))
                }
                _ => None,
            })
            .collect();
        loads.extend(ends);
    }

    /// The first of these effects, which are the rest of a lane.
    fn effect(&self, kernel: &Kernel, rest: &[Effect]) -> Cost {
        let (own, link) = (self.plan.rank, &self.machine.link);
        let Some((effect, later)) = rest.split_first() else {
            return Cost::default();
        };
        match effect {
            Effect::Read(region) if let Some(gemm) = self.group_gemm(kernel, region) => gemm,
            Effect::Read(region) if region.rank != own => match *kernel {
                Kernel::AllGatherMatmul { chunk_rows, .. } => self.first_chunk(region, chunk_rows),
                _ => {
                    let bytes = self.bytes(region);
                    let cost = self.transfer(region.rank, &[own], bytes, link.sm_pull_gbs);
                    match kernel {
                        Kernel::ReducingMatmul(_) => {
                            cost.by_one_thread(Resource::LinkIn(own)).arriving()
                        }
                        _ => cost,
                    }
                }
            },
            Effect::Write(region) if region.rank != own => {
                let bytes = self.bytes(region);
                let cost = self.transfer(own, &[region.rank], bytes, link.sm_push_gbs);
                let cost = cost.by_one_thread(Resource::LinkOut(own));
                // What goes to several peers arrives everywhere at a time.
                match later.first() {
                    Some(Effect::Write(next)) if next.rank != own => cost,
                    _ => cost.arriving(),
                }
            }
            Effect::Write(region) => match self.kernel_gemm(kernel, region, later) {
                Some(gemm) => gemm,
                None => self.local(self.bytes(region)),
            },
            // Loads stream beside whatever consumes them.
            Effect::Read(_) => Cost::default(),
            Effect::WriteMulticast(region) => self.multicast(region, own, link.sm_push_gbs),
            Effect::Signal { .. } | Effect::After(_) => Cost::default(),
            Effect::Wait { .. } => Cost::latency(self.machine.latency.wait_us),
        }
    }

    /// The product whose result `region` is, if it is one, and after which its lane does what is `later`.
    fn kernel_gemm(&self, kernel: &Kernel, region: &Region, later: &[Effect]) -> Option<Cost> {
        let sms = |time, held| Cost {
            time,
            loads: vec![(Resource::Sms(self.plan.rank), held)],
            ..Cost::default()
        };
        let gemm = &self.machine.gemm;
        let is_result = |region: &Region| kernel.result() == Some(region.buffer);
        match *kernel {
            Kernel::OneShotMatmul(ref of) => return Some(self.one_shot_sums(of, region)),
            // What is written elsewhere, to staging, is not worth a figure.
            Kernel::WaitingMatmul { .. }
            | Kernel::AllGatherMatmul { .. }
            | Kernel::ReducingMatmul(_)
                if !is_result(region) || region.rows.is_empty() =>
            {
                return Some(Cost::default());
            }
            // Sums of others are written as they come.
            Kernel::ReducingMatmul(reduction) if reduction.everyone() => {
                let own = shard(reduction.shape.m, self.plan.rank, self.plan.world);
                if !own.contains(&region.rows.start) {
                    return Some(Cost::default());
                }
            }
            Kernel::AllGatherMatmul {
                chunk_rows,
                protocol,
                ..
            } => {
                let chunks = (chunk_rows, protocol);
                return Some(self.gathered_gemm(kernel.shape(), chunks, region));
            }
            // One launch: its rows share the waves of tiles, so that each chunk takes its part of the whole, but none is over
            // before a wave is: of a lane's chunks, which run beside each other, the last one shows it.
            Kernel::WaitingMatmul { .. } => {
                let goes_on = |effect: &Effect| matches!(effect, Effect::Write(r) if is_result(r));
                let shape = kernel.shape();
                let waves = self.machine.waves((shape.m, shape.n, shape.k), shape.dtype);
                let part = region.rows.len() as f64 / shape.m as f64;
                let share = part * waves.count() * waves.wave_us / gemm.cutlass;
                let time = match later.iter().any(goes_on) {
                    true => share,
                    false => share.max(waves.wave_us / gemm.cutlass),
                };
                return Some(Cost {
                    gemm: true,
                    ..sms(time, share / time)
                });
            }
            _ => {}
        }
        let (result, tflops) = match kernel {
            Kernel::NaiveRemoteRead { c, .. } => (*c, gemm.naive_tflops),
            Kernel::ThreadloadGatherMatmul { c, .. } | Kernel::MultimemGatherMatmul { c, .. } => {
                (*c, gemm.scalar_tflops)
            }
            _ => return None,
        };
        let tile = match kernel {
            Kernel::NaiveRemoteRead { .. } => 1,
            // A row of threads computes so many columns, also where C has fewer.
            _ => gemm.scalar_columns,
        };
        let columns = region.cols.len().next_multiple_of(tile);
        let flops = 2.0 * (region.rows.len() * columns) as f64 * kernel.shape().k as f64;
        (region.buffer == result).then(|| sms(flops / (tflops * 1e6), 1.0))
    }

    pub(super) fn bytes(&self, region: &Region) -> f64 {
        region.len() as f64 * self.plan.buffers[region.buffer.0].dtype.size() as f64
    }

    /// A copy within this GPU reads and writes its memory.
    pub(super) fn local(&self, bytes: f64) -> Cost {
        Cost {
            time: micros(2.0 * bytes, self.machine.gpu.memory_gbs),
            loads: vec![(Resource::Memory(self.plan.rank), 1.0)],
            ..Cost::default()
        }
    }

    fn multicast(&self, region: &MulticastRegion, from: usize, rate: f64) -> Cost {
        let all: Vec<usize> = (0..self.plan.world).collect();
        self.transfer(from, &all, self.bytes(&region.on(from)), rate)
    }

    /// Bytes from one rank to others at once, at `rate` within a node.
    pub(super) fn transfer(&self, from: usize, to: &[usize], bytes: f64, rate: f64) -> Cost {
        let peers: Vec<usize> = to.iter().copied().filter(|&p| p != from).collect();
        if peers.is_empty() {
            return self.local(bytes);
        }
        let machine = self.machine;
        let far = |p: &usize| !machine.same_node(from, *p);
        let crosses = peers.iter().any(far);
        let rate = rate.min(machine.link.gbs);
        let rate = if crosses {
            rate.min(machine.network.gbs)
        } else {
            rate
        };
        let (link, network) = (
            rate / machine.link.gbs,
            (rate / machine.network.gbs).min(1.0),
        );
        let mut loads = Vec::new();
        if !peers.iter().all(far) {
            loads.push((Resource::LinkOut(from), link));
        }
        if crosses {
            loads.push((Resource::NetworkOut(from), network));
        }
        loads.extend(peers.iter().map(|&p| {
            if far(&p) {
                (Resource::NetworkIn(p), network)
            } else {
                (Resource::LinkIn(p), link)
            }
        }));
        self.add_power(&mut loads);
        Cost {
            latency: if crosses {
                machine.network.latency_us
            } else {
                0.0
            },
            time: micros(bytes, rate),
            loads,
            ..Cost::default()
        }
    }
}
