//! The header of a stored value read back: under which numbers it was written.

use std::sync::Arc;

use tidegate_core::{
    Align, Calendar, Concurrency, FixedWindow, InterpolatedWindow, IntervalBucket, LeakyBucket,
    Lockout, LockoutSettings, Micros, Policy, Rate, SlidingLog, StrictWindow, Timestamp,
    TokenBucket,
};

use super::bytes::Reader;

/// The numbers behind a letter and a generation, and what tells the calendar of `K` from others.
pub(super) struct Numbers {
    pub(super) policy: Policy,
    pub(super) calendar: Option<u64>,
}

/// Reads the numbers of a form. `calendar` is the caller's own: a header only has a hash of it.
/// None for what no version wrote.
pub(super) fn read(
    letter: u8,
    bytes: &mut Reader<'_>,
    calendar: Option<&Arc<dyn Calendar>>,
) -> Option<Numbers> {
    let mut hash = None;
    let policy = match letter {
        b'B' | b'C' => {
            let (rate, capacity) = (reduced(bytes)?, bytes.count()?);
            let bucket = TokenBucket::new(rate, capacity).ok()?;
            if letter == b'C' {
                let (initial, since) = initial(bytes, capacity)?;
                bucket.with_initial(initial, since).ok()?.into()
            } else {
                bucket.into()
            }
        }
        b'I' | b'J' => {
            let rate = Rate::new(bytes.count()?, bytes.micros()?).ok()?;
            let capacity = bytes.count()?;
            let bucket = IntervalBucket::new(rate, capacity).ok()?;
            if letter == b'J' {
                let (initial, since) = initial(bytes, capacity)?;
                bucket.with_initial(initial, since).ok()?.into()
            } else {
                bucket.into()
            }
        }
        b'Q' => {
            let (rate, capacity, burst) = (reduced(bytes)?, bytes.count()?, bytes.count()?);
            let queue = capacity.checked_sub(burst)?;
            LeakyBucket::new(rate, queue, burst, optional(bytes)?)
                .ok()?
                .into()
        }
        b'F' => window(bytes, Align::Epoch)?.into(),
        b'U' => window(bytes, Align::FirstUse)?.into(),
        b'K' => {
            let limit = bytes.count()?;
            bytes.micros()?;
            hash = Some(bytes.long()?);
            FixedWindow::calendar(limit, Arc::clone(calendar?))
                .ok()?
                .into()
        }
        b'L' => SlidingLog::new(bytes.count()?, Micros(bytes.micros()?))
            .ok()?
            .into(),
        b'S' => {
            let (limit, period) = (bytes.count()?, Micros(bytes.micros()?));
            StrictWindow::new(limit, period, bytes.short()?.into())
                .ok()?
                .into()
        }
        b'W' => {
            let (limit, period) = (bytes.count()?, Micros(bytes.micros()?));
            InterpolatedWindow::new(limit, period).ok()?.into()
        }
        b'P' => {
            let (limit, lease) = (bytes.count()?, Micros(bytes.micros()?));
            Concurrency::new(limit, lease, optional(bytes)?)
                .ok()?
                .into()
        }
        b'X' => Lockout::new(settings(bytes)?).ok()?.into(),
        _ => return None,
    };
    Some(Numbers {
        policy,
        calendar: hash,
    })
}

fn window(bytes: &mut Reader<'_>, align: Align) -> Option<FixedWindow> {
    let (limit, period) = (bytes.count()?, Micros(bytes.micros()?));
    FixedWindow::new(limit, period, align).ok()
}

/// A reduced rate, and what it was reduced by.
fn reduced(bytes: &mut Reader<'_>) -> Option<Rate> {
    let (count, period, divisor) = (bytes.count()?, bytes.micros()?, bytes.count()?);
    if count == 0 {
        return Rate::new(0, period).ok();
    }
    let period = period.checked_mul(divisor.into())?;
    Rate::new(count.checked_mul(divisor)?, period).ok()
}

/// What keys start with, from what they lack.
fn initial(bytes: &mut Reader<'_>, capacity: u32) -> Option<(u32, Timestamp)> {
    let (missing, since) = (bytes.count()?, bytes.micros()?);
    Some((
        capacity.checked_sub(missing)?,
        Timestamp::from_micros(since).ok()?,
    ))
}

/// A length that is written one longer, so that 0 stands for none.
#[expect(
    clippy::option_option,
    reason = "the outer one is for bytes that are missing"
)]
fn optional(bytes: &mut Reader<'_>) -> Option<Option<Micros>> {
    Some(bytes.micros()?.checked_sub(1).map(Micros))
}

fn settings(bytes: &mut Reader<'_>) -> Option<LockoutSettings> {
    let failures = bytes.count()?;
    let (period, ban) = (Micros(bytes.micros()?), Micros(bytes.micros()?));
    let factor = bytes.count()?;
    let (max_ban, jitter) = (Micros(bytes.micros()?), Micros(bytes.micros()?));
    let forget_after = Micros(bytes.micros()?);
    let (cap, long) = (bytes.count()?, Micros(bytes.micros()?));
    Some(LockoutSettings {
        failures,
        period,
        ban,
        factor,
        max_ban,
        jitter,
        forget_after,
        long_cap: cap.checked_sub(1).map(|cap| (cap, long)),
    })
}
