//! Printing a plan, after the manner of nvFuser's `HostIrContainer`: buffers, streams and slots, then one
//! line an operation.

use crate::kernels::AnyKernel;
use crate::plan::{
    AddRmsNorm, Batch, BufferId, Effect, MulticastRegion, Op, OpKind, Plan, Region, SlotId,
};
use std::fmt::{self, Write};
use std::ops::Range;

/// The plan as text: one line for each buffer and each operation, one for each effect of a kernel's lanes.
///
/// A region reads `buffer@rank[rows, columns]`, `@*` stands for every rank. A plan that names things which do
/// not exist is printed too, with `?` in the place of their names.
pub fn show(plan: &Plan) -> String {
    Text(plan).to_string()
}

struct Text<'a>(&'a Plan);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Text(plan) = self;
        writeln!(
            f,
            "%Plan {} {{ (rank {} of {}{})",
            plan.name,
            plan.rank,
            plan.world,
            match plan.node_size >= plan.world {
                true => String::new(),
                false => format!(", {} a node", plan.node_size),
            }
        )?;
        let name_width = plan.buffers.iter().map(|b| b.name.len()).max().unwrap_or(0);
        for (id, b) in plan.buffers.iter().enumerate() {
            writeln!(
                f,
                "  %b{id} = {:name_width$} : {:9} {:7} {}",
                b.name,
                b.placement,
                b.role,
                b.extent()
            )?;
        }
        let mut first = 0;
        for same in plan.slots.chunk_by(|one, next| one.name == next.name) {
            let name = &same[0].name;
            match same.len() {
                1 => writeln!(f, "  %s{first} = slot {name}")?,
                count => writeln!(f, "  %s{first}..{} = slots {name}", first + count)?,
            }
            first += same.len();
        }
        let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        writeln!(
            f,
            "  {}, {}",
            count(plan.streams.len(), "stream"),
            count(plan.events, "event")
        )?;
        writeln!(f)?;
        for (id, op) in plan.ops.iter().enumerate() {
            let Op { stream, kind } = op;
            writeln!(f, "  %{id} = [{}] {}", stream.0, op_line(plan, kind))?;
            if let OpKind::Kernel { lanes, .. } = kind {
                for (lane, effects) in lanes.iter().enumerate() {
                    writeln!(f, "    lane {lane}")?;
                    for effect in effects {
                        writeln!(f, "      {}", effect_line(plan, effect))?;
                    }
                }
            }
        }
        writeln!(f, "}} // %Plan {}", plan.name)
    }
}

/// One operation without its lanes.
pub(crate) fn op_line(plan: &Plan, kind: &OpKind) -> String {
    match kind {
        OpKind::Copy { src, dst } => {
            let verb = match (src.rank == plan.rank, dst.rank == plan.rank) {
                (true, true) => "copy",
                (false, true) => "get",
                (true, false) => "put",
                (false, false) => "forward",
            };
            format!(
                "{verb} {} -> {} by {}",
                region(plan, src),
                region(plan, dst),
                plan.copies_by(dst)
            )
        }
        OpKind::MulticastCopy { src, dst } => format!(
            "multicast-copy {} -> {}",
            region(plan, src),
            multicast_region(plan, dst)
        ),
        OpKind::Signal { slot, to } => signal_line(plan, *slot, to),
        OpKind::Wait { slot, from, lag } => wait_line(plan, *slot, from, *lag),
        OpKind::Record { event } => format!("record event {}", event.0),
        OpKind::WaitEvent { event } => format!("wait-event {}", event.0),
        OpKind::Collective {
            collective,
            src,
            dst,
            ranks: members,
            transport,
            then,
        } => format!(
            "{collective} {} -> {}{}{} by {transport}",
            region(plan, src),
            region(plan, dst),
            then.as_ref()
                .map_or(String::new(), |norm| norm_of(plan, norm)),
            match members.iter().copied().eq(0..plan.world) {
                true => String::new(),
                false => format!(" among {}", listed(members)),
            }
        ),
        OpKind::Gemm {
            a,
            b,
            c,
            bias,
            scales,
            activation,
            b_transposed,
            batch,
            provider,
        } => format!(
            "gemm {} = {} * {}{}{}{}{}{} by {provider}",
            region(plan, c),
            region(plan, a),
            region(plan, b),
            if *b_transposed { "^T" } else { "" },
            bias.as_ref()
                .map_or(String::new(), |bias| format!(" + {}", region(plan, bias))),
            scales.as_ref().map_or(String::new(), |scales| {
                let [a, b] = [&scales.a, &scales.b].map(|one| region(plan, one));
                format!(" scaled by {} of {a}, {b}", scales.scaling.name())
            }),
            activation.suffix(),
            batch_of(*batch)
        ),
        OpKind::Reduce { srcs, dst } => {
            let srcs: Vec<String> = srcs.iter().map(|src| region(plan, src)).collect();
            format!("reduce {} = {}", region(plan, dst), srcs.join(" + "))
        }
        OpKind::Kernel { kernel, .. } => kernel_line(plan, kernel),
    }
}

