//! The body: numbers of varying length and texts, one after the other.

use tidegate_core::Words;

use super::{PolicyWords, SnapshotError, SnapshotHead};
use tidegate_core::Timestamp;

/// The bytes of a body, as they are made.
#[derive(Debug, Default)]
pub struct BodyWriter(pub Vec<u8>);

impl BodyWriter {
    /// A number: seven bits a byte, the lowest first, the top bit where more follow.
    pub fn word(&mut self, mut word: u64) {
        while word >= 0x80 {
            self.0.push(word.to_le_bytes()[0] | 0x80);
            word >>= 7;
        }
        self.0.push(word.to_le_bytes()[0]);
    }

    /// Numbers.
    pub fn words(&mut self, words: &[u64]) {
        for word in words {
            self.word(*word);
        }
    }

    /// A number whose bits are all alike, in eight bytes.
    pub fn fixed(&mut self, word: u64) {
        self.0.extend(word.to_le_bytes());
    }

    /// A text with its length.
    pub fn text(&mut self, text: &str) {
        self.word(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
    }

    /// A policy: the words' count, the words, and the calendar's name if there is one.
    pub fn policy(&mut self, policy: &PolicyWords) {
        self.word(policy.words.len() as u64);
        self.words(&policy.words);
        self.word(policy.calendar.is_some().into());
        if let Some(calendar) = &policy.calendar {
            self.text(calendar);
        }
    }

    /// What comes before the states.
    pub fn head(&mut self, head: &SnapshotHead) {
        self.text(&head.name);
        self.fixed(head.seed.0);
        self.fixed(head.seed.1);
        self.word(head.taken_at.as_micros());
        self.policy(&head.policy);
    }
}

/// A body, as it is read: each method takes what it reads away.
#[derive(Clone, Copy, Debug)]
pub struct BodyReader<'a>(pub &'a [u8]);

impl<'a> BodyReader<'a> {
    /// A number.
    pub fn word(&mut self) -> Option<u64> {
        let mut word = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7F);
            if bits << shift >> shift != bits {
                return None;
            }
            word |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(word);
            }
        }
        None
    }

    /// A number in eight bytes.
    pub fn fixed(&mut self) -> Option<u64> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*bytes))
    }

    /// A text.
    pub fn text(&mut self) -> Option<&'a str> {
        let length = usize::try_from(self.word()?).ok()?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        std::str::from_utf8(text).ok()
    }

    /// A policy.
    pub fn policy(&mut self) -> Option<PolicyWords> {
        let count = self.word()?;
        // No promise is believed: this ends where the words do.
        let words: Vec<u64> = (0..count).map_while(|_| self.word()).collect();
        if words.len() as u64 != count {
            return None;
        }
        let calendar = match self.word()? {
            0 => None,
            _ => Some(self.text()?.to_owned()),
        };
        Some(PolicyWords { words, calendar })
    }

    /// What comes before the states.
    ///
    /// # Errors
    /// It is not that.
    pub fn head(&mut self) -> Result<SnapshotHead, SnapshotError> {
        let mut read = || {
            Some(SnapshotHead {
                name: self.text()?.to_owned(),
                seed: (self.fixed()?, self.fixed()?),
                taken_at: Timestamp::from_micros(self.word()?).ok()?,
                policy: self.policy()?,
            })
        };
        read().ok_or(SnapshotError::Damaged)
    }
}

impl Words for BodyReader<'_> {
    fn next_word(&mut self) -> Option<u64> {
        self.word()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_all_lengths_are_read_as_written() {
        for bits in 0..64 {
            for word in [1_u64 << bits, (1 << bits) - 1, u64::MAX >> bits] {
                let mut body = BodyWriter::default();
                body.word(word);
                let mut reader = BodyReader(&body.0);
                assert_eq!(reader.word(), Some(word));
                assert!(reader.0.is_empty());
            }
        }
    }

    #[test]
    fn a_number_beyond_64_bits_and_one_without_an_end_are_none() {
        assert_eq!(BodyReader(&[0xFF; 9]).word(), None);
        assert_eq!(BodyReader(&[0xFF; 20]).word(), None);
        let mut beyond = [0xFF; 10];
        beyond[9] = 0x02;
        assert_eq!(BodyReader(&beyond).word(), None);
        beyond[9] = 0x01;
        assert_eq!(BodyReader(&beyond).word(), Some(u64::MAX));
    }

    #[test]
    fn a_promise_of_length_is_not_believed() {
        let mut body = BodyWriter::default();
        body.word(u64::MAX);
        assert_eq!(BodyReader(&body.0).text(), None);
        assert_eq!(BodyReader(&body.0).policy(), None);
    }
}
