//! What to think about before relying on a limit.

use tidegate_config::model::{Limit, Mode, OnStoreFailure};
use tidegate_core::{Align, Micros, Policy, bounds};

use super::{burst, can_pass, most, own_period};

/// Above this a limit is not about load but about a promise: "no more than 3 in 10 minutes".
const SLOW: Micros = Micros::from_secs(60);

/// Something to think about, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// What it is.
    pub message: String,
    /// The remedy; none where there is nothing to do.
    pub help: Option<String>,
}

impl Warning {
    fn new(message: String, help: String) -> Self {
        Self {
            message,
            help: Some(help),
        }
    }
}

pub(super) fn warnings(limit: &Limit, policy: &Policy) -> Vec<Warning> {
    let mut found = Vec::new();
    found.extend(more_than_it_seems(policy));
    found.extend(impossible(limit, policy));
    found.extend(not_enforced(limit.mode));
    found.extend(unbounded(policy));
    found.extend(store(limit));
    found
}

/// Limits that look as if no more than N pass in any P, and let more pass.
fn more_than_it_seems(policy: &Policy) -> Option<Warning> {
    let period = own_period(policy)?;
    let number = burst(policy);
    let admits = bounds::admitted(policy, period)?;
    if number < 2 || admits <= u64::from(number) {
        return None;
    }
    let why = match policy {
        Policy::TokenBucket(_) | Policy::IntervalBucket(_) if period >= SLOW => format!(
            "the {number} of a full bucket, and {} that come back meanwhile",
            admits - u64::from(number)
        ),
        Policy::FixedWindow(window) if period >= SLOW && !is_calendar(window.align()) => {
            "the end of one window and the beginning of the next".to_owned()
        }
        Policy::InterpolatedWindow(_) => "its count is an estimate".to_owned(),
        _ => return None,
    };
    let exact = if number > tidegate_core::MAX_LOG_ENTRIES {
        "sliding_window"
    } else {
        "sliding_log"
    };
    Some(Warning::new(
        format!("admits {admits} within {period}: {why}"),
        format!(
            "where no more than {number} may pass in any {period}, write `{exact}: {{ limit: \
             {number}/{period} }}`, which admits {number}"
        ),
    ))
}

fn is_calendar(align: &Align) -> bool {
    matches!(align, Align::Calendar(_))
}

fn impossible(limit: &Limit, policy: &Policy) -> Option<Warning> {
    let most = most(policy);
    if most == 0 {
        return Some(Warning {
            message: "denies everything".to_owned(),
            help: None,
        });
    }
    (!can_pass(policy, limit.cost)).then(|| {
        Warning::new(
            format!(
                "denies everything: a call costs {}, which does not fit into {most}",
                limit.cost
            ),
            "lower `cost`, or raise the limit".to_owned(),
        )
    })
}

fn not_enforced(mode: Mode) -> Option<Warning> {
    let message = match mode {
        Mode::Enforce => return None,
        Mode::Shadow => "is in shadow: it decides and counts, and everything passes".to_owned(),
        Mode::Off => "is off: everything passes and nothing is counted".to_owned(),
        Mode::Percent(share) => {
            format!("is enforced for {share} % of the keys; for the others everything passes")
        }
    };
    Some(Warning::new(
        message,
        "`mode: enforce` makes the figures hold".to_owned(),
    ))
}

fn unbounded(policy: &Policy) -> Option<Warning> {
    matches!(policy, Policy::Concurrency(_)).then(|| {
        Warning::new(
            "bounds how many are at work at once, not how many pass in a time".to_owned(),
            "put a rate limit beside it where the number matters too".to_owned(),
        )
    })
}

fn store(limit: &Limit) -> Option<Warning> {
    let message = match (limit.store, limit.on_store_failure) {
        (None, _) | (Some(_), OnStoreFailure::Deny) => return None,
        (Some(_), OnStoreFailure::Allow) => {
            "while its store gives no answer, everything passes".to_owned()
        }
        (Some(_), OnStoreFailure::LocalShare(share)) => format!(
            "while its store gives no answer, each process admits {} % of the figures by itself",
            share.0 / 10_000
        ),
    };
    Some(Warning::new(
        message,
        "`on_store_failure: deny` refuses calls instead".to_owned(),
    ))
}
