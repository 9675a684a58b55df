//! Encoding of this crate's own messages: little-endian 64-bit words and length-prefixed strings.
//!
//! Decoding never panics and never allocates more than the length of the message, whatever a peer sent.

use crate::exchange::ExchangeError;

#[derive(Debug, Default)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub fn byte(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    pub fn word(&mut self, value: u64) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub fn words(&mut self, values: &[u64]) -> &mut Self {
        self.word(values.len() as u64);
        for &value in values {
            self.word(value);
        }
        self
    }

    /// Bytes whose number both sides know.
    pub fn fixed(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub fn text(&mut self, text: &str) -> &mut Self {
        self.word(text.len() as u64).fixed(text.as_bytes())
    }

    pub fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }
}

/// How a message violates its format.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub &'static str);

impl Malformed {
    /// The error of the exchange `tag` for the message of `rank`.
    pub fn of(self, rank: usize, tag: &str) -> ExchangeError {
        ExchangeError::Protocol {
            rank,
            tag: tag.into(),
            what: self.0.into(),
        }
    }
}

type Read<T> = std::result::Result<T, Malformed>;

#[derive(Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader(bytes)
    }

    fn take(&mut self, bytes: usize) -> Read<&'a [u8]> {
        let (head, tail) = self
            .0
            .split_at_checked(bytes)
            .ok_or(Malformed("the message ends early"))?;
        self.0 = tail;
        Ok(head)
    }

    pub fn byte(&mut self) -> Read<u8> {
        Ok(self.take(1)?[0])
    }

    pub fn word(&mut self) -> Read<u64> {
        Ok(u64::from_le_bytes(self.fixed()?))
    }

    pub fn size(&mut self) -> Read<usize> {
        usize::try_from(self.word()?).map_err(|_| Malformed("a size beyond this machine's"))
    }

    pub fn words(&mut self) -> Read<Vec<u64>> {
        let bytes = self
            .size()?
            .checked_mul(8)
            .ok_or(Malformed("the message ends early"))?;
        let values = self.take(bytes)?.chunks_exact(8);
        Ok(values
            .map(|w| u64::from_le_bytes(w.try_into().unwrap_or_default()))
            .collect())
    }

    pub fn fixed<const N: usize>(&mut self) -> Read<[u8; N]> {
        let bytes = self.take(N)?;
        Ok(bytes.try_into().unwrap_or([0; N]))
    }

    pub fn text(&mut self) -> Read<String> {
        let bytes = self.size()?;
        Ok(String::from_utf8_lossy(self.take(bytes)?).into_owned())
    }

    pub fn end(&self) -> Read<()> {
        match self.0 {
            [] => Ok(()),
            _ => Err(Malformed("the message continues after its end")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_a_cut_message_is_an_error() {
        let message = Writer::default()
            .byte(7)
            .word(u64::MAX)
            .words(&[1, 2, 3])
            .fixed(&[9; 4])
            .text("hello")
            .finish();
        let read = |bytes: &[u8]| -> Read<()> {
            let mut reader = Reader::new(bytes);
            assert_eq!(reader.byte()?, 7);
            assert_eq!(reader.word()?, u64::MAX);
            assert_eq!(reader.words()?, [1, 2, 3]);
            assert_eq!(reader.fixed::<4>()?, [9; 4]);
            assert_eq!(reader.text()?, "hello");
            reader.end()
        };
        read(&message).unwrap();
        for cut in 0..message.len() {
            assert!(read(&message[..cut]).is_err(), "{cut} bytes");
        }
        assert!(read(&[&message[..], &[0]].concat()).is_err());
    }

    #[test]
    fn a_count_beyond_the_message_allocates_nothing() {
        for count in [u64::MAX, 1 << 61, 1 << 40] {
            let message = Writer::default().word(count).finish();
            assert!(Reader::new(&message).words().is_err());
            assert!(Reader::new(&message).text().is_err());
        }
    }
}
