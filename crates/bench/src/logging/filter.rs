//! What is logged on which rank.

use std::ops::RangeInclusive;
use std::str::FromStr;

use tracing_subscriber::EnvFilter;

/// Filters of `tracing`, such as `info` or `warn,warpweave_comm=trace`, separated by semicolons. One after
/// `RANK:` or `FIRST-LAST:` is of these ranks, and the last that is of a rank counts there: in
/// `warn;0:info;2-3:debug` rank 1 has `warn`.
#[derive(Clone, Debug)]
pub struct LogFilter {
    parts: Vec<(RangeInclusive<usize>, String)>,
}

impl LogFilter {
    /// The filter of a rank; errors where none is given.
    pub fn of(&self, rank: usize) -> EnvFilter {
        EnvFilter::new(self.words_of(rank))
    }

    fn words_of(&self, rank: usize) -> &str {
        let own = self.parts.iter().rfind(|(ranks, _)| ranks.contains(&rank));
        own.map_or("error", |(_, words)| words)
    }
}

impl FromStr for LogFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text
            .split(';')
            .map(str::trim)
            .filter(|part| !part.is_empty());
        let part = |part: &str| {
            let (ranks, words) = match part
                .split_once(':')
                .map(|(ranks, words)| (range(ranks), words))
            {
                Some((Some(ranks), words)) => (ranks, words.trim()),
                _ => (0..=usize::MAX, part),
            };
            match EnvFilter::try_new(words) {
                Ok(_) => Ok((ranks, words.to_owned())),
                Err(error) => Err(format!(
                    "`{words}` is no filter such as info, warpweave_comm=debug or 0:info: {error}"
                )),
            }
        };
        Ok(Self {
            parts: parts.map(part).collect::<Result<_, _>>()?,
        })
    }
}

/// `2` or `2-3`. A target such as `warpweave_comm::store` is neither.
fn range(text: &str) -> Option<RangeInclusive<usize>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let rank = |text: &str| text.trim().parse().ok();
    Some(rank(first)?..=rank(last)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_that_is_of_a_rank_counts() {
        let filter: LogFilter = "warn; 0:info;2-3: warpweave_comm::store=debug,error"
            .parse()
            .unwrap();
        let of = |rank| filter.words_of(rank);
        assert_eq!(
            [of(0), of(1), of(2), of(3), of(4)],
            [
                "info",
                "warn",
                "warpweave_comm::store=debug,error",
                "warpweave_comm::store=debug,error",
                "warn"
            ]
        );
        let of_one: LogFilter = "1:debug".parse().unwrap();
        assert_eq!((of_one.words_of(0), of_one.words_of(1)), ("error", "debug"));
        let of_all: LogFilter = "warpweave_comm::store=trace".parse().unwrap();
        assert_eq!(of_all.words_of(7), "warpweave_comm::store=trace");
        assert_eq!("".parse::<LogFilter>().unwrap().words_of(0), "error");
    }
}
