//! Collective steps that succeed on all ranks or fail on all.

use std::fmt::Display;

use crate::error::{Error, Result};
use crate::exchange::Exchange;
use crate::uniform::Sides;
use crate::wire::{Malformed, Reader, Writer};

/// An error of one rank that is reported to the others: see [`agree`].
pub trait Failure: Display + From<Error> {
    /// True if the cause is a capability that a machine or a build lacks, so that other work can continue.
    fn is_unavailable(&self) -> bool;
}

impl Failure for Error {
    fn is_unavailable(&self) -> bool {
        self.is_unavailable()
    }
}

/// Succeeds only if this step succeeded on every rank, so that no rank waits for one that gave up.
/// Collective; all ranks pass the same `step`.
///
/// # Errors
/// `mine` if it is an error; [`Error::PeerFailed`] if another rank's is, [unavailable](Error::is_unavailable)
/// if that error is; errors of the exchange.
pub fn agree<T, E: Failure>(
    exchange: &dyn Exchange,
    step: &str,
    mine: Result<T, E>,
) -> Result<T, E> {
    let encode = |reply: Reply<&T>| write(reply, |_, _| {});
    let decode = |bytes: &[u8]| read(bytes, |_| Ok(()));
    gather_of(exchange, step, mine, encode, decode).map(|(value, _)| value)
}

/// Makes sure that `mine`, which `what` names, is the same on all ranks.
///
/// # Errors
/// [`Error::Disagreement`] with a rank where it differs and both values; a failed exchange.
pub fn require_same(exchange: &dyn Exchange, what: &'static str, mine: &str) -> Result<()> {
    let all = exchange.all_gather(what, mine.as_bytes())?;
    require_equal(exchange.rank(), what, &all)
}

/// The same for what all ranks have sent.
pub(crate) fn require_equal(
    rank: usize,
    what: &'static str,
    all: &[impl AsRef<[u8]>],
) -> Result<()> {
    let text = |of: usize| String::from_utf8_lossy(all[of].as_ref()).into_owned();
    let differs = |theirs: &&_| AsRef::<[u8]>::as_ref(*theirs) != all[rank].as_ref();
    match all.iter().position(|theirs| differs(&theirs)) {
        None => Ok(()),
        Some(peer) => Err(Error::Disagreement {
            what,
            rank,
            mine: text(rank),
            peer,
            theirs: text(peer),
        }),
    }
}

/// A rank's value, or why it has none.
pub(crate) type Reply<T> = std::result::Result<T, Refusal>;

/// Why a rank has no value.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub cause: String,
    pub unavailable: bool,
}

fn reply<T, E: Failure>(mine: &Result<T, E>) -> Reply<&T> {
    mine.as_ref().map_err(|error| Refusal {
        cause: error.to_string(),
        unavailable: error.is_unavailable(),
    })
}

pub(crate) fn write<T>(reply: Reply<&T>, body: impl Fn(&T, &mut Writer)) -> Vec<u8> {
    let mut to = Writer::default();
    match reply {
        Ok(value) => body(value, to.byte(1)),
        Err(why) => {
            to.byte(0).byte(u8::from(why.unavailable)).text(&why.cause);
        }
    }
    to.finish()
}

pub(crate) fn read<T>(
    bytes: &[u8],
    body: impl Fn(&mut Reader<'_>) -> Result<T, Malformed>,
) -> Result<Reply<T>, Malformed> {
    let mut from = Reader::new(bytes);
    let reply = match from.byte()? {
        0 => Err(Refusal {
            unavailable: from.byte()? != 0,
            cause: from.text()?,
        }),
        1 => Ok(body(&mut from)?),
        _ => return Err(Malformed("neither a value nor an error")),
    };
    from.end()?;
    Ok(reply)
}

/// Exchanges a value of each rank. If a rank has an error instead, it is an error on all ranks.
pub(crate) fn gather<T, U>(
    exchange: &dyn Exchange,
    tag: &str,
    mine: Result<T>,
    encode: impl Fn(Reply<&T>) -> Vec<u8>,
    decode: impl Fn(&[u8]) -> Result<Reply<U>, Malformed>,
) -> Result<Vec<U>> {
    gather_of(exchange, tag, mine, encode, decode).map(|(_, all)| all)
}

/// The same, with this rank's own value.
pub(crate) fn gather_of<T, U, E: Failure>(
    exchange: &dyn Exchange,
    tag: &str,
    mine: Result<T, E>,
    encode: impl Fn(Reply<&T>) -> Vec<u8>,
    decode: impl Fn(&[u8]) -> Result<Reply<U>, Malformed>,
) -> Result<(T, Vec<U>), E> {
    let all = exchange.all_gather(tag, &encode(reply(&mine)));
    // This rank's own error explains more than the failed exchange that it caused.
    let mine = mine?;
    let all = all_of(&all.map_err(Error::from)?, tag, decode)?;
    Ok((mine, all))
}

/// The values of all ranks, or the error of the first rank that has none.
fn all_of<T>(
    all: &[Vec<u8>],
    tag: &str,
    decode: impl Fn(&[u8]) -> Result<Reply<T>, Malformed>,
) -> Result<Vec<T>> {
    let replies = decode_all(all, tag, decode)?;
    let each = replies.into_iter().enumerate();
    each.map(|(rank, reply)| {
        reply.map_err(|why| Error::PeerFailed {
            rank,
            step: tag.into(),
            cause: why.cause,
            unavailable: why.unavailable,
        })
    })
    .collect()
}

/// Exchanges each rank's view of a cache.
pub(crate) fn sides(exchange: &dyn Exchange, tag: &str, mine: &Sides) -> Result<Vec<Sides>> {
    let mut to = Writer::default();
    mine.write(&mut to);
    let all = exchange.all_gather(tag, &to.finish())?;
    decode_all(&all, tag, |bytes| {
        let mut from = Reader::new(bytes);
        let sides = Sides::read(&mut from)?;
        from.end()?;
        Ok(sides)
    })
}

/// Every rank decodes the same bytes, so decoding fails on all ranks or on none.
fn decode_all<T>(
    all: &[Vec<u8>],
    tag: &str,
    decode: impl Fn(&[u8]) -> Result<T, Malformed>,
) -> Result<Vec<T>> {
    let each = all.iter().enumerate();
    each.map(|(rank, bytes)| decode(bytes).map_err(|m| m.of(rank, tag).into()))
        .collect()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::ThreadExchange;

    #[test]
    fn an_own_error_comes_before_that_of_the_exchange() {
        let lonely = ThreadExchange::group(2).remove(0);
        let missing = || {
            Err::<(), _>(Error::InvalidArgument {
                what: "a test",
                why: "it fails".into(),
            })
        };
        let encode = |reply: Reply<&()>| write(reply, |_, _| {});
        let decode = |bytes: &[u8]| read(bytes, |_| Ok(()));
        for error in [
            agree(&lonely, "step", missing()).unwrap_err(),
            gather(&lonely, "step", missing(), encode, decode).unwrap_err(),
        ] {
            assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
        }
        let lost = agree::<_, Error>(&lonely, "step", Ok(())).unwrap_err();
        assert!(matches!(lost, Error::Exchange(_)), "{lost}");
    }

    #[test]
    fn peers_are_told_what_the_system_said() {
        let refused = std::io::Error::other("no space left");
        let failed = Err::<(), _>(Error::io("making a file", refused));
        let Err(why) = reply(&failed) else {
            panic!("it failed")
        };
        assert_eq!(why.cause, "making a file: no space left");
    }
}
