//! What clients say over HTTP, and what they are answered.

mod support;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use serde_json::{Value, json};
use support::{LIMITS, PATIENCE, Served, checked, serve_all};

fn serve(settings: &str) -> Served {
    serve_all(&format!(
        "{LIMITS}\nservice: {{ http: 127.0.0.1:0, resp: 127.0.0.1:0, drain: 5s {settings} }}"
    ))
}

/// An answer as it came.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    #[track_caller]
    fn json(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.body);
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("{}", self.body))
    }

    #[track_caller]
    fn field(&self, name: &str) -> &str {
        let line = self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then_some(value)
        });
        line.unwrap_or_else(|| panic!("no {name} in {}", self.head))
    }

    #[track_caller]
    fn problem(&self, status: u16, detail: &str) {
        assert_eq!(self.field("content-type"), "application/problem+json");
        let problem = self.json(status);
        assert_eq!(problem["status"], status);
        let found = problem["detail"].as_str().unwrap();
        assert!(found.contains(detail), "{found}");
    }
}

fn raw(address: SocketAddr, request: &str) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    Answer {
        status: head[9..12].parse().unwrap(),
        head: head.to_owned(),
        body: body.to_owned(),
    }
}

fn ask(served: &Served, method: &str, path: &str, body: &str) -> Answer {
    let address = served.service.http_address().unwrap();
    raw(
        address,
        &format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ),
    )
}

fn post(served: &Served, path: &str, body: &Value) -> Answer {
    ask(served, "POST", path, &body.to_string())
}

#[test]
fn a_take_passes_or_is_a_429_with_the_decision_and_the_fields() {
    let served = serve("");
    let call = json!({ "limit": "rate", "key": "asha", "cost": 5 });
    let passed = post(&served, "/v1/take", &call);
    let decision = passed.json(200);
    assert_eq!(decision["allowed"], true);
    assert_eq!(decision["remaining"], 0);
    assert_eq!(decision["reset_after_ms"], 18_000_000);
    assert_eq!(passed.field("ratelimit"), "\"rate\";r=0;t=18000");
    assert_eq!(passed.field("ratelimit-policy"), "\"rate\";q=5;w=18000");
    let denied = post(
        &served,
        "/v1/take",
        &json!({ "limit": "rate", "key": "asha" }),
    );
    let decision = denied.json(429);
    assert_eq!(
        (&decision["allowed"], &decision["reason"]),
        (&json!(false), &json!("limited"))
    );
    assert_eq!(denied.field("retry-after"), "3600");
    // A key of other parts is another key, and a key of none is one for all.
    for key in [json!(["asha", ""]), json!(["as", "ha"]), Value::Null] {
        let call = json!({ "limit": "rate", "key": key, "cost": 5 });
        assert_eq!(post(&served, "/v1/take", &call).status, 200);
    }
    // More than it holds: never, and nothing is said of when to come back.
    let never = post(
        &served,
        "/v1/take",
        &json!({ "limit": "rate", "key": "b", "cost": 6 }),
    );
    let decision = never.json(429);
    assert_eq!(
        (&decision["reason"], &decision["retry_after_ms"]),
        (&json!("impossible"), &Value::Null)
    );
    assert!(!never.head.to_ascii_lowercase().contains("retry-after"));
}

#[test]
fn all_protocols_spend_the_same_limits() {
    let served = serve("");
    post(
        &served,
        "/v1/take",
        &json!({ "limit": "rate", "key": "asha", "cost": 4 }),
    )
    .json(200);
    served
        .connect()
        .ask("TG.PEEK rate asha 0", "*7\r\n:1\r\n:5\r\n:1\r\n");
}

#[test]
fn units_are_reserved_settled_cancelled_and_refunded() {
    let served = serve("");
    let with = |more: Value| {
        let mut call = json!({ "limit": "rate", "key": "k" });
        call.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        call
    };
    let two_hours = json!({ "cost": 7, "max_wait_ms": 7_300_000 });
    let impossible = post(&served, "/v1/reserve", &with(two_hours)).json(429);
    assert_eq!(impossible["decision"]["reason"], "impossible");
    let first = post(&served, "/v1/reserve", &with(json!({ "cost": 5 }))).json(200);
    assert_eq!(first["decision"]["delay_ms"], 0);
    let later = post(
        &served,
        "/v1/reserve",
        &with(json!({ "cost": 1, "max_wait_ms": 3_600_000 })),
    );
    let later = later.json(200);
    assert!(later["decision"]["delay_ms"].as_u64().unwrap() > 3_590_000);
    let back = with(json!({ "reservation": later["reservation"] }));
    assert_eq!(post(&served, "/v1/cancel", &back).json(200)["returned"], 1);
    let used = with(json!({ "reservation": first["reservation"], "actual": 2 }));
    assert_eq!(post(&served, "/v1/settle", &used).json(200)["returned"], 3);
    let refund = with(json!({ "cost": 100 }));
    assert_eq!(
        post(&served, "/v1/refund", &refund).json(200)["returned"],
        2
    );
    let whole = post(&served, "/v1/peek", &with(json!({ "cost": 5 }))).json(200);
    assert_eq!(whole["remaining"], 0);
}

