//! Which variants can do a call.

use warpweave_symm_mem::{DType, Error, Result};

use super::Collectives;
use super::backend::CollectiveKernels;
use super::call::{Call, Operand};
use super::operation::Operation;
use super::variant::Variant;

/// Whether collectives take elements of `dtype`.
pub(super) fn check_dtype(dtype: DType) -> Result<()> {
    if dtype.is_arithmetic() {
        return Ok(());
    }
    Err(Error::InvalidArgument {
        what: "element type",
        why: format!("collectives take f32, f16 and bf16, not {dtype}"),
    })
}

impl<B: CollectiveKernels> Collectives<B> {
    /// Why `variant` cannot do this call, if so. The same on all ranks.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a call that no variant can do, [`Error::Unavailable`] if another could.
    pub fn validate(&self, call: &Call, variant: Variant) -> Result<()> {
        self.validate_operands(call)?;
        match self.refusal(call, variant) {
            None => Ok(()),
            Some(why) => Err(Error::Unavailable {
                what: format!("variant `{variant}` of this {}", call.operation),
                why,
            }),
        }
    }

    /// What no variant can do.
    pub(super) fn validate_operands(&self, call: &Call) -> Result<()> {
        check_dtype(call.dtype)?;
        self.require_own_group(&call.input)?;
        self.require_own_group(&call.output)?;
        let size = call.dtype.size();
        let misaligned = |operand: &Operand| !operand.address().0.is_multiple_of(size as u64);
        if misaligned(&call.input) || misaligned(&call.output) {
            return Err(Error::InvalidArgument {
                what: "operand",
                why: format!("its address is not aligned to elements of {}", call.dtype),
            });
        }
        if call.root >= self.world {
            return Err(Error::InvalidArgument {
                what: "root",
                why: format!("rank {} of {}", call.root, self.world),
            });
        }
        Ok(())
    }

    /// Addresses of another group would be taken for those of ranks of this one.
    pub(super) fn require_own_group(&self, operand: &Operand) -> Result<()> {
        match operand.group() {
            Some(group) if group != self.group_id => Err(Error::InvalidArgument {
                what: "operand of a collective",
                why: "its symmetric memory is that of other ranks: allocate it with the exchange of these \
                      collectives"
                    .into(),
            }),
            _ => Ok(()),
        }
    }

    fn refusal(&self, call: &Call, variant: Variant) -> Option<String> {
        use Variant::*;
        if !Variant::of(call.operation).contains(&variant) {
            return Some("the operation has no such variant".into());
        }
        if matches!(variant, Multimem | MulticastCopy) {
            return self.multicast_refusal(call, variant).map(Into::into);
        }
        let reduces = matches!(
            call.operation,
            Operation::AllReduce | Operation::ReduceScatter
        );
        let staged = reduces && matches!(variant, Push | TwoShotPush | PushCopyEngine);
        let [reaches_inputs, reaches_outputs] = variant.reaches(call.operation);
        let in_place = call.in_place() && self.world > 1;
        let bytes = call.bytes();
        if reaches_inputs && !call.input.is_symmetric() {
            return Some("the input is not symmetric".into());
        }
        if reaches_outputs && !call.output.is_symmetric() {
            return Some("the output is not symmetric".into());
        }
        if staged && self.chunk(call) * self.world > self.staging.bytes() {
            return Some(format!(
                "it needs {} bytes of staging memory and has {}",
                self.chunk(call) * self.world,
                self.staging.bytes()
            ));
        }
        if in_place
            && (variant == OneShot
                || call.operation == Operation::AllToAll && !matches!(variant, Packets | Staged))
        {
            return Some("input and output are the same memory".into());
        }
        if variant == Staged {
            return self.staged_refusal(call.operation);
        }
        let (chunk, most) = match variant {
            Packets => (bytes, self.packet_bytes()),
            Sentinel => (self.chunk(call), self.sentinel_bytes() / self.world),
            _ => return None,
        };
        (chunk > most).then(|| format!("chunks of {chunk} bytes, and sections take {most} at most"))
    }
}
