//! Stored values as the engine's entries and back: the very bytes that the scripts keep, so both may
//! share a key.
//!
//! Between the two are the engine's words: what a state writes for a snapshot.

use std::sync::Arc;
use tidegate_core::{Algorithm, Calendar, Entry, Policy, Timestamp, with_algorithm};

use super::bytes::{Reader, push_count, push_micros, push_signed, push_sum};
use super::numbers;

/// Sums of logs are kept modulo this.
const SUMS: u64 = 1 << 40;

/// A value as far as it can be read without its algorithm.
pub(super) struct Kept<'a> {
    /// The letter, the generation and the numbers, as in a header without a block.
    pub(super) header: Vec<u8>,
    pub(super) generation: u32,
    /// The numbers that it was written under.
    pub(super) policy: Policy,
    /// What tells the calendar of the value's window from others.
    pub(super) calendar: Option<u64>,
    pub(super) last: u64,
    pub(super) blocked_until: u64,
    state: Reader<'a>,
}

impl<'a> Kept<'a> {
    /// Reads a value; `calendar` is the caller's own. None for bytes that are no value.
    pub(super) fn read(raw: &'a [u8], calendar: Option<&Arc<dyn Calendar>>) -> Option<Self> {
        let mut bytes = Reader(raw);
        let first = bytes.byte()?;
        let letter = first.to_ascii_uppercase();
        let generation = bytes.count()?;
        let numbers = numbers::read(letter, &mut bytes, calendar)?;
        let mut header = raw[..raw.len() - bytes.0.len()].to_vec();
        header[0] = letter;
        let last = bytes.micros()?;
        let blocked_until = if first == letter { 0 } else { bytes.micros()? };
        Some(Self {
            header,
            generation,
            policy: numbers.policy,
            calendar: numbers.calendar,
            last,
            blocked_until,
            state: bytes,
        })
    }

    /// The state, under the value's own numbers.
    pub(super) fn entry<A: Algorithm>(&self, algorithm: &A) -> Option<Entry<A::State>> {
        let mut words = Vec::new();
        let mut bytes = self.state;
        self.words(&mut bytes, &mut words)?;
        let mut words = words.into_iter();
        let state = algorithm.read_state(&mut || words.next())?;
        let blocked_until = self.blocked_until;
        (bytes.is_empty() && words.next().is_none()).then_some(Entry {
            state,
            blocked_until,
        })
    }

    /// When the window ends that the value's count is in, by the calendar that it was counted by.
    pub(super) fn calendar_end(&self) -> Option<u64> {
        let mut bytes = self.state;
        bytes.count()?;
        bytes.micros()
    }

    fn words(&self, bytes: &mut Reader<'_>, out: &mut Vec<u64>) -> Option<()> {
        out.push(self.last);
        match self.header[0] {
            b'B' | b'C' | b'Q' => {
                let (whole, part) = (bytes.count()?, bytes.micros()?);
                let deficit =
                    u128::from(whole) * u128::from(token(&self.policy)) + u128::from(part);
                push_wide(out, deficit);
            }
            b'F' => out.extend([bytes.count()?.into(), 0]),
            b'I' | b'J' | b'U' => out.extend([bytes.count()?.into(), bytes.micros()?]),
            b'K' => {
                out.extend([bytes.count()?.into(), 0]);
                bytes.micros()?;
            }
            b'W' => out.extend([u64::from(bytes.count()?), bytes.count()?.into()]),
            b'L' | b'S' => log_words(bytes, out)?,
            b'P' => {
                let (shift, token, _weight) =
                    (bytes.micros()?.cast_signed(), bytes.micros()?, bytes.sum()?);
                let count = bytes.0.len() / LEASE;
                out.extend([token, count as u64]);
                for _ in 0..count {
                    let (high, low) = (bytes.long()?, bytes.long()?);
                    out.extend([low, high, bytes.count()?.into(), bytes.micros()?]);
                    out.push(signed_word(bytes.signed()? - shift));
                    out.push(signed_word(bytes.signed()? - shift));
                }
            }
            b'X' => {
                out.extend([bytes.count()?.into(), bytes.micros()?, bytes.micros()?]);
                log_words(bytes, out)?;
                log_words(bytes, out)?;
            }
            _ => return None,
        }
        Some(())
    }
}

/// The bytes of a lease.
const LEASE: usize = 41;

