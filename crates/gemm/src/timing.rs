//! Device times of alternatives, measured fairly.
//!
//! Long GEMMs throttle a GPU, so alternatives measured one after another are not comparable: the last one
//! pays. Here each round runs every alternative once, and each is judged by the median of its rounds.

use std::time::Duration;

use warpweave_symm_mem::Backend;

use crate::Error;

/// Launches per sample are repeated until a sample takes about this long, so that an event's own cost
/// vanishes.
const SAMPLE: Duration = Duration::from_micros(100);
const MAX_REPEATS: u32 = 16;

/// The times of one alternative, one for each round, sorted; a launch each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Samples(Vec<Duration>);

impl Samples {
    fn new(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self(times)
    }

    /// The middle one.
    pub fn median(&self) -> Duration {
        self.0[self.0.len() / 2]
    }

    /// The middle half of the times: first and third quartile.
    pub fn quartiles(&self) -> (Duration, Duration) {
        (self.0[self.0.len() / 4], self.0[self.0.len() * 3 / 4])
    }
}

/// Runs `count` alternatives in `rounds` interleaved rounds (at least one) after one untimed launch of each,
/// and answers in the alternatives' order. `launch` enqueues the alternative with the given index on
/// `stream`; one that fails gives its error instead of times.
///
/// # Errors
/// Failures of events or of the stream.
pub fn interleaved<B: Backend>(
    backend: &B,
    stream: &B::Stream,
    rounds: usize,
    count: usize,
    mut launch: impl FnMut(usize) -> Result<(), Error>,
) -> Result<Vec<Result<Samples, Error>>, Error> {
    let spans: Vec<(B::Event, B::Event)> = (0..count)
        .map(|_| Ok((backend.event()?, backend.event()?)))
        .collect::<Result<_, Error>>()?;
    let mut results: Vec<Result<Vec<Duration>, Error>> =
        (0..count).map(|_| Ok(Vec::new())).collect();
    let mut repeats = vec![1; count];
    // The first pass only wakes everything up; the second tells how often to repeat.
    for pass in 0..rounds.max(1) + 2 {
        for (index, result) in results.iter_mut().enumerate() {
            if result.is_err() {
                continue;
            }
            backend.record(&spans[index].0, stream)?;
            for _ in 0..repeats[index] {
                if let Err(error) = launch(index) {
                    *result = Err(error);
                    break;
                }
            }
            backend.record(&spans[index].1, stream)?;
        }
        backend.synchronize(stream)?;
        if pass == 0 {
            continue;
        }
        for (index, result) in results.iter_mut().enumerate() {
            let Ok(times) = result else { continue };
            let span = backend.elapsed(&spans[index].0, &spans[index].1)?;
            if pass == 1 {
                let fits = SAMPLE.as_nanos() / span.as_nanos().max(1);
                repeats[index] = (fits as u32).clamp(1, MAX_REPEATS);
            } else {
                times.push(span / repeats[index]);
            }
        }
    }
    Ok(results
        .into_iter()
        .map(|result| result.map(Samples::new))
        .collect())
}

/// The index of the fastest of `count` alternatives: a short tournament of all, then a longer one of those
/// that came close.
///
/// # Errors
/// The first alternative's error if all fail; failures of events or of the stream.
pub fn fastest<B: Backend>(
    backend: &B,
    stream: &B::Stream,
    count: usize,
    mut launch: impl FnMut(usize) -> Result<(), Error>,
) -> Result<usize, Error> {
    const CLOSE: f64 = 1.15;
    const FINALISTS: usize = 8;
    let mut standings = Vec::new();
    let mut failure = None;
    for (index, result) in interleaved(backend, stream, 3, count, &mut launch)?
        .into_iter()
        .enumerate()
    {
        match result {
            Ok(samples) => standings.push((samples.median(), index)),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    standings.sort_unstable();
    let Some(&(best, winner)) = standings.first() else {
        return Err(failure.unwrap_or(Error::NoCandidate));
    };
    standings.retain(|(time, _)| time.as_secs_f64() <= best.as_secs_f64() * CLOSE);
    standings.truncate(FINALISTS);
    if standings.len() == 1 {
        return Ok(winner);
    }
    let finals = interleaved(backend, stream, 15, standings.len(), |place| {
        launch(standings[place].1)
    })?;
    Ok(finals
        .into_iter()
        .zip(&standings)
        .filter_map(|(result, &(_, index))| Some((result.ok()?.median(), index)))
        .min()
        .map_or(winner, |(_, index)| index))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GemmProblem, Provider};
    use warpweave_symm_mem::{DType, Host, Priority};

    fn sleep(host: &Host, stream: &<Host as Backend>::Stream, millis: u64) -> Result<(), Error> {
        host.launch(stream, "sleep", move || {
            std::thread::sleep(Duration::from_millis(millis));
            Ok(())
        })?;
        Ok(())
    }

    fn refused() -> Error {
        Error::Unsupported {
            provider: Provider::Cutlass,
            problem: Box::new(GemmProblem::new(1, 1, 1, DType::F16)),
            requirement: "a test".into(),
        }
    }

    #[test]
    fn the_fastest_wins_and_failures_are_left_out() {
        let host = Host::new();
        let stream = host.stream(Priority::Normal).unwrap();
        let winner = fastest(&host, &stream, 4, |index| match index {
            0 => sleep(&host, &stream, 6),
            1 => Err(refused()),
            2 => sleep(&host, &stream, 1),
            _ => sleep(&host, &stream, 9),
        });
        assert_eq!(winner.unwrap(), 2);
    }

    #[test]
    fn when_all_fail_the_first_reason_is_given() {
        let host = Host::new();
        let stream = host.stream(Priority::Normal).unwrap();
        let error = fastest(&host, &stream, 2, |_| Err(refused())).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        assert!(matches!(
            fastest(&host, &stream, 0, |_| Ok(())),
            Err(Error::NoCandidate)
        ));
    }

    #[test]
    fn rounds_interleave() {
        let host = Host::new();
        let stream = host.stream(Priority::Normal).unwrap();
        let mut order = Vec::new();
        let results = interleaved(&host, &stream, 2, 3, |index| {
            order.push(index);
            sleep(&host, &stream, 2)
        })
        .unwrap();
        // One waking pass, one measuring pass, two rounds; 2 ms launches are not repeated.
        assert_eq!(order, [0, 1, 2].repeat(4));
        for samples in results {
            let samples = samples.unwrap();
            assert!(samples.median() >= Duration::from_millis(2));
            assert!(samples.quartiles().0 <= samples.quartiles().1);
        }
    }
}
