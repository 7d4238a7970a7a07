//! What clients send and receive, as JSON. These types are also the schemas of the served document.

use std::fmt;

use schemars::JsonSchema;
use serde::de::{self, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use tidegate::{Decision, Denial, Key, KeyPart, LeaseGrant, Reservation, Timestamp, Verdict, Wait};

/// The most units of a call: what a limit holds at most.
pub(crate) const MAX_UNITS: u32 = i32::MAX as u32;

/// The longest wait that a reservation may ask for, in milliseconds: ten years.
pub(crate) const MAX_WAIT: u64 = 315_576_000_000;

/// The last microsecond that limits know.
const MAX_TIME: u64 = 1 << 52;

/// A whole number, also as `1.0`: to JSON Schema, and to some languages, that is the same.
fn whole<'de, D: Deserializer<'de>, T: TryFrom<u64>>(deserializer: D) -> Result<T, D::Error> {
    struct Whole;
    impl Visitor<'_> for Whole {
        type Value = u64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a whole number from 0 on")
        }

        fn visit_u64<E>(self, number: u64) -> Result<u64, E> {
            Ok(number)
        }

        fn visit_f64<E: de::Error>(self, number: f64) -> Result<u64, E> {
            // Doubles are exact up to here, and no number in any call is larger.
            if number.fract() == 0.0 && (0.0..=9_007_199_254_740_991.0).contains(&number) {
                return Ok(number as u64);
            }
            Err(E::invalid_value(Unexpected::Float(number), &self))
        }
    }
    let number = deserializer.deserialize_any(Whole)?;
    T::try_from(number)
        .map_err(|_| de::Error::invalid_value(Unexpected::Unsigned(number), &"a smaller number"))
}

/// The same where there may be none.
fn whole_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    #[derive(Deserialize)]
    struct Some32(#[serde(deserialize_with = "whole")] u32);
    Ok(Option::<Some32>::deserialize(deserializer)?.map(|number| number.0))
}

/// Whose state is counted: text, or a list of texts of which no two lists are one key.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum KeyShape {
    /// One part.
    One(String),
    /// Several parts, in order.
    Parts(#[schemars(length(max = 16))] Vec<String>),
}

impl KeyShape {
    /// The key; the one key of a limit for all where none is given.
    pub(crate) fn key(this: Option<&Self>) -> Option<Key> {
        match this {
            None => Some(Key::from_parts([])),
            Some(Self::One(part)) => Some(Key::new(part)),
            Some(Self::Parts(parts)) if parts.len() > 16 => None,
            Some(Self::Parts(parts)) => {
                let parts = parts.iter().map(|part| KeyPart::Text(part.as_bytes()));
                Some(Key::from_parts(parts))
            }
        }
    }
}

/// A call that wants units of a limit.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Take {
    /// The name of the limit.
    pub limit: String,
    /// Whose state is counted. Default: all calls together.
    #[serde(default)]
    pub key: Option<KeyShape>,
    /// Units. Default: the limit's `cost`.
    #[serde(default, deserialize_with = "whole_or_none")]
    #[schemars(range(max = MAX_UNITS))]
    pub cost: Option<u32>,
}

/// A call that wants units ahead of time.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Reserve {
    /// The name of the limit.
    pub limit: String,
    /// Whose state is counted. Default: all calls together.
    #[serde(default)]
    pub key: Option<KeyShape>,
    /// Units. Default: the limit's `cost`.
    #[serde(default, deserialize_with = "whole_or_none")]
    #[schemars(range(max = MAX_UNITS))]
    pub cost: Option<u32>,
    /// The longest wait that is accepted, in milliseconds. Default: 0.
    #[serde(default, deserialize_with = "whole")]
    #[schemars(range(max = MAX_WAIT))]
    pub max_wait_ms: u64,
}

/// Units that were taken for work whose real cost is known later.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReservationShape {
    /// Units taken.
    #[serde(deserialize_with = "whole")]
    #[schemars(range(max = MAX_UNITS))]
    pub cost: u32,
    /// When they were taken, in microseconds since the Unix epoch.
    #[serde(deserialize_with = "whole")]
    #[schemars(range(max = MAX_TIME))]
    pub at_us: u64,
}

impl From<Reservation> for ReservationShape {
    fn from(reservation: Reservation) -> Self {
        Self {
            cost: reservation.cost,
            at_us: reservation.at.as_micros(),
        }
    }
}

impl ReservationShape {
    pub(crate) fn read(self) -> Option<Reservation> {
        Some(Reservation {
            cost: self.cost,
            at: Timestamp::from_micros(self.at_us).ok()?,
        })
    }
}

/// A reservation, and what it has really cost.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settle {
    /// The name of the limit.
    pub limit: String,
    /// Whose state is counted. Default: all calls together.
    #[serde(default)]
    pub key: Option<KeyShape>,
    /// What was reserved.
    pub reservation: ReservationShape,
    /// Units that were used: less is given back, more is charged, even into debt.
    #[serde(deserialize_with = "whole")]
    #[schemars(range(max = MAX_UNITS))]
    pub actual: u32,
}

/// A reservation that is not needed.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cancel {
    /// The name of the limit.
    pub limit: String,
    /// Whose state is counted. Default: all calls together.
    #[serde(default)]
    pub key: Option<KeyShape>,
    /// What was reserved.
    pub reservation: ReservationShape,
}

