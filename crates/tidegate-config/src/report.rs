//! What is wrong with a document, where, and what to do about it.
//!
//! A report is drawn the way compilers draw theirs: the line, a caret under the place, a remedy
//! below. Without colour it is plain text, so that it can be compared and mailed.

use std::fmt;

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{Annotation, AnnotationKind, Group, Level, Renderer, Snippet};
use serde::Serialize;

/// A stretch of a file, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first byte.
    pub start: usize,
    /// The byte behind the last one.
    pub end: usize,
}

/// How bad a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The document cannot be used.
    Error,
    /// The document can be used, but probably does not do what was meant.
    Warning,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// How bad it is.
    pub severity: Severity,
    /// The stable code of a lint, such as `TG-LINT-001`; errors have none.
    pub code: Option<&'static str>,
    /// What is wrong.
    pub message: String,
    /// Where; none where there is no file.
    pub span: Option<Span>,
    /// What stands under the caret.
    pub label: Option<String>,
    /// Another place that matters, and why.
    pub related: Vec<(Span, String)>,
    /// What to do, one remedy each.
    pub help: Vec<String>,
    line: Option<(u64, u64)>,
}

impl Problem {
    /// An error without a place yet.
    #[must_use]
    pub fn error(message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            code: None,
            message: message.into(),
            span: None,
            label: None,
            related: Vec::new(),
            help: Vec::new(),
            line: None,
        }
    }

    /// A lint without a place yet.
    #[must_use]
    pub fn warning(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Warning,
            code: Some(code),
            ..Self::error(message)
        }
    }

    /// The same problem at a place.
    #[must_use]
    pub fn at(mut self, span: Option<Span>) -> Self {
        self.span = span;
        self
    }

    /// The same problem at a line and column, counted from 1, where no bytes are known.
    pub(crate) fn at_line(mut self, line: u64, column: u64) -> Self {
        self.line = Some((line, column));
        self
    }

    /// The same problem with words under its caret.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// The same problem with another place that matters.
    #[must_use]
    pub fn see(mut self, span: Option<Span>, label: impl Into<String>) -> Self {
        if let Some(span) = span {
            self.related.push((span, label.into()));
        }
        self
    }

    /// The same problem with one more remedy.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help.push(help.into());
        self
    }
}

/// All that is wrong with one document, in the order of the file.
#[derive(Clone, Debug)]
pub struct Report {
    name: String,
    text: String,
    /// Where each line begins.
    lines: Vec<usize>,
    problems: Vec<Problem>,
}

/// How many problems are drawn; the others are only counted.
const MAX_DRAWN: usize = 100;

impl Report {
    pub(crate) fn new(name: &str, text: &str, mut problems: Vec<Problem>) -> Self {
        for problem in &mut problems {
            if problem.span.is_none()
                && let Some((line, column)) = problem.line
            {
                problem.span = span_of_line(text, line, column);
            }
            problem.span = problem.span.map(|span| within(text, span));
            for (span, _) in &mut problem.related {
                *span = within(text, *span);
            }
        }
        // What has no place concerns the whole document and comes first.
        problems.sort_by_key(|problem| problem.span.map(|span| span.start));
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        Self {
            name: name.to_owned(),
            // What is drawn may be mailed.
            text: crate::store_url::hidden(text),
            lines: std::iter::once(0)
                .chain(ends.map(|(at, _)| at + 1))
                .collect(),
            problems,
        }
    }

    /// The name of the document, as given by who loaded it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Everything that is wrong, in the order of the file.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// The same report with what was found out later about the same document.
    #[must_use]
    pub fn with(self, more: Vec<Problem>) -> Self {
        let problems = self.problems.into_iter().chain(more).collect();
        Self::new(&self.name, &self.text, problems)
    }

    /// How many of the problems are errors.
    #[must_use]
    pub fn errors(&self) -> usize {
        self.problems
            .iter()
            .filter(|problem| problem.severity == Severity::Error)
            .count()
    }

    /// How many of the problems are warnings.
    #[must_use]
    pub fn warnings(&self) -> usize {
        self.problems.len() - self.errors()
    }

    /// Draws all problems, each with its line, a caret and its remedies.
    #[must_use]
    pub fn render(&self, colour: bool) -> String {
        let renderer = if colour {
            Renderer::styled()
        } else {
            Renderer::plain()
        };
        let renderer = renderer.decor_style(DecorStyle::Ascii);
        let mut drawn: Vec<String> = self
            .problems
            .iter()
            .take(MAX_DRAWN)
            .map(|problem| self.draw(problem, &renderer))
            .collect();
        if let Some(more @ 1..) = self.problems.len().checked_sub(MAX_DRAWN) {
            drawn.push(format!("... and {more} more problems"));
        }
        drawn.join("\n\n")
    }

