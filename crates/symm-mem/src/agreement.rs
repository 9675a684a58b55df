//! Steps in which every rank says something or why it cannot, and all go on with all words or none.

use crate::error::{Error, Result};
use crate::exchange::Exchange;
use crate::uniform::Sides;
use crate::wire::{Malformed, Reader, Writer};

/// A rank's word, or why it has none.
pub(crate) type Word<T> = std::result::Result<T, String>;

pub(crate) fn write<T>(word: Word<&T>, body: impl Fn(&T, &mut Writer)) -> Vec<u8> {
    let mut to = Writer::default();
    match word {
        Ok(value) => body(value, to.byte(1)),
        Err(why) => {
            to.byte(0).text(&why);
        }
    }
    to.finish()
}

pub(crate) fn read<T>(
    bytes: &[u8],
    body: impl Fn(&mut Reader<'_>) -> Result<T, Malformed>,
) -> Result<Word<T>, Malformed> {
    let mut from = Reader::new(bytes);
    let word = match from.byte()? {
        0 => Err(from.text()?),
        1 => Ok(body(&mut from)?),
        _ => return Err(Malformed("neither a word nor an error")),
    };
    from.end()?;
    Ok(word)
}

/// Exchanges a word of each rank, or the error of those that have none: then it is an error on all.
pub(crate) fn words<T, U>(
    exchange: &dyn Exchange,
    tag: &str,
    mine: Result<T>,
    encode: impl Fn(Word<&T>) -> Vec<u8>,
    decode: impl Fn(&[u8]) -> Result<Word<U>, Malformed>,
) -> Result<Vec<U>> {
    let bytes = encode(mine.as_ref().map_err(ToString::to_string));
    let all = exchange.all_gather(tag, &bytes)?;
    mine?;
    let words = decode_all(&all, tag, decode)?;
    let each = words.into_iter().enumerate();
    each.map(|(rank, word)| {
        word.map_err(|cause| Error::PeerFailed {
            rank,
            step: tag.into(),
            cause,
        })
    })
    .collect()
}

/// Exchanges each rank's side of a cache.
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

/// Every rank reads the same bytes, so that what one cannot read none can.
fn decode_all<T>(
    all: &[Vec<u8>],
    tag: &str,
    decode: impl Fn(&[u8]) -> Result<T, Malformed>,
) -> Result<Vec<T>> {
    let each = all.iter().enumerate();
    each.map(|(rank, bytes)| decode(bytes).map_err(|m| m.of(rank, tag).into()))
        .collect()
}
