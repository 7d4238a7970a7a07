//! A document as a tree whose every node knows where it stands.
//!
//! YAML is read by `serde-saphyr` into this tree first and decoded from it afterwards. Two things
//! come of that: one broken limit does not hide the mistakes in the others, and validation can
//! point at any value by its path. Anchors, aliases and merge keys are already expanded here; how
//! far they may expand is bounded, so that no small file becomes a large tree.

use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{DuplicateKeyPolicy, MessageFormatter, Spanned, UserMessageFormatter};

use crate::report::{Problem, Span};

/// The largest file that is read, in bytes.
pub const MAX_DOCUMENT_BYTES: usize = 4 * 1024 * 1024;

/// A value and its place.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub span: Option<Span>,
    pub content: Content,
}

/// A value.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    Null,
    /// The text as written, without its quotes.
    Scalar(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// A key and its value, in the order of the file.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub key: String,
    pub key_span: Option<Span>,
    pub value: Node,
}

impl Node {
    /// A plain scalar that stands in no file.
    pub fn scalar(text: impl Into<String>) -> Self {
        Self {
            span: None,
            content: Content::Scalar(text.into()),
        }
    }

    /// A map that stands in no file.
    pub fn map(entries: impl IntoIterator<Item = (String, Self)>) -> Self {
        let entries = entries
            .into_iter()
            .map(|(key, value)| Entry {
                key,
                key_span: None,
                value,
            })
            .collect::<Vec<_>>();
        Self {
            span: None,
            content: Content::Map(entries),
        }
    }

    /// The same tree for a JSON value. JSON's own reader bounds its depth.
    pub fn from_json(value: &serde_json::Value) -> Self {
        use serde_json::Value;
        match value {
            Value::Null => Self {
                span: None,
                content: Content::Null,
            },
            Value::Bool(value) => Self::scalar(value.to_string()),
            Value::Number(value) => Self::scalar(value.to_string()),
            Value::String(text) => Self {
                span: None,
                content: Content::Scalar(text.clone()),
            },
            Value::Array(items) => Self {
                span: None,
                content: Content::List(items.iter().map(Self::from_json).collect()),
            },
            Value::Object(entries) => Self::map(
                entries
                    .iter()
                    .map(|(key, value)| (key.clone(), Self::from_json(value))),
            ),
        }
    }

    /// Reads a YAML document.
    ///
    /// # Errors
    /// Whatever is no YAML, more than one document, and what goes beyond the bounds on size,
    /// depth and aliases. Duplicate keys are put into `problems` and reading goes on.
    pub fn from_yaml(text: &str, problems: &mut Vec<Problem>) -> Result<Self, Box<Problem>> {
        if text.len() > MAX_DOCUMENT_BYTES {
            let help = "a configuration of that size is a mistake; split it over several processes";
            return Err(Box::new(
                Problem::error("the file is larger than 4 MiB").help(help),
            ));
        }
        // Byte offsets count from behind a byte order mark.
        let body = text.strip_prefix('\u{feff}').unwrap_or(text);
        let skipped = text.len() - body.len();
        let raw: Spanned<Raw> = serde_saphyr::from_str_with_options(body, options())
            .map_err(|error| Box::new(yaml_problem(&error, skipped)))?;
        let builder = Builder { body, skipped };
        let node = builder.node(raw);
        if matches!(node.content, Content::Null) {
            let problem = Problem::error("the file says nothing");
            return Err(Box::new(
                problem.help("an empty file limits nothing; start with `limits:`"),
            ));
        }
        node.report_duplicates(problems);
        Ok(node)
    }

    /// What kind of thing this is, for messages.
    pub fn kind(&self) -> &'static str {
        match &self.content {
            Content::Null => "nothing",
            Content::Scalar(_) => "a single value",
            Content::List(_) => "a list",
            Content::Map(_) => "a map",
        }
    }

    fn report_duplicates(&self, problems: &mut Vec<Problem>) {
        match &self.content {
            Content::Null | Content::Scalar(_) => {}
            Content::List(items) => items
                .iter()
                .for_each(|item| item.report_duplicates(problems)),
            Content::Map(entries) => {
                let mut seen: HashMap<&str, Option<Span>> = HashMap::new();
                for entry in entries {
                    if let Some(first) = seen.get(entry.key.as_str()) {
                        problems.push(
                            Problem::error(format!("`{}` is there twice", entry.key))
                                .at(entry.key_span)
                                .label("the second one")
                                .see(*first, "the first one")
                                .help("keep one of them, or give the second another name"),
                        );
                    } else {
                        seen.insert(&entry.key, entry.key_span);
                    }
                    entry.value.report_duplicates(problems);
                }
            }
        }
    }
}

/// Bounds against hostile files: far above what a configuration needs, far below what hurts.
fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: 400_000,
            max_nodes: 200_000,
            max_depth: 32,
            // More than one is refused by a message of its own.
            max_documents: 8,
            max_aliases: 10_000,
            max_anchors: 10_000,
            max_merge_keys: 1_000,
            max_total_scalar_bytes: MAX_DOCUMENT_BYTES,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 200_000,
            max_replay_stack_depth: 16,
        },
        // Reported here, all of them, with both places.
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        with_snippet: false,
    }
}

