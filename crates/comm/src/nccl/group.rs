//! Groups: calls of one thread that NCCL launches as one.
//!
//! NCCL keeps the open group per thread, and every communicator called meanwhile joins it. So does this
//! module: no communicator is aborted, or polled for launches, before its group has ended.

use std::cell::RefCell;
use std::sync::Arc;

use super::api::{IN_PROGRESS, SUCCESS};
use super::comm::NcclComm;
use super::state::Shared;
use crate::error::Result;

const START: &str = "ncclGroupStart";
const END: &str = "ncclGroupEnd";

#[derive(Default)]
struct Group {
    depth: u32,
    members: Vec<Arc<Shared>>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

/// Adds `comm` to this thread's group. Returns false if there is none.
pub(super) fn join(comm: &Arc<Shared>, call: &'static str) -> Result<bool> {
    GROUP.with_borrow_mut(|group| {
        if group.depth == 0 {
            return Ok(false);
        }
        if !group.members.iter().any(|member| Arc::ptr_eq(member, comm)) {
            comm.join_group(call)?;
            group.members.push(comm.clone());
        }
        Ok(true)
    })
}

impl NcclComm {
    /// Launches the calls of `calls` as one, so that sends and receives among ranks may cross. Other
    /// communicators called meanwhile join the group. An abort meanwhile takes effect at the end.
    ///
    /// # Errors
    /// The first error of `calls`, or of the launch.
    pub fn group<R>(&self, calls: impl FnOnce(&Self) -> Result<R>) -> Result<R> {
        let start = self.library().api.group_start.get()?;
        let open = Open {
            comm: self,
            end: self.library().api.group_end.get()?,
            ended: false,
        };
        // SAFETY: takes nothing; `open` ends the group on every path.
        let code = self.shared.call(START, |_| unsafe { start() });
        match code {
            Ok(SUCCESS) => {}
            Ok(code) => return Err(open.never_began(self.shared.error(START, code))),
            Err(e) => return Err(open.never_began(e)),
        }
        GROUP.with_borrow_mut(|group| group.depth += 1);
        let result = join(&self.shared, START).and_then(|_| calls(self));
        let launched = open.end();
        let result = result?;
        launched.map(|()| result)
    }
}

/// Ends the group even if the calls panic: otherwise this thread could launch nothing more.
struct Open<'a> {
    comm: &'a NcclComm,
    end: unsafe extern "C" fn() -> i32,
    ended: bool,
}

impl Open<'_> {
    fn never_began<E>(mut self, why: E) -> E {
        self.ended = true;
        why
    }

    fn end(mut self) -> Result<()> {
        self.ended = true;
        self.close()
    }

    fn close(&self) -> Result<()> {
        // SAFETY: takes nothing; the group was started on this thread, and its members are kept from being
        // aborted.
        let code = unsafe { (self.end)() };
        let members = GROUP.with_borrow_mut(|group| {
            group.depth -= 1;
            match group.depth {
                0 => std::mem::take(&mut group.members),
                _ => Vec::new(),
            }
        });
        if !matches!(code, SUCCESS | IN_PROGRESS) && members.is_empty() {
            return Err(self.comm.shared.error(END, code));
        }
        // All leave the group before any is waited for: from here on each may be aborted.
        let left: Vec<_> = members
            .iter()
            .map(|member| member.leave_group(END, code))
            .collect();
        let completed: Vec<_> = members
            .iter()
            .zip(left)
            .map(|(member, left)| {
                left.and_then(|()| member.await_completion(END, code, &|_| Ok(())))
            })
            .collect();
        completed.into_iter().collect()
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if !self.ended
            && let Err(error) = self.close()
        {
            tracing::warn!(%error, "ending a group whose calls panicked");
        }
    }
}
