//! States written down, to be read back after a restart.
//!
//! A snapshot is a frame around a body. The frame guards the body against being cut, changed or
//! mistaken for another file; the body is numbers and texts one after the other. Reading trusts
//! nothing: not the lengths, not the checksum's author.

mod body;
mod frame;

use std::io::{self, Read, Write};

use tidegate_core::{Policy, Timestamp};

pub use body::{BodyReader, BodyWriter};
use frame::{FrameWriter, read_frame};

/// Why a snapshot could not be restored. Nothing has been then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The source gave an error.
    #[error("cannot read the snapshot")]
    Read(#[source] io::Error),
    /// It does not begin like a snapshot.
    #[error("this is no snapshot of a limit")]
    NotASnapshot,
    /// It was written by a later version.
    #[error("the snapshot has version {found} and this program reads up to {known}; update it")]
    Newer {
        /// Its version.
        found: u16,
        /// The latest version that can be read.
        known: u16,
    },
    /// It ends too early.
    #[error("the snapshot ends too early; restore one that was written to its end")]
    Truncated,
    /// It is not what was written.
    #[error("the snapshot was damaged; restore another, or start without one")]
    Damaged,
    /// Its limit counts by a calendar that the limit to be restored does not have.
    #[error("the snapshot counts by the calendar {0:?}; give the limit that calendar")]
    UnknownCalendar(String),
    /// It has more keys than the limit may hold.
    #[error("the snapshot has {keys} keys, above max_keys {max_keys}; raise it")]
    TooManyKeys {
        /// Keys that are not fresh by now.
        keys: usize,
        /// How many the limit may hold.
        max_keys: usize,
    },
}

/// What a snapshot says besides its states.
#[derive(Clone, Debug, PartialEq)]
pub struct SnapshotHead {
    /// The name of the limit.
    pub name: String,
    /// The seed that its keys were hashed under.
    pub seed: (u64, u64),
    /// When it was taken.
    pub taken_at: Timestamp,
    /// The numbers of the limit, as words, and the name of its calendar.
    pub policy: PolicyWords,
}

/// A policy as it is written: [`Policy::write_words`], and the name of the calendar.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyWords {
    words: Vec<u64>,
    calendar: Option<String>,
}

impl PolicyWords {
    /// Writes a policy down.
    #[must_use]
    pub fn of(policy: &Policy) -> Self {
        let mut words = Vec::new();
        policy.write_words(&mut words);
        let calendar = policy.calendar().map(|calendar| calendar.name().to_owned());
        Self { words, calendar }
    }

    /// The policy; its calendar is that of `like`, if it has the same name.
    ///
    /// # Errors
    /// The calendar is another; or the words are no valid numbers.
    pub fn resolve(&self, like: &Policy) -> Result<Policy, SnapshotError> {
        let calendar = match &self.calendar {
            None => None,
            Some(name) => {
                let known = like.calendar().filter(|calendar| calendar.name() == name);
                Some(known.ok_or_else(|| SnapshotError::UnknownCalendar(name.clone()))?)
            }
        };
        let mut words = self.words.iter().copied();
        let policy = Policy::read_words(&mut || words.next(), calendar);
        policy.ok_or(SnapshotError::Damaged)
    }
}

/// Writes a frame around what `write` writes.
///
/// # Errors
/// Those of `out`.
pub fn write_framed(
    out: &mut dyn Write,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let mut frame = FrameWriter::new(out)?;
    write(&mut frame)?;
    frame.finish()
}

/// Reads a frame to its end and not a byte further. Returns what is in it.
///
/// Memory grows with what has been read, never with what a length promises.
///
/// # Errors
/// It cannot be read, is no frame, is cut or damaged.
pub fn read_framed(source: &mut dyn Read) -> Result<Vec<u8>, SnapshotError> {
    read_frame(source)
}
