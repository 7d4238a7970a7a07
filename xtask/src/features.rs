//! The features of the library only add: each of them builds alone, as do none and all.

use anyhow::{Result, bail};

use crate::{cargo, metadata};

/// The crate whose features people choose from.
const LIBRARY: &str = "tidegate";

/// Checks the library with no feature, with each one alone, and with all: it builds, and no part
/// of it is unused in a small build.
pub fn check() -> Result<()> {
    let check = |features: &[&str]| {
        let mut arguments = vec!["clippy", "--quiet", "--package", LIBRARY];
        arguments.extend(features);
        arguments.extend(["--", "--deny", "warnings"]);
        cargo(&format!("features: {}", features.join(" ")), &arguments)
    };
    check(&["--no-default-features"])?;
    for feature in features()? {
        check(&["--no-default-features", "--features", &feature])?;
    }
    check(&["--all-features"])
}

/// What the library's manifest offers.
fn features() -> Result<Vec<String>> {
    let metadata = metadata()?;
    let library = metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|package| package["name"] == LIBRARY);
    let Some(features) = library.and_then(|package| package["features"].as_object()) else {
        bail!("the workspace has no crate {LIBRARY}");
    };
    Ok(features.keys().cloned().collect())
}
