//! What is wrong with a line of input, shown to a person: the line, a caret, the remedy.

use std::fmt;
use std::sync::Arc;

/// How much of a long line is shown around the caret, in characters.
const SHOWN: usize = 100;

/// A fault in one line of a trace or timeline.
///
/// Its text form is a paragraph of several lines that ends without a line break:
///
/// ```text
/// a length of time needs a unit: us, ms, s, m, h or d
///  --> calls.timeline:3:1
///   |
/// 3 | 500 asha take 1
///   | ^^^
///   |
///   = help: write 500ms if milliseconds are meant
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    source: Arc<str>,
    line: u64,
    column: usize,
    width: usize,
    shown: String,
    caret_at: usize,
    message: String,
    remedy: Option<String>,
}

/// A fault at a place inside a line whose number and file the caller knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// Byte offset in the line.
    pub start: usize,
    /// Bytes that the caret covers; 0 points between two characters.
    pub length: usize,
    /// What is wrong, in lower case without a full stop.
    pub message: String,
    /// What to do about it.
    pub remedy: Option<String>,
}

impl Fault {
    pub(crate) fn new(start: usize, length: usize, message: impl Into<String>) -> Self {
        Self {
            start,
            length,
            message: message.into(),
            remedy: None,
        }
    }

    /// A fault of a line as a whole.
    pub(crate) fn line(message: impl Into<String>) -> Self {
        Self::new(0, usize::MAX, message)
    }

    pub(crate) fn help(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }
}

impl Problem {
    pub(crate) fn new(source: &Arc<str>, line: u64, text: &[u8], fault: Fault) -> Self {
        let start = fault.start.min(text.len());
        let end = start.saturating_add(fault.length).min(text.len());
        let before = printable(&text[..start]);
        let marked = printable(&text[start..end]);
        let after = printable(&text[end..]);
        let column = before.chars().count() + 1;
        let width = marked.chars().count().clamp(1, SHOWN);

        // A window around the caret: an access log's line can be longer than any terminal.
        let skip = (column - 1).saturating_sub(SHOWN / 2);
        let whole: Vec<char> = before
            .chars()
            .chain(marked.chars())
            .chain(after.chars())
            .collect();
        let skip = if whole.len() <= SHOWN {
            0
        } else {
            skip.min(whole.len() - SHOWN)
        };
        let upto = (skip + SHOWN).min(whole.len());
        let mut shown = String::new();
        if skip > 0 {
            shown.push('…');
        }
        shown.extend(&whole[skip..upto]);
        if upto < whole.len() {
            shown.push('…');
        }
        let caret_at = column - 1 - skip + usize::from(skip > 0);
        Self {
            source: Arc::clone(source),
            line,
            column,
            width: width.min(SHOWN.saturating_sub(column - 1 - skip).max(1)),
            shown,
            caret_at,
            message: fault.message,
            remedy: fault.remedy,
        }
    }

    /// The file, as the user named it.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The line, counted from 1.
    #[must_use]
    pub const fn line(&self) -> u64 {
        self.line
    }

    /// The column, counted in characters from 1.
    #[must_use]
    pub const fn column(&self) -> usize {
        self.column
    }

    /// What is wrong, in one sentence without a full stop.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// What to do about it, where that is known.
    #[must_use]
    pub fn remedy(&self) -> Option<&str> {
        self.remedy.as_deref()
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.line.to_string();
        let margin = number.len();
        writeln!(f, "{}", self.message)?;
        writeln!(
            f,
            "{:margin$}--> {}:{}:{}",
            "", self.source, self.line, self.column
        )?;
        writeln!(f, "{:margin$} |", "")?;
        writeln!(f, "{number} | {}", self.shown)?;
        write!(f, "{:margin$} | {:indent$}", "", "", indent = self.caret_at)?;
        write!(f, "{:^>width$}", "", width = self.width)?;
        if let Some(remedy) = &self.remedy {
            write!(f, "\n{:margin$} |\n{:margin$} = help: {remedy}", "", "")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problem {}

/// Text that cannot move the cursor: a log line is whatever a stranger sent.
fn printable(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes)
        .chars()
        .map(|c| match c {
            '\t' => ' ',
            c if c.is_control() => char::REPLACEMENT_CHARACTER,
            c => c,
        })
        .collect()
}

/// The known word nearest to a mistyped one, if one is near enough to be meant.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // The distance takes quadratic time; nobody mistypes a known word into a very long one.
    let word = word.get(..32).unwrap_or(word);
    known
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(word, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= candidate.len().div_ceil(3))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_shows_the_line_and_points_at_the_word() {
        let fault = Fault::new(0, 3, "a time needs a unit").help("write 500ms");
        let problem = Problem::new(&"calls.timeline".into(), 12, b"500 asha take", fault);
        assert_eq!(
            problem.to_string(),
            "a time needs a unit\n  --> calls.timeline:12:1\n   |\n12 | 500 asha take\n   | ^^^\n   |\n   = help: write 500ms"
        );
    }

    #[test]
    fn a_long_line_is_cut_around_the_caret_and_control_characters_are_shown_as_marks() {
        let mut text = vec![b'x'; 5_000];
        text[4_000] = 0x1b;
        let problem = Problem::new(&"log".into(), 1, &text, Fault::new(4_000, 1, "no"));
        let shown = problem.to_string();
        assert!(shown.contains(":4001\n"), "{shown}");
        assert!(
            shown.lines().all(|line| line.chars().count() < 120),
            "{shown}"
        );
        let lines: Vec<&str> = shown.lines().collect();
        let caret = lines[4].chars().position(|c| c == '^').unwrap();
        assert_eq!(
            lines[3].chars().nth(caret),
            Some(char::REPLACEMENT_CHARACTER)
        );
    }

    #[test]
    fn a_slip_of_the_finger_is_recognised_and_another_word_is_not() {
        assert_eq!(nearest("aquire", ["acquire", "take"]), Some("acquire"));
        assert_eq!(nearest("banana", ["acquire", "take"]), None);
    }
}