/// An entry under a header as a value.
pub(super) fn write<A: Algorithm>(
    header: &[u8],
    policy: &Policy,
    entry: &Entry<A::State>,
) -> Vec<u8> {
    let mut words = Vec::new();
    A::write_state(&entry.state, &mut words);
    let mut words = words.into_iter();
    let mut next = || words.next().unwrap_or(0);
    let mut out = header.to_vec();
    let last = next();
    push_micros(&mut out, last);
    if entry.blocked_until > 0 {
        out[0] = out[0].to_ascii_lowercase();
        push_micros(&mut out, entry.blocked_until);
    }
    match header[0] {
        b'B' | b'C' | b'Q' => {
            let deficit = wide(&mut next);
            let token = u128::from(token(policy));
            // A deficit is at most twice a capacity, and a part less than a token.
            push_count(&mut out, u64::try_from(deficit / token).unwrap_or(u64::MAX));
            push_micros(&mut out, u64::try_from(deficit % token).unwrap_or(0));
        }
        b'I' | b'J' | b'U' => {
            push_count(&mut out, next());
            push_micros(&mut out, next());
        }
        b'F' => push_count(&mut out, next()),
        b'K' => {
            push_count(&mut out, next());
            let at = Timestamp::from_micros(last).unwrap_or(Timestamp::MAX);
            let end = policy
                .calendar()
                .map_or(last, |calendar| calendar.window(at).end.as_micros());
            push_micros(&mut out, end);
        }
        b'W' => {
            push_count(&mut out, next());
            push_count(&mut out, next());
        }
        b'L' | b'S' => push_log(&mut out, &mut next),
        b'P' => push_leases(&mut out, &mut next),
        _ => {
            push_count(&mut out, next());
            push_micros(&mut out, next());
            push_micros(&mut out, next());
            push_log(&mut out, &mut next);
            push_log(&mut out, &mut next);
        }
    }
    out
}

/// How many parts a token has.
fn token(policy: &Policy) -> u64 {
    let rate = match policy {
        Policy::TokenBucket(bucket) => bucket.rate(),
        Policy::LeakyBucket(queue) => queue.rate(),
        _ => return 1,
    };
    match rate.reduced() {
        (0, _) => 1,
        (_, period) => period,
    }
}

fn log_words(bytes: &mut Reader<'_>, out: &mut Vec<u64>) -> Option<()> {
    let shift = bytes.micros()?.cast_signed();
    let (dead, all) = (bytes.count()?, bytes.count()?);
    let mut before = bytes.sum()?;
    for _ in 0..dead {
        bytes.take(RECORD)?;
    }
    let count = all.checked_sub(dead)?;
    out.push(count.into());
    let mut last = 0;
    for _ in 0..count {
        let (at, total) = (bytes.signed()? - shift, bytes.sum()?);
        out.extend([signed_word(at - last), total.wrapping_sub(before) % SUMS]);
        (last, before) = (at, total);
    }
    Some(())
}

/// The bytes of a record of a log.
const RECORD: usize = 12;

fn push_log(out: &mut Vec<u8>, next: &mut impl FnMut() -> u64) {
    let count = next();
    push_micros(out, 0);
    push_count(out, 0);
    push_count(out, count);
    push_sum(out, 0);
    let (mut at, mut total) = (0_i64, 0);
    for _ in 0..count {
        at = at.saturating_add(signed(next()));
        total = (total + next()) % SUMS;
        push_signed(out, at);
        push_sum(out, total);
    }
}

fn push_leases(out: &mut Vec<u8>, next: &mut impl FnMut() -> u64) {
    let (token, count) = (next(), next());
    let (mut weights, mut records) = (0, Vec::new());
    for _ in 0..count {
        let (low, high, weight) = (next(), next(), next());
        weights += weight;
        records.extend_from_slice(&high.to_be_bytes());
        records.extend_from_slice(&low.to_be_bytes());
        push_count(&mut records, weight);
        push_micros(&mut records, next());
        push_signed(&mut records, signed(next()));
        push_signed(&mut records, signed(next()));
    }
    push_micros(out, 0);
    push_micros(out, token);
    push_sum(out, weights);
    out.extend_from_slice(&records);
}

fn push_wide(out: &mut Vec<u64>, value: u128) {
    #[expect(clippy::cast_possible_truncation, reason = "the other half follows")]
    out.extend([value as u64, (value >> 64) as u64]);
}

fn wide(next: &mut impl FnMut() -> u64) -> u128 {
    let low = next();
    u128::from(low) | u128::from(next()) << 64
}

/// Signed numbers among the engine's words: small ones of either sign are small words.
const fn signed_word(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

const fn signed(word: u64) -> i64 {
    (word >> 1).cast_signed() ^ -(word & 1).cast_signed()
}

/// Whether two policies are of one algorithm, and the other as that.
pub(super) fn as_same<'a, A: Algorithm>(_: &A, other: &'a Policy) -> Option<&'a A> {
    with_algorithm!(other, other => (other as &dyn std::any::Any).downcast_ref::<A>())
}
