//! Operations as calls of scripts.

use smallvec::SmallVec;
use tidegate_core::{
    Align, Demand, LeaseId, MAX_DELAY, Operation, OperationError, Policy, Timestamp, with_algorithm,
};
use tidegate_store::Key;

use crate::{KeySpace, LimitSpec, Script, scripts};

/// One argument: the usual ones need no heap.
pub type Argument = SmallVec<[u8; 32]>;

/// A call of a script, ready to be sent.
#[derive(Clone, Debug)]
pub struct ScriptCall {
    /// Which script.
    pub script: &'static Script,
    /// The names of the keys that it touches: all in one slot of a cluster.
    pub keys: SmallVec<[Vec<u8>; 1]>,
    /// Its arguments.
    pub arguments: SmallVec<[Argument; 4]>,
}

/// Limits that a call must pass together.
#[derive(Clone, Copy, Debug)]
pub struct SharedMember<'a> {
    /// The limit.
    pub limit: &'a LimitSpec,
    /// Whose state is counted.
    pub key: &'a Key,
    /// What decides where in a cluster the state lies; without it the key does. All members of a
    /// call must lie together.
    pub slot: Option<&'a Key>,
    /// What the call wants of it.
    pub demand: Demand,
    /// Whether the limit is only watched: it never denies, and is charged only where the call
    /// passes and it would have let it pass too.
    pub shadow: bool,
}

/// A call over several limits, and which members share a key.
#[derive(Clone, Debug)]
pub struct JointCall {
    /// What is to be sent.
    pub call: ScriptCall,
    /// By member, the position of its key in the call.
    pub(crate) share_of: SmallVec<[usize; 6]>,
    /// By key, the first member that named it, and what is asked of it.
    pub(crate) shares: SmallVec<[(usize, Demand); 6]>,
    /// By member, whether it is only watched.
    pub(crate) shadow: SmallVec<[bool; 6]>,
}

/// Flags of a call, as the scripts have them.
const PEEK: u8 = 1;
const PUNISH: u8 = 2;
const WATCH: u8 = 4;

/// How near to its border a calendar's window must be for the one beyond to be brought as well: the
/// clocks of a process and of the server may differ by so much, in microseconds.
const BORDER: u64 = 2_000_000;

/// One operation on one key as a call of a script.
///
/// `times` are the points in time whose windows the call brings along, for a limit whose windows
/// are a calendar's: about now. Where the server needs another one it says so, see
/// [`Answer::NeedsWindow`](crate::Answer::NeedsWindow).
///
/// # Errors
/// The operation has no meaning on the limit's algorithm, or its numbers are out of range.
pub fn call_for(
    space: &KeySpace,
    limit: &LimitSpec,
    key: &Key,
    slot: Option<&Key>,
    shadow: bool,
    operation: &Operation,
    times: &[Timestamp],
) -> Result<ScriptCall, OperationError> {
    let mut arguments = SmallVec::new();
    arguments.push(limit.header().into());
    encode(&mut arguments, limit, operation, times)?;
    let name = space.name(limit.name(), limit.letter(), shadow, key, slot);
    Ok(ScriptCall {
        script: scripts::one(scripts::number(limit.policy())),
        keys: SmallVec::from_iter([name]),
        arguments,
    })
}

