//! Something that a task finds out and calls wait for: which server is primary, where slots lie.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::dial::DialError;
use crate::StoreError;

/// What is known.
#[derive(Debug)]
enum View<T> {
    /// The first search is under way.
    Searching,
    Known(T),
    /// Nothing was found yet, and this is why.
    Failed(String, DialError),
}

/// The side of calls.
#[derive(Debug)]
pub(crate) struct Found<T>(watch::Receiver<Arc<View<T>>>);

/// The side of the task.
#[derive(Debug)]
pub(crate) struct Finder<T>(watch::Sender<Arc<View<T>>>);

/// Both sides of something unknown.
pub(crate) fn unknown<T>() -> (Finder<T>, Found<T>) {
    let (sender, receiver) = watch::channel(Arc::new(View::Searching));
    (Finder(sender), Found(receiver))
}

impl<T> Finder<T> {
    pub(crate) fn know(&self, value: T) {
        self.0.send_replace(Arc::new(View::Known(value)));
    }

    /// Notes that nothing was found. What was known before is kept: it may still be true.
    pub(crate) fn fail(&self, server: String, error: DialError) {
        if !matches!(**self.0.borrow(), View::Known(_)) {
            self.0.send_replace(Arc::new(View::Failed(server, error)));
        }
    }
}

impl<T: Clone> Found<T> {
    /// What is known; waits for the first search.
    pub(crate) async fn get(&self, deadline: Instant) -> Result<T, StoreError> {
        if let Some(known) = self.now() {
            return Ok(known);
        }
        let mut receiver = self.0.clone();
        let searched = receiver.wait_for(|view| !matches!(**view, View::Searching));
        match timeout_at(deadline, searched).await {
            Ok(Ok(view)) => match &**view {
                View::Known(value) => Ok(value.clone()),
                View::Failed(server, error) => Err(error.to_store_error(server.clone())),
                View::Searching => unreachable!("waited for something else"),
            },
            Ok(Err(_)) | Err(_) => Err(StoreError::Unreachable {
                server: "the store".into(),
                source: Box::new(std::io::Error::from(std::io::ErrorKind::TimedOut)),
            }),
        }
    }

    /// What is known already.
    pub(crate) fn now(&self) -> Option<T> {
        match &**self.0.borrow() {
            View::Known(value) => Some(value.clone()),
            _ => None,
        }
    }
}
