//! One connection: everything that has arrived is read at once, decided, and answered in one write.
//!
//! Reading and answering happen in one step without a pause, so the buffers for both belong to the
//! thread. A connection owns only half a command, or answers that its client has not read yet: an
//! idle one holds no buffer, and nothing more is read while answers wait.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use arc_swap::ArcSwap;
use tidegate::Clock;
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use super::frame::{FrameError, MAX_FRAME, Parser};
use super::reply::{Replies, Version};
use super::session::{Session, Then};
use crate::served::Served;

/// What is read at once.
const READ: usize = 32 * 1024;

/// How much is answered before it is sent: a short question may have a long answer.
const ANSWERS: usize = 64 * 1024;

/// What a client may take to send the rest of a command, and to read what it was answered.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long a client may say nothing while the door closes: then it is not at work.
const LULL: Duration = Duration::from_millis(500);

/// How long is read on after the last answer: else the system could take it back.
const FAREWELL: Duration = Duration::from_millis(500);

/// What the connections of a door have in common.
pub(crate) struct Shared {
    pub served: ArcSwap<Served>,
    pub clock: Arc<dyn Clock>,
}

/// Why a connection has ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The client has left, or was told to: everything is answered.
    Done,
    /// What was sent is no command.
    Malformed(FrameError),
    /// The client took too long.
    Slow,
    /// The connection broke.
    Broken(io::Error),
}

thread_local! {
    /// For what is read, and for what is answered.
    static BUFFERS: RefCell<(Box<[u8]>, Vec<u8>)> =
        RefCell::new((vec![0; READ].into(), Vec::with_capacity(READ)));
}

/// One client's connection.
pub(crate) struct Connection {
    stream: TcpStream,
    shared: Arc<Shared>,
    session: Session,
    parser: Parser,
    /// The beginning of a command; or whole ones, while `more` is set.
    held: Vec<u8>,
    /// Whether commands wait until the answers to those before them are sent.
    more: bool,
    /// Answers that could not be sent yet, from a place on.
    unsent: Vec<u8>,
    sent: usize,
}

/// What one step has come to.
enum Step {
    /// Something was read and answered.
    Answered,
    /// The connection is to end when all is sent.
    End(Option<FrameError>),
}

impl Connection {
    pub(crate) fn new(stream: TcpStream, shared: Arc<Shared>, session: Session) -> Self {
        Self {
            stream,
            shared,
            session,
            parser: Parser::default(),
            held: Vec::new(),
            more: false,
            unsent: Vec::new(),
            sent: 0,
        }
    }

