//! Being woken by another process, through real servers.

mod support;

use std::time::Duration;

use support::{LONG, options, ready};
use tidegate_testkit::{Cluster, Flavor, Relay, Server};
use tidegate_valkey::{Client, Script, Wake};

static FREE: Script = Script::new("free", "return redis.call('PUBLISH', ARGV[1], '')");

/// Publishes from another client.
async fn free(client: &Client, channel: &str) {
    client.call(&FREE, &["key"], &[channel]).await.unwrap();
}

/// Waits for the wake that says that the channel is listened to.
async fn listening(client: &Client, channel: &str) -> tidegate_valkey::Notifications {
    let mut notifications = client.notifications(channel);
    assert_eq!(notifications.wait(LONG).await, Wake::Published);
    notifications
}

#[tokio::test]
async fn who_waits_is_woken_and_who_waits_for_something_else_is_not() {
    for flavor in [Flavor::Valkey9, Flavor::Redis6] {
        let server = Server::start(flavor);
        let waiter = ready(options(&server.url())).await;
        let other = ready(options(&server.url()).deadline(LONG)).await;
        let mut one = listening(&waiter, "tg1:{a}:free").await;
        let mut two = waiter.notifications("tg1:{a}:free");
        let mut three = listening(&waiter, "tg1:{b}:free").await;
        free(&other, "tg1:{a}:free").await;
        assert_eq!(one.wait(LONG).await, Wake::Published);
        assert_eq!(two.wait(LONG).await, Wake::Published);
        let short = Duration::from_millis(50);
        assert_eq!(three.wait(short).await, Wake::Elapsed);
        assert_eq!(one.wait(short).await, Wake::Elapsed);
        // What was published between two waits counts.
        free(&other, "tg1:{b}:free").await;
        tokio::time::sleep(short).await;
        assert_eq!(three.wait(LONG).await, Wake::Published);
        // A channel that nobody waits for any more is left.
        drop((one, two, three));
        let channels = || server.command("PUBSUB CHANNELS");
        while channels() != redis::Value::Array(vec![]) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test]
async fn a_broken_connection_wakes_everybody_when_it_is_back() {
    let server = Server::start(Flavor::Valkey9);
    let relay = Relay::to(server.port());
    let waiter = ready(options(&relay.url())).await;
    let other = ready(options(&server.url()).deadline(LONG)).await;
    let mut notifications = listening(&waiter, "channel").await;
    relay.cut();
    assert_eq!(notifications.wait(LONG).await, Wake::Published);
    free(&other, "channel").await;
    assert_eq!(notifications.wait(LONG).await, Wake::Published);
}

#[tokio::test]
async fn a_cluster_carries_messages_from_every_node() {
    let cluster = Cluster::start(Flavor::Valkey9);
    let waiter = ready(options(&cluster.url())).await;
    let other = ready(options(&cluster.url()).deadline(LONG)).await;
    let mut notifications = listening(&waiter, "channel").await;
    for key in ["a", "b", "c", "d", "e", "f"] {
        other.call(&FREE, &[key], &["channel"]).await.unwrap();
        assert_eq!(notifications.wait(LONG).await, Wake::Published, "{key}");
    }
}
