//! Residual addition and RMSNorm after a reduction: what follows an all-reduce in each layer of a
//! transformer.
//!
//! # The arithmetic
//! Everything is computed in f32, and rounded to the type of the elements where it is stored:
//! 1. x = Σ partials, in the order of ranks, rounded: what an all-reduce gives.
//! 2. r = x + residual, rounded: the new residual.
//! 3. y = r · (1 / √(mean of r² + ε)) · weight, rounded: the normalized row. Squares are added in a fixed
//!    order, which `cuda/norm.cuh` gives.
//! 4. Optionally scale = max |y| / 448 of each row, and q = e4m3(y / scale): the nearest e4m3, saturating.
//!
//! Each step reads what the one before stores. So the bits of a row depend on that row alone: not on the
//! number of rows, on the variant, the grid or the alignment, nor on whether one launch does it or several.
//!
//! # The limit of one launch
//! A call by packets is bound by latency: the launch, the first loads, one link crossing, and the exchange of
//! sums among the blocks of a row. The norm adds reading the residual and storing two results, of this rank's
//! memory, of which the loads overlap with the wait for packets. Bytes count from some hundred KiB on:
//! packets send `4/3 · (n - 1)` of the message over each rank's link, at 350 GB/s 6.0 µs for 512 KiB among
//! four. There sentinels take `2 · (n - 1)/n` of it: the blocks that receive sums normalize them, a row each
//! at a time, in the same launch, where all operands are aligned to 16 bytes.

pub mod arithmetic;
pub mod launch;

use warpweave_symm_mem::{DType, DevicePtr, DeviceSlice, Error, Result};

use super::Collectives;
use super::backend::{CollectiveKernels, Kernel};
use super::call::{Call, Operand, SignedCall};
use super::calls::overlap;
use super::launch::{PAYLOAD, signature};
use super::operation::Operation;
use super::validate::check_dtype;
use super::variant::Variant;
use launch::{ReducedNorm, RowNorm};

/// Minimum time of a launch after another, in microseconds.
const LAUNCH: f64 = 2.5;

/// Residual addition and RMSNorm of the rows of a matrix, contiguous and row-major. See [`norm`](self).
#[derive(Clone, Copy, Debug)]
pub struct AddRmsNorm<'a> {
    /// Type of the elements, but for those of `quantized`.
    pub dtype: DType,
    /// Elements of a row.
    pub hidden: usize,
    /// Added to the mean of squares.
    pub epsilon: f32,
    /// `[rows, hidden]`: what is added to the residual; where ranks reduce, this rank's partial. A call may
    /// leave anything in it.
    pub input: DeviceSlice<'a>,
    /// `[rows, hidden]`: the residual, the same on all ranks.
    pub residual: DeviceSlice<'a>,
    /// `[hidden]`.
    pub weight: DeviceSlice<'a>,
    /// `[rows, hidden]`: the new residual; may be `residual`.
    pub residual_out: DeviceSlice<'a>,
    /// `[rows, hidden]`: the normalized rows; may be `input`.
    pub normalized: Option<DeviceSlice<'a>>,
    /// The normalized rows in e4m3.
    pub quantized: Option<Quantized<'a>>,
}

/// Rows in e4m3, with a scale for each: an element is its e4m3 times the scale of its row.
#[derive(Clone, Copy, Debug)]
pub struct Quantized<'a> {
    /// `[rows, hidden]`, a byte for each element.
    pub values: DeviceSlice<'a>,
    /// `[rows]` f32: the largest magnitude of the row divided by 448, at least 2⁻¹²⁶.
    pub scales: DeviceSlice<'a>,
}

/// # Residual addition and RMSNorm
///
/// As [calls on the caller's memory](Collectives#calls-on-the-callers-memory): nothing is allocated,
/// exchanged or waited for, and calls can be captured in graphs.
///
/// # Errors
/// [`Error::InvalidArgument`] for lengths that do not fit each other, operands that overlap but where they
/// may, and rows of more than 192 KiB; what the backend reports.
impl<B: CollectiveKernels> Collectives<B> {
    /// Adds `input`, reduced over the ranks, to the residual, and normalizes: in one launch by packets and,
    /// with operands aligned to 16 bytes, by sentinels, else as an all-reduce followed by
    /// [`Collectives::add_rms_norm`]. The bits are the same. Returns the variant that reduces.
    pub fn all_reduce_add_rms_norm(
        &self,
        stream: &B::Stream,
        norm: &AddRmsNorm<'_>,
    ) -> Result<Variant> {
        let (rows, call) = (self.rows(norm, 1)?, self.reduction(norm)?);
        let variant = self.select_with_norm(&call, &rows)?;
        // SAFETY: `rows` has checked the operands, which live as `DeviceSlice` promises.
        self.in_order(stream, || unsafe {
            self.enqueue_with_norm(stream, &call, &rows, variant)
        })?;
        Ok(variant)
    }

