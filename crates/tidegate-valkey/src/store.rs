//! States kept on servers: operations go out as scripts, and answers of the engine come back.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use siphasher::sip128::SipHasher13;
use tidegate_core::{Align, Operation, Policy, Reply, Timestamp};
use tidegate_store::{Key, Outcome};
use tokio::time::Instant;

use crate::calls::{CallObserver, StoreCall};
use crate::cas::Swapper;
use crate::denied::DeniedCalls;
use crate::failure::wall_clock;
use crate::{
    Answer, Client, KeySpace, LimitSpec, Notifications, SharedMember, StoreError, call_for,
    joint_call_for, outcome_from, reply_from,
};

/// How many denials a process remembers of a store unless told otherwise.
const REMEMBERED: usize = 10_000;

/// How often one operation is asked again since the server needs another window of a calendar. The
/// second time it brings the very one; the server's day may end in between.
const WINDOWS: u32 = 3;

/// States of any number of limits on one server, behind sentinels, or in a cluster.
///
/// Clones share everything. No failure is hidden here: what a limit does then is
/// [`SharedLimit`](crate::SharedLimit)'s part.
#[derive(Clone, Debug)]
pub struct ValkeyStore(Arc<Inner>);

/// How a decision is made so that nobody comes in between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Atomicity {
    /// By one script: one round trip, and no limit to how many write a key at once.
    #[default]
    Scripts,
    /// By reading, deciding in the process, and writing if nobody has written since: for servers and
    /// users without scripts. The same decisions on the same values, so processes of both kinds may
    /// share keys, in two round trips, and with whole values on the way: a log of 100 000 charges is
    /// 1.2 MB each time. Callers of one process are decided together; where many processes write one
    /// key, calls may fail as [`StoreError::Contended`].
    ///
    /// Calls of several limits, and servers before Valkey 8.1 and Redis 8.4, which know no
    /// `SET … IFEQ`, use connections of their own that `WATCH` the keys.
    CompareAndSwap,
}

#[derive(Debug)]
struct Inner {
    client: Client,
    /// Decides where no scripts are allowed.
    swapper: Option<Arc<Swapper>>,
    space: KeySpace,
    denied: DeniedCalls,
    seed: (u64, u64),
    rebased: AtomicU64,
    observer: CallObserver,
}

impl ValkeyStore {
    /// Takes a client and the names of keys.
    #[must_use]
    pub fn new(client: Client, space: KeySpace) -> Self {
        Self::with_memory(client, space, REMEMBERED)
    }

    /// As [`new`](Self::new), and says how many denials the process remembers: some 500 bytes each.
    #[must_use]
    pub fn with_memory(client: Client, space: KeySpace, denials: usize) -> Self {
        Self::made(
            client,
            space,
            denials,
            Atomicity::Scripts,
            CallObserver::default(),
        )
    }

    /// As [`new`](Self::new), and says how decisions are made.
    #[must_use]
    pub fn with_atomicity(client: Client, space: KeySpace, atomicity: Atomicity) -> Self {
        Self::made(
            client,
            space,
            REMEMBERED,
            atomicity,
            CallObserver::default(),
        )
    }

    /// As [`with_atomicity`](Self::with_atomicity), and calls `observer` after every step that the
    /// store is asked for. It runs within the call and must not block.
    #[must_use]
    pub fn observed(
        client: Client,
        space: KeySpace,
        atomicity: Atomicity,
        observer: impl Fn(&StoreCall) + Send + Sync + 'static,
    ) -> Self {
        Self::made(
            client,
            space,
            REMEMBERED,
            atomicity,
            CallObserver::new(observer),
        )
    }

    fn made(
        client: Client,
        space: KeySpace,
        denials: usize,
        atomicity: Atomicity,
        observer: CallObserver,
    ) -> Self {
        // The standard library draws these from the operating system.
        let draw = |n: u8| RandomState::new().hash_one(n);
        let swapper = match atomicity {
            Atomicity::Scripts => None,
            Atomicity::CompareAndSwap => Some(Swapper::new(client.clone())),
        };
        Self(Arc::new(Inner {
            client,
            swapper,
            space,
            denied: DeniedCalls::new(denials),
            seed: (draw(0), draw(1)),
            rebased: AtomicU64::new(0),
            observer,
        }))
    }

