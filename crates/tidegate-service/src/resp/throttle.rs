//! `CL.THROTTLE key max_burst count period [quantity]`, as redis-cell has it.
//!
//! Five integers: whether the call is limited, the limit, what remains, in how many seconds to try
//! again (-1 if it passed, or can never pass), and in how many the key is full again. Seconds are
//! always rounded up: who waits as long as it was told is never early.

use tidegate::{Rate, Timestamp, TokenBucket, Wait};

use super::arguments::{self, number};
use super::frame::Command;
use super::reply::Replies;
use crate::served::Served;

/// The largest burst: one less than what a bucket holds at most.
const MAX_BURST: u32 = i32::MAX as u32 - 1;

const MAX_NUMBER: u32 = i32::MAX as u32;

/// The longest period, in seconds: ten years.
const MAX_PERIOD: u32 = 315_576_000;

/// The bucket of the numbers that came last: most callers bring the same ones again and again.
#[derive(Debug, Default)]
pub(crate) struct Recent(Option<((u32, u32, u32), TokenBucket)>);

impl Recent {
    fn bucket(&mut self, burst: u32, count: u32, period: u32) -> Option<&TokenBucket> {
        let numbers = (burst, count, period);
        if self.0.as_ref().is_none_or(|(known, _)| *known != numbers) {
            let rate = Rate::new(count, u64::from(period) * 1_000_000).ok()?;
            self.0 = Some((numbers, TokenBucket::new(rate, burst + 1).ok()?));
        }
        self.0.as_ref().map(|(_, bucket)| bucket)
    }
}

/// Answers the command.
pub(crate) fn throttle(
    served: &Served,
    recent: &mut Recent,
    command: Command<'_>,
    now: Timestamp,
    replies: &mut Replies<'_>,
) {
    if !matches!(command.len(), 5 | 6) {
        return arguments::wrong_number("cl.throttle", replies);
    }
    let range = |place, name, least, most| number(command, place, name, least, most);
    let read = || -> Result<_, String> {
        let burst = range(2, "max_burst", 0, MAX_BURST)?;
        let count = range(3, "count", 0, MAX_NUMBER)?;
        let period = range(4, "period", 1, MAX_PERIOD)?;
        let quantity = match command.len() {
            5 => 1,
            _ => range(5, "quantity", 0, MAX_NUMBER)?,
        };
        Ok((burst, count, period, quantity))
    };
    let (burst, count, period, quantity) = match read() {
        Ok(numbers) => numbers,
        Err(error) => return replies.error(&error),
    };
    let key = command.get(1).unwrap_or_default();
    let Some(bucket) = recent.bucket(burst, count, period) else {
        return replies.error("ERR these numbers make no bucket");
    };
    let decision = served.throttle(key, bucket, quantity, now);
    let retry_after = if decision.is_allowed() {
        -1
    } else {
        seconds(decision.retry_after)
    };
    replies.ints(&[
        i64::from(!decision.is_allowed()),
        i64::from(decision.limit),
        i64::from(decision.remaining),
        retry_after,
        seconds(decision.reset_after),
    ]);
}

/// A wait in seconds, rounded up; -1 for ever.
#[inline]
fn seconds(wait: Wait) -> i64 {
    wait.as_micros().map_or(-1, |micros| {
        i64::try_from(micros.div_ceil(1_000_000)).unwrap_or(i64::MAX)
    })
}
