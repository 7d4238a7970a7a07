//! The body of an answer: the service's own, or that of a refusal.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

pin_project! {
    /// The body of an answer: what the service behind the layer sends, or a refusal.
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        content: Content<B>,
    }
}

pin_project! {
    #[project = ContentProjection]
    #[derive(Debug)]
    enum Content<B> {
        Inner { #[pin] body: B },
        Whole { bytes: Option<Bytes> },
    }
}

impl<B> ResponseBody<B> {
    pub(super) const fn inner(body: B) -> Self {
        Self {
            content: Content::Inner { body },
        }
    }

    pub(super) fn whole(bytes: Bytes) -> Self {
        Self {
            content: Content::Whole {
                bytes: (!bytes.is_empty()).then_some(bytes),
            },
        }
    }
}

impl<B: Default> Default for ResponseBody<B> {
    /// An empty body, where the service's own is empty by default.
    fn default() -> Self {
        Self::inner(B::default())
    }
}

impl<B> Body for ResponseBody<B>
where
    B: Body,
    B::Data: From<Bytes>,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        match self.project().content.project() {
            ContentProjection::Inner { body } => body.poll_frame(cx),
            ContentProjection::Whole { bytes } => {
                Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes.into()))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Inner { body } => body.is_end_stream(),
            Content::Whole { bytes } => bytes.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Inner { body } => body.size_hint(),
            Content::Whole { bytes } => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
        }
    }
}
