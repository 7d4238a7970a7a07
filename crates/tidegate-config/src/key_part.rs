//! The parts of a limit's key, from their names.

use std::fmt;

use http::HeaderName;

use crate::model::KeyPart;
use crate::suggest;
use crate::text::TextError;

const WHOLE: [&str; 4] = ["client_ip", "principal", "api_key", "method_and_route"];
const PREFIXES: [&str; 6] = ["path", "query", "header", "cookie", "form", "jwt"];

impl KeyPart {
    /// Reads a key part: `client_ip`, `query.user_id`, or any other word as a constant.
    ///
    /// # Errors
    /// A kind without its name, an impossible header name, and a word that looks like a kind
    /// mistyped: as a constant it would make all callers share one state.
    pub fn parse(text: &str) -> Result<Self, TextError> {
        match text {
            "client_ip" => return Ok(Self::ClientIp),
            "principal" => return Ok(Self::Principal),
            "api_key" => return Ok(Self::ApiKey),
            "method_and_route" => return Ok(Self::MethodAndRoute),
            "" => {
                return Err(TextError::new(
                    "a part of a key is empty",
                    format!("write one of {}, or a constant", suggest::list(WHOLE)),
                ));
            }
            _ => {}
        }
        let (kind, name) = text.split_once('.').unwrap_or((text, ""));
        if !PREFIXES.contains(&kind) {
            return constant(text);
        }
        if name.is_empty() {
            return Err(TextError::new(
                format!("`{text}` does not say which one"),
                format!("write `{kind}.NAME`"),
            ));
        }
        let name = name.to_owned();
        Ok(match kind {
            "path" => Self::Path(name),
            "query" => Self::Query(name),
            "header" => {
                let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| {
                    TextError::new(
                        format!("`{name}` is no name of a header field"),
                        "write letters, digits and hyphens, as in `header.x-tenant`",
                    )
                })?;
                Self::Header(header)
            }
            "cookie" => Self::Cookie(name),
            "form" => Self::Form(name),
            _ => Self::Jwt(name),
        })
    }

    /// The kind, as the document writes it.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::ClientIp => "client_ip",
            Self::Principal => "principal",
            Self::ApiKey => "api_key",
            Self::MethodAndRoute => "method_and_route",
            Self::Path(_) => "path",
            Self::Query(_) => "query",
            Self::Header(_) => "header",
            Self::Cookie(_) => "cookie",
            Self::Form(_) => "form",
            Self::Jwt(_) => "jwt",
            Self::Constant(_) => "constant",
        }
    }
}

fn constant(text: &str) -> Result<KeyPart, TextError> {
    let (kind, name) = text.split_once('.').unwrap_or((text, ""));
    let meant = match suggest::nearest(kind, &PREFIXES) {
        Some(near) if text.contains('.') => Some(format!("{near}.{name}")),
        _ => suggest::nearest(text, &WHOLE).map(str::to_owned),
    };
    match meant {
        Some(meant) => Err(TextError::new(
            format!("`{text}` is no part of a key"),
            format!(
                "did you mean `{meant}`? as a constant it would make all callers share one state"
            ),
        )),
        None => Ok(KeyPart::Constant(text.to_owned())),
    }
}

impl fmt::Display for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClientIp | Self::Principal | Self::ApiKey | Self::MethodAndRoute => {
                f.write_str(self.kind())
            }
            Self::Path(name)
            | Self::Query(name)
            | Self::Cookie(name)
            | Self::Form(name)
            | Self::Jwt(name) => write!(f, "{}.{name}", self.kind()),
            Self::Header(name) => write!(f, "header.{name}"),
            Self::Constant(text) => f.write_str(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_prints_as_it_was_read() {
        for text in [
            "client_ip",
            "principal",
            "api_key",
            "method_and_route",
            "path.id",
            "query.user_id",
            "header.x-tenant",
            "cookie.session",
            "form.username",
            "jwt.sub",
            "everyone",
            "a.b",
        ] {
            assert_eq!(KeyPart::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_mistyped_part_is_no_constant() {
        for (text, help) in [
            ("client-ip", "`client_ip`"),
            ("clientip", "`client_ip`"),
            ("quary.user_id", "`query.user_id`"),
            ("headers.x-tenant", "`header.x-tenant`"),
            ("query", "`query.NAME`"),
            ("query.", "`query.NAME`"),
            ("header.x tenant", "letters"),
            ("", "constant"),
        ] {
            let error = KeyPart::parse(text).unwrap_err();
            assert!(error.help.contains(help), "{text}: {error}: {}", error.help);
        }
    }
}
