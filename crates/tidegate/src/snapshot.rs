//! The states of a limit, kept over a restart.

use std::fmt;
use std::io::{self, Read, Write};
use std::sync::Arc;

use tidegate_core::{ChangeMode, Timestamp};
use tidegate_store::KeyHasher;
use tidegate_store::snapshot::{
    BodyReader, BodyWriter, PolicyWords, SnapshotError, SnapshotHead, read_framed, write_framed,
};

use crate::clock::SystemClock;
use crate::limiter::{Limiter, LimiterBuilder};

/// The states of all keys of a limit, as they were at one time.
///
/// Taken by [`Limiter::snapshot`], restored by [`LimiterBuilder::restore`]. In between it can be
/// written to a file and read back:
///
/// ```
/// use tidegate::{ChangeMode, Limiter, Micros, SlidingLog, Snapshot};
///
/// let policy = SlidingLog::new(3, Micros::from_secs(600))?;
/// let before = Limiter::new(policy.clone());
/// before.try_take("user-7", 2);
/// let mut file = Vec::new();
/// before.write_snapshot(before.now(), &mut file)?;
///
/// let snapshot = Snapshot::read(&mut file.as_slice())?;
/// let after = Limiter::builder(policy).restore(&snapshot, ChangeMode::KeepUsed)?;
/// assert_eq!(after.peek("user-7", 1).remaining, 0);
/// assert!(!after.try_take("user-7", 2).is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// It holds everything that could still deny: states, blocks, leases with their expiry, tiers and
/// numbers of keys, states in shadow, and what keys shared while the table was full. Keys
/// themselves are not in it, only their hashes, and the seed of these: **who can read the file can
/// make keys that share a state, and who can write it can forgive anything.** Keep it like a
/// secret.
///
/// Restored leases end at their time, however long the restart took.
pub struct Snapshot {
    head: SnapshotHead,
    body: Vec<u8>,
    /// Where the states begin.
    states: usize,
}

impl Snapshot {
    /// Reads a snapshot to its end and not a byte further, so that several can lie in one file.
    /// Reads in small pieces: give it something buffered.
    ///
    /// Memory grows with what is read and never with what a length promises; to bound it, bound
    /// the source, by [`Read::take`].
    ///
    /// # Errors
    /// It cannot be read, is no snapshot or one of a later version, was cut or damaged.
    pub fn read(source: &mut dyn Read) -> Result<Self, SnapshotError> {
        Self::from_body(read_framed(source)?)
    }

    /// Writes the snapshot.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        write_framed(out, |frame| frame.write_all(&self.body))
    }

    /// The name of its limit.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.head.name
    }

    /// When it was taken.
    #[must_use]
    pub const fn taken_at(&self) -> Timestamp {
        self.head.taken_at
    }

    fn from_body(body: Vec<u8>) -> Result<Self, SnapshotError> {
        let mut reader = BodyReader(&body);
        let head = reader.head()?;
        let states = body.len() - reader.0.len();
        Ok(Self { head, body, states })
    }
}

impl fmt::Debug for Snapshot {
    /// Writes neither states nor the seed of the keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot")
            .field("name", &self.name())
            .field("taken_at", &self.taken_at())
            .field("bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

impl Limiter {
    /// All states that could still deny at `now`, in memory.
    ///
    /// Other threads go on meanwhile. Each key is taken as it is at one moment, never half-way
    /// through a call; not all keys at the same moment, so that of a call over several limits or
    /// keys some may be in and others not. Take it when the doors are closed to have it exact.
    #[must_use]
    pub fn snapshot(&self, now: Timestamp) -> Snapshot {
        let mut body = Vec::new();
        self.write_body(now, &mut body)
            .expect("writing to memory does not fail");
        Snapshot::from_body(body).expect("what was written can be read")
    }

    /// Writes a [`Snapshot`] piece by piece, without holding it in memory.
    ///
    /// Write to another file than the one before and rename it at the end: a snapshot that was cut
    /// is refused, whole.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_snapshot(&self, now: Timestamp, out: &mut dyn Write) -> io::Result<()> {
        write_framed(out, |frame| self.write_body(now, frame))
    }

    fn write_body(&self, now: Timestamp, out: &mut dyn Write) -> io::Result<()> {
        let inner = self.latest();
        let mut head = BodyWriter::default();
        head.head(&SnapshotHead {
            name: self.name().to_owned(),
            seed: inner.hasher.seed(),
            taken_at: now,
            policy: PolicyWords::of(&inner.table.policy()),
        });
        out.write_all(&head.0)?;
        inner.table.export(now, out)
    }
}

impl LimiterBuilder {
    /// Makes the limiter with the states of a snapshot, at its clock's time.
    ///
    /// Where the numbers have changed since, `mode` says what becomes of what keys have used, as
    /// in [`Limiter::change`]; for tiers too, if they have other numbers now. A limit of another
    /// algorithm starts afresh. Keys are hashed under the snapshot's seed.
    ///
    /// # Errors
    /// The snapshot is damaged, has more keys than the limit may hold, or counts by a calendar
    /// that this limit does not have. Nothing was restored then.
    pub fn restore(
        mut self,
        snapshot: &Snapshot,
        mode: ChangeMode,
    ) -> Result<Limiter, SnapshotError> {
        let clock = self
            .clock
            .get_or_insert_with(|| Arc::new(SystemClock::new()));
        let now = clock.now();
        let before = snapshot.head.policy.resolve(&self.policy)?;
        self.hasher = Some(KeyHasher::with_seed(snapshot.head.seed));
        if std::mem::discriminant(&before) != std::mem::discriminant(&self.policy) {
            return Ok(self.build());
        }
        let table = tidegate_store::memory_limit(before, self.options);
        let states = BodyReader(&snapshot.body[snapshot.states..]);
        let imported = table.import(states, now)?;
        for (name, policy) in &self.tiers {
            // `tier` has seen to it that nothing is wrong with it.
            let _ = table.set_tier(name, policy, mode, now.into());
        }
        table.change(&self.policy, mode, now.into());
        // Each key has its numbers twice, once for shadow.
        Ok(self.build_on(table, imported.overridden.div_ceil(2)))
    }
}
