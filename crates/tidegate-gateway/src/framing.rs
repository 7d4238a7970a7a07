//! A strict reader of HTTP/1 message framing, in front of the parser that serves the request.
//!
//! Two parties that disagree on where a message ends let one request hide inside another. The
//! parser behind mends some of what is ambiguous; this reader refuses it instead: a line that does
//! not end in CRLF, a folded line, a length beside a transfer coding, more than one of either, a
//! coding other than `chunked`. It follows the bodies only to know where the next head begins.
//!
//! The reader is handed every byte in the order it arrives and answers with the place of the first
//! byte that must not pass. What it accepts, the parser behind reads in the same way.
//!
//! Source: RFC 9112, sections 2.2, 5.2 and 6.3.

/// Where the reader is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the first byte of a head; empty lines are skipped.
    Between,
    /// In the request line or a field line.
    Head,
    /// In a body: so many bytes are left.
    Sized(u64),
    /// In the line that says how long a chunk is.
    ChunkLine,
    /// In a chunk: so many bytes are left, the line end behind it included.
    Chunk(u64),
    /// In the lines after the last chunk.
    Trailers,
    /// Something was refused: nothing more may pass.
    Refused,
}

/// Where a message stands, for time-outs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Between messages: nothing of the next one has come.
    Between,
    /// A head has begun and is not complete.
    Head,
    /// A body, its chunk lines and trailers included.
    Body,
}

/// The longest chunk line: a size, and extensions that nobody needs.
const MAX_CHUNK_LINE: usize = 4096;

/// The longest head that is watched; the parser behind refuses one long before.
const MAX_LINE: usize = 128 * 1024;

/// The reader of one connection.
#[derive(Debug)]
pub struct Framing {
    state: State,
    /// What has come of a line whose end has not.
    partial: Vec<u8>,
    length: Option<u64>,
    chunked: bool,
    request_line: bool,
}

impl Default for Framing {
    fn default() -> Self {
        Self {
            state: State::Between,
            partial: Vec::new(),
            length: None,
            chunked: false,
            request_line: false,
        }
    }
}

impl Framing {
    /// Where the message stands after the bytes seen so far.
    #[must_use]
    pub fn place(&self) -> Place {
        match self.state {
            State::Between => Place::Between,
            State::Head => Place::Head,
            _ => Place::Body,
        }
    }

