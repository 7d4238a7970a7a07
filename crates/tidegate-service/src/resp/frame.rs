//! Commands out of bytes: arrays of bulk strings, and lines as people type them.
//!
//! Nothing is copied: arguments are ranges of the bytes that were received. What has been looked at
//! of a frame that is not complete yet is not looked at again, so a frame that comes byte by byte
//! costs no more than one that comes at once. A frame is bounded before its bytes are there: what it
//! announces counts, not what it brings.

use smallvec::SmallVec;

/// The longest frame, its framing included. Keys of limits are far shorter.
pub(crate) const MAX_FRAME: usize = 64 * 1024;

/// The most arguments of a command, its name included.
const MAX_ARGUMENTS: u32 = 64;

/// The longest line that stands for a command.
const MAX_LINE: usize = 4096;

/// The most digits of a length or a count.
const MAX_DIGITS: usize = 10;

/// Why no command can be made of what was sent. After one, nothing that follows can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    /// The count of an array of arguments.
    #[error("invalid multibulk length")]
    Count,
    /// More arguments than any command takes.
    #[error("a command has at most {MAX_ARGUMENTS} arguments")]
    Arguments,
    /// What stands where a bulk string should.
    #[error("expected '$', got '{}'", .0.escape_ascii())]
    NoBulk(u8),
    /// The length of a bulk string.
    #[error("invalid bulk length")]
    Length,
    /// A frame that is longer than any command.
    #[error("a command takes at most {MAX_FRAME} bytes")]
    TooLong,
    /// A bulk string that is longer or shorter than it said.
    #[error("a bulk string does not end where it said")]
    Ragged,
    /// A line that is no command.
    #[error("too big inline request")]
    Line,
    /// A browser, or something that was made to speak to the wrong port.
    #[error("this port speaks RESP, not HTTP")]
    Http,
}

/// Where in the bytes an argument is.
type Range = (u32, u32);

/// Reads one frame after another.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    /// How far the frame has been looked at.
    at: usize,
    /// How many arguments are still to come; none before the first line is read.
    missing: Option<u32>,
    /// The length of the bulk string that begins at `at`, once it is known.
    bulk: Option<usize>,
    arguments: SmallVec<[Range; 8]>,
}

/// A command: its name and what comes with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command<'a> {
    bytes: &'a [u8],
    arguments: &'a [Range],
}

impl<'a> Command<'a> {
    /// How many arguments there are, the name included. A frame may have none.
    pub(crate) fn len(&self) -> usize {
        self.arguments.len()
    }

    /// The argument at a place; the name is at 0.
    pub(crate) fn get(&self, place: usize) -> Option<&'a [u8]> {
        let (start, end) = self.arguments.get(place)?;
        self.bytes.get(*start as usize..*end as usize)
    }
}

impl Parser {
    /// Looks at a frame. `bytes` begins where the frame does, also when it is looked at again with
    /// more bytes than before. Returns the frame's length once it is complete.
    pub(crate) fn advance(&mut self, bytes: &[u8]) -> Result<Option<usize>, FrameError> {
        if self.missing.is_none() {
            match bytes.first() {
                None => return Ok(None),
                Some(b'*') => {
                    let Some((count, end)) = number(bytes, 1).map_err(|()| FrameError::Count)?
                    else {
                        return Ok(None);
                    };
                    // A count of 0 or below is a command of nothing.
                    let count = u32::try_from(count.max(0)).unwrap_or(u32::MAX);
                    if count > MAX_ARGUMENTS {
                        return Err(FrameError::Arguments);
                    }
                    self.missing = Some(count);
                    self.at = end;
                }
                Some(_) => return self.line(bytes),
            }
        }
        while self.missing != Some(0) {
            if !self.argument(bytes)? {
                return Ok(None);
            }
        }
        Ok(Some(self.at))
    }

    /// The command of the frame that is complete.
    pub(crate) fn command<'a>(&'a self, bytes: &'a [u8]) -> Command<'a> {
        Command {
            bytes,
            arguments: &self.arguments,
        }
    }

    /// Makes ready for the next frame.
    pub(crate) fn next(&mut self) {
        self.at = 0;
        self.missing = None;
        self.bulk = None;
        self.arguments.clear();
    }

