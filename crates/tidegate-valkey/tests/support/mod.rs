//! What the tests of the network side share.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::time::{Duration, Instant};

use redis::Value;
use tidegate_valkey::{Client, ClientOptions, Script, StoreError};

/// Counts a key up; answers with the count and what it was given.
pub static COUNT: Script = Script::new(
    "count",
    "return {redis.call('INCR', KEYS[1]), ARGV[1] or ''}",
);

/// Longer than anything that is tested takes, shorter than a test may.
pub const LONG: Duration = Duration::from_secs(20);

pub fn options(url: &str) -> ClientOptions {
    ClientOptions::from_url(url).expect("a URL")
}

/// A client with a deadline that a busy machine meets, connected.
pub async fn patient(url: &str) -> Client {
    ready(options(url).deadline(Duration::from_secs(5))).await
}

pub async fn ready(options: ClientOptions) -> Client {
    let client = Client::connect(options).expect("options");
    client.ready(LONG).await.expect("the server is up");
    client
}

pub async fn count(client: &Client, key: &str) -> Result<i64, StoreError> {
    echo(client, key, "").await.map(|(count, _)| count)
}

/// Counts a key up and gives back what the call carried.
pub async fn echo(client: &Client, key: &str, text: &str) -> Result<(i64, String), StoreError> {
    let reply = client.call(&COUNT, &[key], &[text]).await?;
    match reply {
        Value::Array(parts) => match parts.as_slice() {
            [Value::Int(count), Value::BulkString(text)] => {
                Ok((*count, String::from_utf8(text.clone()).expect("text")))
            }
            other => panic!("not the script's reply: {other:?}"),
        },
        other => panic!("not the script's reply: {other:?}"),
    }
}

/// Counts until a call succeeds; how long that took.
pub async fn until_counted(client: &Client, key: &str) -> Duration {
    let started = Instant::now();
    loop {
        match count(client, key).await {
            Ok(_) => return started.elapsed(),
            Err(error) => assert!(started.elapsed() < LONG, "still {error}"),
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