    /// Takes the next bytes.
    ///
    /// # Errors
    /// The place of the first byte that must not pass; after that nothing more may.
    pub fn read(&mut self, bytes: &[u8]) -> Result<(), usize> {
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            match self.state {
                State::Refused => return Err(at),
                State::Between if !self.partial.is_empty() || matches!(rest[0], b'\r' | b'\n') => {
                    at += self.empty_line(rest, at)?;
                }
                State::Between => {
                    self.state = State::Head;
                    self.request_line = true;
                    (self.length, self.chunked) = (None, false);
                }
                State::Sized(left) => {
                    let taken = left.min(rest.len() as u64);
                    self.state = if taken == left {
                        State::Between
                    } else {
                        State::Sized(left - taken)
                    };
                    at += taken as usize;
                }
                State::Chunk(left) => {
                    let taken = left.min(rest.len() as u64);
                    self.state = if taken == left {
                        State::ChunkLine
                    } else {
                        State::Chunk(left - taken)
                    };
                    at += taken as usize;
                }
                State::Head | State::ChunkLine | State::Trailers => {
                    at += self.line(rest, at)?;
                }
            }
        }
        Ok(())
    }

    /// An empty line before a head: it must be a whole CRLF.
    fn empty_line(&mut self, rest: &[u8], at: usize) -> Result<usize, usize> {
        let expected = if self.partial.is_empty() {
            b'\r'
        } else {
            b'\n'
        };
        if rest[0] != expected {
            self.state = State::Refused;
            return Err(at);
        }
        if expected == b'\r' {
            self.partial.push(b'\r');
        } else {
            self.partial.clear();
        }
        Ok(1)
    }

    /// Takes the bytes up to the end of a line, or all where it does not end.
    fn line(&mut self, rest: &[u8], at: usize) -> Result<usize, usize> {
        let Some(end) = memchr::memchr(b'\n', rest) else {
            self.partial.extend_from_slice(rest);
            let most = if self.state == State::ChunkLine {
                MAX_CHUNK_LINE
            } else {
                MAX_LINE
            };
            if self.partial.len() > most {
                self.state = State::Refused;
                return Err(at);
            }
            return Ok(rest.len());
        };
        let next = if self.partial.is_empty() {
            self.whole_line(&rest[..end])
        } else {
            self.partial.extend_from_slice(&rest[..end]);
            let mut line = std::mem::take(&mut self.partial);
            let next = self.whole_line(&line);
            line.clear();
            self.partial = line;
            next
        };
        match next {
            Some(state) => {
                self.state = state;
                Ok(end + 1)
            }
            None => {
                self.state = State::Refused;
                Err(at + end)
            }
        }
    }

    /// What follows a line, which still has its CR; none if the line is refused.
    fn whole_line(&mut self, line: &[u8]) -> Option<State> {
        let line = line.strip_suffix(b"\r")?;
        match self.state {
            State::ChunkLine => {
                let size = chunk_size(line)?;
                if size == 0 {
                    return Some(State::Trailers);
                }
                // The line end behind the chunk is left to the parser, which insists on it.
                Some(State::Chunk(size.checked_add(2)?))
            }
            State::Trailers if line.is_empty() => Some(State::Between),
            State::Trailers => (!is_folded(line)).then_some(State::Trailers),
            _ if self.request_line => {
                self.request_line = false;
                (!line.is_empty()).then_some(State::Head)
            }
            _ if line.is_empty() => Some(match (self.chunked, self.length) {
                (true, _) => State::ChunkLine,
                (false, None | Some(0)) => State::Between,
                (false, Some(length)) => State::Sized(length),
            }),
            _ => self.field(line),
        }
    }

    /// A field line of the head: only the two that say how long the body is are looked at.
    fn field(&mut self, line: &[u8]) -> Option<State> {
        if is_folded(line) {
            return None;
        }
        if let Some(value) = value_of(line, b"content-length") {
            if self.length.is_some() || self.chunked {
                return None;
            }
            self.length = Some(decimal(value)?);
        } else if let Some(value) = value_of(line, b"transfer-encoding") {
            if self.length.is_some() || self.chunked || !value.eq_ignore_ascii_case(b"chunked") {
                return None;
            }
            self.chunked = true;
        }
        Some(State::Head)
    }
}

fn is_folded(line: &[u8]) -> bool {
    matches!(line.first(), Some(b' ' | b'\t'))
}

/// The value of a field line whose name is `name`, without the white space around it.
///
/// White space before the colon counts as the name's: the parser behind refuses such a line, and
/// if it did not, the field would still be seen here.
fn value_of<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    if !line.get(..name.len())?.eq_ignore_ascii_case(name) {
        return None;
    }
    let value = line[name.len()..].trim_ascii_start().strip_prefix(b":")?;
    Some(value.trim_ascii())
}

fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Source: RFC 9112, section 7.1.
fn chunk_size(line: &[u8]) -> Option<u64> {
    if line.len() > MAX_CHUNK_LINE {
        return None;
    }
    let size = line.split(|byte| *byte == b';').next()?.trim_ascii_end();
    if size.is_empty() || size.len() > 15 || !size.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(size).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reads a text in pieces of every size up to its own, and wants one answer.
    #[track_caller]
    fn reads(text: &str) -> Result<Place, usize> {
        let whole = read_in(text.as_bytes(), text.len().max(1));
        for size in 1..text.len() {
            assert_eq!(read_in(text.as_bytes(), size), whole, "in pieces of {size}");
        }
        whole
    }

    fn read_in(bytes: &[u8], size: usize) -> Result<Place, usize> {
        let mut framing = Framing::default();
        for (piece, chunk) in bytes.chunks(size).enumerate() {
            framing.read(chunk).map_err(|at| piece * size + at)?;
        }
        Ok(framing.place())
    }

    #[test]
    fn ordinary_messages_pass_and_end_where_they_say() {
        for text in [
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
            "POST / HTTP/1.1\r\nCONTENT-LENGTH:5  \r\n\r\nhelloGET / HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nA \r\n0123456789\r\n0\r\nx: y\r\n\r\n",
            "PUT / HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
        ] {
            assert_eq!(reads(text), Ok(Place::Between), "{text:?}");
        }
    }

    #[test]
    fn the_place_is_known_in_the_middle_of_a_message() {
        assert_eq!(reads(""), Ok(Place::Between));
        assert_eq!(reads("G"), Ok(Place::Head));
        assert_eq!(reads("GET / HTTP/1.1\r\nHost: a\r\n"), Ok(Place::Head));
        assert_eq!(
            reads("POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhell"),
            Ok(Place::Body)
        );
        assert_eq!(
            reads("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"),
            Ok(Place::Body)
        );
    }

    #[test]
    fn what_two_parties_may_read_differently_is_refused() {
        for head in [
            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
            "Content-Length: 5\r\nContent-Length: 5\r\n",
            "Content-Length: 5\r\nContent-Length: 6\r\n",
            "Content-Length: 5, 5\r\n",
            "Content-Length: +5\r\n",
            "Content-Length: -1\r\n",
            "Content-Length: 0x5\r\n",
            "Content-Length:\r\n",
            "Content-Length: 99999999999999999999\r\n",
            "Content-Length : 5\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: gzip, chunked\r\n",
            "Transfer-Encoding: identity\r\n",
            "Transfer-Encoding: xchunked\r\n",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            "X: a\r\n b\r\n",
            "X: a\r\n\tb\r\n",
            " X: a\r\n",
            "X: a\n",
            "\n",
        ] {
            let text = format!("POST / HTTP/1.1\r\n{head}\r\n");
            assert!(reads(&text).is_err(), "{text:?}");
        }
        for text in [
            "GET / HTTP/1.1\n\n",
            "\nGET / HTTP/1.1\r\n\r\n",
            "\r\r\n",
            "\rGET / HTTP/1.1\r\n\r\n",
        ] {
            assert!(reads(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn chunk_lines_that_may_be_read_differently_are_refused() {
        for line in [
            "5\n",
            "\r\n",
            "0x5\r\n",
            "-1\r\n",
            "5 5\r\n",
            "g\r\n",
            "fffffffffffffffff\r\n",
            " 5\r\n",
        ] {
            let text = format!("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{line}");
            assert!(reads(&text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn nothing_passes_after_a_refusal() {
        let mut framing = Framing::default();
        assert!(framing.read(b"GET / HTTP/1.1\nx").is_err());
        assert_eq!(framing.read(b"GET / HTTP/1.1\r\n\r\n"), Err(0));
    }

    #[test]
    fn a_chunk_line_that_never_ends_is_refused() {
        let mut framing = Framing::default();
        framing
            .read(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5;")
            .unwrap();
        let refused = (0..10).any(|_| framing.read(&[b'a'; 1024]).is_err());
        assert!(refused);
    }

    proptest! {
        #[test]
        fn the_answer_does_not_hang_on_how_the_bytes_are_cut(
            text in "(GET|POST) / HTTP/1.1\r\n((Content-Length: [0-9]|Transfer-Encoding: chunked|X: [a-z ]|[ -~]{0,8})(\r\n|\n)){0,4}\r\n([0-9a-f;]{0,3}\r?\n?){0,6}",
            size in 1_usize..9,
        ) {
            prop_assert_eq!(read_in(text.as_bytes(), size), read_in(text.as_bytes(), 1));
        }

        #[test]
        fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read_in(&bytes, 7);
        }
    }
}