/// A call over several limits: all are charged, or none. None without members.
///
/// Members with the same key of the same limit are summed: each is told what the sum is told.
///
/// # Errors
/// A demand has no meaning on its limit's algorithm.
pub fn joint_call_for(
    space: &KeySpace,
    members: &[SharedMember<'_>],
    times: &[Timestamp],
) -> Result<Option<JointCall>, OperationError> {
    let mut keys: SmallVec<[Vec<u8>; 1]> = SmallVec::new();
    let mut shares: SmallVec<[(usize, Demand); 6]> = SmallVec::new();
    let mut share_of = SmallVec::new();
    for (index, member) in members.iter().enumerate() {
        check(member.limit.policy(), &Operation::Take(member.demand))?;
        let SharedMember {
            limit, key, slot, ..
        } = member;
        let name = space.name(limit.name(), limit.letter(), member.shadow, key, *slot);
        match keys.iter().position(|other| *other == name) {
            Some(share) => {
                shares[share].1 = shares[share].1.and(member.demand);
                share_of.push(share);
            }
            None => {
                share_of.push(keys.len());
                keys.push(name);
                shares.push((index, member.demand));
            }
        }
    }
    let mut arguments = SmallVec::new();
    let mut algorithms = 0;
    for (first, demand) in &shares {
        let member = &members[*first];
        algorithms |= 1 << scripts::number(member.limit.policy());
        let flags = if member.shadow { WATCH } else { 0 } | punishes(member.limit);
        arguments.push(member.limit.header().into());
        demand_arguments(&mut arguments, member.limit, demand, flags, times);
        // Every member has four.
        arguments.resize(arguments.len().next_multiple_of(4), Argument::new());
    }
    if members.is_empty() {
        return Ok(None);
    }
    Ok(Some(JointCall {
        call: ScriptCall {
            script: scripts::all_of(algorithms),
            keys,
            arguments,
        },
        share_of,
        shares,
        shadow: members.iter().map(|member| member.shadow).collect(),
    }))
}

type Arguments = SmallVec<[Argument; 4]>;

fn check(policy: &Policy, operation: &Operation) -> Result<(), OperationError> {
    with_algorithm!(policy, algorithm => check_for(algorithm, operation))
}

fn check_for<A: tidegate_core::Algorithm>(
    _: &A,
    operation: &Operation,
) -> Result<(), OperationError> {
    operation.check::<A>()
}

fn punishes(limit: &LimitSpec) -> u8 {
    if limit.charges_denied() { PUNISH } else { 0 }
}

fn encode(
    out: &mut Arguments,
    limit: &LimitSpec,
    operation: &Operation,
    times: &[Timestamp],
) -> Result<(), OperationError> {
    check(limit.policy(), operation)?;
    let begin = |out: &mut Arguments, letter: u8| out.push(context(letter, limit, 0, times));
    match *operation {
        Operation::Take(demand) => demand_arguments(out, limit, &demand, punishes(limit), times),
        Operation::Peek(demand) => demand_arguments(out, limit, &demand, PEEK, times),
        Operation::TakeUpTo { cost } => {
            out.push(context(b'u', limit, punishes(limit), times));
            out.push(number(cost.into()));
        }
        Operation::Reserve { cost, max_wait } => {
            begin(out, b'r');
            // A double holds no 64 bits.
            let wait = max_wait.min(MAX_DELAY).0;
            let numbers = [cost.into(), wait >> 48, wait & 0xFFFF_FFFF_FFFF];
            out.extend(numbers.map(number));
        }
        Operation::Settle {
            reservation,
            actual,
        } => {
            begin(out, b's');
            let numbers = [
                reservation.cost.into(),
                reservation.at.as_micros(),
                actual.into(),
            ];
            out.extend(numbers.map(number));
        }
        Operation::Cancel { reservation } => {
            let actual = 0;
            let settle = Operation::Settle {
                reservation,
                actual,
            };
            return encode(out, limit, &settle, times);
        }
        Operation::Refund { cost } => {
            begin(out, b'g');
            out.push(number(cost.into()));
        }
        Operation::Force { cost } => {
            begin(out, b'f');
            out.push(number(cost.into()));
        }
        Operation::Reset => begin(out, b'z'),
        Operation::Block { period } => {
            begin(out, b'b');
            out.push(number(period.0));
        }
        Operation::Unblock => begin(out, b'c'),
        Operation::State => begin(out, b'i'),
        Operation::Renew { lease } => {
            begin(out, b'n');
            out.push(lease_bytes(lease));
        }
        Operation::Release { lease } => {
            begin(out, b'l');
            out.push(lease_bytes(lease));
        }
        Operation::Success => begin(out, b'y'),
        _ => {
            return Err(OperationError::Unsupported {
                operation: operation.name(),
                algorithm: "a shared limit",
                hint: "this version of the scripts does not know it",
            });
        }
    }
    Ok(())
}

/// The context of a demand and its operands.
fn demand_arguments(
    out: &mut Arguments,
    limit: &LimitSpec,
    demand: &Demand,
    flags: u8,
    times: &[Timestamp],
) {
    let letter = match demand {
        Demand::Take { .. } => b't',
        Demand::Acquire { .. } => b'q',
        Demand::Attempt { .. } => b'a',
    };
    out.push(context(letter, limit, flags, times));
    match *demand {
        Demand::Take { cost } => out.push(number(cost.into())),
        Demand::Acquire { lease, weight } => {
            out.push(lease_bytes(lease));
            out.push(number(weight.into()));
        }
        Demand::Attempt { seed } => out.push(number(jitter(limit.policy(), seed))),
    }
}

/// The part of a ban's jitter that a seed picks.
fn jitter(policy: &Policy, seed: u64) -> u64 {
    match policy {
        Policy::Lockout(lockout) => seed % (lockout.settings().jitter.0 + 1),
        _ => 0,
    }
}

fn context(letter: u8, limit: &LimitSpec, flags: u8, times: &[Timestamp]) -> Argument {
    let mut context = SmallVec::from_slice(&[letter, limit.change_digit(), b'0' + flags]);
    if let Policy::FixedWindow(window) = limit.policy()
        && let Align::Calendar(calendar) = window.align()
    {
        let mut bring = |at: Timestamp| {
            let window = calendar.window(at);
            for border in [window.start, window.end] {
                context.extend_from_slice(&border.as_micros().to_be_bytes()[1..]);
            }
            window
        };
        for at in times {
            let window = bring(*at);
            let (start, end) = (window.start.as_micros(), window.end.as_micros());
            if at.as_micros() - start < BORDER
                && let Some(before) = start.checked_sub(1)
                && let Ok(before) = Timestamp::from_micros(before)
            {
                bring(before);
            }
            if end - at.as_micros() <= BORDER && window.end < Timestamp::MAX {
                bring(window.end);
            }
        }
    }
    context
}

fn lease_bytes(lease: LeaseId) -> Argument {
    SmallVec::from_slice(&lease.0.to_be_bytes())
}

/// A whole number in decimal digits.
fn number(mut value: u64) -> Argument {
    let mut digits = [0; 20];
    let mut first = digits.len();
    loop {
        first -= 1;
        digits[first] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            return SmallVec::from_slice(&digits[first..]);
        }
    }
}
