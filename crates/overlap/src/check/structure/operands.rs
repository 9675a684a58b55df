//! Whether the operands of an operation fit together: shapes, element types, and what may not overlap.

use super::{FaultKind, Inspector, MAX_COUNT};
use crate::plan::{
    Activation, AddRmsNorm, Batch, Collective, Provider, Quantized, Region, Scales, Scaling, shard,
};
use crate::show;
use std::collections::HashSet;
use warpweave_symm_mem::DType;

impl Inspector<'_> {
    pub(super) fn own(&mut self, region: &Region) {
        let plan = self.plan;
        self.expect(region.rank == plan.rank, FaultKind::Unreachable, || {
            format!("{} must be this rank's own", show::region(plan, region))
        });
    }

    pub(super) fn apart(&mut self, read: &Region, written: &Region) {
        let plan = self.plan;
        self.expect(!read.overlaps(written), FaultKind::InPlace, || {
            format!(
                "{} is read and {} is written by one operation",
                show::region(plan, read),
                show::region(plan, written)
            )
        });
    }

    fn same_dtype(&mut self, one: &Region, other: &Region) {
        let plan = self.plan;
        let (Some(x), Some(y)) = (plan.buffer(one.buffer), plan.buffer(other.buffer)) else {
            return;
        };
        self.expect(x.dtype == y.dtype, FaultKind::WrongShape, || {
            format!(
                "`{}` holds {}, `{}` holds {}",
                x.name, x.dtype, y.name, y.dtype
            )
        });
    }

    pub(super) fn same_shape(&mut self, src: &Region, dst: &Region) {
        self.same_dtype(src, dst);
        let fits = src.rows.len() == dst.rows.len() && src.cols.len() == dst.cols.len();
        let plan = self.plan;
        self.expect(fits, FaultKind::WrongShape, || {
            format!(
                "{} and {} differ in shape",
                show::region(plan, src),
                show::region(plan, dst)
            )
        });
    }

    /// Whether there are as many GEMMs as a plan may have, each with rows of its own.
    pub(super) fn batch(&mut self, batch: Batch, c: &Region) -> bool {
        let apart = batch.count == 1 || batch.c_stride >= c.rows.len();
        self.expect(apart, FaultKind::InPlace, || {
            format!(
                "{} rows every {} rows are written twice",
                c.rows.len(),
                batch.c_stride
            )
        });
        let sane = (1..=MAX_COUNT).contains(&batch.count);
        self.expect(sane, FaultKind::Excess, || {
            format!("a batch of {} GEMMs", batch.count)
        });
        sane
    }

    /// A weight has an element for each column of `c`, a bias for each of the `columns` that are added up.
    pub(super) fn row_of(&mut self, what: &str, row: &Region, c: &Region, columns: usize) {
        self.same_dtype(row, c);
        let fits = row.rows.len() == 1 && row.cols.len() == columns;
        let plan = self.plan;
        self.expect(fits, FaultKind::WrongShape, || {
            let [row, c] = [row, c].map(|r| show::region(plan, r));
            format!("{row} is no {what} of {c}")
        });
    }

    /// Partials are one element type and shape; one that is the result's own box is the in-place form.
    pub(super) fn reduce(&mut self, srcs: &[Region], dst: &Region) {
        self.write(dst);
        self.own(dst);
        self.expect(!srcs.is_empty(), FaultKind::WrongShape, || {
            "a reduction of nothing".into()
        });
        for src in srcs {
            self.read(src);
            self.same_shape(src, dst);
            if src != dst {
                self.apart(src, dst);
            }
        }
    }

    /// `columns` are those of `b` that give `c` by `activation`.
    pub(super) fn gemm(
        &mut self,
        a: &Region,
        (b, b_transposed): (&Region, bool),
        (c, columns): (&Region, usize),
        activation: Activation,
    ) {
        self.same_dtype(a, b);
        let [of_a, of_c] = [a, c].map(|region| self.dtype(region));
        if of_a != Some(DType::E4m3) || of_c == of_a {
            self.same_dtype(a, c);
        }
        let (depth, width) = match b_transposed {
            false => (b.rows.len(), b.cols.len()),
            true => (b.cols.len(), b.rows.len()),
        };
        let fits = a.rows.len() == c.rows.len() && width == columns && a.cols.len() == depth;
        let plan = self.plan;
        self.expect(fits, FaultKind::WrongShape, || {
            let [a, b, c] = [a, b, c].map(|r| show::region(plan, r));
            format!("{c} = {a} * {b} is no GEMM")
        });
        let group = activation.group();
        self.expect(columns.is_multiple_of(group), FaultKind::WrongShape, || {
            format!("{columns} columns are no groups of {group}, gate and up")
        });
    }

    /// Operands of e4m3 have scales, which fill buffers of their own, and a GEMM of others has none.
    pub(super) fn scales(
        &mut self,
        a: &Region,
        (b, c, columns): (&Region, &Region, usize),
        scales: Option<&Scales>,
        (gemms, provider): (usize, Provider),
    ) {
        let plan = self.plan;
        let scaling = scales.map_or(Scaling::None, |scales| scales.scaling);
        let is_narrow = self.dtype(a) == Some(DType::E4m3);
        let fits = match scaling {
            Scaling::None => !is_narrow && scales.is_none(),
            _ => is_narrow && gemms == 1,
        };
        self.expect(fits, FaultKind::WrongShape, || {
            let [a, b] = [a, b].map(|r| show::region(plan, r));
            format!("{a} * {b}: a single GEMM of e4m3 has scales, and no other")
        });
        let Some(scales) = scales.filter(|_| fits) else {
            return;
        };
        let [of_a, of_b] = Scales::shapes(scaling, (c.rows.len(), columns, a.cols.len()));
        let of_a = Scales::layout_for(scaling, provider).stored(of_a.0, of_a.1);
        for (region, shape) in [&scales.a, &scales.b].into_iter().zip([of_a, of_b]) {
            let buffer = plan.buffer(region.buffer);
            let fits = (region.rows.len(), region.cols.len()) == shape
                && buffer.is_none_or(|of| (of.cols, of.dtype) == (shape.1, DType::F32));
            self.expect(fits, FaultKind::WrongShape, || {
                let (rows, cols) = shape;
                let region = show::region(plan, region);
                format!("scales {region} are not {rows} whole rows of {cols} f32")
            });
        }
    }

    fn dtype(&self, region: &Region) -> Option<DType> {
        self.plan.buffer(region.buffer).map(|buffer| buffer.dtype)
    }

    pub(super) fn collective(
        &mut self,
        collective: Collective,
        src: &Region,
        dst: &Region,
        ranks: &[usize],
    ) {
        self.read(src);
        self.write(dst);
        self.own(src);
        self.own(dst);
        self.same_dtype(src, dst);
        let plan = self.plan;
        ranks.iter().for_each(|&rank| self.rank(rank));
        let unique: HashSet<&usize> = ranks.iter().collect();
        self.expect(unique.len() == ranks.len(), FaultKind::NoSuchThing, || {
            format!("a rank takes part twice in a collective of ranks {ranks:?}")
        });
        let place = ranks.iter().position(|&rank| rank == plan.rank);
        let Some(index) = place else {
            let what = format!("rank {} is none of {ranks:?}", plan.rank);
            return self.fault(FaultKind::NoSuchThing, what);
        };
        let rows = collective.all_rows(src, dst);
        let fits = collective.rows(rows, index, ranks.len()) == (src.rows.len(), dst.rows.len())
            && src.cols.len() == dst.cols.len();
        self.expect(fits, FaultKind::WrongShape, || {
            let [src, dst] = [src, dst].map(|r| show::region(plan, r));
            format!(
                "{src} -> {dst} is no {collective} of rank {} among {} ranks",
                plan.rank,
                ranks.len()
            )
        });
        // What lies already where it belongs is the in-place form that collectives allow.
        let shard = shard(rows, index, ranks.len());
        let part = |whole: &Region| Region {
            rows: whole.rows.start + shard.start..whole.rows.start + shard.end,
            ..whole.clone()
        };
        let in_place = match collective {
            Collective::AllGather => *src == part(dst),
            Collective::ReduceScatter => *dst == part(src),
            Collective::AllReduce => src == dst,
        };
        if !in_place {
            self.apart(src, dst);
        }
    }

    /// What follows an all-reduce is whole rows of its result. A result may be what it is computed from.
    pub(super) fn norm(
        &mut self,
        collective: Collective,
        (src, dst): (&Region, &Region),
        norm: &AddRmsNorm,
    ) {
        let AddRmsNorm {
            residual,
            weight,
            residual_out,
            epsilon,
            quantized,
        } = norm;
        let reduces = collective == Collective::AllReduce;
        self.expect(reduces, FaultKind::WrongShape, || {
            format!("an RMSNorm follows an all-reduce, not the {collective}")
        });
        let sane = epsilon.is_finite() && *epsilon >= 0.0;
        self.expect(sane, FaultKind::WrongEpsilon, || {
            format!("an RMSNorm with epsilon {epsilon}")
        });
        self.read(residual);
        self.read(weight);
        self.write(src);
        self.write(residual_out);
        for region in [residual, weight, residual_out] {
            self.own(region);
        }
        self.same_shape(residual, dst);
        self.same_shape(residual_out, dst);
        self.row_of("weight", weight, dst, dst.cols.len());
        let mut apart = vec![(weight, residual_out)];
        let others = [residual, weight, residual_out];
        apart.extend(others.map(|other| (other, dst)));
        if src != dst {
            apart.extend(others.map(|other| (other, src)));
        }
        if residual != residual_out {
            apart.push((residual, residual_out));
        }
        if let Some(Quantized { values, scales }) = quantized {
            for region in [values, scales] {
                self.write(region);
                self.own(region);
                let others = [src, dst, residual, weight, residual_out];
                apart.extend(others.map(|other| (region, other)));
            }
            apart.push((values, scales));
            self.quantized(values, scales, dst);
        }
        apart
            .into_iter()
            .for_each(|(one, other)| self.apart(one, other));
    }

    /// Rows of `dst` in e4m3, with a scale for each.
    fn quantized(&mut self, values: &Region, scales: &Region, dst: &Region) {
        let plan = self.plan;
        let shape = |region: &Region| (region.rows.len(), region.cols.len());
        let fits = self.dtype(values) == Some(DType::E4m3)
            && shape(values) == shape(dst)
            && shape(scales) == (dst.rows.len(), 1)
            && plan
                .buffer(scales.buffer)
                .is_none_or(|of| (of.cols, of.dtype) == (1, DType::F32));
        self.expect(fits, FaultKind::WrongShape, || {
            let [values, scales, dst] = [values, scales, dst].map(|r| show::region(plan, r));
            format!("{values} with scales {scales} are not the rows of {dst} in e4m3")
        });
    }
}
