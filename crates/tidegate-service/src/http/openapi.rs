//! The OpenAPI 3.1 document of the door: made of the very types that calls are read into, and of
//! the limits in force.

use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};
use tidegate::Policy;

use super::shapes::{
    Acquire, Acquired, Attempt, Batch, Cancel, Decided, DecisionShape, Forgotten, Holder,
    LeaseShape, Released, Reserve, Reserved, Returned, Settle, Take,
};
use crate::served::Served;

/// Which limits an operation is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Units,
    Leases,
    Attempts,
    Any,
}

/// The document for the limits in force. `secret` says whether clients show one.
pub(crate) fn document(served: &Served, secret: bool) -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut maker = Maker {
        generator: settings.into_generator(),
        served,
    };
    let paths = maker.paths();
    let mut schemas = maker.generator.take_definitions(true);
    schemas.insert("Problem".into(), problem());
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "tidegate decision service",
            "description": "Limits by name: whose call passes, and when the next one will.",
            "version": env!("CARGO_PKG_VERSION"),
        },
        "paths": paths,
        "components": { "schemas": schemas },
    });
    if secret {
        document["components"]["securitySchemes"] =
            json!({ "secret": { "type": "http", "scheme": "bearer" } });
        document["security"] = json!([{ "secret": [] }]);
    }
    document
}

struct Maker<'s> {
    generator: SchemaGenerator,
    served: &'s Served,
}