    /// Looks at the next bulk string; false if it is not complete.
    fn argument(&mut self, bytes: &[u8]) -> Result<bool, FrameError> {
        let length = match self.bulk {
            Some(length) => length,
            None => {
                match bytes.get(self.at) {
                    None => return Ok(false),
                    Some(b'$') => {}
                    Some(other) => return Err(FrameError::NoBulk(*other)),
                }
                let found = number(bytes, self.at + 1).map_err(|()| FrameError::Length)?;
                let Some((length, end)) = found else {
                    return Ok(false);
                };
                let length = usize::try_from(length).map_err(|_| FrameError::Length)?;
                if end.saturating_add(length).saturating_add(2) > MAX_FRAME {
                    return Err(FrameError::TooLong);
                }
                self.at = end;
                self.bulk = Some(length);
                length
            }
        };
        let end = self.at + length;
        let Some(after) = bytes.get(end..end + 2) else {
            return Ok(false);
        };
        if after != b"\r\n" {
            return Err(FrameError::Ragged);
        }
        self.push(self.at, end);
        self.at = end + 2;
        self.bulk = None;
        self.missing = self.missing.map(|missing| missing - 1);
        Ok(true)
    }

    /// A command on a line, its words between blanks.
    fn line(&mut self, bytes: &[u8]) -> Result<Option<usize>, FrameError> {
        let Some(end) = memchr::memchr(b'\n', &bytes[self.at..]).map(|end| end + self.at) else {
            self.at = bytes.len();
            if self.at > MAX_LINE {
                return Err(FrameError::Line);
            }
            return Ok(None);
        };
        if end > MAX_LINE {
            return Err(FrameError::Line);
        }
        let mut start = 0;
        // The last of them is the end of the line, and no part of a word.
        for (place, byte) in bytes[..=end].iter().enumerate() {
            if byte.is_ascii_whitespace() {
                if place > start {
                    if self.arguments.len() == MAX_ARGUMENTS as usize {
                        return Err(FrameError::Arguments);
                    }
                    self.push(start, place);
                }
                start = place + 1;
            }
        }
        // A page in a browser can make it send such a request, with commands in its body.
        let first = self.command(bytes).get(0).unwrap_or_default();
        if [b"POST".as_slice(), b"Host:", b"GET"].contains(&first) && self.arguments.len() > 1 {
            return Err(FrameError::Http);
        }
        self.missing = Some(0);
        self.at = end + 1;
        Ok(Some(self.at))
    }

    fn push(&mut self, start: usize, end: usize) {
        // No frame is longer than `MAX_FRAME`.
        self.arguments.push((start as u32, end as u32));
    }
}

