//! What is told of every step that a store is asked for.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::StoreError;

/// One step that a store was asked for, and how it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreCall {
    /// What was asked: an operation's name, or `all_of` for several limits at once.
    pub operation: &'static str,
    /// `ok`, or why there was no answer: [`StoreError::kind`].
    pub result: &'static str,
    /// How long it took, waiting included.
    pub took: Duration,
}

type Told = dyn Fn(&StoreCall) + Send + Sync;

/// Who is told; nobody by default.
#[derive(Clone, Default)]
pub(crate) struct CallObserver(Option<Arc<Told>>);

impl CallObserver {
    pub(crate) fn new(observer: impl Fn(&StoreCall) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(observer)))
    }

    /// Awaits a step and tells of it. One that its caller gives up is not told.
    pub(crate) async fn watch<T>(
        &self,
        operation: &'static str,
        step: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let Some(tell) = &self.0 else {
            return step.await;
        };
        let started = std::time::Instant::now();
        let ended = step.await;
        tell(&StoreCall {
            operation,
            result: ended.as_ref().err().map_or("ok", StoreError::kind),
            took: started.elapsed(),
        });
        ended
    }
}

impl fmt::Debug for CallObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let watched = self.0.is_some();
        f.debug_tuple("CallObserver").field(&watched).finish()
    }
}
