//! The arrows between the crates point down, as ARCHITECTURE.md draws them.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

/// What each crate may depend on. A crate that is missing here has no place in the house.
const MAY_USE: [(&str, &[&str]); 13] = [
    ("tidegate-core", &[]),
    ("tidegate-store", &["tidegate-core"]),
    ("tidegate-config", &["tidegate-core"]),
    ("tidegate-valkey", &["tidegate-core", "tidegate-store"]),
    ("tidegate-testkit", &[]),
    (
        "tidegate",
        &[
            "tidegate-core",
            "tidegate-store",
            "tidegate-config",
            "tidegate-valkey",
        ],
    ),
    (
        "tidegate-gateway",
        &["tidegate", "tidegate-config", "tidegate-core"],
    ),
    ("tidegate-service", &["tidegate", "tidegate-config"]),
    ("tidegate-consumer", &["tidegate"]),
    (
        "tidegate-cli",
        &[
            "tidegate",
            "tidegate-config",
            "tidegate-core",
            "tidegate-gateway",
            "tidegate-service",
        ],
    ),
    (
        "tidegate-conformance",
        &["tidegate-core", "tidegate-store", "tidegate-config"],
    ),
    (
        "tidegate-bench",
        &["tidegate", "tidegate-store", "tidegate-testkit"],
    ),
    ("xtask", &[]),
];

#[test]
fn every_crate_depends_only_on_what_lies_below_it() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args([
            "metadata",
            "--no-deps",
            "--format-version",
            "1",
            "--offline",
        ])
        .output()
        .expect("cargo is there: it runs this test");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("metadata is JSON");
    let packages = metadata["packages"].as_array().expect("there are packages");
    let allowed: BTreeMap<&str, &[&str]> = MAY_USE.into();
    assert_eq!(
        packages.len(),
        allowed.len(),
        "a crate was added: give it its place"
    );
    for package in packages {
        let name = package["name"].as_str().expect("a package has a name");
        let allowed = allowed
            .get(name)
            .unwrap_or_else(|| panic!("{name} has no place"));
        for dependency in package["dependencies"].as_array().expect("a list") {
            let to = dependency["name"]
                .as_str()
                .expect("a dependency has a name");
            // Tests may look at a crate from above.
            let for_tests = dependency["kind"].as_str() == Some("dev");
            let own = to == "xtask" || to.starts_with("tidegate");
            assert!(
                !own || for_tests || allowed.contains(&to),
                "{name} must not use {to}"
            );
        }
    }
}