/// The number on the line that begins at a place, and where the line after it begins. None if the
/// line is not complete.
fn number(bytes: &[u8], start: usize) -> Result<Option<(i64, usize)>, ()> {
    let mut at = start;
    let negative = bytes.get(at) == Some(&b'-');
    if negative {
        at += 1;
    }
    let digits = at;
    let mut value = 0_i64;
    loop {
        match bytes.get(at) {
            None => return Ok(None),
            Some(digit @ b'0'..=b'9') if at - digits < MAX_DIGITS => {
                value = value * 10 + i64::from(digit - b'0');
            }
            Some(b'\r') if at > digits => break,
            Some(_) => return Err(()),
        }
        at += 1;
    }
    match bytes.get(at + 1) {
        None => Ok(None),
        Some(b'\n') => Ok(Some((if negative { -value } else { value }, at + 2))),
        Some(_) => Err(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// All commands of some bytes, and the error that ends them; the bytes come in pieces.
    fn read(pieces: &[&[u8]]) -> (Vec<Vec<Vec<u8>>>, Option<FrameError>) {
        let (mut held, mut parser, mut commands) = (Vec::new(), Parser::default(), Vec::new());
        for piece in pieces {
            held.extend_from_slice(piece);
            let mut used = 0;
            loop {
                match parser.advance(&held[used..]) {
                    Ok(Some(length)) => {
                        let command = parser.command(&held[used..]);
                        let words = (0..command.len()).map(|n| command.get(n).unwrap().to_vec());
                        commands.push(words.collect());
                        used += length;
                        parser.next();
                    }
                    Ok(None) => break,
                    Err(error) => return (commands, Some(error)),
                }
            }
            held.drain(..used);
            assert!(held.len() <= MAX_FRAME, "{} bytes are held", held.len());
        }
        (commands, None)
    }

    fn words(words: &[&str]) -> Vec<Vec<u8>> {
        words.iter().map(|word| word.as_bytes().to_vec()).collect()
    }

    #[test]
    fn commands_come_as_arrays_and_as_lines() {
        let bytes =
            b"*2\r\n$4\r\nPING\r\n$2\r\nhi\r\nPING  there\r\n\n*0\r\n*-1\r\n*1\r\n$0\r\n\r\nQUIT\n";
        let (commands, error) = read(&[bytes]);
        assert_eq!(error, None);
        let expected = [
            words(&["PING", "hi"]),
            words(&["PING", "there"]),
            vec![],
            vec![],
            vec![],
            words(&[""]),
            words(&["QUIT"]),
        ];
        assert_eq!(commands, expected);
    }

    #[test]
    fn what_cannot_be_a_command_is_refused_before_it_is_held() {
        for (bytes, expected) in [
            ("*1\r\n$536870912\r\n", FrameError::TooLong),
            ("*1\r\n$9999999999\r\n", FrameError::TooLong),
            ("*1\r\n$99999999999\r\n", FrameError::Length),
            ("*1\r\n$-1\r\n", FrameError::Length),
            ("*1\r\n$\r\n", FrameError::Length),
            ("*1\r\n$1 \r\n", FrameError::Length),
            ("*1\r\n$1\n", FrameError::Length),
            ("*1\r\n*1\r\n*1\r\n", FrameError::NoBulk(b'*')),
            ("*1\r\n:1\r\n", FrameError::NoBulk(b':')),
            ("*65\r\n", FrameError::Arguments),
            ("*9999999999\r\n", FrameError::Arguments),
            ("*+1\r\n", FrameError::Count),
            ("*\r\n", FrameError::Count),
            ("*1\r\n$2\r\nabc\r\n", FrameError::Ragged),
            ("GET / HTTP/1.1\r\n", FrameError::Http),
            ("Host: localhost\r\n", FrameError::Http),
        ] {
            assert_eq!(
                read(&[bytes.as_bytes()]),
                (vec![], Some(expected)),
                "{bytes:?}"
            );
        }
        let line = "x".repeat(MAX_LINE + 1);
        assert_eq!(read(&[line.as_bytes()]).1, Some(FrameError::Line));
        let words = "x ".repeat(65) + "\n";
        assert_eq!(read(&[words.as_bytes()]).1, Some(FrameError::Arguments));
    }

    #[test]
    fn two_bulk_strings_may_not_be_longer_together_than_a_frame() {
        let half = MAX_FRAME / 2;
        let first = format!("*2\r\n${half}\r\n{}\r\n", "x".repeat(half));
        let second = format!("${half}\r\n");
        let (commands, error) = read(&[first.as_bytes(), second.as_bytes()]);
        assert_eq!((commands, error), (vec![], Some(FrameError::TooLong)));
    }

    /// Pieces of a protocol that random bytes would hardly ever make.
    fn piece() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            Just(b"*3\r\n$7\r\nTG.TAKE\r\n$1\r\na\r\n$1\r\nb\r\n".to_vec()),
            Just(b"PING\r\n".to_vec()),
            Just(b"\r\n".to_vec()),
            "[*$:+-]?[0-9-]{0,12}(\r|\n|\r\n)".prop_map(String::into_bytes),
            proptest::collection::vec(any::<u8>(), 0..40),
            proptest::collection::vec(any::<u8>(), 0..40).prop_map(|bulk| {
                let mut bytes = format!("*1\r\n${}\r\n", bulk.len()).into_bytes();
                bytes.extend(bulk);
                bytes.extend(b"\r\n");
                bytes
            }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_split_of_any_bytes_gives_the_same_commands(
            pieces in proptest::collection::vec(piece(), 0..8),
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let bytes = pieces.concat();
            let whole = read(&[&bytes]);
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.sort_unstable();
            let (mut parts, mut start) = (Vec::new(), 0);
            for cut in cuts {
                parts.push(&bytes[start..cut]);
                start = cut;
            }
            parts.push(&bytes[start..]);
            prop_assert_eq!(&read(&parts), &whole);
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            prop_assert_eq!(&read(&single), &whole);
        }

        #[test]
        fn commands_are_what_was_written(
            commands in proptest::collection::vec(
                proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..100), 1..10), 0..10,
            ),
        ) {
            let mut bytes = Vec::new();
            for command in &commands {
                bytes.extend(format!("*{}\r\n", command.len()).into_bytes());
                for word in command {
                    bytes.extend(format!("${}\r\n", word.len()).into_bytes());
                    bytes.extend(word);
                    bytes.extend(b"\r\n");
                }
            }
            prop_assert_eq!(read(&[&bytes]), (commands, None));
        }
    }
}