    /// As [`Collectives::all_reduce_add_rms_norm`], reducing in `variant`, the same on all ranks:
    /// [`Variant::Packets`] takes one launch.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the variant cannot do it.
    pub fn all_reduce_add_rms_norm_by(
        &self,
        stream: &B::Stream,
        norm: &AddRmsNorm<'_>,
        variant: Variant,
    ) -> Result<()> {
        let (rows, call) = (self.rows(norm, 1)?, self.reduction(norm)?);
        // SAFETY: `rows` has checked the operands, which live as `DeviceSlice` promises.
        self.in_order(stream, || unsafe {
            self.enqueue_with_norm(stream, &call, &rows, variant)
        })
    }

    /// Adds `input`, of this rank alone, to the residual, and normalizes. Not collective.
    pub fn add_rms_norm(&self, stream: &B::Stream, norm: &AddRmsNorm<'_>) -> Result<()> {
        let rows = self.rows(norm, 1)?;
        // SAFETY: `rows` has checked the operands, which live as `DeviceSlice` promises.
        unsafe { self.normalize(stream, norm.dtype, &rows) }
    }

    /// As [`Collectives::all_reduce_add_rms_norm`], for long messages and residuals that are sharded by rows:
    /// each rank reduces, adds and normalizes its part of the rows, one of `world`, and all gather the
    /// results. `residual` and `residual_out` have this rank's rows alone. The bits are the same. Where rows
    /// are quantized, a rank's part has an even number of elements.
    ///
    /// It is a sequence of launches: a reduce-scatter, the rows, and an all-gather of each result. Each moves
    /// its bytes in the variant that is fastest at its size, which one launch could not. A long message takes
    /// far more time than the launches in between.
    pub fn reduce_scatter_add_rms_norm_all_gather(
        &self,
        stream: &B::Stream,
        norm: &AddRmsNorm<'_>,
    ) -> Result<()> {
        let (world, rank) = (self.world(), self.rank());
        if world == 1 {
            return self.add_rms_norm(stream, norm);
        }
        let all = self.rows(norm, world)?;
        if norm.quantized.is_some() && !(all.rows as usize / world * norm.hidden).is_multiple_of(2)
        {
            return Err(Error::InvalidArgument {
                what: "operand of an RMSNorm",
                why: "the quantized part of a rank has an odd number of bytes".into(),
            });
        }
        let part = |slice: DeviceSlice<'_>| (slice.own(), slice.bytes() / world);
        let own = |slice: DeviceSlice<'_>| {
            let (start, bytes) = part(slice);
            start.add(rank * bytes)
        };
        let optional = |slice: Option<DeviceSlice<'_>>| slice.map_or(DevicePtr::NULL, own);
        let rows = RowNorm {
            input: own(norm.input),
            normalized: optional(norm.normalized),
            quantized: optional(norm.quantized.map(|quantized| quantized.values)),
            scales: optional(norm.quantized.map(|quantized| quantized.scales)),
            rows: all.rows / world as u32,
            ..all
        };
        let rows = rows.completed(norm.dtype);
        let size = norm.dtype.size();
        let scatter = Call {
            operation: Operation::ReduceScatter,
            dtype: norm.dtype,
            count: part(norm.input).1 / size,
            root: 0,
            input: self.operand(&norm.input)?,
            output: Operand::local(rows.input),
        };
        let results = [
            norm.normalized,
            norm.quantized.map(|quantized| quantized.values),
            norm.quantized.map(|quantized| quantized.scales),
        ];
        // SAFETY: `rows` has checked the lengths; the operands live as `DeviceSlice` promises.
        self.in_order(stream, || unsafe {
            self.run(stream, &scatter)?;
            self.normalize(stream, norm.dtype, &rows)
        })?;
        for result in results.into_iter().flatten() {
            let (start, bytes) = part(result);
            let mine = start.add(rank * bytes);
            // SAFETY: this rank's part of the result, which lives as long.
            let mine = unsafe { DeviceSlice::from_address(mine, bytes) };
            self.all_gather(stream, mine, result)?;
        }
        Ok(())
    }

    /// Checks the operands. Residuals have one part of `shards` of the rows.
    fn rows(&self, norm: &AddRmsNorm<'_>, shards: usize) -> Result<RowNorm> {
        check_dtype(norm.dtype)?;
        let wrong = |why: String| Error::InvalidArgument {
            what: "operand of an RMSNorm",
            why,
        };
        let size = norm.dtype.size();
        let row = norm.hidden.saturating_mul(size);
        if row == 0 || row > RowNorm::MOST_BYTES {
            return Err(wrong(format!("rows of {} elements", norm.hidden)));
        }
        let given = norm.input.bytes();
        if !given.is_multiple_of(row * shards) || given / row > u32::MAX as usize {
            let each = if shards == 1 {
                ""
            } else {
                ", the same number on all ranks"
            };
            return Err(wrong(format!(
                "{given} bytes are not whole rows of {row}{each}"
            )));
        }
        let rows = given / row;
        let quantized = norm.quantized;
        // What is read, then what is written, each with its length, its alignment and what it may be the same
        // as.
        let read = [
            ("the input", Some(norm.input), given, size),
            ("the residual", Some(norm.residual), given / shards, size),
            ("the weight", Some(norm.weight), row, size),
        ];
        let written = [
            (
                "the new residual",
                Some(norm.residual_out),
                given / shards,
                size,
            ),
            ("the normalized rows", norm.normalized, given, size),
            (
                "the quantized rows",
                quantized.map(|q| q.values),
                rows * norm.hidden,
                if shards == 1 { 1 } else { 2 },
            ),
            ("the scales", quantized.map(|q| q.scales), 4 * rows, 4),
        ];
        let present =
            |(name, slice, bytes, align): (&'static str, Option<DeviceSlice<'_>>, usize, usize)| {
                slice.map(|slice| (name, slice.own().0, slice.bytes(), bytes, align))
            };
        let operands: Vec<_> = read
            .into_iter()
            .chain(written)
            .filter_map(present)
            .collect();
        for (index, &(name, address, has, needs, align)) in operands.iter().enumerate() {
            if has != needs {
                return Err(wrong(format!(
                    "{name}: {has} bytes, and {needs} are needed"
                )));
            }
            if !address.is_multiple_of(align as u64) {
                return Err(wrong(format!("{name} is not aligned to {align} bytes")));
            }
            // Each result against all before it.
            for &(other, at, bytes, ..) in operands[..index].iter().filter(|_| index >= read.len())
            {
                let may_be_same = matches!(
                    (name, other),
                    ("the new residual", "the residual") | ("the normalized rows", "the input")
                );
                if overlap((address, has), (at, bytes)) && !(may_be_same && address == at) {
                    return Err(wrong(format!("{name} overlaps {other}")));
                }
            }
        }
        let optional =
            |slice: Option<DeviceSlice<'_>>| slice.map_or(DevicePtr::NULL, |slice| slice.own());
        let rows = RowNorm {
            input: norm.input.own(),
            residual: norm.residual.own(),
            weight: norm.weight.own(),
            residual_out: norm.residual_out.own(),
            normalized: optional(norm.normalized),
            quantized: optional(quantized.map(|q| q.values)),
            scales: optional(quantized.map(|q| q.scales)),
            rows: rows as u32,
            hidden: norm.hidden as u32,
            share: 0.0,
            epsilon: norm.epsilon,
            alignment: 0,
            stages: 0,
        };
        Ok(rows.completed(norm.dtype))
    }

    /// # Safety
    /// As for [`CollectiveKernels::launch_collective`].
    unsafe fn normalize(&self, stream: &B::Stream, dtype: DType, rows: &RowNorm) -> Result<()> {
        match rows.rows {
            0 => Ok(()),
            // SAFETY: the caller's obligations.
            _ => unsafe {
                self.backend
                    .launch_collective(stream, Kernel::AddRmsNorm(dtype, rows), 1)
            },
        }
    }

    /// The all-reduce of the input, in place.
    fn reduction(&self, norm: &AddRmsNorm<'_>) -> Result<Call> {
        let input = self.operand(&norm.input)?;
        Ok(Call {
            operation: Operation::AllReduce,
            dtype: norm.dtype,
            count: norm.input.bytes() / norm.dtype.size(),
            root: 0,
            input,
            output: input,
        })
    }

    fn fits_packets(&self, rows: &RowNorm, dtype: DType) -> bool {
        rows.rows as usize * rows.packets(dtype.size()) <= self.capacity
    }

    /// The variant that [`Collectives::all_reduce_add_rms_norm`] takes, the same on all ranks. By packets and
    /// by sentinels it is one launch.
    pub fn select_norm(&self, norm: &AddRmsNorm<'_>) -> Result<Variant> {
        self.select_with_norm(&self.reduction(norm)?, &self.rows(norm, 1)?)
    }

    /// As [`Collectives::select_norm`], for a call of raw addresses: see
    /// [`Collectives::enqueue_with_norm`].
    pub fn select_with_norm(&self, call: &Call, rows: &RowNorm) -> Result<Variant> {
        let separate = self.select(call)?;
        let predict = |variant| {
            self.costs
                .predict(Operation::AllReduce, variant, self.world(), call.bytes())
        };
        let apart = predict(separate).map_or(f64::INFINITY, |time| time + LAUNCH);
        // Packets, too, where nothing was measured.
        let in_one = self
            .fits_packets(rows, call.dtype)
            .then(|| predict(Variant::Packets).unwrap_or(f64::MAX));
        Ok(match in_one {
            Some(time) if time < apart => Variant::Packets,
            _ if separate == Variant::Packets => Variant::Staged,
            _ => separate,
        })
    }

    /// Enqueues `call`, an all-reduce in place, and the normalization of its result, the `rows`, as
    /// [`Collectives::all_reduce_add_rms_norm_by`] does. It may leave anything in the operand of `call`,
    /// unless that is where the normalized rows go.
    ///
    /// # Safety
    /// As for [`Collectives::enqueue`]. `rows` has as many elements as `call`, the `input` is this rank's
    /// operand of it, and is [completed](RowNorm::completed); its memory lives as long, and its
    /// results overlap nothing else but where [`AddRmsNorm`] says so.
    pub unsafe fn enqueue_with_norm(
        &self,
        stream: &B::Stream,
        call: &Call,
        rows: &RowNorm,
        variant: Variant,
    ) -> Result<()> {
        let dtype = call.dtype;
        if self.world() == 1 || rows.rows == 0 {
            // SAFETY: the caller's obligations.
            return unsafe { self.normalize(stream, dtype, rows) };
        }
        let by_packets = variant == Variant::Packets;
        if !by_packets && (variant != Variant::Sentinel || rows.alignment < 16) {
            // SAFETY: the caller's obligations.
            return unsafe {
                self.enqueue(stream, call, variant)?;
                self.normalize(stream, dtype, rows)
            };
        }
        if !by_packets {
            self.validate(call, variant)?;
        } else if !self.fits_packets(rows, dtype) {
            return Err(Error::Unavailable {
                what: format!("variant `{variant}` of this all-reduce and RMSNorm"),
                why: format!(
                    "packets take chunks of {} bytes at most",
                    self.capacity * PAYLOAD
                ),
            });
        }
        let _span = tracing::debug_span!(
            "comm.all_reduce_add_rms_norm",
            variant = variant.name(),
            rows = rows.rows,
            hidden = rows.hidden
        )
        .entered();
        let norm = *rows;
        // SAFETY: the caller's obligations; the packets or the sentinels fit.
        unsafe {
            if by_packets {
                let operands = [rows.hidden as usize, call.bytes()];
                let packets = self.packets(signature(("norm", dtype), &operands));
                let kernel = Kernel::ReducedNorm(dtype, &ReducedNorm { packets, norm });
                self.backend.launch_collective(stream, kernel, self.blocks)
            } else {
                let (packets, blocks) = self.sentinels(&SignedCall::new(call, variant));
                let kernel = Kernel::SentinelNorm(dtype, &ReducedNorm { packets, norm });
                self.backend.launch_collective(stream, kernel, blocks)
            }
        }
    }
}
