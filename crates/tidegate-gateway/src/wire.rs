//! The client's side of a connection, between the socket and the HTTP parser.
//!
//! For HTTP/1 every byte goes through the strict [`framing`](crate::framing) reader; where it
//! refuses, the parser is handed a NUL in place of the offending byte, the end of a head, and
//! nothing after it, so that the parser answers 400 in its own way and in order. The time-outs for heads, idle
//! connections and clients that do not read live here too, on timers that are set once and looked
//! at when they fire: a request costs no timer. A connection that is closed with bytes still on
//! their way is drained for a moment, so that the answer is not lost to a reset.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};

use crate::framing::{Framing, Place};
use crate::transport::Transport;

/// The first bytes of an HTTP/2 connection.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How long a closed connection is drained.
const LINGER: Duration = Duration::from_secs(2);

/// What the parser reads after a refusal: it looks at a head only once it seems complete.
const END_OF_HEAD: &[u8] = b"\r\n\r\n";

const TIMED_OUT: &[u8] =
    b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// What a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.0 or HTTP/1.1.
    Http1,
    /// HTTP/2 with prior knowledge.
    Http2,
}

/// How long a client may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireTimeouts {
    /// From the first byte of a head, or from the accept, to its end.
    pub header: Duration,
    /// Between a response and the next request.
    pub idle: Duration,
    /// Without taking any byte of a response.
    pub write: Duration,
}

/// The requests of one connection.
#[derive(Debug, Default)]
pub struct Activity {
    begun: AtomicUsize,
    ended: AtomicUsize,
}