    /// Serves the client until it leaves, or until `stop`: from then on clients that are at work
    /// are answered until `deadline`.
    pub(crate) async fn serve(mut self, stop: impl Future<Output = Instant>) -> Ended {
        let mut stop = std::pin::pin!(stop);
        let mut closing: Option<Instant> = None;
        loop {
            let half = !self.held.is_empty() && !self.more;
            let step = std::future::poll_fn(|context| self.poll_step(context));
            let stepped = if let Some(deadline) = closing {
                let lull = (Instant::now() + LULL).min(deadline);
                match timeout_at(lull, step).await {
                    Ok(stepped) if Instant::now() < deadline => stepped,
                    Ok(Ok(_)) | Err(_) => Ok(Step::End(None)),
                    Ok(broken) => broken,
                }
            } else if half {
                // Half a command: the rest has to come.
                let until = Instant::now() + PATIENCE;
                match self.rest(until, stop.as_mut()).await {
                    Rest::Came(stepped) => stepped,
                    Rest::Late => return Ended::Slow,
                    Rest::Closing(deadline) => {
                        closing = Some(deadline);
                        continue;
                    }
                }
            } else {
                tokio::select! {
                    biased;
                    stepped = step => stepped,
                    deadline = stop.as_mut() => {
                        closing = Some(deadline);
                        continue;
                    }
                }
            };
            let step = match stepped {
                Ok(step) => step,
                Err(error) => return Ended::Broken(error),
            };
            if !self.unsent.is_empty() {
                let sending = std::future::poll_fn(|context| self.poll_send(context));
                match tokio::time::timeout(PATIENCE, sending).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => return Ended::Broken(error),
                    Err(_) => return Ended::Slow,
                }
            }
            match step {
                Step::Answered => tokio::task::consume_budget().await,
                Step::End(error) => {
                    self.part().await;
                    return error.map_or(Ended::Done, Ended::Malformed);
                }
            }
        }
    }

    /// Waits for the rest of a command, however many pieces it comes in.
    async fn rest(
        &mut self,
        until: Instant,
        mut stop: Pin<&mut impl Future<Output = Instant>>,
    ) -> Rest {
        loop {
            let step = std::future::poll_fn(|context| self.poll_step(context));
            let stepped = tokio::select! {
                biased;
                stepped = timeout_at(until, step) => stepped,
                deadline = stop.as_mut() => return Rest::Closing(deadline),
            };
            match stepped {
                // Another piece, and still not the end of the same command.
                Ok(Ok(Step::Answered))
                    if !self.held.is_empty() && !self.more && self.unsent.is_empty() => {}
                Ok(stepped) => return Rest::Came(stepped),
                Err(_) => return Rest::Late,
            }
        }
    }

    /// Reads what has arrived, answers it, and sends the answers as far as they go.
    fn poll_step(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Step>> {
        BUFFERS.with_borrow_mut(|(input, output)| {
            output.clear();
            let step = if self.held.is_empty() {
                let bytes = ready!(read(&mut self.stream, context, input))?;
                if bytes.is_empty() {
                    return Poll::Ready(Ok(Step::End(None)));
                }
                let (step, used) = self.answer(bytes, output);
                self.held.extend_from_slice(&bytes[used..]);
                step
            } else {
                if !self.more {
                    let bytes = ready!(read(&mut self.stream, context, input))?;
                    if bytes.is_empty() {
                        return Poll::Ready(Ok(Step::End(None)));
                    }
                    self.held.extend_from_slice(bytes);
                }
                let mut held = std::mem::take(&mut self.held);
                let (step, used) = self.answer(&held, output);
                if used < held.len() {
                    held.drain(..used);
                    self.held = held;
                }
                step
            };
            if matches!(step, Step::End(_)) {
                self.held = Vec::new();
            }
            debug_assert!(self.held.len() <= MAX_FRAME + READ);
            let mut sent = 0;
            while sent < output.len() {
                match Pin::new(&mut self.stream).poll_write(context, &output[sent..]) {
                    Poll::Ready(Ok(0)) => {
                        return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                    }
                    Poll::Ready(Ok(more)) => sent += more,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => {
                        self.unsent.extend_from_slice(&output[sent..]);
                        break;
                    }
                }
            }
            Poll::Ready(Ok(step))
        })
    }

    /// Answers all commands that are complete; also returns how many bytes those were.
    fn answer(&mut self, bytes: &[u8], output: &mut Vec<u8>) -> (Step, usize) {
        let served = self.shared.served.load();
        let now = self.shared.clock.now();
        let mut used = 0;
        self.more = false;
        loop {
            let rest = &bytes[used..];
            if output.len() > ANSWERS {
                self.more = !rest.is_empty();
                return (Step::Answered, used);
            }
            match self.parser.advance(rest) {
                Ok(Some(length)) => {
                    let command = self.parser.command(rest);
                    let then = self.session.answer(command, &served, now, output);
                    self.parser.next();
                    used += length;
                    if then == Then::End {
                        return (Step::End(None), bytes.len());
                    }
                }
                Ok(None) => return (Step::Answered, used),
                Err(error) => {
                    let mut replies = Replies::new(output, Version::Resp2);
                    replies.error(&format!("ERR Protocol error: {error}"));
                    return (Step::End(Some(error)), bytes.len());
                }
            }
        }
    }

    /// Sends what is left to send.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.unsent.len() {
            let rest = &self.unsent[self.sent..];
            match ready!(Pin::new(&mut self.stream).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                more => self.sent += more,
            }
        }
        (self.unsent, self.sent) = (Vec::new(), 0);
        Poll::Ready(Ok(()))
    }

    /// Says that no more will come, and lets the client read what it was told last.
    async fn part(&mut self) {
        let parting = async {
            std::future::poll_fn(|context| Pin::new(&mut self.stream).poll_shutdown(context))
                .await?;
            let mut rest = [0; 1024];
            loop {
                self.stream.readable().await?;
                match self.stream.try_read(&mut rest) {
                    Ok(0) => return Ok(()),
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
        };
        // Who does not leave is left.
        let _: Result<Result<(), io::Error>, _> = tokio::time::timeout(FAREWELL, parting).await;
    }
}

/// What has arrived; nothing when the client has said its last.
fn read<'b>(
    stream: &mut TcpStream,
    context: &mut Context<'_>,
    buffer: &'b mut [u8],
) -> Poll<io::Result<&'b [u8]>> {
    let mut read = ReadBuf::new(buffer);
    ready!(Pin::new(stream).poll_read(context, &mut read))?;
    let length = read.filled().len();
    Poll::Ready(Ok(&buffer[..length]))
}

/// What came of waiting for the rest of a command.
enum Rest {
    Came(io::Result<Step>),
    Late,
    Closing(Instant),
}