impl Maker<'_> {
    fn paths(&mut self) -> Value {
        let decision = || ("What was decided.", "DecisionShape");
        self.know::<DecisionShape<'static>>();
        let mut paths = Map::new();
        paths.insert(
            "/v1/openapi.json".into(),
            json!({ "get": {
            "operationId": "document",
            "summary": "This document.",
            "security": [],
            "responses": { "200": {
                "description": "The document.",
                "content": { "application/json": { "schema": { "type": "object" } } },
            } },
        } }),
        );
        let mut post = |path: &str, operation: Value| {
            paths.insert(path.into(), json!({ "post": operation }));
        };
        let passes = [("200", decision()), ("429", decision())];
        let take = self.operation::<Take>(
            "take",
            "Takes units of a limit, or nothing.",
            Of::Units,
            &passes,
        );
        post("/v1/take", take);
        let peek = self.operation::<Take>(
            "peek",
            "Answers as a call would be, and charges nothing.",
            Of::Any,
            &passes,
        );
        post("/v1/peek", peek);
        let reserved = self.know::<Reserved<'static>>();
        let both = [
            ("200", ("What was reserved.", reserved.as_str())),
            ("429", ("It would take too long.", &reserved)),
        ];
        let reserve = self.operation::<Reserve>(
            "reserve",
            "Takes units now that may be used after a wait.",
            Of::Units,
            &both,
        );
        post("/v1/reserve", reserve);
        let returned = self.know::<Returned>();
        let back = [("200", ("How many units came back.", returned.as_str()))];
        let settle = self.operation::<Settle>(
            "settle",
            "Replaces what was reserved by what was used.",
            Of::Units,
            &back,
        );
        post("/v1/settle", settle);
        let cancel = self.operation::<Cancel>(
            "cancel",
            "Gives a whole reservation back.",
            Of::Units,
            &back,
        );
        post("/v1/cancel", cancel);
        let refund = self.operation::<Take>(
            "refund",
            "Gives units back, never above full.",
            Of::Units,
            &back,
        );
        post("/v1/refund", refund);
        let acquired = self.know::<Acquired<'static>>();
        let leased = [
            ("201", ("The lease.", acquired.as_str())),
            ("429", ("No permits are free.", &acquired)),
        ];
        let acquire = self.operation::<Acquire>(
            "acquire",
            "Takes a lease of a concurrency limit.",
            Of::Leases,
            &leased,
        );
        post("/v1/leases", acquire);
        let forgotten = self.know::<Forgotten>();
        let attempt = self.operation::<Attempt>(
            "attempt",
            "Charges a guess in advance, or takes a right one back.",
            Of::Attempts,
            &passes,
        );
        post("/v1/attempts", attempt_answers(attempt, &forgotten));
        let decided = self.know::<Decided<'static>>();
        let many = [
            ("200", ("What was decided of each.", decided.as_str())),
            ("429", ("Nothing was charged.", &decided)),
        ];
        let batch = self.operation::<Batch>(
            "batch",
            "Decides many calls at one moment.",
            Of::Units,
            &many,
        );
        post("/v1/batch", batch);
        let (lease, released) = (self.know::<LeaseShape>(), self.know::<Released>());
        let lost = ("409", ("The lease is lost.", "Problem"));
        let held = [
            (
                "200",
                ("The lease, at its full length again.", lease.as_str()),
            ),
            lost,
        ];
        let mut renew =
            self.operation::<Holder>("renew", "Extends a lease that is held.", Of::Leases, &held);
        renew["parameters"] = json!([id()]);
        let gone = [("200", ("Whether it was held until now.", released.as_str()))];
        let mut release =
            self.operation::<Holder>("release", "Gives a lease back.", Of::Leases, &gone);
        let limits = self.named(Of::Leases);
        release["parameters"] = json!([
            id(),
            { "name": "limit", "in": "query", "required": true, "schema": limits },
            { "name": "key", "in": "query", "schema": {
                "type": "array", "maxItems": 16, "items": { "type": "string" },
            } },
        ]);
        release
            .as_object_mut()
            .map(|release| release.remove("requestBody"));
        paths.insert(
            "/v1/leases/{id}".into(),
            json!({ "put": renew, "delete": release }),
        );
        Value::Object(paths)
    }

    /// Makes a type's schema known, and says how it is called.
    fn know<T: JsonSchema>(&mut self) -> String {
        let _: Schema = self.generator.subschema_for::<T>();
        T::schema_name().into_owned()
    }

    /// The names of limits that an operation is for.
    fn named(&self, of: Of) -> Value {
        let names = self.served.names();
        let fits = |name: &&str| {
            let limit = self.served.get(name.as_bytes());
            limit.is_some_and(|limit| match limit.named().limiter().policy() {
                Policy::Concurrency(_) => of == Of::Leases || of == Of::Any,
                Policy::Lockout(_) => of == Of::Attempts || of == Of::Any,
                _ => of == Of::Units || of == Of::Any,
            })
        };
        let names: Vec<&str> = names.into_iter().filter(fits).collect();
        if names.is_empty() {
            return json!({ "type": "string" });
        }
        json!({ "type": "string", "enum": names })
    }

    fn operation<T: JsonSchema>(
        &mut self,
        id: &str,
        summary: &str,
        of: Of,
        answers: &[(&str, (&str, &str))],
    ) -> Value {
        let limits = self.named(of);
        let shape = self.know::<T>();
        let named = if shape == "Batch" {
            json!({ "properties": { "calls": { "items": { "properties": { "limit": limits } } } } })
        } else {
            json!({ "properties": { "limit": limits } })
        };
        let mut responses = Map::new();
        for (status, (description, schema)) in answers {
            let media = match *schema {
                "Problem" => "application/problem+json",
                _ => "application/json",
            };
            responses.insert((*status).into(), answer(description, media, schema));
        }
        for (status, description) in [
            ("400", "What was sent is not as it should be."),
            ("401", "The secret is missing or wrong."),
            ("404", "There is no such limit."),
            ("413", "The body is too large."),
            ("415", "The body is no JSON."),
            ("422", "The limit has no such operation."),
        ] {
            responses.insert(
                status.into(),
                answer(description, "application/problem+json", "Problem"),
            );
        }
        json!({
            "operationId": id,
            "summary": summary,
            "requestBody": {
                "required": true,
                "content": { "application/json": { "schema": {
                    "allOf": [{ "$ref": format!("#/components/schemas/{shape}") }, named],
                } } },
            },
            "responses": responses,
        })
    }
}

fn answer(description: &str, media: &str, schema: &str) -> Value {
    json!({
        "description": description,
        "content": { media: { "schema": { "$ref": format!("#/components/schemas/{schema}") } } },
    })
}

/// A guess is answered by a decision, a right one by that it was taken note of.
fn attempt_answers(mut operation: Value, forgotten: &str) -> Value {
    operation["responses"]["200"]["content"]["application/json"]["schema"] = json!({ "anyOf": [
        { "$ref": "#/components/schemas/DecisionShape" },
        { "$ref": format!("#/components/schemas/{forgotten}") },
    ] });
    operation
}

fn id() -> Value {
    json!({
        "name": "id", "in": "path", "required": true,
        "schema": { "type": "string", "pattern": "^[0-9a-f]{32}$" },
    })
}

/// Problem details, as RFC 9457 has them.
fn problem() -> Value {
    json!({
        "type": "object",
        "description": "What is wrong, as RFC 9457 has it.",
        "properties": {
            "type": { "type": "string" },
            "title": { "type": "string" },
            "status": { "type": "integer" },
            "detail": { "type": "string" },
        },
        "required": ["type", "title", "status", "detail"],
    })
}
