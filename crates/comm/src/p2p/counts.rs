//! The host's counts of posts and waits. The device counts epochs; this counts tokens.

/// The posts of one role on one lane with one peer.
///
/// Transfers end in the order in which they were posted, so the k-th signal of the peer belongs to the k-th
/// token. Waiting for a token waits for all earlier ones too. Only differences are used, so that a captured
/// graph that waits for what it posts can be replayed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PostCounts {
    posted: u64,
    waited: u64,
    /// The latest posts whose tokens were dropped: of those outside captures, and of those in one.
    dropped: [u64; 2],
    /// The latest post outside a capture.
    eager: u64,
}

impl PostCounts {
    /// The number of a dropped token, if nobody has waited for it or a later one.
    pub fn lost(&self) -> Option<u64> {
        let latest = self.dropped[0].max(self.dropped[1]);
        (latest > self.waited).then_some(latest)
    }

    /// Takes back the posts of captures that nobody has waited for, once no capture is open: the capture has
    /// failed, for one that succeeds waits for what it posts.
    pub fn settle(&mut self) {
        self.posted = self.posted.min(self.eager.max(self.waited));
        self.dropped[1] = 0;
    }

    /// Counts a post: its number, from 1.
    pub fn post(&mut self, captured: bool) -> u64 {
        self.posted += 1;
        if !captured {
            self.eager = self.posted;
        }
        self.posted
    }

    /// How many signals of the peer to wait for until post `index` has completed.
    pub fn due(&self, index: u64) -> u64 {
        index.saturating_sub(self.waited)
    }

    /// The number of the latest post.
    pub fn latest(&self) -> u64 {
        self.posted
    }

    /// The latest post outside a capture, if nobody has waited for it. A wait in a capture must not cover it:
    /// replays would wait again for what only happens once.
    pub fn pending_eager(&self) -> Option<u64> {
        (self.eager > self.waited).then_some(self.eager)
    }

    /// Counts one signal waited for.
    pub fn wait(&mut self) {
        self.waited += 1;
    }

    /// The token of `index`, posted in a capture or not, was dropped.
    pub fn abandon(&mut self, index: u64, captured: bool) {
        let dropped = &mut self.dropped[usize::from(captured)];
        *dropped = index.max(*dropped);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_token_waited_out_of_turn_brings_those_before_it() {
        let mut counts = PostCounts::default();
        let tokens = [(); 3].map(|()| counts.post(false));
        assert_eq!(tokens, [1, 2, 3]);
        assert_eq!(counts.due(tokens[1]), 2);
        counts.wait();
        counts.wait();
        assert_eq!((counts.due(tokens[0]), counts.due(tokens[1])), (0, 0));
        assert_eq!((counts.due(tokens[2]), counts.latest()), (1, 3));
    }

    #[test]
    fn an_eager_post_is_pending_until_it_is_waited_for() {
        let mut counts = PostCounts::default();
        let (eager, captured) = (counts.post(false), counts.post(true));
        assert_eq!(counts.pending_eager(), Some(eager));
        counts.wait();
        assert_eq!((counts.pending_eager(), counts.due(captured)), (None, 1));
    }

    #[test]
    fn a_dropped_token_is_missed_until_a_later_one_is_waited_for() {
        let mut counts = PostCounts::default();
        let (first, second) = (counts.post(false), counts.post(false));
        counts.abandon(first, false);
        assert_eq!(counts.lost(), Some(first));
        for _ in 0..counts.due(second) {
            counts.wait();
        }
        assert_eq!(counts.lost(), None);
        // Dropped after a later one was waited for: it has completed.
        counts.abandon(first, false);
        assert_eq!(counts.lost(), None);
    }

    #[test]
    fn a_token_dropped_in_a_capture_that_failed_leaves_those_before_it() {
        let mut counts = PostCounts::default();
        let (live, captured) = (counts.post(false), counts.post(true));
        counts.abandon(captured, true);
        assert_eq!(counts.lost(), Some(captured));
        counts.settle();
        assert_eq!(counts.lost(), None);
        counts.abandon(live, false);
        counts.settle();
        assert_eq!(counts.lost(), Some(live));
    }
}
