//! Checks plans and API keys.

use super::{Checker, check_name, positions};
use crate::decode::Tried;
use crate::model::{ApiKey, Plan};
use crate::pattern::RoutePattern;
use crate::report::Problem;
use crate::shape::{ApiKeyShape, Named, PlanShape};
use crate::suggest;
use crate::support::Feature;
use crate::text::TextError;

impl Checker<'_> {
    pub(super) fn plans(&mut self, shapes: &Named<Tried<PlanShape>>) -> Vec<Plan> {
        let section = self.root.get("plans");
        if !shapes.0.is_empty() {
            self.needs(Feature::Plans, "plans", section.key_span());
        }
        let mut plans = Vec::new();
        for (position, (name, shape)) in shapes.0.iter().enumerate() {
            let at = section.at(position);
            if let Err(error) = check_name("plan", name) {
                let problem = Problem::error(error.message)
                    .at(at.key_span())
                    .help(error.help);
                self.problems.push(problem);
            }
            let Some(shape) = &shape.0 else { continue };
            let limits = self.limit_positions(&shape.limits, at.get("limits"));
            let mut methods = Vec::new();
            for (index, (pattern, names)) in shape.methods.0.iter().enumerate() {
                let at = at.get("methods").at(index);
                let limits = self.limit_positions(names, at);
                match RoutePattern::parse(pattern) {
                    Ok(pattern) => methods.push((pattern, limits)),
                    Err(error) => self.problems.push(
                        Problem::error(error.message)
                            .at(at.key_span())
                            .help(error.help),
                    ),
                }
            }
            plans.push(Plan {
                name: name.clone(),
                limits,
                methods,
            });
        }
        plans
    }

    pub(super) fn api_keys(
        &mut self,
        shapes: &[Tried<ApiKeyShape>],
        plans: &Named<Tried<PlanShape>>,
    ) -> Vec<ApiKey> {
        let section = self.root.get("api_keys");
        if !shapes.is_empty() {
            self.needs(Feature::ApiKeys, "API keys", section.key_span());
        }
        let names = positions(plans);
        let mut keys: Vec<ApiKey> = Vec::new();
        for (index, shape) in shapes.iter().enumerate() {
            let at = section.at(index);
            let Some(shape) = &shape.0 else { continue };
            if keys.iter().any(|key| key.id == shape.id) {
                let error = TextError::new(
                    format!("two API keys have the id `{}`", shape.id),
                    "give each its own id: it is what logs and metrics show",
                );
                self.wrong(error, at.get("id"));
            }
            let hash = self.take(read_sha256(&shape.sha256), at.get("sha256"));
            if let Some(hash) = hash
                && let Some(other) = keys.iter().find(|key| key.sha256 == hash)
            {
                let error = TextError::new(
                    format!("this is the hash of `{}` too", other.id),
                    "give each caller a key of its own",
                );
                self.wrong(error, at.get("sha256"));
            }
            let plan = shape.plan.as_ref().and_then(|plan| {
                let position = names.get(plan).copied();
                if position.is_none() {
                    let mut known: Vec<&str> = names.keys().map(String::as_str).collect();
                    known.sort_unstable();
                    let help = suggest::instead(plan, known);
                    let error = TextError::new(format!("unknown plan `{plan}`"), help);
                    self.wrong(error, at.get("plan"));
                }
                position
            });
            let sha256 = hash.unwrap_or_default();
            keys.push(ApiKey {
                id: shape.id.clone(),
                sha256,
                plan,
            });
        }
        keys
    }
}

pub(super) fn read_sha256(text: &str) -> Result<[u8; 32], TextError> {
    let wrong = || {
        TextError::new(
            "this is no SHA-256 hash",
            "write 64 hexadecimal digits: `printf %s \"$KEY\" | sha256sum`",
        )
    };
    if text.len() != 64 || !text.is_ascii() {
        return Err(wrong());
    }
    let mut hash = [0; 32];
    for (index, byte) in hash.iter_mut().enumerate() {
        let digits = &text[index * 2..index * 2 + 2];
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        *byte = u8::from_str_radix(digits, 16).map_err(|_| wrong())?;
    }
    Ok(hash)
}
