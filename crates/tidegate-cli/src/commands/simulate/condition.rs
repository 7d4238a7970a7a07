//! Conditions on the status of an answer, as far as a log can tell: `status == 200`,
//! `status in [401, 403]`, `status >= 500`, joined by `||` and `&&`.

use anyhow::{Context as _, Result, bail};
use tidegate::simulation::StatusSet;

/// The statuses that a condition holds for.
///
/// # Errors
/// The condition asks for more than the status.
pub fn statuses(condition: &str) -> Result<StatusSet> {
    let alternatives = condition
        .split("||")
        .map(|part| part.split("&&").map(Test::parse).collect())
        .collect::<Result<Vec<Vec<Test>>>>()
        .with_context(|| {
            format!(
                "the condition `{condition}` cannot be read from a log, which tells only the \
                 status: write it as in `status in [401, 403] || status >= 500`"
            )
        })?;
    Ok(StatusSet::of(|status| {
        alternatives
            .iter()
            .any(|tests| tests.iter().all(|test| test.holds(status)))
    }))
}

enum Test {
    In(Vec<u16>),
    Compare(&'static str, u16),
}

impl Test {
    fn parse(text: &str) -> Result<Self> {
        let Some(rest) = text.trim().strip_prefix("status") else {
            bail!("`{}` does not begin with status", text.trim());
        };
        let number = |text: &str| {
            let text = text.trim();
            text.parse()
                .with_context(|| format!("`{text}` is no status"))
        };
        let rest = rest.trim();
        if let Some(list) = rest.strip_prefix("in") {
            let list = list
                .trim()
                .strip_prefix('[')
                .and_then(|list| list.strip_suffix(']'));
            let list = list.context("a list in brackets is missing after in")?;
            return Ok(Self::In(
                list.split(',').map(number).collect::<Result<_>>()?,
            ));
        }
        for operator in ["==", "!=", ">=", "<=", ">", "<"] {
            if let Some(status) = rest.strip_prefix(operator) {
                return Ok(Self::Compare(operator, number(status)?));
            }
        }
        bail!("`{rest}` is no comparison")
    }

    fn holds(&self, status: u16) -> bool {
        match self {
            Self::In(list) => list.contains(&status),
            Self::Compare(operator, other) => match *operator {
                "==" => status == *other,
                "!=" => status != *other,
                ">=" => status >= *other,
                "<=" => status <= *other,
                ">" => status > *other,
                _ => status < *other,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_holds_for_the_statuses_that_it_names() {
        for (condition, yes, no) in [
            ("status == 200", vec![200], vec![201, 0]),
            ("status in [401, 403]", vec![401, 403], vec![402]),
            ("status>=500||status == 429", vec![500, 599, 429], vec![499]),
            (
                "status > 399 && status < 500",
                vec![400, 499],
                vec![399, 500],
            ),
            ("status != 304", vec![200], vec![304]),
        ] {
            let set = statuses(condition).unwrap();
            assert!(yes.iter().all(|status| set.has(*status)), "{condition}");
            assert!(!no.iter().any(|status| set.has(*status)), "{condition}");
        }
        for wrong in [
            "",
            "true",
            "status",
            "status in 401",
            "body == 1",
            "status == x",
        ] {
            assert!(statuses(wrong).is_err(), "{wrong}");
        }
    }
}
