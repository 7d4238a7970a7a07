//! Checks stores.

use std::path::PathBuf;

use super::limits::MEMORY;
use super::{Checker, check_name};
use crate::cursor::Cursor;
use crate::decode::Tried;
use crate::model::{Secret, Store, StoreKind, StoreTls, StoreUrl};
use crate::report::Problem;
use crate::shape::{Named, SecretShape, StoreShape, StoreTlsShape, ValkeyShape};
use crate::text::TextError;

/// More connections to one server only cost it memory: calls share them.
const MOST_CONNECTIONS: u32 = 64;

impl Checker<'_> {
    pub(super) fn stores(&mut self, shapes: &Named<Tried<StoreShape>>) -> Vec<Store> {
        let mut stores = Vec::new();
        for (position, (name, shape)) in shapes.0.iter().enumerate() {
            let at = self.root.get("stores").at(position);
            if name == MEMORY {
                let problem = Problem::error("`memory` is always there and cannot be set up")
                    .at(at.key_span())
                    .help("give this store another name");
                self.problems.push(problem);
            }
            if let Err(error) = check_name("store", name) {
                let problem = Problem::error(error.message)
                    .at(at.key_span())
                    .help(error.help);
                self.problems.push(problem);
            }
            if let Tried(Some(StoreShape::Valkey(shape))) = shape {
                stores.extend(self.valkey(name, shape, at.get("valkey")));
            }
        }
        stores
    }

    fn valkey(&mut self, name: &str, shape: &ValkeyShape, at: Cursor<'_>) -> Option<Store> {
        let url = self.take(StoreUrl::parse(&shape.url), at.get("url"));
        let password = self.secret(shape.password.as_ref(), at.get("password"));
        let sentinel_password = self.secret(
            shape.sentinel_password.as_ref(),
            at.get("sentinel_password"),
        );
        let key_secret = self.secret(shape.key_secret.as_ref(), at.get("key_secret"));
        for (user, password, field) in [
            (&shape.user, &shape.password, "user"),
            (
                &shape.sentinel_user,
                &shape.sentinel_password,
                "sentinel_user",
            ),
        ] {
            if user.is_some() && password.is_none() {
                let error = TextError::new(
                    "a user name without a password gives no access",
                    format!(
                        "write `{}: {{ env: VARIABLE }}` beside it",
                        field.replace("user", "password")
                    ),
                );
                self.wrong(error, at.get(field));
            }
        }
        let key_prefix = shape.key_prefix.as_deref().unwrap_or("tg1");
        self.take(check_prefix(key_prefix), at.get("key_prefix"));
        for (field, count, most) in [
            ("connections", shape.connections, MOST_CONNECTIONS),
            ("failures", shape.breaker.failures, u32::MAX),
        ] {
            let at = if field == "failures" {
                at.get("breaker")
            } else {
                at
            };
            if count.is_some_and(|count| count.0 == 0 || count.0 > most) {
                let to = if most == u32::MAX {
                    String::new()
                } else {
                    format!(" to {most}")
                };
                let error = TextError::new(
                    format!("`{field}` cannot be {}", count.map_or(0, |count| count.0)),
                    format!("write a number from 1{to}, or leave it out"),
                );
                self.wrong(error, at.get(field));
            }
        }
        let tls = self.store_tls(shape.tls.as_ref(), at.get("tls"));
        let url = url?;
        self.fits_url(shape, &url, at);
        let default = Store::at(name, url);
        Some(Store {
            deadline: shape
                .deadline
                .map_or(default.deadline, |time| time.0.as_duration()),
            connect_timeout: shape
                .connect_timeout
                .map_or(default.connect_timeout, |time| time.0.as_duration()),
            connections: shape
                .connections
                .map_or(default.connections, |count| count.0),
            breaker_failures: shape
                .breaker
                .failures
                .map_or(default.breaker_failures, |count| count.0),
            atomicity: shape.atomicity,
            user: shape.user.clone(),
            sentinel_user: shape.sentinel_user.clone(),
            key_prefix: key_prefix.to_owned(),
            password,
            sentinel_password,
            key_secret,
            tls,
            ..default
        })
    }

    /// Notes fields that mean nothing with such a URL.
    fn fits_url(&mut self, shape: &ValkeyShape, url: &StoreUrl, at: Cursor<'_>) {
        if url.has_password() && shape.password.is_some() {
            let problem = Problem::error("there are two passwords")
                .at(at.get("password").key_span())
                .see(at.get("url").span(), "the other one")
                .help("take the one in the URL out");
            self.problems.push(problem);
        }
        if shape.tls.is_some() && !url.tls() {
            let problem = Problem::error("certificates without TLS have no effect")
                .at(at.get("tls").key_span())
                .see(at.get("url").span(), "connections are not encrypted")
                .help("write `rediss` instead of `redis` in the URL, or leave `tls` out");
            self.problems.push(problem);
        }
        let sentinels = [
            ("sentinel_user", shape.sentinel_user.is_some()),
            ("sentinel_password", shape.sentinel_password.is_some()),
        ];
        for (field, is_there) in sentinels {
            if is_there && url.kind() != StoreKind::Sentinel {
                let problem = Problem::error(format!("`{field}` means nothing without sentinels"))
                    .at(at.get(field).key_span())
                    .see(at.get("url").span(), "no sentinels here")
                    .help("leave it out, or write `redis+sentinel://HOST:PORT,HOST:PORT/NAME`");
                self.problems.push(problem);
            }
        }
    }

    fn secret(&mut self, shape: Option<&SecretShape>, at: Cursor<'_>) -> Option<Secret> {
        match shape? {
            SecretShape::File(path) if path.is_empty() => {
                let error = TextError::new("a secret's file has no name", "write its path");
                self.wrong(error, at.get("file"));
                None
            }
            SecretShape::File(path) => Some(Secret::File(PathBuf::from(path))),
            SecretShape::Env(name) if name.is_empty() || name.contains(['=', '\0']) => {
                let error = TextError::new(
                    format!("`{name}` is no name of a variable"),
                    "write one such as `VALKEY_PASSWORD`",
                );
                self.wrong(error, at.get("env"));
                None
            }
            SecretShape::Env(name) => Some(Secret::Env(name.clone())),
        }
    }

    fn store_tls(&mut self, shape: Option<&StoreTlsShape>, at: Cursor<'_>) -> StoreTls {
        let Some(shape) = shape else {
            return StoreTls::default();
        };
        let certificate = match (&shape.certificate, &shape.key) {
            (Some(certificate), Some(key)) => Some((certificate.into(), key.into())),
            (None, None) => None,
            (certificate, _) => {
                let (there, missing) = if certificate.is_some() {
                    ("certificate", "key")
                } else {
                    ("key", "certificate")
                };
                let error = TextError::new(
                    format!("a `{there}` without its `{missing}` proves nothing"),
                    format!("write the path of the `{missing}` too"),
                );
                self.wrong(error, at.get(there));
                None
            }
        };
        StoreTls {
            ca: shape.ca.as_ref().map(PathBuf::from),
            certificate,
        }
    }
}

/// A prefix stands in patterns of access rules and must not look like a cluster's tag.
fn check_prefix(prefix: &str) -> Result<(), TextError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
    if (1..=64).contains(&prefix.len()) && prefix.chars().all(allowed) {
        return Ok(());
    }
    Err(TextError::new(
        format!("`{prefix}` cannot be what keys begin with"),
        "write 1 to 64 letters, digits, `-`, `_`, `.` and `:`",
    ))
}
