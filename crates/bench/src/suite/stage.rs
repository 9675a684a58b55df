//! First calls, verification and timing of the rows of a table: the same for plans and for collectives.

use std::cell::RefCell;

use warpweave_report::{Links, Times};

use crate::candidate::{Candidate, Entrant};
use crate::clock::Clock;
use crate::error::{BenchError, Result, if_available};
use crate::plans::Schedules;
use crate::progress::Progress;
use crate::session::{ExecuteBackend, Session};
use crate::suite::Settings;
use crate::timing::{Effort, Timing};
use crate::verification::{Batch, Verifier};

/// What a suite is measured with.
pub(crate) struct Run<'a, B: ExecuteBackend> {
    pub session: &'a Session<B>,
    pub settings: &'a Settings,
    pub clock: Clock<'a, B>,
    pub effort: Effort,
    pub links: Option<Links>,
    pub progress: Progress,
    /// What candidates of several M share.
    pub schedules: RefCell<Schedules<B>>,
}

/// A part of a run whose entrants are called, verified and timed together.
pub(crate) struct Stage<'a, B: ExecuteBackend> {
    pub run: &'a Run<'a, B>,
    /// Its place among so many.
    pub place: (usize, usize),
    /// What it is of, in progress.
    pub label: String,
    pub verifier: Verifier<'a, B>,
}

impl<'a, B: ExecuteBackend> Stage<'a, B> {
    pub fn new(run: &'a Run<'a, B>, place: (usize, usize), label: String) -> Self {
        Self {
            run,
            place,
            label,
            verifier: Verifier::new(run.session),
        }
    }

    /// Shows `what` as the step that is being done.
    pub fn at(&self, what: &str) {
        let (done, all) = self.place;
        let label = format!("{}: {what}", self.label);
        self.run.progress.at(done, all, label);
    }

    /// Makes the first calls of `entrants`, verifies them by the first batches, times them in the same
    /// rounds, and verifies them by the second. Only those at the places `new` have not been called before;
    /// they are verified in this order. Collective. Returns the times of those that ran.
    ///
    /// # Errors
    /// What ends the run: a lost rank, or a failure after which the ranks cannot go on.
    pub fn measure(
        &mut self,
        entrants: &mut [Entrant<'_>],
        new: &[usize],
        [before, after]: [&[Batch]; 2],
    ) -> Result<Vec<Option<Times>>> {
        for &place in new {
            self.warm_up(&mut entrants[place])?;
        }
        if new.iter().any(|&place| entrants[place].failed) {
            self.recapture(entrants)?;
        }
        self.verify(entrants, new, before)?;
        let times = self.time(entrants)?;
        self.verify(entrants, new, after)?;
        Ok(times)
    }

    fn warm_up(&self, entrant: &mut Entrant<'_>) -> Result<()> {
        let Ok(candidate) = &mut entrant.candidate else {
            return Ok(());
        };
        let step = format!("first call of {}", entrant.name);
        self.at(&step);
        // Why there is no graph, or why there is no call.
        let mine = if_available(candidate.first_call());
        let all = match self.run.session.attempt(&step, mine)? {
            Ok(all) => all,
            Err(error) => return self.survive(entrant, error),
        };
        match all.into_iter().collect::<Result<Vec<_>, _>>() {
            Err(reason) => entrant.candidate = Err(reason),
            Ok(graphs) => entrant.no_graph = graphs.into_iter().flatten().next(),
        }
        if let (Ok(candidate), Some(_)) = (&mut entrant.candidate, &entrant.no_graph) {
            candidate.drop_graph();
        }
        Ok(())
    }

    /// After a call that failed on some rank though all of them came: makes whole again what the entrant
    /// shares with others, and takes it out, with the reason. Collective.
    fn survive(&self, entrant: &mut Entrant<'_>, error: BenchError) -> Result<()> {
        let candidate = entrant.candidate.as_mut();
        let Some(recovered) = candidate.map_or(None, |candidate| candidate.recover()) else {
            return Err(error);
        };
        let step = format!("recovery of {}", entrant.name);
        if self.run.session.attempt(&step, recovered)?.is_err() {
            return Err(error);
        }
        (entrant.candidate, entrant.failed) = (Err(error.to_string()), true);
        Ok(())
    }

    /// Captures all calls anew. Collective.
    fn recapture(&self, entrants: &mut [Entrant<'_>]) -> Result<()> {
        let mut left = entrants
            .iter_mut()
            .filter_map(|e| e.candidate.as_mut().ok());
        let mine = left.try_for_each(|candidate| candidate.capture());
        self.run.session.on_all("capture after a failure", mine)
    }

    fn verify(
        &mut self,
        entrants: &mut [Entrant<'_>],
        which: &[usize],
        batches: &[Batch],
    ) -> Result<()> {
        for &place in which {
            let entrant = &mut entrants[place];
            let Ok(candidate) = &entrant.candidate else {
                continue;
            };
            self.at(&format!("verifying {}", entrant.name));
            match self.verifier.verify(candidate.as_ref(), batches)? {
                Ok(found) => entrant.verdict = std::mem::take(&mut entrant.verdict).and(found),
                Err(error) => {
                    self.survive(entrant, error)?;
                    self.recapture(entrants)?;
                }
            }
        }
        Ok(())
    }

    fn time(&self, entrants: &[Entrant<'_>]) -> Result<Vec<Option<Times>>> {
        let timing = Timing {
            clock: &self.run.clock,
            effort: self.run.effort,
        };
        let able = entrants.iter().filter_map(|e| e.candidate.as_deref().ok());
        let able: Vec<&dyn Candidate> = able.collect();
        let times = timing.measure(&able, |round, rounds| {
            self.at(&format!("timing, round {} of {rounds}", round + 1));
        });
        let mut times = times?.into_iter();
        let of = |entrant: &Entrant<'_>| entrant.candidate.as_ref().ok().and_then(|_| times.next());
        Ok(entrants.iter().map(of).collect())
    }
}