/// An error of the YAML reader in the project's words.
fn yaml_problem(error: &serde_saphyr::Error, skipped: usize) -> Problem {
    use serde_saphyr::Error;
    let mut inner = error.without_snippet();
    while let Error::AliasError { error, .. } = inner {
        inner = error.without_snippet();
    }
    let help = match inner {
        Error::Eof { .. } => "an empty file configures nothing; start with `limits:`",
        Error::MultipleDocuments { .. } => "keep one document in a file: remove the `---` lines",
        Error::UnknownAnchor { .. } => "an alias (`*name`) needs an anchor (`&name`) above it",
        Error::Budget { .. }
        | Error::AliasReplayLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. } => {
            "the file is larger, deeper or more entangled by aliases than a configuration may be"
        }
        _ => "check the indentation, and quote texts that contain `: `, `#`, `{`, `[`, `*` or `&`",
    };
    let span = error
        .location()
        .or_else(|| inner.location())
        .and_then(|place| {
            let start = usize::try_from(place.span().byte_offset()?).ok()? + skipped;
            let length = usize::try_from(place.span().byte_len().unwrap_or(0)).ok()?;
            Some(Span {
                start,
                end: start + length,
            })
        });
    let line = error.location().map(|place| (place.line(), place.column()));
    let message = UserMessageFormatter.format_message(inner);
    let problem = Problem::error(format!("this is no valid YAML: {message}")).help(help);
    match (span, line) {
        (None, Some((line, column))) => problem.at_line(line, column),
        _ => problem.at(span),
    }
}

/// The tree as the YAML reader hands it over.
enum Raw {
    /// A scalar whose text is in the source: the reader took it for a number, a boolean or null.
    Typed,
    Text(String),
    List(Vec<Spanned<Raw>>),
    Map(Vec<(Spanned<RawKey>, Spanned<Raw>)>),
}

/// A key; none where it is no text but a number, boolean or null, to be read from the source.
struct RawKey(Option<String>);

/// Turns the reader's tree into ours, with the text of numbers as written.
struct Builder<'s> {
    body: &'s str,
    skipped: usize,
}

impl Builder<'_> {
    fn node(&self, raw: Spanned<Raw>) -> Node {
        let (inner, span) = self.place(&raw);
        let source = inner
            .and_then(|span| self.body.get(span.start..span.end))
            .unwrap_or("");
        let content = match raw.value {
            Raw::Typed if matches!(source.trim(), "" | "~" | "null" | "Null" | "NULL") => {
                Content::Null
            }
            Raw::Typed => Content::Scalar(source.trim().to_owned()),
            Raw::Text(text) => Content::Scalar(text),
            Raw::List(items) => {
                Content::List(items.into_iter().map(|raw| self.node(raw)).collect())
            }
            Raw::Map(entries) => Content::Map(
                entries
                    .into_iter()
                    .map(|(key, value)| self.entry(key, value))
                    .collect(),
            ),
        };
        Node { span, content }
    }

    fn entry(&self, key: Spanned<RawKey>, value: Spanned<Raw>) -> Entry {
        let (inner, key_span) = self.place(&key);
        let source = inner
            .and_then(|span| self.body.get(span.start..span.end))
            .unwrap_or("");
        let key = key.value.0.unwrap_or_else(|| source.trim().to_owned());
        Entry {
            key,
            key_span,
            value: self.node(value),
        }
    }

    /// The place in what the reader saw, and in the whole file.
    fn place<T>(&self, spanned: &Spanned<T>) -> (Option<Span>, Option<Span>) {
        let span = spanned.defined.span();
        let inner = span
            .byte_offset()
            .zip(span.byte_len())
            .and_then(|(start, length)| {
                let start = usize::try_from(start).ok()?;
                let end = start.checked_add(usize::try_from(length).ok()?)?;
                Some(Span { start, end })
            });
        let whole = inner.map(|span| Span {
            start: span.start + self.skipped,
            end: span.end + self.skipped,
        });
        (inner, whole)
    }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

/// The scalars that lose their text on the way: it is read from the source instead.
macro_rules! typed {
    ($value:expr, $($method:ident: $type:ty),*) => {
        $(fn $method<E>(self, _: $type) -> Result<Self::Value, E> { Ok($value) })*
    };
}

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    typed!(Raw::Typed, visit_bool: bool, visit_i64: i64, visit_i128: i128, visit_u64: u64,
        visit_u128: u128, visit_f64: f64);

    fn visit_unit<E>(self) -> Result<Raw, E> {
        Ok(Raw::Typed)
    }

    fn visit_none<E>(self) -> Result<Raw, E> {
        Ok(Raw::Typed)
    }

    fn visit_some<D: de::Deserializer<'de>>(self, deserializer: D) -> Result<Raw, D::Error> {
        Raw::deserialize(deserializer)
    }

    fn visit_str<E>(self, text: &str) -> Result<Raw, E> {
        Ok(Raw::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Raw, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Raw::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Raw::Map(entries))
    }
}

impl<'de> Deserialize<'de> for RawKey {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawKeyVisitor)
    }
}

struct RawKeyVisitor;

impl Visitor<'_> for RawKeyVisitor {
    type Value = RawKey;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a plain text as key")
    }

    typed!(RawKey(None), visit_bool: bool, visit_i64: i64, visit_i128: i128, visit_u64: u64,
        visit_u128: u128, visit_f64: f64);

    fn visit_unit<E>(self) -> Result<RawKey, E> {
        Ok(RawKey(None))
    }

    fn visit_str<E>(self, text: &str) -> Result<RawKey, E> {
        Ok(RawKey(Some(text.to_owned())))
    }
}
