//! The smallest number of a limit under which a share of the keys would have passed untouched.
//!
//! As long as a limit denies nothing, what a key has used does not depend on the number: so one
//! pass under the largest number there is tells for each key the least number that would have let
//! it pass. Whether that is right is shown by a second pass under the number that was found, and
//! under one less.
//!
//! Each limit is looked at by itself, as if it were the only one: where another one denies calls
//! too, less would do.

use tidegate_core::{MAX_COUNT, MAX_LOG_ENTRIES};

use super::call::{Call, LimitNumber};
use super::replay::{CallError, Scope, Simulation, VariantNumber};
use super::what_if::{Alternative, with_field};

/// A share of keys: more than none, up to all, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyShare(u32);

impl KeyShare {
    const ALL: u32 = 1_000_000;

    /// Reads a percentage with up to four decimals: `99.9%`, or `99.9`.
    ///
    /// # Errors
    /// What is wrong and the remedy.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        const WRONG: &str = "write a percentage above 0 and up to 100, such as 99.9%";
        let number = text.trim().strip_suffix('%').unwrap_or(text).trim();
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let are_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if !are_digits(whole) || !are_digits(fraction) || whole.is_empty() || fraction.len() > 4 {
            return Err(WRONG);
        }
        let parts = format!("{whole}{fraction:0<4}")
            .parse()
            .map_err(|_| WRONG)?;
        if parts == 0 || parts > Self::ALL {
            return Err(WRONG);
        }
        Ok(Self(parts))
    }

    /// A share in millionths, between 1 and 1000000.
    #[must_use]
    pub fn millionths(millionths: u32) -> Self {
        Self(millionths.clamp(1, Self::ALL))
    }

    /// Whether a caller with this hash belongs to the share.
    pub(crate) const fn holds(self, hash: u64) -> bool {
        // 2^64 does not divide by a million: a share is off by less than 2^-44.
        hash % (Self::ALL as u64) < self.0 as u64
    }

    /// How many of so many keys are at least this share.
    #[must_use]
    pub fn of(self, keys: usize) -> usize {
        let keys = keys as u128;
        let least = (keys * u128::from(self.0)).div_ceil(u128::from(Self::ALL));
        usize::try_from(least).unwrap_or(usize::MAX)
    }
}

impl std::fmt::Display for KeyShare {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (whole, fraction) = (self.0 / 10_000, self.0 % 10_000);
        let fraction = format!("{fraction:04}");
        let fraction = fraction.trim_end_matches('0');
        let point = if fraction.is_empty() { "" } else { "." };
        write!(f, "{whole}{point}{fraction} %")
    }
}

/// The number of an algorithm that decides how much passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dial {
    limit: LimitNumber,
    header: String,
    field: &'static str,
    /// What follows the number: the period of `100/1m`.
    suffix: String,
    /// What passes beside the number: those that a queue lets pass at once.
    beside: u32,
    largest: u32,
}

impl Dial {
    /// The dial of a limit.
    ///
    /// # Errors
    /// It has none, and why.
    pub fn of(simulation: &Simulation, limit: LimitNumber) -> Result<Self, &'static str> {
        let header = simulation.header(limit);
        let mut words: Vec<&str> = header.split_whitespace().collect();
        // A bucket that starts with less would be compared with one that is full.
        if let Some(at) = words.iter().position(|word| *word == "initial") {
            words.drain(at..at + 2);
        }
        let value = |field: &str| {
            let at = words.iter().position(|word| *word == field)?;
            words.get(at + 1).copied()
        };
        let (field, largest) = match words.first().copied().unwrap_or_default() {
            "token_bucket" => ("capacity", MAX_COUNT),
            "gcra" => ("burst", MAX_COUNT),
            "leaky_bucket" => ("queue", MAX_COUNT / 2),
            "sliding_log" => ("limit", MAX_LOG_ENTRIES),
            "lockout" => return Err("a lockout is about bans and not about a number that passes"),
            _ => ("limit", MAX_COUNT),
        };
        let suffix = value(field)
            .and_then(|value| value.split_once('/'))
            .map_or_else(String::new, |(_, period)| format!("/{period}"));
        let beside = match field {
            "queue" => value("burst")
                .and_then(|burst| burst.parse().ok())
                .unwrap_or(1),
            _ => 0,
        };
        Ok(Self {
            limit,
            header: words.join(" "),
            field,
            suffix,
            beside,
            largest,
        })
    }

    /// The limit with another number.
    ///
    /// # Errors
    /// The algorithm does not take the number, and why.
    pub fn at(&self, number: u32) -> Result<Alternative, String> {
        let value = format!("{number}{}", self.suffix);
        let header = with_field(&self.header, self.field, &value);
        let mut alternative = Alternative::of_header(self.limit, &header)?;
        alternative.label = format!("{} {value}", self.field);
        Ok(alternative)
    }

    /// The number that is configured.
    #[must_use]
    pub fn configured(&self) -> Option<u32> {
        let mut words = self.header.split_whitespace();
        words.find(|word| *word == self.field)?;
        words.next()?.split('/').next()?.parse().ok()
    }

    /// The name of the number.
    #[must_use]
    pub const fn field(&self) -> &'static str {
        self.field
    }

    /// The limit that is looked at.
    #[must_use]
    pub const fn limit(&self) -> LimitNumber {
        self.limit
    }
}

