//! Lines of a file, without an allocation for each.

use std::io::{self, Read};

/// The longest line that is read; what is longer is reported and skipped.
pub(crate) const MAX_LINE: usize = 1 << 20;

/// How much is read at once.
const CHUNK: usize = 1 << 17;

/// Splits what a reader yields into lines.
pub(crate) struct Lines<R> {
    reader: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    ended: bool,
    number: u64,
    too_long: bool,
}

/// A line without its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    /// Counted from 1.
    pub number: u64,
    pub text: &'a [u8],
    /// Whether this is only the beginning of a line that is longer than [`MAX_LINE`].
    pub cut: bool,
}

impl<R: Read> Lines<R> {
    pub fn new(reader: R) -> Self {
        Self {
            reader,
            buffer: vec![0; CHUNK],
            start: 0,
            end: 0,
            ended: false,
            number: 0,
            too_long: false,
        }
    }

    /// How many lines have been read.
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// What is buffered already, without taking it; reads once more if that is less than a line.
    pub fn preview(&mut self) -> io::Result<&[u8]> {
        while !self.ended && memchr::memchr(b'\n', &self.buffer[self.start..self.end]).is_none() {
            if self.end - self.start >= MAX_LINE {
                break;
            }
            self.fill()?;
        }
        Ok(without_mark(
            &self.buffer[self.start..self.end],
            self.number == 0,
        ))
    }

    /// The next line; none at the end.
    pub fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        let mut searched = self.start;
        loop {
            if let Some(found) = memchr::memchr(b'\n', &self.buffer[searched..self.end]) {
                let (from, to) = (self.start, searched + found);
                self.start = to + 1;
                if std::mem::take(&mut self.too_long) {
                    // The end of a line that has been returned, cut, before.
                    searched = self.start;
                    continue;
                }
                return Ok(Some(self.line(from, to)));
            }
            searched = self.end;
            if self.ended {
                let (from, to) = (self.start, self.end);
                self.start = self.end;
                if from == to || std::mem::take(&mut self.too_long) {
                    return Ok(None);
                }
                return Ok(Some(self.line(from, to)));
            }
            if self.end - self.start >= MAX_LINE {
                let (from, to) = (self.start, self.end);
                self.start = self.end;
                if !std::mem::replace(&mut self.too_long, true) {
                    let line = self.line(from, to);
                    return Ok(Some(Line { cut: true, ..line }));
                }
            }
            let kept = searched - self.start;
            self.fill()?;
            searched = self.start + kept;
        }
    }

    fn line(&mut self, from: usize, to: usize) -> Line<'_> {
        self.number += 1;
        let text = without_mark(&self.buffer[from..to], self.number == 1);
        Line {
            number: self.number,
            text: text.strip_suffix(b"\r").unwrap_or(text),
            cut: false,
        }
    }

    fn fill(&mut self) -> io::Result<()> {
        if self.start > 0 && self.buffer.len() - self.end < CHUNK / 2 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.buffer.len() - self.end < CHUNK / 2 {
            self.buffer.resize(self.buffer.len() + CHUNK, 0);
        }
        loop {
            match self.reader.read(&mut self.buffer[self.end..]) {
                Ok(0) => self.ended = true,
                Ok(read) => self.end += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            return Ok(());
        }
    }
}

/// What follows a byte order mark, which some editors put before the first line.
fn without_mark(text: &[u8], first: bool) -> &[u8] {
    text.strip_prefix("\u{feff}".as_bytes())
        .filter(|_| first)
        .unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A reader that yields a few bytes at a time.
    struct Dribble<'a>(&'a [u8], usize);

    impl Read for Dribble<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let take = self.0.len().min(self.1).min(out.len());
            let (now, later) = self.0.split_at(take);
            out[..take].copy_from_slice(now);
            self.0 = later;
            Ok(take)
        }
    }

    fn all(input: &[u8], step: usize) -> Vec<(u64, Vec<u8>, bool)> {
        let mut lines = Lines::new(Dribble(input, step));
        let mut out = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            out.push((line.number, line.text.to_vec(), line.cut));
        }
        out
    }

    #[test]
    fn a_line_beyond_the_bound_is_cut_once_and_its_rest_is_skipped() {
        let mut input = vec![b'a'; MAX_LINE * 2 + 77];
        input.extend_from_slice(b"\nnext\r\nlast");
        let lines = all(&input, 40_000);
        assert_eq!(lines.len(), 3);
        assert!(lines[0].2 && lines[0].1.len() >= MAX_LINE && lines[0].1.len() < MAX_LINE + CHUNK);
        assert_eq!(lines[1], (2, b"next".to_vec(), false));
        assert_eq!(lines[2], (3, b"last".to_vec(), false));
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_first_line() {
        let lines = all("\u{feff}a\n\u{feff}b".as_bytes(), 1);
        assert_eq!(lines[0].1, b"a");
        assert_eq!(lines[1].1, "\u{feff}b".as_bytes());
        let mut lines = Lines::new("\u{feff}a\n".as_bytes());
        assert_eq!(lines.preview().unwrap(), b"a\n");
    }

    proptest! {
        #[test]
        fn lines_are_those_of_the_text_however_it_arrives(
            text in "[a\r\n]{0,200}", step in 1_usize..9,
        ) {
            let expected: Vec<Vec<u8>> =
                text.split_terminator('\n').map(|l| l.strip_suffix('\r').unwrap_or(l).into()).collect();
            let lines = all(text.as_bytes(), step);
            prop_assert_eq!(lines.iter().map(|l| l.1.clone()).collect::<Vec<_>>(), expected);
            prop_assert!(lines.iter().zip(1..).all(|(line, number)| line.0 == number));
        }
    }
}
