//! Whose lease it is, from a query: `limit=jobs&key=acme&key=7`.

use std::borrow::Cow;

use http::StatusCode;
use percent_encoding::percent_decode_str;
use tidegate::http::Problem;

use super::shapes::{Holder, KeyShape};

/// Reads a query. Each `key` is one part of the key.
pub(crate) fn holder(query: &str) -> Result<Holder, Problem> {
    let (mut limit, mut parts) = (None, Vec::new());
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (name, value) = (decoded(name)?, decoded(value)?);
        match &*name {
            "limit" if limit.is_none() => limit = Some(value.into_owned()),
            "limit" => return Err(bad("`limit` is there twice".into())),
            "key" => parts.push(value.into_owned()),
            other => {
                return Err(bad(format!(
                    "unknown parameter `{other}`: there are `limit` and `key`"
                )));
            }
        }
    }
    Ok(Holder {
        limit: limit.ok_or_else(|| bad("name the limit: `?limit=NAME`".into()))?,
        key: (!parts.is_empty()).then_some(KeyShape::Parts(parts)),
    })
}

fn decoded(text: &str) -> Result<Cow<'_, str>, Problem> {
    if text.contains('+') {
        let spaced = text.replace('+', " ");
        let decoded = percent_decode_str(&spaced).decode_utf8();
        return decoded
            .map(|text| Cow::Owned(text.into_owned()))
            .map_err(|_| bad("the query is no UTF-8 text".into()));
    }
    percent_decode_str(text)
        .decode_utf8()
        .map_err(|_| bad("the query is no UTF-8 text".into()))
}

fn bad(detail: String) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_names_the_limit_and_the_parts_of_the_key() {
        let read = holder("limit=jobs&key=a%26b&key=c+d").unwrap();
        assert_eq!(read.limit, "jobs");
        assert!(matches!(read.key, Some(KeyShape::Parts(parts)) if parts == ["a&b", "c d"]));
        assert!(holder("limit=jobs").unwrap().key.is_none());
        for wrong in [
            "",
            "key=a",
            "limit=a&limit=b",
            "limit=a&keys=b",
            "limit=%ff",
        ] {
            assert!(holder(wrong).is_err(), "{wrong}");
        }
    }
}
