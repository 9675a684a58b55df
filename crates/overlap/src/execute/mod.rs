//! The reader of plans that runs them.
//!
//! An [`Executor`] is one rank's device with its peers. [`Executor::bind`] makes a [`Bound`] plan of a
//! [`Plan`]: it checks every region, allocates every buffer, plans every GEMM, and turns operations into
//! addresses, so that a call only enqueues. All ranks bind the same plans in the same order, and all get a
//! bound plan or none does.
//!
//! **Collectives** are done by groups, which all plans of an executor share: a communicator of NCCL for each
//! set of ranks, or what [`Collectives`](warpweave_comm::Collectives) keep in symmetric memory, in the
//! variant that they select. Operands are whole rows, in place or apart. Over symmetric memory a group's
//! ranks share a node; an all-gather of uneven shards is a broadcast of each, and a reduce-scatter of uneven
//! shards is [unavailable](ExecuteError::is_unavailable): NCCL does it. Operands in buffers that are not
//! local lie where peers reach them; local ones travel by packets, up to their size. The residual and RMSNorm
//! after an all-reduce are part of its launch where it goes by packets, and a launch of their own elsewhere.
//!
//! **Nodes.** Where a plan's nodes are smaller than its world, buffers and signals are those of the node
//! alone. All ranks are on one host all the same: the exchange of descriptors refuses others.
//!
//! **What runs is what was proved.** [`Executor::prepare`] takes a [`Schedule`](crate::Schedule) and
//! [`Executor::bind`] a [`Checked`]: of both the plans of all ranks have passed
//! [`check`](crate::check::check()), and the ranks agree that they have the same.
//!
//! ```
//! use std::sync::Arc;
//! use warpweave_overlap::Checked;
//! use warpweave_overlap::execute::Executor;
//! use warpweave_overlap::plan::Problem;
//! use warpweave_symm_mem::{Backend, DType, Exchange, Host, ThreadExchange};
//!
//! // Two ranks as threads; separate processes use the exchange of `warpweave-comm`.
//! let ranks: Vec<_> = ThreadExchange::group(2)
//!     .into_iter()
//!     .map(|exchange| {
//!         std::thread::spawn(move || -> Result<Vec<f32>, Box<dyn std::error::Error + Send + Sync>> {
//!             let exchange: Arc<dyn Exchange> = Arc::new(exchange);
//!             let (rank, world) = (exchange.rank(), exchange.world());
//!             let device = Host::new();
//!             let stream = device.stream(Default::default())?;
//!             let executor = Executor::new(&device, &exchange)?;
//!
//!             let problem = Problem::new(2, 1, 2, DType::F32);
//!             let algorithm = warpweave_overlap::algorithms::find("naiveRemoteRead")?;
//!             let checked = Checked::prove(algorithm.plans(world, &problem)?)?;
//!             let bound = executor.bind(&checked, &stream)?;
//!             bound.write("a", &[1.0f32, rank as f32].map(f32::to_ne_bytes).concat())?;
//!             bound.write("b", &[10.0f32, 1.0].map(f32::to_ne_bytes).concat())?;
//!             bound.run()?;
//!             bound.synchronize()?;
//!
//!             let mut c = [0; 8];
//!             bound.read("c", &mut c)?;
//!             exchange.barrier("done")?;
//!             Ok(c.chunks(4).map(|x| f32::from_ne_bytes(x.try_into().unwrap())).collect())
//!         })
//!     })
//!     .collect();
//! for rank in ranks {
//!     assert_eq!(rank.join().unwrap().unwrap(), [10.0, 11.0]);
//! }
//! ```

mod addresses;
mod arena;
mod bind;
mod bound;
mod buffers;
mod collective;
mod error;
mod faults;
mod interface;
mod operands;
mod pool;
mod prepared;
mod program;
mod recorded;
mod step;
mod timed;
mod validate;

use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use warpweave_gemm::{
    AllGatherGemmBackend, ChunkedGemmBackend, Gemm, GemmBackend, GemmProblem, GemmReduceBackend,
    Provider,
};
use warpweave_kernels::KernelBackend;
use warpweave_symm_mem::sync::Mutex;
use warpweave_symm_mem::{Backend, Cuda, Exchange, Host, SignalPad, agree, require_same};

use crate::check::Checked;
use crate::kernels::Kernel;
use crate::plan::{Buffer, Placement, Plan};
use arena::Arenas;
use bind::{Binder, Gemms};
use buffers::{Buffers, LocalMemory};
use collective::{ProcessGroup, Round};
use faults::{Groups, Pads};
use interface::same_interface;
use program::Program;

pub use addresses::Addresses;
pub use arena::ArenaSize;
pub(crate) use bind::without_peers;
pub use bind::{Binding, BoxedLaunch, Launch};
pub use bound::Bound;
pub use collective::{CollectiveBackend, NcclCall, NcclGroup};
pub use error::{ExecuteError, Result};
pub use operands::{DeviceSlice, NormOperands, Operands};
pub use pool::StreamPool;
pub use prepared::Prepared;