/// The least number under which each key would have passed, gathered call by call.
#[derive(Debug)]
pub struct Needs {
    dial: Dial,
    variant: VariantNumber,
    /// By key; none for one that did not call.
    keys: Vec<Option<u32>>,
}

impl Needs {
    /// What no number lets pass.
    const BEYOND: u32 = u32::MAX;

    /// Watches a limit from now on.
    ///
    /// # Errors
    /// The algorithm does not take its largest number, and why.
    pub fn watch(simulation: &mut Simulation, dial: Dial) -> Result<Self, String> {
        let largest = dial.at(dial.largest)?;
        let variant =
            simulation.add_variant(dial.limit, largest.policy, largest.header, Scope::Alone);
        Ok(Self {
            dial,
            variant,
            keys: Vec::new(),
        })
    }

    /// The number that is looked for.
    #[must_use]
    pub const fn dial(&self) -> &Dial {
        &self.dial
    }

    /// Counts a call.
    ///
    /// # Errors
    /// The call has no meaning for the limit.
    pub fn observe(&mut self, simulation: &mut Simulation, call: &Call) -> Result<(), CallError> {
        let Some(answer) = simulation.answer_as(self.variant, call)? else {
            return Ok(());
        };
        let Some((decision, target)) = answer.reply.decision().zip(answer.target) else {
            return Ok(());
        };
        if !call.action.charges() {
            return Ok(());
        }
        let index = target.key.index();
        if self.keys.len() <= index {
            self.keys.resize(index + 1, None);
        }
        let need = if decision.is_within_limit() {
            let used = decision.limit.saturating_sub(decision.remaining);
            used.saturating_sub(self.dial.beside)
        } else {
            Self::BEYOND
        };
        let known = &mut self.keys[index];
        *known = Some(known.map_or(need, |known| known.max(need)));
        Ok(())
    }

    /// What all keys need, the least first.
    #[must_use]
    pub fn sorted(&self) -> SortedNeeds {
        let mut needs: Vec<u32> = self.keys.iter().flatten().copied().collect();
        needs.sort_unstable();
        SortedNeeds(needs)
    }
}

/// What keys need, the least first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortedNeeds(Vec<u32>);

impl SortedNeeds {
    /// How many keys there are.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.0.len()
    }

    /// The least number under which this share of the keys passes untouched; none without keys,
    /// or where no number does.
    #[must_use]
    pub fn least(&self, share: KeyShare) -> Option<u32> {
        let keys = share.of(self.0.len());
        let need = self.0.get(keys.checked_sub(1)?)?;
        (*need != Needs::BEYOND).then_some(*need)
    }

    /// The needs that keys have, each with how many keys pass untouched under it; at most about
    /// `most` of them, evenly spread over the keys, the last one always among them.
    #[must_use]
    pub fn curve(&self, most: usize) -> Vec<(u32, usize)> {
        let step = (self.0.len() / most.max(1)).max(1);
        let mut curve: Vec<(u32, usize)> = Vec::new();
        let mut at = 0;
        while let Some(need) = self.0.get(at).filter(|need| **need != Needs::BEYOND) {
            let untouched = self.untouched(*need);
            curve.push((*need, untouched));
            at = (at + step).max(untouched);
        }
        let last = self.0.iter().rev().find(|need| **need != Needs::BEYOND);
        if let Some(last) = last
            && curve.last().is_none_or(|(need, _)| need < last)
        {
            curve.push((*last, self.untouched(*last)));
        }
        curve
    }

    /// How many keys pass untouched under a number.
    #[must_use]
    pub fn untouched(&self, number: u32) -> usize {
        self.0.partition_point(|need| *need <= number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_read_exactly_and_of_no_keys_is_none() {
        let share = |text| KeyShare::parse(text).unwrap();
        assert_eq!(share("99.9%").of(1_000), 999);
        assert_eq!(share("99.9%").of(1_001), 1_000);
        assert_eq!(share("100").of(7), 7);
        assert_eq!(share("0.0001 %").of(7), 1);
        assert_eq!(share("50%").of(0), 0);
        assert_eq!(share("99.9%").to_string(), "99.9 %");
        assert_eq!(share("50%").to_string(), "50 %");
        for wrong in ["", "0%", "100.1%", "-1%", "99,9%", "1.00001%", "9e1%", "%"] {
            assert!(KeyShare::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_least_number_is_that_of_the_last_key_of_the_share() {
        let needs = SortedNeeds(vec![1, 1, 2, 5, Needs::BEYOND]);
        let least = |text| needs.least(KeyShare::parse(text).unwrap());
        assert_eq!(least("40%"), Some(1));
        assert_eq!(least("41%"), Some(2));
        assert_eq!(least("80%"), Some(5));
        assert_eq!(least("81%"), None);
        assert_eq!((needs.untouched(0), needs.untouched(2)), (0, 3));
        assert_eq!(SortedNeeds(vec![]).least(KeyShare::millionths(1)), None);
    }
}