#[test]
fn leases_are_made_renewed_and_given_back() {
    let served = serve("");
    let call = json!({ "limit": "jobs", "key": "k" });
    let first = post(&served, "/v1/leases", &call).json(201);
    post(&served, "/v1/leases", &call).json(201);
    let third = post(&served, "/v1/leases", &call).json(429);
    assert_eq!(third["lease"], Value::Null);
    let id = first["lease"]["id"].as_str().unwrap();
    assert_eq!(first["lease"]["expires_in_ms"], 60_000);
    let path = format!("/v1/leases/{id}");
    let renewed = ask(&served, "PUT", &path, &call.to_string()).json(200);
    assert_eq!(renewed["fencing_token"], first["lease"]["fencing_token"]);
    let query = format!("{path}?limit=jobs&key=k");
    assert_eq!(
        ask(&served, "DELETE", &query, "").json(200)["was_live"],
        true
    );
    assert_eq!(
        ask(&served, "DELETE", &query, "").json(200)["was_live"],
        false
    );
    ask(&served, "PUT", &path, &call.to_string()).problem(409, "the lease is lost");
    ask(&served, "PUT", "/v1/leases/7", &call.to_string()).problem(400, "32 hexadecimal digits");
}

#[test]
fn attempts_are_charged_in_advance_until_one_is_right() {
    let served = serve("");
    let guess = json!({ "limit": "logins", "key": ["asha", "192.0.2.1"] });
    assert_eq!(post(&served, "/v1/attempts", &guess).status, 200);
    let right = json!({ "limit": "logins", "key": ["asha", "192.0.2.1"], "succeeded": true });
    assert_eq!(
        post(&served, "/v1/attempts", &right).json(200)["forgotten"],
        true
    );
    assert_eq!(post(&served, "/v1/attempts", &guess).status, 200);
    assert_eq!(post(&served, "/v1/attempts", &guess).status, 200);
    let banned = post(&served, "/v1/attempts", &guess);
    assert_eq!(banned.json(429)["reason"], "blocked");
    assert_eq!(banned.field("retry-after"), "3600");
}

#[test]
fn a_batch_is_charged_each_by_itself_or_all_together() {
    let served = serve("");
    let calls = |cost: u32| {
        json!([
            { "limit": "rate", "key": "k", "cost": 2 },
            { "limit": "dear", "key": "k", "cost": cost },
        ])
    };
    let all = json!({ "calls": calls(11), "all_or_nothing": true });
    let none = post(&served, "/v1/batch", &all).json(429);
    assert_eq!(none["decisions"][1]["reason"], "impossible");
    let left = post(
        &served,
        "/v1/peek",
        &json!({ "limit": "rate", "key": "k", "cost": 0 }),
    )
    .json(200);
    assert_eq!(left["remaining"], 5, "nothing was charged");
    let each = post(&served, "/v1/batch", &json!({ "calls": calls(11) })).json(200);
    assert_eq!(
        (&each["allowed"], &each["decisions"][0]["remaining"]),
        (&json!(false), &json!(3))
    );
    let both = post(
        &served,
        "/v1/batch",
        &json!({ "calls": calls(1), "all_or_nothing": true }),
    )
    .json(200);
    assert_eq!(
        (&both["allowed"], &both["decisions"][0]["remaining"]),
        (&json!(true), &json!(1))
    );
}

