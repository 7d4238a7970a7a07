//! The alarms of the system clock: one thread for all of a process, while there are any.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use super::Alarm;

/// How long the thread stays when nothing is left to do, so that alarms that come and go one at a
/// time do not start it over and over.
const LINGER: Duration = Duration::from_secs(1);

/// By time, and then in the order in which they were set.
type Key = (Instant, u64);

struct Alarms {
    set: BTreeMap<Key, Waker>,
    next: u64,
    running: bool,
}

static ALARMS: Mutex<Alarms> = Mutex::new(Alarms {
    set: BTreeMap::new(),
    next: 0,
    running: false,
});

/// Tells the thread that an alarm was set which comes before all others.
static SOONER: Condvar = Condvar::new();

/// Wakes `waker` at `at`, on the thread of the alarms.
pub(super) fn wake_at(at: Instant, waker: Waker) -> Alarm {
    let mut alarms = lock();
    let key = (at, alarms.next);
    alarms.next += 1;
    let first = alarms
        .set
        .first_key_value()
        .is_none_or(|(soonest, _)| key < *soonest);
    alarms.set.insert(key, waker);
    if !alarms.running {
        alarms.running = true;
        drop(alarms);
        thread::Builder::new()
            .name("tidegate-timer".to_owned())
            .spawn(run)
            .expect("a process that can do its work can start a thread");
    } else if first {
        SOONER.notify_one();
    }
    Alarm::new(Set(key))
}

fn lock() -> MutexGuard<'static, Alarms> {
    ALARMS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run() {
    let mut alarms = lock();
    loop {
        let now = Instant::now();
        let wait = match alarms.set.first_entry() {
            Some(due) if due.key().0 <= now => {
                let waker = due.remove();
                drop(alarms);
                // A waker that panics, or what it wakes, must not take all other alarms with it.
                let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
                alarms = lock();
                continue;
            }
            Some(next) => next.key().0 - now,
            None => LINGER,
        };
        let idle = alarms.set.is_empty();
        let (guard, timeout) = SOONER
            .wait_timeout(alarms, wait)
            .unwrap_or_else(PoisonError::into_inner);
        alarms = guard;
        if idle && timeout.timed_out() && alarms.set.is_empty() {
            alarms.running = false;
            return;
        }
    }
}

/// An alarm that was set.
struct Set(Key);

impl Drop for Set {
    fn drop(&mut self) {
        let waker = lock().set.remove(&self.0);
        // A waker may own what sets alarms: it goes with the lock free.
        drop(waker);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc;
    use std::task::Wake;

    use super::*;

    struct Tell(mpsc::Sender<u32>, u32);

    impl Wake for Tell {
        fn wake(self: Arc<Self>) {
            // A test that has ended listens no more.
            let _ = self.0.send(self.1);
            assert_ne!(self.1, 0, "this one panics on purpose");
        }
    }

    #[test]
    fn alarms_go_off_in_order_and_one_that_panics_harms_no_other() {
        let (sender, seen) = mpsc::channel();
        let start = Instant::now();
        let tell = |number| Waker::from(Arc::new(Tell(sender.clone(), number)));
        let after = |millis| start + Duration::from_millis(millis);
        let _later = wake_at(after(40), tell(2));
        let _panics = wake_at(after(20), tell(0));
        let _sooner = wake_at(after(10), tell(1));
        drop(wake_at(after(30), tell(3)));
        let got: Vec<u32> = seen.iter().take(3).collect();
        assert_eq!(got, [1, 0, 2]);
        assert!(start.elapsed() >= Duration::from_millis(40));
    }
}