    fn draw(&self, problem: &Problem, renderer: &Renderer) -> String {
        let level = match problem.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let mut title = level.primary_title(printable(&problem.message));
        if let Some(code) = problem.code {
            title = title.id(code);
        }
        let mut group = match problem.span {
            None => Group::with_title(title)
                .element(annotate_snippets::Origin::path(printable(&self.name))),
            Some(span) => Group::with_title(title).element(self.snippet(problem, span)),
        };
        for help in &problem.help {
            group = group.element(Level::HELP.message(printable(help)));
        }
        renderer.render(&[group])
    }

    /// The lines of a problem with its carets. Only the lines from the first place to the last are
    /// handed to the renderer, which reads all it gets for every problem.
    fn snippet(&self, problem: &Problem, span: Span) -> Snippet<'_, Annotation<'_>> {
        let places = problem.related.iter().map(|(span, _)| *span).chain([span]);
        let (first, last) = places.fold((usize::MAX, 0), |(first, last), span| {
            let (start, end) = (self.line_index(span.start), self.line_index(span.end));
            (first.min(start), last.max(end))
        });
        let start = self.lines[first];
        let end = self.lines.get(last + 1).copied().unwrap_or(self.text.len());
        let shifted = |span: Span| span.start - start..span.end - start;
        let mut caret = AnnotationKind::Primary.span(shifted(span));
        if let Some(label) = &problem.label {
            caret = caret.label(printable(label));
        }
        let related = problem.related.iter().map(|(span, label)| {
            AnnotationKind::Context
                .span(shifted(*span))
                .label(printable(label))
        });
        Snippet::source(&self.text[start..end])
            .line_start(first + 1)
            .path(printable(&self.name))
            .fold(true)
            .annotation(caret)
            .annotations(related)
    }

    /// Which line, counted from 0, a byte is in.
    fn line_index(&self, at: usize) -> usize {
        self.lines.partition_point(|start| *start <= at) - 1
    }

    /// The line and column of a place, counted from 1, in characters.
    #[must_use]
    pub fn line_and_column(&self, span: Span) -> (usize, usize) {
        let at = floor(&self.text, span.start);
        let line = self.line_index(at);
        let before = &self.text[self.lines[line]..at];
        (
            line + 1,
            before.chars().filter(|c| *c != '\u{feff}').count() + 1,
        )
    }

    /// The problems as JSON objects: `severity`, `code`, `message`, `file`, `line`, `column`,
    /// `help`.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        let problems = self.problems.iter().map(|problem| {
            let place = problem.span.map(|span| self.line_and_column(span));
            serde_json::json!({
                "severity": problem.severity,
                "code": problem.code,
                "message": problem.message,
                "file": self.name,
                "line": place.map(|(line, _)| line),
                "column": place.map(|(_, column)| column),
                "help": problem.help,
            })
        });
        serde_json::Value::Array(problems.collect())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl std::error::Error for Report {}

/// A text from a file without what would move the cursor of a terminal.
fn printable(text: &str) -> String {
    text.chars()
        .map(|c| {
            if c.is_control() && c != '\n' {
                '\u{fffd}'
            } else {
                c
            }
        })
        .collect()
}

/// The same span on character boundaries of the text and inside it.
fn within(text: &str, span: Span) -> Span {
    let start = floor(text, span.start);
    // A caret marks one line: what is longer is a block, and its first line says enough.
    let line_end = text[start..]
        .find(['\n', '\r'])
        .map_or(text.len(), |at| start + at);
    Span {
        start,
        end: floor(text, span.end.min(line_end)).max(start),
    }
}

fn floor(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

fn span_of_line(text: &str, line: u64, column: u64) -> Option<Span> {
    let skip = usize::try_from(line).ok()?.checked_sub(1)?;
    let mut start = 0;
    for (at, found) in text.split_inclusive('\n').enumerate() {
        if at == skip {
            let column = usize::try_from(column).ok()?.saturating_sub(1);
            let into = found
                .char_indices()
                .nth(column)
                .map_or(found.trim_end().len(), |(at, _)| at);
            return Some(Span {
                start: start + into,
                end: start + into,
            });
        }
        start += found.len();
    }
    Some(Span {
        start: text.len(),
        end: text.len(),
    })
}
