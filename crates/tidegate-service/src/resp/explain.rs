//! `TG.EXPLAIN limit [key]`: what a limit admits, and what is known of a key.

use tidegate::explain::{WindowReason, explain as explain_limit};
use tidegate::{Mode, Operation, Reply, Timestamp};

use super::arguments::millis;
use super::reply::Replies;
use crate::served::ServedLimit;

/// Answers the command with a map.
pub(crate) fn explain(
    limit: &ServedLimit,
    key: Option<&[u8]>,
    now: Timestamp,
    replies: &mut Replies<'_>,
) -> Result<(), String> {
    let named = limit.named();
    let explained = explain_limit(named.config(), &[])
        .map_err(|problem| format!("ERR limit '{}': {problem}", named.name()))?;
    let state = key.map(|key| named.apply(key, &Operation::State, now));
    let state = match state {
        Some(Ok(Reply::State(state))) => Some(state),
        Some(Err(error)) => return Err(format!("ERR limit '{}': {error}", named.name())),
        _ => None,
    };
    let own = explained
        .admits
        .iter()
        .find(|admission| admission.reason == WindowReason::Own || explained.admits.len() == 1);
    replies.map(if state.is_some() { 12 } else { 7 });
    let mut pair = |name: &str, value: &str| {
        replies.text(name);
        replies.text(value);
    };
    pair("limit", named.name());
    pair("algorithm", &explained.algorithm);
    pair("does", &explained.sentence);
    pair("mode", mode(named.limiter().mode()));
    pair(
        "worst_case_window",
        &own.map_or("none".to_owned(), |own| own.window.to_string()),
    );
    replies.text("worst_case");
    match own.and_then(|own| own.most) {
        Some(most) => replies.int(i64::try_from(most).unwrap_or(i64::MAX)),
        None => replies.null(),
    }
    replies.text("cost");
    replies.int(i64::from(explained.cost));
    if let Some(state) = state {
        let mut number = |name: &str, value: i64| {
            replies.text(name);
            replies.int(value);
        };
        number("most", i64::from(state.limit));
        number("used", i64::from(state.used));
        number("remaining", i64::from(state.remaining));
        number("reset_after_ms", millis(state.reset_after));
        let blocked = i64::try_from(state.blocked_for.0.div_ceil(1_000));
        number("blocked_for_ms", blocked.unwrap_or(i64::MAX));
    }
    Ok(())
}

fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Enforce => "enforce",
        Mode::Shadow => "shadow",
        Mode::Off => "off",
        Mode::Percent(_) => "percent",
    }
}