/// A call that wants permits for a time.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Acquire {
    /// The name of the limit.
    pub limit: String,
    /// Whose state is counted. Default: all calls together.
    #[serde(default)]
    pub key: Option<KeyShape>,
    /// Permits. Default: 1.
    #[serde(default, deserialize_with = "whole_or_none")]
    #[schemars(range(max = MAX_UNITS))]
    pub weight: Option<u32>,
}

/// Whose lease it is.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Holder {
    /// The name of the limit.
    pub limit: String,
    /// Whose state is counted. Default: all calls together.
    #[serde(default)]
    pub key: Option<KeyShape>,
}

/// A guess at a secret, or that the last one was right.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Attempt {
    /// The name of the limit.
    pub limit: String,
    /// Whose state is counted. Default: all calls together.
    #[serde(default)]
    pub key: Option<KeyShape>,
    /// Whether the last guess was right: its failure is taken back, and the others are forgotten.
    /// Default: this is a guess, whose failure is charged in advance.
    #[serde(default)]
    pub succeeded: bool,
}

/// Many calls, decided at one moment.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Batch {
    /// The calls.
    #[schemars(length(min = 1, max = 100))]
    pub calls: Vec<Take>,
    /// Whether all are charged, or none. Default: each by itself.
    #[serde(default)]
    pub all_or_nothing: bool,
}

/// What was decided.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct DecisionShape<'a> {
    /// Whether the call passes.
    pub allowed: bool,
    /// The limit that decided.
    pub limit: &'a str,
    /// The most that it lets through at once.
    pub most: u32,
    /// How many calls of cost 1 would still pass.
    pub remaining: u32,
    /// Units that were asked for.
    pub cost: u32,
    /// When the same call would pass, in milliseconds from now, rounded up; 0 if it did, and null
    /// if it never will.
    pub retry_after_ms: Option<u64>,
    /// When the limit is full again, in milliseconds from now, rounded up; null for never.
    pub reset_after_ms: Option<u64>,
    /// How long a call that passes has to wait before it goes on, in milliseconds, rounded up.
    pub delay_ms: Option<u64>,
    /// Why, in a word.
    pub reason: Reason,
    /// Whether the limit is only watched.
    pub shadow: bool,
}

/// Why a decision is what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reason {
    /// There is enough left.
    Allowed,
    /// There is not enough left now.
    Limited,
    /// The key is blocked.
    Blocked,
    /// More than the limit can ever hold.
    Impossible,
    /// There is no room for a new key.
    TableFull,
    /// There was no answer of the store.
    Fallback,
}

/// A wait in milliseconds, rounded up; none for ever.
fn millis(wait: Wait) -> Option<u64> {
    wait.as_micros().map(|micros| micros.div_ceil(1_000))
}

impl<'a> DecisionShape<'a> {
    pub(crate) fn new(limit: &'a str, decision: &Decision) -> Self {
        Self {
            allowed: decision.is_allowed(),
            limit,
            most: decision.limit,
            remaining: decision.remaining,
            cost: decision.cost,
            retry_after_ms: millis(decision.retry_after),
            reset_after_ms: millis(decision.reset_after),
            delay_ms: millis(decision.delay),
            reason: match decision.verdict {
                Verdict::Allow => Reason::Allowed,
                Verdict::Deny(Denial::Limited) => Reason::Limited,
                Verdict::Deny(Denial::Blocked) => Reason::Blocked,
                Verdict::Deny(Denial::Impossible) => Reason::Impossible,
                Verdict::Deny(Denial::TableFull) => Reason::TableFull,
                Verdict::Deny(_) => Reason::Fallback,
            },
            shadow: decision.shadow,
        }
    }
}

/// What became of a reservation.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Reserved<'a> {
    /// The decision; its `delay_ms` is how long to wait before the units may be used.
    pub decision: DecisionShape<'a>,
    /// What to settle or cancel later; null where nothing was reserved.
    pub reservation: Option<ReservationShape>,
}

/// Units that came back.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub(crate) struct Returned {
    /// How many.
    pub returned: u32,
}

/// What became of an acquisition.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Acquired<'a> {
    /// The decision.
    pub decision: DecisionShape<'a>,
    /// The lease; null where none was granted.
    pub lease: Option<LeaseShape>,
}

/// A lease that is held.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct LeaseShape {
    /// Its name: 32 hexadecimal digits that nobody can guess.
    pub id: String,
    /// Rises with every lease of the key: what the lease protects refuses a lower one.
    pub fencing_token: u64,
    /// For how many milliseconds it is held, rounded down.
    pub expires_in_ms: u64,
}

impl LeaseShape {
    pub(crate) fn new(grant: &LeaseGrant, now: Timestamp) -> Self {
        let left = grant.expires_at.as_micros().saturating_sub(now.as_micros());
        Self {
            id: format!("{:032x}", grant.lease.0),
            fencing_token: grant.fencing_token,
            expires_in_ms: left / 1_000,
        }
    }
}

/// Whether a lease was given back in time.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub(crate) struct Released {
    /// False if it had been lost before: somebody else may have worked at the same time.
    pub was_live: bool,
}

/// What became of many calls.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Decided<'a> {
    /// Whether all of them pass.
    pub allowed: bool,
    /// What was decided of each, in order.
    pub decisions: Vec<DecisionShape<'a>>,
}

/// That a right guess was taken note of.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub(crate) struct Forgotten {
    /// Always true.
    pub forgotten: bool,
}
