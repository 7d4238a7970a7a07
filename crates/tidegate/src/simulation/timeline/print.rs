//! Calls and answers as lines of a timeline.

use std::fmt;
use std::fmt::Write as _;

use super::clause::Clause;
use super::header::Settings;
use crate::simulation::call::{Action, CHANGE_MODES, Call, LimitNumber};
use crate::simulation::keys::KeyText;
use crate::simulation::replay::{Answer, Simulation};
use crate::simulation::time::Written as WrittenTime;

/// Writes a call and its answer as a line that could be replayed; none where the algorithm has
/// no such operation.
pub(crate) fn write_line(
    out: &mut String,
    simulation: &Simulation,
    call: &Call,
    answer: Option<&Answer>,
) {
    let _ = write!(
        out,
        "{:>8} {:<11} {:<6}",
        WrittenTime(call.at),
        Subject(simulation, call),
        Asked(simulation, call).to_string()
    );
    let clauses = match answer {
        Some(answer) => Clause::of(call, answer, simulation),
        None => vec![Clause::Unsupported],
    };
    for (position, clause) in clauses.iter().enumerate() {
        let _ = match position {
            // The column of what follows the verdict is the same for both.
            0 if clauses.len() > 1 => write!(out, "  {:<5}", clause.to_string()),
            _ => write!(out, "  {clause}"),
        };
    }
    out.push('\n');
}

/// The header of a limit, as a line without its end.
pub(crate) fn header_line(simulation: &Simulation, limit: LimitNumber) -> String {
    format!(
        "limit {}: {}{}",
        simulation.name(limit),
        simulation.header(limit),
        Settings(simulation.settings(limit))
    )
}

struct Subject<'a>(&'a Simulation, &'a Call);

impl fmt::Display for Subject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(simulation, call) = self;
        let mut text = String::new();
        if let Action::SetPolicy(change) = &call.action {
            return f.pad(simulation.name(change.limit));
        }
        let named = simulation.only().is_err();
        for (position, target) in call.targets.iter().enumerate() {
            if position > 0 {
                text.push(' ');
            }
            if named {
                let _ = write!(text, "{}=", simulation.name(target.limit));
            }
            let _ = write!(text, "{}", KeyText(simulation.key(*target)));
        }
        f.pad(&text)
    }
}

struct Asked<'a>(&'a Simulation, &'a Call);

impl fmt::Display for Asked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(simulation, call) = self;
        f.write_str(call.action.name())?;
        match &call.action {
            Action::Request(_) => {
                let cost = call
                    .targets
                    .first()
                    .map_or(1, |target| simulation.cost(target.limit));
                write!(f, " {cost}")
            }
            Action::Take(cost)
            | Action::Peek(cost)
            | Action::TakeUpTo(cost)
            | Action::Refund(cost)
            | Action::Force(cost) => write!(f, " {cost}"),
            Action::Attempt | Action::Success | Action::Reset | Action::Unblock | Action::State => {
                Ok(())
            }
            Action::Block(period) => write!(f, " {period}"),
            Action::Acquire { permit, weight: 1 } => write!(f, " {permit}"),
            Action::Acquire { permit, weight } => write!(f, " {permit} {weight}"),
            Action::Renew(permit) | Action::Release(permit) => write!(f, " {permit}"),
            Action::Reserve(reserve) => {
                write!(f, " {} {}", reserve.cost, reserve.max_wait)?;
                reserve
                    .name
                    .as_ref()
                    .map_or(Ok(()), |name| write!(f, " as {name}"))
            }
            Action::Settle(settle) => write!(f, " {} {}", settle.name, settle.actual),
            Action::Cancel(name) => write!(f, " {name}"),
            Action::SetPolicy(change) => {
                write!(f, " {}", change.header)?;
                let mode = CHANGE_MODES
                    .into_iter()
                    .find(|(_, mode)| *mode == change.mode);
                match mode {
                    Some((name, mode)) if mode != tidegate_core::ChangeMode::KeepUsed => {
                        write!(f, ", mode {name}")
                    }
                    _ => Ok(()),
                }
            }
        }
    }
}
