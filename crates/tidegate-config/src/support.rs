//! What the document may say and this version does not do yet.
//!
//! The shape accepts these, so that files can be written, shared, simulated and explained. What
//! would open a door with them is refused: nobody shall believe in a limit that is not enforced.
//! A feature that arrives is taken out of [`MISSING`], and that is all.

use crate::report::{Problem, Span};

/// Something that a document may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Feature {
    /// A limit whose states are in a shared store, at the decision service.
    SharedService,
    /// Plans.
    Plans,
    /// API keys, and routes that ask for one.
    ApiKeys,
    /// `count_when` and `reset_when`.
    Conditions,
    /// The response cache.
    Cache,
    /// A protocol of the decision service.
    ServiceProtocol(&'static str),
    /// A kind of key part at the gateway.
    KeyPart(&'static str),
    /// An algorithm at the gateway.
    GatewayAlgorithm(&'static str),
}

/// What is missing, and what to do meanwhile.
const MISSING: &[(Feature, &str)] = &[
    (
        Feature::SharedService,
        "leave `store` out to count in the memory of this process, or give the gateway a file of its own",
    ),
    (Feature::Plans, "put the limits on the routes"),
    (
        Feature::ApiKeys,
        "leave `api_keys` and `api_key` out; nothing would check them",
    ),
    (
        Feature::Conditions,
        "leave the condition out to count every call",
    ),
    (Feature::Cache, "leave `cache` out"),
    (
        Feature::ServiceProtocol("grpc"),
        "leave `grpc` out; `http` and `resp` are there",
    ),
    (
        Feature::KeyPart("principal"),
        "use a header that your proxy sets, such as `header.x-user`",
    ),
    (
        Feature::KeyPart("api_key"),
        "use the header that carries the key, such as `header.x-api-key`",
    ),
    (Feature::KeyPart("form"), "count by `client_ip`"),
    (
        Feature::KeyPart("jwt"),
        "use the whole token, `header.authorization`",
    ),
    (
        Feature::GatewayAlgorithm("concurrency"),
        "limit the rate instead; simulate it to compare",
    ),
    (
        Feature::GatewayAlgorithm("lockout"),
        "limit the rate of attempts with a sliding_log",
    ),
];

/// The error for a feature that is missing; none where it is there.
pub(crate) fn not_yet(feature: Feature, what: &str, span: Option<Span>) -> Option<Problem> {
    let (_, help) = MISSING.iter().find(|(missing, _)| *missing == feature)?;
    let problem = Problem::error(format!("{what}: not available in this version yet"));
    let problem = match feature {
        Feature::Cache | Feature::ServiceProtocol(_) => problem,
        _ => problem.label("would not be enforced"),
    };
    Some(problem.at(span).help(*help))
}
