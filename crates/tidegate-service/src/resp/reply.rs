//! Answers as bytes, in the second and the third version of the protocol.

/// The version of the protocol that a connection speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Version {
    /// What every client speaks, and speaks first.
    #[default]
    Resp2,
    /// What `HELLO 3` asks for: maps, and one kind of null.
    Resp3,
}

/// The longest piece of a client's text that an error repeats.
const MAX_QUOTE: usize = 64;

/// Writes answers one behind the other.
#[derive(Debug)]
pub(crate) struct Replies<'a> {
    out: &'a mut Vec<u8>,
    /// Which version to write.
    pub version: Version,
}

impl<'a> Replies<'a> {
    pub(crate) fn new(out: &'a mut Vec<u8>, version: Version) -> Self {
        Self { out, version }
    }

    #[inline]
    fn line(&mut self, kind: u8, number: i64) {
        self.out.push(kind);
        let mut digits = itoa::Buffer::new();
        self.out.extend_from_slice(digits.format(number).as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    pub(crate) fn ok(&mut self) {
        self.simple("OK");
    }

    /// A short text of our own.
    pub(crate) fn simple(&mut self, text: &str) {
        self.out.push(b'+');
        self.out.extend_from_slice(text.as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    /// An error; its first word is its kind, in capitals. It may repeat what a client sent.
    pub(crate) fn error(&mut self, text: &str) {
        self.out.push(b'-');
        let printable = |byte: u8| if byte < b' ' { b' ' } else { byte };
        self.out.extend(text.bytes().map(printable));
        self.out.extend_from_slice(b"\r\n");
    }

    #[inline]
    pub(crate) fn int(&mut self, number: i64) {
        self.line(b':', number);
    }

    pub(crate) fn bulk(&mut self, bytes: &[u8]) {
        self.line(b'$', i64::try_from(bytes.len()).unwrap_or(i64::MAX));
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.bulk(text.as_bytes());
    }

    pub(crate) fn null(&mut self) {
        self.out.extend_from_slice(match self.version {
            Version::Resp2 => b"$-1\r\n",
            Version::Resp3 => b"_\r\n",
        });
    }

    /// So many answers in one.
    #[inline]
    pub(crate) fn array(&mut self, length: usize) {
        self.line(b'*', i64::try_from(length).unwrap_or(i64::MAX));
    }

    /// So many pairs of answers in one.
    pub(crate) fn map(&mut self, pairs: usize) {
        match self.version {
            Version::Resp2 => self.array(pairs * 2),
            Version::Resp3 => self.line(b'%', i64::try_from(pairs).unwrap_or(i64::MAX)),
        }
    }

    /// A row of numbers in one.
    #[inline]
    pub(crate) fn ints(&mut self, numbers: &[i64]) {
        self.array(numbers.len());
        for number in numbers {
            self.int(*number);
        }
    }
}

/// What a client sent, short enough and plain enough to repeat.
pub(crate) fn quote(bytes: &[u8]) -> String {
    let short = &bytes[..bytes.len().min(MAX_QUOTE)];
    let dots = if short.len() < bytes.len() { "..." } else { "" };
    format!("'{}{dots}'", short.escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(version: Version, write: impl Fn(&mut Replies<'_>)) -> String {
        let mut out = Vec::new();
        write(&mut Replies::new(&mut out, version));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn each_version_has_its_own_maps_and_nulls() {
        let write = |replies: &mut Replies<'_>| {
            replies.map(1);
            replies.text("key");
            replies.null();
        };
        assert_eq!(written(Version::Resp2, write), "*2\r\n$3\r\nkey\r\n$-1\r\n");
        assert_eq!(written(Version::Resp3, write), "%1\r\n$3\r\nkey\r\n_\r\n");
    }

    #[test]
    fn no_client_can_write_a_second_answer_into_an_error() {
        let evil = b"x\r\n+OK\r\n";
        let error = written(Version::Resp2, |replies| {
            replies.error(&format!("ERR unknown command {}", quote(evil)));
            replies.error("ERR two\r\nlines");
        });
        assert_eq!(
            error,
            "-ERR unknown command 'x\\r\\n+OK\\r\\n'\r\n-ERR two  lines\r\n"
        );
        assert!(quote(&[b'x'; 1000]).len() < 100);
    }
}