fn norm_of(plan: &Plan, norm: &AddRmsNorm) -> String {
    let AddRmsNorm {
        residual,
        weight,
        residual_out,
        epsilon,
        quantized,
    } = norm;
    let [residual, weight, out] = [residual, weight, residual_out].map(|r| region(plan, r));
    let quantized = quantized.as_ref().map_or(String::new(), |to| {
        let [values, scales] = [&to.values, &to.scales].map(|r| region(plan, r));
        format!(", in e4m3 -> {values} by row of {scales}")
    });
    format!(", + {residual} -> {out}, RMSNorm * {weight}, epsilon {epsilon}{quantized}")
}

fn batch_of(batch: Batch) -> String {
    let Batch {
        count,
        a_stride,
        c_stride,
    } = batch;
    match count {
        1 => String::new(),
        _ if a_stride == c_stride => format!(", {count} times every {c_stride} rows"),
        _ => format!(", {count} times every {a_stride} rows, of the GEMM every {c_stride}"),
    }
}

/// One effect of a lane.
pub(crate) fn effect_line(plan: &Plan, effect: &Effect) -> String {
    match effect {
        Effect::Read(r) => format!("read {}", region(plan, r)),
        Effect::Write(r) => format!("write {}", region(plan, r)),
        Effect::WriteMulticast(r) => format!("write {}", multicast_region(plan, r)),
        Effect::Signal { slot, to } => signal_line(plan, *slot, to),
        Effect::Wait { slot, from, lag } => wait_line(plan, *slot, from, *lag),
        Effect::After(lanes) => format!("after lanes {}", listed(lanes)),
    }
}

/// `buffer@rank[rows, columns]`.
pub(crate) fn region(plan: &Plan, region: &Region) -> String {
    let at = format!("@{}", region.rank);
    box_of(plan, region.buffer, &at, &region.rows, &region.cols)
}

/// `buffer[rows, columns]`, of the rank whose plan it is.
pub(crate) fn own_region(plan: &Plan, region: &Region) -> String {
    box_of(plan, region.buffer, "", &region.rows, &region.cols)
}

/// A slot's name.
pub(crate) fn slot_name(plan: &Plan, slot: SlotId) -> &str {
    plan.slots.get(slot.0).map_or("?", |s| s.name.as_str())
}

fn multicast_region(plan: &Plan, region: &MulticastRegion) -> String {
    box_of(plan, region.buffer, "@*", &region.rows, &region.cols)
}

fn box_of(
    plan: &Plan,
    buffer: BufferId,
    at: &str,
    rows: &Range<usize>,
    cols: &Range<usize>,
) -> String {
    let name = plan.buffer(buffer).map_or("?", |b| b.name.as_str());
    format!(
        "{name}{at}[{}..{}, {}..{}]",
        rows.start, rows.end, cols.start, cols.end
    )
}

fn signal_line(plan: &Plan, slot: SlotId, to: &[usize]) -> String {
    format!("signal {} to {}", slot_name(plan, slot), listed(to))
}

fn wait_line(plan: &Plan, slot: SlotId, from: &[usize], lag: u32) -> String {
    let mut line = format!("wait {} from {}", slot_name(plan, slot), listed(from));
    if lag > 0 {
        let _ = write!(line, ", lag {lag}");
    }
    line
}

fn listed(numbers: &[usize]) -> String {
    let numbers: Vec<String> = numbers.iter().map(usize::to_string).collect();
    numbers.join(", ")
}

fn kernel_line(plan: &Plan, kernel: &AnyKernel) -> String {
    let shape = kernel.shape();
    let buffers: Vec<&str> = kernel
        .buffers()
        .into_iter()
        .map(|id| plan.buffer(id).map_or("?", |b| b.name.as_str()))
        .collect();
    let slots = kernel.slots().into_iter();
    let mut slots: Vec<&str> = slots.map(|id| slot_name(plan, id)).collect();
    slots.dedup();
    format!(
        "kernel {}({}; {}) m={} n={} k={} {} by {}",
        kernel.name(),
        buffers.join(", "),
        slots.join(", "),
        shape.m,
        shape.n,
        shape.k,
        shape.dtype,
        kernel.transport()
    )
}
