//! The value of `RateLimit-Policy`, which is the same from one answer to the next.

use std::sync::OnceLock;

use http::HeaderValue;

use super::fields::{Standing, policies};

/// The value that was written first, and what it tells. Where limits change while they are in use,
/// or change places, others are written afresh.
#[derive(Debug, Default)]
pub(super) struct PolicyField(OnceLock<(Box<[Told]>, HeaderValue)>);

/// What the value tells of one limit.
#[derive(Debug)]
struct Told {
    name: Box<str>,
    quota: u32,
    window: Option<u64>,
}

impl Told {
    fn is_of(&self, standing: &Standing<'_>) -> bool {
        self.quota == standing.quota
            && self.window == standing.window
            && *self.name == *standing.name
    }
}

impl PolicyField {
    /// The value for these limits.
    pub(super) fn of(&self, standings: &[Standing<'_>]) -> HeaderValue {
        let (told, value) = self.0.get_or_init(|| {
            let told = standings.iter().map(|standing| Told {
                name: standing.name.into(),
                quota: standing.quota,
                window: standing.window,
            });
            (told.collect(), policies(standings))
        });
        let same = told.len() == standings.len()
            && told
                .iter()
                .zip(standings)
                .all(|(told, standing)| told.is_of(standing));
        if same {
            value.clone()
        } else {
            policies(standings)
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::Wait;

    use super::*;

    #[test]
    fn what_was_kept_is_told_only_of_the_same_limits() {
        let standing = |name, quota, window| Standing {
            name,
            quota,
            window,
            remaining: 1,
            reset_after: Wait::ZERO,
        };
        let (a, b) = (standing("\"a\"", 5, Some(1)), standing("\"b\"", 5, Some(1)));
        let field = PolicyField::default();
        for standings in [
            vec![a, b],
            vec![a, b],
            vec![b, a],
            vec![a],
            vec![],
            vec![standing("\"a\"", 6, Some(1)), b],
            vec![standing("\"a\"", 5, None), b],
            vec![a, b],
        ] {
            assert_eq!(field.of(&standings), policies(&standings));
        }
    }
}