    /// The client, for what it has counted.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.0.client
    }

    /// Keys whose times were moved back because the server's clock had been corrected.
    #[must_use]
    pub fn rebased(&self) -> u64 {
        self.0.rebased.load(Relaxed)
    }

    /// Applies one operation to one key, at the server's time.
    ///
    /// `slot` decides where in a cluster the state lies, if it is not the key itself. With `shadow`
    /// it is the state of a limit that is only watched.
    ///
    /// # Errors
    /// There is no answer: [`StoreError::was_counted`] tells what may have happened. Or the
    /// operation has no meaning on the limit's algorithm.
    pub async fn apply(
        &self,
        limit: &LimitSpec,
        key: &Key,
        slot: Option<&Key>,
        shadow: bool,
        operation: &Operation,
    ) -> Result<Reply, StoreError> {
        let deadline = self.0.client.deadline();
        self.apply_until(limit, key, slot, shadow, operation, deadline)
            .await
    }

    /// As [`apply`](Self::apply), for one of several steps that share a deadline.
    pub(crate) async fn apply_until(
        &self,
        limit: &LimitSpec,
        key: &Key,
        slot: Option<&Key>,
        shadow: bool,
        operation: &Operation,
        deadline: Instant,
    ) -> Result<Reply, StoreError> {
        let step = self.ask_one(limit, key, slot, shadow, operation, deadline);
        self.0.observer.watch(operation.name(), step).await
    }

    async fn ask_one(
        &self,
        limit: &LimitSpec,
        key: &Key,
        slot: Option<&Key>,
        shadow: bool,
        operation: &Operation,
        deadline: Instant,
    ) -> Result<Reply, StoreError> {
        let Inner { client, space, .. } = &*self.0;
        let mut times = Times::about_now(limit);
        let _changing = changes(operation).then(|| {
            let key = self.hash(limit, key, slot, shadow);
            self.0.denied.change(key)
        });
        if let Some(swapper) = &self.0.swapper {
            let name = self.key_name(limit, key, slot, shadow);
            let applied = swapper.apply(name, limit, operation, shadow, deadline);
            let (reply, is_rebased) = applied.await?;
            self.count_rebased(u32::from(is_rebased));
            return Ok(reply);
        }
        for _ in 0..WINDOWS {
            let call = call_for(space, limit, key, slot, shadow, operation, times.get())?;
            let sent = client.call_until(call.script, &call.keys, &call.arguments, deadline);
            let answer = reply_from(operation, shadow, &sent.await?);
            match answer.map_err(|source| self.unexpected(source))? {
                Answer::Reply { reply, rebased } => {
                    self.count_rebased(rebased);
                    return Ok(reply);
                }
                Answer::NeedsWindow(at) => times = Times::at(at),
            }
        }
        Err(self.no_window())
    }

    /// Decides over all members in one step, and charges all or none of them. None without
    /// members.
    ///
    /// Members with the same key of the same limit are summed: each is told what the sum is told.
    /// In a cluster all must lie in one slot; [`all_of`](crate::all_of()) does without that.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub async fn all_of(
        &self,
        members: &[SharedMember<'_>],
    ) -> Result<Option<Outcome>, StoreError> {
        self.all_of_until(members, self.0.client.deadline()).await
    }

    /// As [`all_of`](Self::all_of), for one of several steps that share a deadline.
    pub(crate) async fn all_of_until(
        &self,
        members: &[SharedMember<'_>],
        deadline: Instant,
    ) -> Result<Option<Outcome>, StoreError> {
        let step = self.ask_all(members, deadline);
        self.0.observer.watch("all_of", step).await
    }

    async fn ask_all(
        &self,
        members: &[SharedMember<'_>],
        deadline: Instant,
    ) -> Result<Option<Outcome>, StoreError> {
        let Inner { client, space, .. } = &*self.0;
        let calendar = members.iter().find(|member| is_calendar(member.limit));
        let mut times = calendar.map_or(Times::none(), |member| Times::about_now(member.limit));
        for _ in 0..WINDOWS {
            let Some(joint) = joint_call_for(space, members, times.get())? else {
                return Ok(None);
            };
            if let Some(swapper) = &self.0.swapper {
                let (outcome, rebased) = swapper.all_of(members, &joint, deadline).await?;
                self.count_rebased(rebased);
                return Ok(Some(outcome));
            }
            let call = &joint.call;
            let sent = client.call_until(call.script, &call.keys, &call.arguments, deadline);
            let answer = outcome_from(&joint, &sent.await?);
            match answer.map_err(|source| self.unexpected(source))? {
                Answer::Reply { reply, rebased } => {
                    self.count_rebased(rebased);
                    return Ok(Some(reply));
                }
                Answer::NeedsWindow(at) => times = Times::at(at),
            }
        }
        Err(self.no_window())
    }

    /// Wakes whoever waits for a permit of a concurrency limit when one is released, in whichever
    /// process. One that expires wakes nobody.
    #[must_use]
    pub fn released(
        &self,
        limit: &LimitSpec,
        key: &Key,
        slot: Option<&Key>,
        shadow: bool,
    ) -> Notifications {
        let mut channel = self.key_name(limit, key, slot, shadow);
        channel.extend_from_slice(b":free");
        self.0.client.notifications(channel)
    }

    pub(crate) fn key_name(
        &self,
        limit: &LimitSpec,
        key: &Key,
        slot: Option<&Key>,
        shadow: bool,
    ) -> Vec<u8> {
        self.0
            .space
            .name(limit.name(), limit.letter(), shadow, key, slot)
    }

    pub(crate) fn denied(&self) -> &DeniedCalls {
        &self.0.denied
    }

    /// A hasher whose hashes nobody outside can foresee.
    pub(crate) fn hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.0.seed.0, self.0.seed.1)
    }

    /// The hash of a key of a limit: of all that its name on the server is made of.
    pub(crate) fn hash(
        &self,
        limit: &LimitSpec,
        key: &Key,
        slot: Option<&Key>,
        shadow: bool,
    ) -> u64 {
        let mut hasher = self.hasher();
        let slot = slot.unwrap_or(key).as_bytes();
        for part in [limit.name().as_bytes(), slot] {
            hasher.write_usize(part.len());
            hasher.write(part);
        }
        hasher.write(&[limit.letter(), u8::from(shadow)]);
        hasher.write(key.as_bytes());
        hasher.finish()
    }

    fn count_rebased(&self, rebased: u32) {
        if rebased > 0 {
            self.0.rebased.fetch_add(rebased.into(), Relaxed);
        }
    }

    fn unexpected(&self, source: crate::ReplyError) -> StoreError {
        StoreError::Reply {
            server: self.0.client.name(),
            source,
        }
    }

    fn no_window(&self) -> StoreError {
        StoreError::Unavailable {
            server: self.0.client.name(),
            message: "its clock jumps from one window of the calendar to another".into(),
        }
    }
}

/// The points in time whose windows a call brings along: none where no limit is a calendar's.
struct Times(Option<Timestamp>);

impl Times {
    const fn none() -> Self {
        Self(None)
    }

    const fn at(at: Timestamp) -> Self {
        Self(Some(at))
    }

    fn about_now(limit: &LimitSpec) -> Self {
        Self(is_calendar(limit).then(wall_clock))
    }

    fn get(&self) -> &[Timestamp] {
        self.0.as_slice()
    }
}

fn is_calendar(limit: &LimitSpec) -> bool {
    match limit.policy() {
        Policy::FixedWindow(window) => matches!(window.align(), Align::Calendar(_)),
        _ => false,
    }
}

/// Whether an operation can make the state better or a remembered wait wrong.
const fn changes(operation: &Operation) -> bool {
    !matches!(
        operation,
        Operation::Take(_)
            | Operation::Peek(_)
            | Operation::TakeUpTo { .. }
            | Operation::Reserve { .. }
            | Operation::State
    )
}