#[test]
fn what_is_wrong_is_said_as_a_problem() {
    let served = serve("");
    let take = |body: &str| ask(&served, "POST", "/v1/take", body);
    take("{").problem(400, "the body is not as it should be: EOF");
    take(r#"{"limit":"rate","kye":"k"}"#).problem(400, "unknown field `kye`, expected one of");
    take(r#"{"limit":"rate","cost":-1}"#).problem(400, "a whole number from 0 on");
    take(r#"{"limit":"rate","cost":2147483648}"#).problem(400, "`cost` is at most 2147483647");
    take(r#"{"limit":"rats"}"#).problem(404, "there is no limit `rats`; there are: closed,");
    take(r#"{"limit":"jobs"}"#).problem(422, "concurrency has no operation take");
    take(&format!(r#"{{"limit":"{}"}}"#, "x".repeat(70_000))).problem(413, "at most 65536 bytes");
    let patient = r#"{"limit":"rate","max_wait_ms":315576000001}"#;
    ask(&served, "POST", "/v1/reserve", patient).problem(400, "`max_wait_ms` is at most");
    take(r#"{"limit":"rate","key":"whole","cost":1.0}"#).json(200);
    take(r#"{"limit":"rate","cost":1.5}"#).problem(400, "a whole number from 0 on");
    ask(&served, "POST", "/v1/batch", r#"{"calls":[]}"#).problem(400, "1 to 100 calls");
    ask(&served, "GET", "/v2", "").problem(404, "/v1/openapi.json");
    let wrong = ask(&served, "GET", "/v1/take", "");
    assert_eq!((wrong.status, wrong.field("allow")), (405, "POST"));
    let address = served.service.http_address().unwrap();
    let form = "POST /v1/take HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\n{}";
    raw(address, form).problem(415, "content-type: application/json");
    let mut short = TcpStream::connect(address).unwrap();
    short.write_all(b"POST /v1/take HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{").unwrap();
    drop(short);
    take(r#"{"limit":"rate","key":"after"}"#).json(200);
}

#[test]
fn a_secret_is_asked_for_where_one_is_set() {
    let hash = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    let served = serve(&format!(", secret_sha256: {hash}"));
    let refused = post(&served, "/v1/take", &json!({ "limit": "rate" }));
    refused.problem(401, "show the secret");
    assert_eq!(refused.field("www-authenticate"), "Bearer");
    let address = served.service.http_address().unwrap();
    for (secret, status) in [
        ("Bearer test", 200),
        ("bearer test", 200),
        ("Bearer guess", 401),
        ("Basic dGVzdA==", 401),
        ("é", 401),
    ] {
        let request = format!(
            "POST /v1/take HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: {secret}\r\ncontent-type: application/json; charset=utf-8\r\ncontent-length: 16\r\n\r\n{{\"limit\":\"dear\"}}"
        );
        let answer = raw(address, &request);
        assert_eq!(answer.status, status, "{secret}: {}", answer.body);
    }
    let document = ask(&served, "GET", "/v1/openapi.json", "").json(200);
    assert_eq!(document["security"][0]["secret"], json!([]));
}

#[test]
fn the_document_names_the_limits_in_force() {
    let mut served = serve("");
    let names = |served: &Served, path: &str| {
        let document = ask(served, "GET", "/v1/openapi.json", "").json(200);
        assert_eq!(document["openapi"], "3.1.0");
        document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["allOf"][1]["properties"]["limit"]["enum"].clone()
    };
    assert_eq!(names(&served, "/v1/leases"), json!(["jobs", "trial"]));
    assert_eq!(names(&served, "/v1/attempts"), json!(["logins"]));
    let more = LIMITS.replace("jobs:", "work:");
    let text = format!("{more}\nservice: {{ http: 127.0.0.1:0, resp: 127.0.0.1:0 }}");
    assert_eq!(
        served.service.reload(&checked(&text), &[]).unwrap(),
        Vec::<&str>::new()
    );
    assert_eq!(names(&served, "/v1/leases"), json!(["trial", "work"]));
}

#[test]
fn a_drain_answers_the_request_that_has_begun() {
    let served = serve("");
    let address = served.service.http_address().unwrap();
    let mut idle = TcpStream::connect(address).unwrap();
    let mut half = TcpStream::connect(address).unwrap();
    half.write_all(b"POST /v1/take HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 16\r\n\r\n{\"limit\"").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(200));
    let rest = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        half.write_all(b":\"rate\"}").unwrap();
        let mut answer = String::new();
        half.read_to_string(&mut answer).unwrap();
        answer
    });
    assert_eq!(served.runtime.block_on(served.service.drain()), 0);
    assert!(rest.join().unwrap().starts_with("HTTP/1.1 200"));
    let mut nothing = Vec::new();
    assert_eq!(idle.read_to_end(&mut nothing).unwrap(), 0);
}
