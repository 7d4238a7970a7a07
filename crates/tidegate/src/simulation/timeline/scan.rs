//! A line of a timeline as words.

use crate::simulation::problem::Fault;

/// A run of characters without white space outside quotes, and where it begins in its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word<'a> {
    pub text: &'a str,
    pub start: usize,
}

impl Word<'_> {
    /// A fault of this word.
    pub fn fault(&self, message: impl Into<String>) -> Fault {
        Fault::new(self.start, self.text.len(), message)
    }

    /// The offset behind the word.
    pub const fn end(&self) -> usize {
        self.start + self.text.len()
    }
}

/// Splits a line into words; a word that begins with `#` begins a comment.
///
/// # Errors
/// A quote that is never closed.
pub(crate) fn words(line: &str) -> Result<Vec<Word<'_>>, Fault> {
    let mut words = Vec::new();
    let mut start = None;
    let mut quote = None;
    let mut escaped = false;
    for (at, c) in line.char_indices() {
        if quote.is_some() {
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '"' => quote = None,
                _ => {}
            }
        } else if c.is_whitespace() {
            if let Some(start) = start.take() {
                words.push(Word {
                    text: &line[start..at],
                    start,
                });
            }
        } else {
            if start.is_none() && c == '#' {
                return Ok(words);
            }
            start.get_or_insert(at);
            if c == '"' {
                quote = Some(at);
            }
        }
    }
    if let Some(opened) = quote {
        return Err(Fault::new(opened, 1, "this quote is never closed")
            .help("a quote inside quotes is written \\\""));
    }
    if let Some(start) = start {
        words.push(Word {
            text: &line[start..],
            start,
        });
    }
    Ok(words)
}

/// Reads the words of a line one after the other.
pub(crate) struct Cursor<'a> {
    words: &'a [Word<'a>],
    next: usize,
    /// Where a word that is missing would stand.
    end: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(words: &'a [Word<'a>]) -> Self {
        let end = words.last().map_or(0, Word::end);
        Self {
            words,
            next: 0,
            end,
        }
    }

    pub fn peek(&self) -> Option<Word<'a>> {
        self.words.get(self.next).copied()
    }

    pub fn take(&mut self) -> Option<Word<'a>> {
        let word = self.peek();
        self.next += usize::from(word.is_some());
        word
    }

    /// The next word, or a fault that says what is missing.
    pub fn expect(&mut self, what: &str) -> Result<Word<'a>, Fault> {
        self.take()
            .ok_or_else(|| Fault::new(self.end, 0, format!("{what} is missing here")))
    }

    /// The next word if it is this one.
    pub fn accept(&mut self, text: &str) -> bool {
        let found = self.peek().is_some_and(|word| word.text == text);
        self.next += usize::from(found);
        found
    }

    /// All words that are left.
    pub fn rest(&mut self) -> &'a [Word<'a>] {
        let rest = &self.words[self.next..];
        self.next = self.words.len();
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(line: &str) -> Vec<&str> {
        words(line)
            .unwrap()
            .into_iter()
            .map(|word| word.text)
            .collect()
    }

    #[test]
    fn words_end_at_white_space_outside_quotes_and_comments_are_left_out() {
        assert_eq!(
            texts("  0ms stage=\"GET /vips\"\ttake # the first"),
            ["0ms", "stage=\"GET /vips\"", "take"]
        );
        assert_eq!(texts("# all of it"), [""; 0]);
        assert_eq!(
            texts("a#b \"#\" \"q\\\"r s\""),
            ["a#b", "\"#\"", "\"q\\\"r s\""]
        );
    }

    #[test]
    fn an_open_quote_is_shown_where_it_opens() {
        assert_eq!(words("0ms \"asha take").unwrap_err().start, 4);
    }
}
