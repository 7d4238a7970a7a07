//! The configuration of tidegate: what a document may say, whether it makes sense, and what is
//! probably not meant.
//!
//! A document is YAML. [`parse`] and [`load`] read it into the [`Config`] that doors work with, or
//! into a [`Report`] of everything that is wrong with it, each mistake with its line, a caret and a
//! remedy. What can be used but probably does something else than meant comes as warnings.
//!
//! ```
//! use tidegate_config::{Purpose, parse};
//!
//! let text = "limits: { stage: { algorithm: { token_bucket: { rate: 100/s, capacity: 200 } } } }";
//! let checked = parse("example.yaml", text, Purpose::Inspect)?;
//! assert_eq!(checked.config.limits[0].name, "stage");
//! # Ok::<(), tidegate_config::Report>(())
//! ```

pub mod model;
pub mod shape;
pub mod text;

mod algorithm;
mod calendar;
mod cursor;
mod decode;
mod header;
mod key_part;
mod lint;
mod node;
mod pattern;
mod policy;
mod report;
mod scalar;
mod store_url;
mod suggest;
mod support;
mod validate;
mod zone;

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

pub use algorithm::*;
pub use calendar::ZonedCalendar;
pub use decode::Tried;
pub use header::{AlgorithmError, algorithm_from_json, algorithm_from_pairs};
pub use model::Config;
pub use node::MAX_DOCUMENT_BYTES;
pub use pattern::{RoutePattern, Segment};
pub use policy::AlgorithmProblem;
pub use report::{Problem, Report, Severity, Span};
pub use scalar::{Count, Length, Period, Rate, Share};
pub use validate::Purpose;
pub use zone::{CalendarSpan, StartsOn, Zone};

/// A document without errors.
#[derive(Clone, Debug)]
pub struct Checked {
    /// What it says.
    pub config: Config,
    /// What is probably not meant; no errors among it.
    pub warnings: Report,
}

/// Why a file gave no configuration.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file could not be read.
    #[error("cannot read {}", .0.display())]
    Read(PathBuf, #[source] io::Error),
    /// The document is wrong.
    #[error("{0}")]
    Invalid(Report),
}

/// Reads a document; `name` stands for it in messages.
///
/// # Errors
/// Everything that is wrong with it, warnings included.
pub fn parse(name: &str, text: &str, purpose: Purpose) -> Result<Checked, Report> {
    let mut problems = Vec::new();
    let node = match node::Node::from_yaml(text, &mut problems) {
        Ok(node) => node,
        Err(problem) => return Err(Report::new(name, text, vec![*problem])),
    };
    let Some(document) = decode::decode::<shape::Document>(&node, &mut problems) else {
        return Err(Report::new(name, text, problems));
    };
    let (config, mut problems) = validate::validate(&document, &node, purpose, problems);
    let Some(config) = config else {
        return Err(Report::new(name, text, problems));
    };
    lint::lint(&config, &node, &mut problems);
    Ok(Checked {
        config,
        warnings: Report::new(name, text, problems),
    })
}

/// Reads a file.
///
/// # Errors
/// [`LoadError::Read`] if there is no such file, it cannot be read, or is no UTF-8 text; and what
/// [`parse`] finds.
pub fn load(path: &Path, purpose: Purpose) -> Result<Checked, LoadError> {
    let text = std::fs::File::open(path)
        .and_then(read_bounded)
        .map_err(|error| LoadError::Read(path.to_owned(), error))?;
    parse(&path.display().to_string(), &text, purpose).map_err(LoadError::Invalid)
}

/// Reads a document's text, and no further than a byte beyond [`MAX_DOCUMENT_BYTES`]: what never
/// ends is refused as too large.
///
/// # Errors
/// What cannot be read, or is no UTF-8 text.
pub fn read_bounded(source: impl io::Read) -> io::Result<String> {
    let most = u64::try_from(MAX_DOCUMENT_BYTES).unwrap_or(u64::MAX);
    let mut text = String::new();
    io::Read::take(source, most + 1).read_to_string(&mut text)?;
    Ok(text)
}

/// The JSON Schema of the document, for editors.
#[must_use]
pub fn json_schema() -> serde_json::Value {
    schemars::schema_for!(shape::Document).to_value()
}
