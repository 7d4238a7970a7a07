//! What a consumer relies on, as functions that any [`Queue`] must pass.
//!
//! Each panics where the queue differs. They ask for what all servers agree on and for what
//! messages are lost without; where Amazon leaves a choice, so do they.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::queue::{Message, Queue, Receipt, Receive, VisibilityChange};

/// Where queues under test come from.
pub trait Bed {
    /// What is tested.
    type Queue: Queue;

    /// An empty queue, and its dead-letter queue if there is a `max_receive_count`.
    fn queue(
        &self,
        fifo: bool,
        max_receive_count: Option<u32>,
    ) -> impl Future<Output = (Self::Queue, Option<Self::Queue>)>;

    /// Sends a message; to a group if the queue is FIFO.
    fn send(
        &self,
        queue: &Self::Queue,
        body: &str,
        group: Option<&str>,
    ) -> impl Future<Output = ()>;

    /// Lets time pass: sleeps before a real server.
    fn pass(&self, secs: u32) -> impl Future<Output = ()>;
}

/// Receives what there is now: at most 10.
async fn receive(queue: &impl Queue, visibility_secs: u32) -> Vec<Message> {
    let ask = Receive {
        max: 10,
        wait_secs: 1,
        visibility_secs,
    };
    queue.receive(ask).await.expect("the queue answers")
}

async fn receive_one(queue: &impl Queue, visibility_secs: u32) -> Message {
    let mut messages = receive(queue, visibility_secs).await;
    assert_eq!(messages.len(), 1, "there is exactly one message");
    messages.remove(0)
}

async fn delete(queue: &impl Queue, messages: &[Message]) {
    let receipts: Vec<Receipt> = messages.iter().map(|it| it.receipt.clone()).collect();
    for result in queue.delete(&receipts).await.expect("the queue answers") {
        result.expect("the message is deleted");
    }
}

fn bodies(messages: &[Message]) -> Vec<&str> {
    messages.iter().map(|message| &*message.body).collect()
}

/// What is received is invisible for its time, and then comes again, with one more receive.
pub async fn a_message_comes_again_when_its_visibility_ends(bed: &impl Bed) {
    let (queue, _) = bed.queue(false, None).await;
    bed.send(&queue, "work", None).await;
    let first = receive_one(&queue, 4).await;
    assert_eq!((&*first.body, first.receives), ("work", 1));
    assert!(receive(&queue, 4).await.is_empty());
    bed.pass(4).await;
    let second = receive_one(&queue, 4).await;
    assert_eq!((&second.id, second.receives), (&first.id, 2));
    assert_ne!(second.receipt, first.receipt);
}

/// What is deleted does not come again, and can be deleted once more.
pub async fn a_deleted_message_is_gone_and_a_second_delete_succeeds(bed: &impl Bed) {
    let (queue, _) = bed.queue(false, None).await;
    bed.send(&queue, "work", None).await;
    let message = [receive_one(&queue, 1).await];
    delete(&queue, &message).await;
    delete(&queue, &message).await;
    bed.pass(2).await;
    assert!(receive(&queue, 1).await.is_empty());
}

/// One bad entry of a batch fails alone, and each result is at the place of its entry.
pub async fn a_batch_fails_by_entry(bed: &impl Bed) {
    let (queue, _) = bed.queue(false, None).await;
    bed.send(&queue, "first", None).await;
    bed.send(&queue, "second", None).await;
    let mut messages = receive(&queue, 30).await;
    if messages.len() < 2 {
        // A receive may return fewer than there are.
        messages.extend(receive(&queue, 30).await);
    }
    let change = |receipt: &Receipt| VisibilityChange {
        receipt: receipt.clone(),
        visibility_secs: 0,
    };
    let changes = [
        change(&messages[0].receipt),
        change(&Receipt::new("no receipt at all")),
        change(&messages[1].receipt),
    ];
    let results = queue.change_visibility(&changes).await.expect("an answer");
    let went_well: Vec<bool> = results.iter().map(Result::is_ok).collect();
    assert_eq!(went_well, [true, false, true]);
    let error = results[1].clone().expect_err("it failed");
    assert!(error.sender_fault, "the sender is to blame: {error}");
}

