//! Calls that run to their end even if nobody waits for them any more, and are undone then.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Undo<T> = Box<dyn FnOnce(T) -> Boxed<()> + Send>;

/// A call to the store. Dropped half-way it has perhaps been sent already: then a task awaits it
/// and undoes what it brought.
pub(super) struct Undoable<T: Send + 'static> {
    running: Option<(Boxed<T>, Undo<T>)>,
    runtime: Handle,
}

impl<T: Send + 'static> Undoable<T> {
    /// Must be made within a runtime, and awaited at once.
    pub(super) fn new<F>(
        call: impl Future<Output = T> + Send + 'static,
        undo: impl FnOnce(T) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self {
            running: Some((
                Box::pin(call),
                Box::new(move |brought| Box::pin(undo(brought))),
            )),
            runtime: Handle::current(),
        }
    }
}

impl<T: Send + 'static> Future for Undoable<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Some((call, _)) = &mut self.running else {
            // It has brought its answer: nothing comes any more.
            return Poll::Pending;
        };
        let brought = call.as_mut().poll(context);
        if brought.is_ready() {
            self.running = None;
        }
        brought
    }
}

impl<T: Send + 'static> Drop for Undoable<T> {
    fn drop(&mut self) {
        if let Some((call, undo)) = self.running.take() {
            self.runtime.spawn(async move { undo(call.await).await });
        }
    }
}

/// Something that is undone by a task unless it is kept.
pub(super) struct Undone {
    undo: Option<Boxed<()>>,
    runtime: Handle,
}

impl Undone {
    /// Must be made within a runtime.
    pub(super) fn unless_kept(undo: impl Future<Output = ()> + Send + 'static) -> Self {
        Self {
            undo: Some(Box::pin(undo)),
            runtime: Handle::current(),
        }
    }

    pub(super) fn keep(mut self) {
        self.undo = None;
    }
}

impl Drop for Undone {
    fn drop(&mut self) {
        if let Some(undo) = self.undo.take() {
            self.runtime.spawn(undo);
        }
    }
}
