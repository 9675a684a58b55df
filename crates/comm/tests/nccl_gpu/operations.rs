//! Every call with its lengths, its inputs and what it should leave.

use warpweave_comm::Result;
use warpweave_comm::nccl::{Collective, Element, NcclComm, ReduceOp};

use crate::number::{factor, value};

/// A call on a communicator, with the addresses to send from and to receive at.
macro_rules! run {
    ($comm:ident, $send:ident, $recv:ident => $call:expr) => {
        Box::new(move |$comm: &NcclComm, $send: u64, $recv: u64| {
            // SAFETY: whoever runs an operation has buffers of the lengths that it states, and all ranks run
            // the same.
            unsafe { $call }
        })
    };
}

type Run<'a> = Box<dyn Fn(&NcclComm, u64, u64) -> Result<()> + 'a>;

pub struct Operation<'a> {
    pub name: String,
    pub collective: Collective,
    /// Elements at this rank's `send`.
    pub send: usize,
    /// Elements at this rank's `recv`.
    pub recv: usize,
    /// Of rank, index and call.
    pub input: fn(usize, usize, usize) -> f64,
    /// Relative.
    pub tolerance: f64,
    pub run: Run<'a>,
    /// Of rank and call; nothing where `recv` stays as it was.
    pub expected: Box<dyn Fn(usize, usize) -> Option<Vec<f64>> + 'a>,
}

/// What is the same for all operations of one rank.
#[derive(Clone, Copy)]
pub struct Setting {
    pub rank: usize,
    pub world: usize,
    pub count: usize,
    pub element: Element,
    pub stream: usize,
}

/// `count` of `input` from `from`.
fn part(
    input: fn(usize, usize, usize) -> f64,
    rank: usize,
    (from, count): (usize, usize),
    call: usize,
) -> Vec<f64> {
    (from..from + count).map(|i| input(rank, i, call)).collect()
}

fn is_integer(element: Element) -> bool {
    !matches!(
        element,
        Element::F16 | Element::Bf16 | Element::F32 | Element::F64
    )
}

/// Moves that combine nothing.
pub fn moves<'a>(s: Setting) -> Vec<Operation<'a>> {
    let Setting {
        rank,
        world,
        count,
        element,
        ..
    } = s;
    let stream = move || s.stream as *mut _;
    let all = world * count;
    let root = world - 1;
    let gathered = move |call| {
        let parts = (0..world).flat_map(move |r| part(value, r, (0, count), call));
        parts.collect::<Vec<_>>()
    };
    // Rank r has r, or none for rank 1, times `count`.
    let counts: Vec<usize> = (0..world).map(|r| [2, 0, 1][r % 3] * count).collect();
    let (uneven, mine) = (counts.iter().sum(), counts[rank]);
    let theirs = counts.clone();
    let op = |name: &str, collective, send, recv, run: Run<'a>, expected| Operation {
        name: format!("{name} of {count}"),
        collective,
        send,
        recv,
        input: value,
        tolerance: 0.0,
        run,
        expected,
    };
    vec![
        op(
            "all-gather",
            Collective::AllGather,
            count,
            all,
            run!(c, a, b => c.all_gather(a, b, count, element, stream())),
            Box::new(move |_, call| Some(gathered(call))),
        ),
        op(
            "broadcast",
            Collective::Broadcast,
            count,
            count,
            run!(c, a, b => c.broadcast(a, b, count, element, root, stream())),
            Box::new(move |_, call| Some(part(value, root, (0, count), call))),
        ),
        op(
            "all-to-all",
            Collective::AllToAll,
            all,
            all,
            run!(c, a, b => c.all_to_all(a, b, count, element, stream())),
            Box::new(move |me, call| {
                let parts = (0..world).flat_map(|r| part(value, r, (me * count, count), call));
                Some(parts.collect())
            }),
        ),
        op(
            "gather",
            Collective::Gather,
            count,
            all,
            run!(c, a, b => c.gather(a, b, count, element, root, stream())),
            Box::new(move |me, call| (me == root).then(|| gathered(call))),
        ),
        op(
            "scatter",
            Collective::Scatter,
            all,
            count,
            run!(c, a, b => c.scatter(a, b, count, element, root, stream())),
            Box::new(move |me, call| Some(part(value, root, (me * count, count), call))),
        ),
        op(
            "uneven all-gather",
            Collective::PointToPoint,
            mine,
            uneven,
            run!(c, a, b => c.all_gather_uneven(a, b, &counts, element, stream())),
            Box::new(move |_, call| {
                let parts = (0..world).flat_map(|r| part(value, r, (0, theirs[r]), call));
                Some(parts.collect())
            }),
        ),
        op(
            "ring of sends",
            Collective::PointToPoint,
            count,
            count,
            run!(c, a, b => c.group(|c| {
                c.recv(b, count, element, (rank + world - 1) % world, stream())?;
                c.send(a, count, element, (rank + 1) % world, stream())
            })),
            Box::new(move |me, call| Some(part(value, (me + world - 1) % world, (0, count), call))),
        ),
    ]
}

/// Reductions by `by`.
pub fn reductions<'a>(s: Setting, by: ReduceOp) -> Vec<Operation<'a>> {
    let Setting {
        world,
        count,
        element,
        ..
    } = s;
    let stream = move || s.stream as *mut _;
    let (all, root) = (world * count, world - 1);
    let input = match by {
        ReduceOp::Prod => factor,
        _ => value,
    };
    let combined = move |(from, count): (usize, usize), call: usize| -> Vec<f64> {
        let one = |i| {
            let of = (0..world).map(|r| input(r, i, call));
            match by {
                ReduceOp::Sum => of.sum(),
                ReduceOp::Prod => of.product(),
                ReduceOp::Max => of.fold(f64::MIN, f64::max),
                ReduceOp::Min => of.fold(f64::MAX, f64::min),
                _ if is_integer(element) => (of.sum::<f64>() / world as f64).trunc(),
                _ => of.sum::<f64>() / world as f64,
            }
        };
        (from..from + count).map(one).collect()
    };
    // NCCL's mean of floats divides each input first and rounds it.
    let tolerance = match by {
        ReduceOp::Avg if !is_integer(element) => 0.02,
        _ => 0.0,
    };
    let op = |name: &str, collective, send, recv, run: Run<'a>, expected| Operation {
        name: format!("{name} by {by:?} of {count}"),
        collective,
        send,
        recv,
        input,
        tolerance,
        run,
        expected,
    };
    vec![
        op(
            "all-reduce",
            Collective::AllReduce,
            count,
            count,
            run!(c, a, b => c.all_reduce(a, b, count, element, by, stream())),
            Box::new(move |_, call| Some(combined((0, count), call))),
        ),
        op(
            "reduce",
            Collective::Reduce,
            count,
            count,
            run!(c, a, b => c.reduce(a, b, count, element, by, root, stream())),
            Box::new(move |me, call| (me == root).then(|| combined((0, count), call))),
        ),
        op(
            "reduce-scatter",
            Collective::ReduceScatter,
            all,
            count,
            run!(c, a, b => c.reduce_scatter(a, b, count, element, by, stream())),
            Box::new(move |me, call| Some(combined((me * count, count), call))),
        ),
    ]
}