/// Two entries of one batch may be receives of the same message.
pub async fn a_message_may_be_twice_in_one_batch(bed: &impl Bed) {
    let (queue, _) = bed.queue(false, None).await;
    bed.send(&queue, "work", None).await;
    let first = receive_one(&queue, 0).await;
    let second = receive_one(&queue, 30).await;
    assert_eq!(first.id, second.id);
    delete(&queue, &[first, second]).await;
    assert!(receive(&queue, 1).await.is_empty());
}

/// A visibility of 0 returns a message at once; a longer one counts from the call.
pub async fn visibility_counts_from_the_call(bed: &impl Bed) {
    let (queue, _) = bed.queue(false, None).await;
    bed.send(&queue, "work", None).await;
    let message = receive_one(&queue, 5).await;
    let change = async |receipt: &Receipt, visibility_secs| {
        let receipt = receipt.clone();
        let change = VisibilityChange {
            receipt,
            visibility_secs,
        };
        let results = queue.change_visibility(&[change]).await.expect("an answer");
        results.into_iter().for_each(|result| result.expect("done"));
    };
    bed.pass(3).await;
    change(&message.receipt, 6).await;
    bed.pass(4).await;
    assert!(receive(&queue, 5).await.is_empty(), "it was extended");
    change(&message.receipt, 0).await;
    assert_eq!(receive_one(&queue, 5).await.receives, 2);
}

/// After `max_receive_count` receives the next one finds the message in the dead-letter queue.
pub async fn a_message_is_dead_after_exactly_so_many_receives(bed: &impl Bed) {
    let (queue, dead) = bed.queue(false, Some(3)).await;
    let dead = dead.expect("it was asked for");
    bed.send(&queue, "poison", None).await;
    for receives in 1..=3 {
        assert_eq!(receive_one(&queue, 0).await.receives, receives);
        assert_eq!(dead.attributes().await.expect("an answer").visible, 0);
    }
    assert!(receive(&queue, 0).await.is_empty());
    assert_eq!(&*receive_one(&dead, 0).await.body, "poison");
}

/// Messages of a group come in order, also when the first one had to come again; one group does
/// not wait for another.
pub async fn a_group_keeps_its_order_and_holds_up_no_other(bed: &impl Bed) {
    let (queue, _) = bed.queue(true, None).await;
    for body in ["a1", "a2", "a3"] {
        bed.send(&queue, body, Some("a")).await;
    }
    let ask = Receive {
        max: 1,
        wait_secs: 0,
        visibility_secs: 30,
    };
    let head = queue.receive(ask).await.expect("an answer");
    assert_eq!(bodies(&head), ["a1"]);
    assert!(receive(&queue, 30).await.is_empty(), "the group waits");
    bed.send(&queue, "b1", Some("b")).await;
    assert_eq!(bodies(&receive(&queue, 30).await), ["b1"]);
    let back = VisibilityChange {
        receipt: head[0].receipt.clone(),
        visibility_secs: 0,
    };
    let results = queue.change_visibility(&[back]).await.expect("an answer");
    assert!(results[0].is_ok());
    let mut order: Vec<Arc<str>> = Vec::new();
    while order.len() < 3 {
        let messages = receive(&queue, 30).await;
        assert!(!messages.is_empty(), "the rest of the group comes");
        order.extend(messages.iter().map(|message| Arc::clone(&message.body)));
        delete(&queue, &messages).await;
    }
    assert_eq!(order, ["a1", "a2", "a3"].map(Arc::from));
}

/// A receive gives at most as many as were asked for, and all come in the end, each once.
pub async fn a_receive_gives_no_more_than_was_asked_for(bed: &impl Bed) {
    let (queue, _) = bed.queue(false, None).await;
    for number in 0..25 {
        bed.send(&queue, &number.to_string(), None).await;
    }
    let ask = Receive {
        max: 3,
        wait_secs: 1,
        visibility_secs: 600,
    };
    let mut seen = BTreeSet::new();
    while seen.len() < 25 {
        let messages = queue.receive(ask).await.expect("an answer");
        assert!((1..=3).contains(&messages.len()), "{}", messages.len());
        seen.extend(messages.iter().map(|message| Arc::clone(&message.body)));
    }
    let attributes = queue.attributes().await.expect("an answer");
    assert_eq!((attributes.visible, attributes.in_flight), (0, 25));
}