/// A backend that has all that a plan may ask for.
pub trait ExecuteBackend:
    KernelBackend
    + GemmBackend
    + ChunkedGemmBackend
    + AllGatherGemmBackend
    + GemmReduceBackend
    + CollectiveBackend
{
    /// The launch of a kernel on this backend.
    ///
    /// # Errors
    /// What the kernel needs and this plan or machine lacks.
    fn bind_kernel(kernel: &dyn Kernel, with: &Binding<'_, Self>) -> Result<BoxedLaunch<Self>>;
}

impl ExecuteBackend for Host {
    fn bind_kernel(kernel: &dyn Kernel, with: &Binding<'_, Self>) -> Result<BoxedLaunch<Self>> {
        kernel.on_host(with)
    }
}

impl ExecuteBackend for Cuda {
    fn bind_kernel(kernel: &dyn Kernel, with: &Binding<'_, Self>) -> Result<BoxedLaunch<Self>> {
        kernel.on_cuda(with)
    }
}

/// One rank's device with its peers, on which plans are bound.
///
/// Plans share its streams and what does their collectives. So the calls of all its plans are ordered: they
/// follow each other on one caller's stream, or on several that wait for each other, and on all ranks in the
/// same order. Callers that are to run at the same time have an executor each.
#[derive(Clone)]
pub struct Executor<B: ExecuteBackend>(Arc<Shared<B>>);

/// What clones of an executor, and what it prepares, have in common.
struct Shared<B: ExecuteBackend> {
    backend: B,
    exchange: Arc<dyn Exchange>,
    gemm: Gemm<B>,
    pool: StreamPool<B>,
    /// Those of which new plans get theirs.
    groups: Mutex<HashMap<Round, Arc<ProcessGroup<B>>>>,
    all_groups: Mutex<Groups<B>>,
    tuned: Mutex<HashSet<(GemmProblem, Provider)>>,
    arenas: Mutex<Arenas<B>>,
    /// Blocks of launches whose blocks wait for each other: the device's SMs, divided by its ranks. `None`
    /// within for all; not known before something was bound.
    most_blocks: OnceLock<Option<u32>>,
    /// Held while a call is enqueued: calls do not mix on streams and events.
    calls: Mutex<()>,
    pads: Mutex<Pads<B>>,
}

impl<B: ExecuteBackend> Executor<B> {
    /// Prepares `backend` for the plans of the ranks of `exchange`. Libraries are looked for when a plan
    /// first needs them.
    ///
    /// # Errors
    /// What the preparation of GEMMs reports.
    pub fn new(backend: &B, exchange: &Arc<dyn Exchange>) -> Result<Self> {
        Ok(Self(Arc::new(Shared {
            backend: backend.clone(),
            exchange: exchange.clone(),
            gemm: Gemm::new(backend)?,
            pool: StreamPool::new(backend),
            groups: Mutex::new(Default::default()),
            all_groups: Mutex::new(Default::default()),
            tuned: Mutex::new(Default::default()),
            arenas: Mutex::new(Default::default()),
            most_blocks: OnceLock::new(),
            calls: Mutex::new(()),
            pads: Mutex::new(Default::default()),
        })))
    }

    /// The device.
    pub fn backend(&self) -> &B {
        &self.0.backend
    }

    /// The peers.
    pub fn exchange(&self) -> &Arc<dyn Exchange> {
        &self.0.exchange
    }

    /// The device's GEMMs, whose tuning all plans of this executor share.
    pub fn gemm(&self) -> &Gemm<B> {
        &self.0.gemm
    }

    /// The streams of the plans other than their callers'.
    pub fn pool(&self) -> &StreamPool<B> {
        &self.0.pool
    }

    /// Binds this rank's plan of `checked`, with `stream` as its stream 0 and operands of its own.
    /// Collective: all ranks bind the same. An error on one rank is an error on all.
    ///
    /// For plans of a project's own, at one M. [`Executor::prepare`] takes operands and M with each call.
    ///
    /// # Errors
    /// - [`ExecuteError::InvalidPlan`] for a plan that no device could run.
    /// - [`ExecuteError::Disagreement`] if the ranks' plans do not belong together, naming a rank and both
    ///   values.
    /// - An error that [is a missing capability](ExecuteError::is_unavailable): a device, library or build
    ///   that lacks what an operation needs. Other plans can go on.
    /// - What the backend and the exchange report.
    pub fn bind(&self, checked: &Checked, stream: &B::Stream) -> Result<Bound<B>> {
        let exchange = self.0.exchange.as_ref();
        let (rank, world) = (exchange.rank(), exchange.world());
        let mine = checked.plans();
        let valid = match mine.get(rank) {
            Some(plan) if mine.len() == world => Ok(plan.clone()),
            _ => Err(validate::wrong_ranks(&mine[0], rank, world)),
        };
        let plan = agree(exchange, "plans", valid)?;
        // What one rank has proved is worth nothing if another runs something else.
        require_same(
            exchange,
            "the digest of the plans",
            &format!("{:x}", digest(mine)),
        )?;
        // SAFETY: the plans are proved, and all ranks have the same.
        unsafe { self.bind_unchecked(plan, stream) }
    }

    /// Binds this rank's `plan` as [`Executor::bind`] does, with no proof.
    ///
    /// # Errors
    /// As [`Executor::bind`].
    ///
    /// # Safety
    /// [`check`](crate::check::check()) passes the plans of all ranks, or none of them is run where what it
    /// says could happen: a race on memory of any rank, or a wait that ends at its deadline only.
    pub unsafe fn bind_unchecked(&self, plan: Plan, stream: &B::Stream) -> Result<Bound<B>> {
        let span = tracing::info_span!("plan.bind", plan = plan.name, world = plan.world);
        let _entered = span.enter();
        let exchange = self.0.exchange.as_ref();

        let valid = validate::validate(&plan, exchange.rank(), exchange.world());
        agree(exchange, "plan validation", valid)?;
        self.most_blocks()?;
        let interfaces = same_interface(exchange, &plan)?;

        let own = self.own_part(&plan);
        let own = agree(exchange, "preparation of a plan", own)?;
        let OwnPart {
            gemms,
            local,
            streams,
            events,
        } = own;

        let node = bind::node_of(&self.0.exchange, &plan)?;
        let buffers = Buffers::new(&self.0.backend, &node, &plan, local)?;
        let pad = match plan.slots.len() {
            0 => None,
            slots => Some(SignalPad::new(&self.0.backend, &node, &plan.name, slots)?),
        };
        let groups = self.groups(&plan, &interfaces)?;
        let binder = Binder {
            executor: self,
            plan: &plan,
            pad: pad.as_ref().map(SignalPad::view),
            groups: &groups,
            interfaces: &interfaces,
            probe: true,
        };
        let steps = binder.steps(gemms);
        let program = steps.and_then(|steps| {
            let program = Program::new(plan, steps, streams, events);
            Ok((program.scratch(&self.0.backend)?, program))
        });
        let (scratch, program) = agree(exchange, "binding of a plan", program)?;
        Ok(Bound {
            captured: Default::default(),
            locations: buffers.locations(&program.plan),
            program,
            scratch,
            groups: groups.into_iter().map(|(_, group)| group).collect(),
            pad,
            _buffers: buffers,
            stream: stream.clone(),
            backend: self.0.backend.clone(),
            node,
        })
    }

    /// See [`Shared::most_blocks`]. Collective the first time.
    fn most_blocks(&self) -> Result<Option<u32>> {
        if let Some(known) = self.0.most_blocks.get() {
            return Ok(*known);
        }
        let ranks = on_this_device(&self.0.backend, self.0.exchange.as_ref())?.len() as u32;
        let most = (ranks > 1).then(|| (self.0.backend.device().sms / ranks).max(1));
        Ok(*self.0.most_blocks.get_or_init(|| most))
    }

    fn own_part(&self, plan: &Plan) -> Result<OwnPart<B>> {
        self.require_multicast(plan)?;
        let (streams, events) = self.streams_and_events(plan)?;
        Ok(OwnPart {
            gemms: bind::gemms(self, plan, bind::Asked::default())?,
            local: buffers::allocate_local(&self.0.backend, plan)?,
            streams,
            events,
        })
    }

    /// That the device has what the plan's placements ask for.
    fn require_multicast(&self, plan: &Plan) -> Result<()> {
        let is_multicast = |buffer: &Buffer| buffer.placement == Placement::Multicast;
        match plan.buffers.iter().any(is_multicast) {
            true => Ok(self.0.backend.device().multicast.require("multicast")?),
            false => Ok(()),
        }
    }

    /// The plan's streams other than the caller's, and its events.
    fn streams_and_events(&self, plan: &Plan) -> Result<StreamsAndEvents<B>> {
        let streams = self.0.pool.streams(plan.streams.get(1..).unwrap_or(&[]))?;
        let events = (0..plan.events).map(|_| self.0.backend.event());
        Ok((streams, events.collect::<Result<_, _>>()?))
    }
}

/// See [`Executor::streams_and_events`].
type StreamsAndEvents<B> = (Vec<<B as Backend>::Stream>, Vec<<B as Backend>::Event>);

/// The ranks of `exchange` on this rank's device, itself among them; itself alone where ranks that share a
/// device do not take blocks from each other. Collective.
fn on_this_device<B: ExecuteBackend>(backend: &B, exchange: &dyn Exchange) -> Result<Vec<usize>> {
    let identity = agree(exchange, "device identity", backend.device_identity())?;
    let Some(mine) = identity else {
        return Ok(vec![exchange.rank()]);
    };
    let all = exchange.all_gather("device identities", &mine)?;
    Ok((0..all.len()).filter(|&rank| all[rank] == mine).collect())
}

/// The same for the same plans of all ranks.
fn digest(plans: &[Plan]) -> u64 {
    let mut hasher = DefaultHasher::new();
    format!("{plans:?}").hash(&mut hasher);
    hasher.finish()
}

/// What a plan needs and a rank can make alone.
struct OwnPart<B: ExecuteBackend> {
    gemms: Gemms<B>,
    local: LocalMemory<B>,
    streams: Vec<B::Stream>,
    events: Vec<B::Event>,
}
