//! The host's account of what was posted and waited for. The device counts epochs; this counts tokens.

/// One role on one lane with one peer.
///
/// Transfers end in the order in which they were posted, so the k-th signal of the peer belongs to the k-th token. Who
/// waits for a token out of turn waits for all before it; they are through then. Only differences are used, so that a
/// captured graph, in which what is posted is waited for, can be replayed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ledger {
    posted: u64,
    waited: u64,
    /// The latest whose token was dropped.
    dropped: u64,
}

impl Ledger {
    /// The number of a dropped token that nobody has waited for since, if there is one.
    pub fn lost(&self) -> Option<u64> {
        (self.dropped > self.waited).then_some(self.dropped)
    }

    /// Counts a post: its number, from 1.
    pub fn post(&mut self) -> u64 {
        self.posted += 1;
        self.posted
    }

    /// Signals of the peer to wait for until `index` is through.
    pub fn due(&self, index: u64) -> u64 {
        index.saturating_sub(self.waited)
    }

    /// As [`Ledger::due`], for all that was posted.
    pub fn outstanding(&self) -> u64 {
        self.due(self.posted)
    }

    /// Counts one signal waited for.
    pub fn wait(&mut self) {
        self.waited += 1;
    }

    /// The token of `index` was dropped.
    pub fn abandon(&mut self, index: u64) {
        self.dropped = self.dropped.max(index);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_token_waited_out_of_turn_brings_those_before_it() {
        let mut ledger = Ledger::default();
        let tokens = [ledger.post(), ledger.post(), ledger.post()];
        assert_eq!(tokens, [1, 2, 3]);
        assert_eq!(ledger.due(tokens[1]), 2);
        ledger.wait();
        ledger.wait();
        assert_eq!((ledger.due(tokens[0]), ledger.due(tokens[1])), (0, 0));
        assert_eq!((ledger.due(tokens[2]), ledger.outstanding()), (1, 1));
    }

    #[test]
    fn a_dropped_token_is_missed_until_a_later_one_is_waited_for() {
        let mut ledger = Ledger::default();
        let (first, second) = (ledger.post(), ledger.post());
        ledger.abandon(first);
        assert_eq!(ledger.lost(), Some(first));
        for _ in 0..ledger.due(second) {
            ledger.wait();
        }
        assert_eq!(ledger.lost(), None);
        // Dropped behind a later one that was waited for: it is through.
        ledger.abandon(first);
        assert_eq!(ledger.lost(), None);
    }
}