impl Activity {
    /// Counts a request.
    pub fn begin(&self) {
        self.begun.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request whose answer is complete.
    pub fn end(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    /// How many have begun.
    #[must_use]
    pub fn begun(&self) -> usize {
        self.begun.load(Ordering::Relaxed)
    }

    /// How many are in flight.
    #[must_use]
    pub fn count(&self) -> usize {
        self.begun()
            .wrapping_sub(self.ended.load(Ordering::Relaxed))
    }
}

/// A connection whose protocol is known.
#[derive(Debug)]
pub struct Wire {
    stream: Transport,
    /// What was read to find out the protocol and not yet handed on.
    sniffed: Vec<u8>,
    framing: Option<Framing>,
    /// Whether nothing more may be read from the socket.
    refused: bool,
    /// What is still handed on after a refusal.
    tail: &'static [u8],
    timeouts: WireTimeouts,
    activity: Arc<Activity>,
    /// Since when the present wait for bytes counts, if one is on.
    waiting: Option<(Place, Instant)>,
    /// Whether a head has been complete on this connection.
    served: bool,
    read_timer: Pin<Box<Sleep>>,
    stalled: Option<Instant>,
    write_timer: Option<Pin<Box<Sleep>>>,
    linger: Option<Pin<Box<Sleep>>>,
}

impl Wire {
    /// Finds out what the client speaks. None where it left or said nothing in time.
    pub async fn sniff(
        mut stream: Transport,
        timeouts: WireTimeouts,
        activity: Arc<Activity>,
    ) -> Option<(Self, Protocol)> {
        let accepted = Instant::now();
        let deadline = accepted + timeouts.header;
        let mut bytes = [0; PREFACE.len()];
        let mut length = 0;
        let protocol = loop {
            if bytes[..length] != PREFACE[..length] {
                break Protocol::Http1;
            }
            if length == PREFACE.len() {
                break Protocol::Http2;
            }
            match timeout_at(deadline, stream.read(&mut bytes[length..])).await {
                Ok(Ok(0)) if length > 0 => break Protocol::Http1,
                Ok(Ok(read)) if read > 0 => length += read,
                _ => return None,
            }
        };
        let wire = Self {
            stream,
            sniffed: bytes[..length].to_vec(),
            framing: (protocol == Protocol::Http1).then(Framing::default),
            refused: false,
            tail: b"",
            timeouts,
            activity,
            waiting: Some((Place::Head, accepted)),
            served: false,
            read_timer: Box::pin(sleep_until(deadline)),
            stalled: None,
            write_timer: None,
            linger: None,
        };
        Some((wire, protocol))
    }

    /// Lets new bytes through the framing reader.
    fn inspect(&mut self, buffer: &mut ReadBuf<'_>, before: usize) {
        let Some(framing) = &mut self.framing else {
            return;
        };
        let fresh = &mut buffer.filled_mut()[before..];
        match framing.read(fresh) {
            Err(at) => {
                fresh[at] = 0;
                buffer.set_filled(before + at + 1);
                self.refused = true;
                self.tail = END_OF_HEAD;
            }
            Ok(()) if framing.place() == Place::Head => {
                // The clock of a head runs from its first byte, however it trickles in.
                if !matches!(self.waiting, Some((Place::Head, _))) {
                    self.waiting = Some((Place::Head, Instant::now()));
                }
            }
            Ok(()) => {
                self.served = true;
                self.waiting = None;
            }
        }
    }

    /// Whether the wait for bytes has lasted too long. Wakes the task when it will have.
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<Place> {
        let Some(framing) = &self.framing else {
            return Poll::Pending;
        };
        let place = if self.served {
            framing.place()
        } else {
            Place::Head
        };
        let patience = match place {
            Place::Head => self.timeouts.header,
            Place::Between => self.timeouts.idle,
            // Bodies have a time-out of their own, where they are read.
            Place::Body => return Poll::Pending,
        };
        loop {
            let since = match self.waiting {
                Some((waited_at, since)) if waited_at == place => since,
                _ => {
                    let now = Instant::now();
                    self.waiting = Some((place, now));
                    now
                }
            };
            let deadline = since + patience;
            if self.read_timer.is_elapsed() || self.read_timer.deadline() > deadline {
                self.read_timer.as_mut().reset(deadline);
            }
            ready!(self.read_timer.as_mut().poll(cx));
            let now = Instant::now();
            if place == Place::Between && self.activity.count() > 0 {
                // A request is being answered: the client owes nothing.
                self.waiting = Some((place, now));
            } else if now >= deadline {
                return Poll::Ready(place);
            }
        }
    }

    /// Tells a client with a head that never ends, if the socket takes it at once.
    fn answer_timed_out(&mut self, cx: &mut Context<'_>) {
        let begun = self
            .framing
            .as_ref()
            .is_some_and(|framing| framing.place() == Place::Head);
        if begun && self.activity.count() == 0 {
            let mut stream = Pin::new(&mut self.stream);
            if let Poll::Ready(Ok(_)) = stream.as_mut().poll_write(cx, TIMED_OUT) {
                let _ = stream.poll_flush(cx);
            }
        }
    }

    fn poll_write_patience(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let since = *self.stalled.get_or_insert_with(Instant::now);
        let deadline = since + self.timeouts.write;
        let timer = self
            .write_timer
            .get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        loop {
            if timer.is_elapsed() || timer.deadline() > deadline {
                timer.as_mut().reset(deadline);
            }
            ready!(timer.as_mut().poll(cx));
            if Instant::now() >= deadline {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
    }

    fn after_write(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        ready!(self.poll_write_patience(cx))?;
        Poll::Pending
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.refused {
            let (now, later) = this.tail.split_at(this.tail.len().min(buffer.remaining()));
            buffer.put_slice(now);
            this.tail = later;
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        if !this.sniffed.is_empty() {
            let taken = this.sniffed.len().min(buffer.remaining());
            buffer.put_slice(&this.sniffed[..taken]);
            this.sniffed.drain(..taken);
            this.inspect(buffer, before);
            return Poll::Ready(Ok(()));
        }
        match Pin::new(&mut this.stream).poll_read(cx, buffer) {
            Poll::Ready(Ok(())) => {
                this.inspect(buffer, before);
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                if ready!(this.poll_patience(cx)) == Place::Head {
                    this.answer_timed_out(cx);
                }
                // The end of the stream closes the connection without a word.
                this.refused = true;
                Poll::Ready(Ok(()))
            }
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.after_write(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.after_write(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.linger.is_none() {
            ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
            let mid_message = this
                .framing
                .as_ref()
                .is_some_and(|framing| framing.place() != Place::Between);
            if !this.refused && !mid_message {
                return Poll::Ready(Ok(()));
            }
        }
        let linger = this
            .linger
            .get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + LINGER)));
        let mut scratch = [0; 8192];
        // A few reads at a time: a client that sends without end must not keep the thread.
        for _ in 0..16 {
            let mut buffer = ReadBuf::new(&mut scratch);
            match Pin::new(&mut this.stream).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {}
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => {
                    ready!(linger.as_mut().poll(cx));
                    return Poll::Ready(Ok(()));
                }
            }
        }
        if linger.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
