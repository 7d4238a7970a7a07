//! Who waits in this process: for each key a line, of which only the first asks the store.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_store::Key;
use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

use crate::waiting::WaitOptions;

/// The lines of a limit.
#[derive(Clone, Default)]
pub(super) struct Lines(Arc<Mutex<All>>);

#[derive(Default)]
struct All {
    keys: HashMap<Key, Line>,
    waiting: usize,
}

#[derive(Default)]
struct Line {
    /// All who wait, in line or asleep until what they have reserved is theirs.
    waiting: usize,
    in_line: usize,
    turn: Arc<Turn<()>>,
}

/// One who waits, until it is dropped.
pub(super) struct Place {
    lines: Lines,
    key: Key,
    turn: Arc<Turn<()>>,
    is_in_line: bool,
}

/// The first in line, until it is dropped.
pub(super) struct First {
    /// Before the place: the turn is handed on before the line can be gone, or a newcomer would
    /// find none and pass those who stand in it.
    turn: OwnedMutexGuard<()>,
    place: Place,
}

impl Lines {
    /// Whether somebody stands in a key's line.
    pub(super) fn is_waiting(&self, key: &Key) -> bool {
        self.all()
            .keys
            .get(key)
            .is_some_and(|line| line.in_line > 0)
    }

    /// Stands at the end of a key's line; how many wait, if those are as many as may.
    pub(super) fn join(&self, key: &Key, options: &WaitOptions) -> Result<Place, usize> {
        self.wait(key, options, true)
    }

    /// Counts as one who waits, but stands in no line.
    pub(super) fn sleep(&self, key: &Key, options: &WaitOptions) -> Result<Place, usize> {
        self.wait(key, options, false)
    }

    fn wait(&self, key: &Key, options: &WaitOptions, is_in_line: bool) -> Result<Place, usize> {
        let mut all = self.all();
        if all.waiting >= options.in_total {
            return Err(all.waiting);
        }
        let waiting = all.keys.get(key).map_or(0, |line| line.waiting);
        if waiting >= options.per_key {
            return Err(waiting);
        }
        all.waiting += 1;
        let line = all.keys.entry(key.clone()).or_default();
        line.waiting += 1;
        line.in_line += usize::from(is_in_line);
        Ok(Place {
            lines: self.clone(),
            key: key.clone(),
            turn: Arc::clone(&line.turn),
            is_in_line,
        })
    }

    fn all(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// Waits until those in front have gone.
    pub(super) async fn first(self) -> First {
        // It is handed on in the order in which it was asked for.
        let turn = Arc::clone(&self.turn).lock_owned().await;
        First { turn, place: self }
    }
}

impl First {
    /// Lets the next one be first; still counts as one who waits.
    pub(super) fn step_aside(self) -> Place {
        let Self { turn, mut place } = self;
        drop(turn);
        place.is_in_line = false;
        if let Some(line) = place.lines.all().keys.get_mut(&place.key) {
            line.in_line -= 1;
        }
        place
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = self.lines.all();
        all.waiting -= 1;
        if let Some(line) = all.keys.get_mut(&self.key) {
            line.waiting -= 1;
            line.in_line -= usize::from(self.is_in_line);
            if line.waiting == 0 {
                all.keys.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_bounded_by_key_and_in_total_and_gone_with_its_last() {
        let lines = Lines::default();
        let (one, other) = (Key::new("one"), Key::new("other"));
        let options = WaitOptions::new().max_waiters_per_key(2).max_waiters(3);
        let first = lines.join(&one, &options).ok().unwrap();
        let second = lines.sleep(&one, &options).ok().unwrap();
        assert_eq!(lines.join(&one, &options).err(), Some(2));
        let third = lines.join(&other, &options).ok().unwrap();
        assert_eq!(lines.join(&other, &options).err(), Some(3));
        drop(third);
        assert!(!lines.is_waiting(&other) && lines.is_waiting(&one));
        drop(first);
        assert!(!lines.is_waiting(&one), "who sleeps stands in no line");
        drop(second);
        assert!(lines.all().keys.is_empty() && lines.all().waiting == 0);
    }
}
