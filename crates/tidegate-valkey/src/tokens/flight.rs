//! A question under way, and those who wait for its answer.

use tidegate_core::Decision;
use tokio::sync::watch;

/// What has come of a question for more.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ended {
    /// The purse has more than before, or it is worth another look.
    Brought,
    /// Who lacks as many or more is denied so.
    Denied(u32, Decision),
    /// There was no answer.
    Failed,
}

/// A question under way.
#[derive(Debug)]
pub(crate) struct Flight(watch::Sender<Option<Ended>>);

/// One who waits for its end.
#[derive(Clone, Debug)]
pub(crate) struct Waiting(watch::Receiver<Option<Ended>>);

impl Flight {
    pub(crate) fn begin() -> (Self, Waiting) {
        let (sender, receiver) = watch::channel(None);
        (Self(sender), Waiting(receiver))
    }

    pub(crate) fn end(self, ended: Ended) {
        self.0.send_replace(Some(ended));
    }
}

impl Waiting {
    /// Waits for the end. One that was given up, as with its runtime, has brought nothing.
    pub(crate) async fn ended(mut self) -> Ended {
        match self.0.wait_for(Option::is_some).await {
            Ok(ended) => ended.unwrap_or(Ended::Failed),
            Err(_) => Ended::Failed,
        }
    }
}
