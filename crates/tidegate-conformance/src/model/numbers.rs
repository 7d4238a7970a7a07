//! Whole numbers of any size that matters, and the search that answers every "when".

/// A count, a length of time or a point in time. Wide enough that nothing here can overflow.
pub type Int = i128;

/// A point in time, or never.
pub type Moment = Option<Int>;

/// The longest wait that is told; beyond it the answer is never.
pub const LONGEST_WAIT: Int = (1 << 53) - 1;

/// The longest delay that a call is let in for: told to who is a second behind, it is still a wait.
pub const LONGEST_DELAY: Int = LONGEST_WAIT - 1_000_000;

/// The least whole number that is not below `a / b`.
#[must_use]
pub fn ceil_div(a: Int, b: Int) -> Int {
    (a + b - 1).div_euclid(b)
}

/// `a * b / c`, rounded down, and what is left over. By adding `a` as often as `b` says, one binary
/// digit after the other: the product itself may not fit.
#[must_use]
pub fn mul_div(a: Int, b: Int, c: Int) -> (Int, Int) {
    let (mut whole, mut rest) = (0, 0);
    for digit in (0..Int::BITS - 1).rev() {
        (whole, rest) = (2 * whole, 2 * rest);
        if b >> digit & 1 == 1 {
            whole += a / c;
            rest += a % c;
        }
        whole += rest / c;
        rest %= c;
    }
    (whole, rest)
}

/// `a * b / c`, rounded up.
#[must_use]
pub fn mul_div_up(a: Int, b: Int, c: Int) -> Int {
    let (whole, rest) = mul_div(a, b, c);
    whole + Int::from(rest > 0)
}

/// The greatest common divisor.
#[must_use]
pub fn common_divisor(a: Int, b: Int) -> Int {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// The first point in time from `from` on at which `holds`, which must stay true from then on.
///
/// A search and not a formula: so each algorithm only says what is used at a given time, and the
/// waits follow from that.
#[must_use]
pub fn first(from: Int, holds: impl Fn(Int) -> bool) -> Moment {
    if holds(from) {
        return Some(from);
    }
    let (mut before, mut step) = (from, 1);
    let mut at = from + step;
    while !holds(at) {
        if step > LONGEST_WAIT {
            return None;
        }
        before = at;
        step *= 2;
        at = from + step;
    }
    while at - before > 1 {
        let middle = (before + at) / 2;
        if holds(middle) {
            at = middle;
        } else {
            before = middle;
        }
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_moment_is_found_to_the_microsecond() {
        for target in 0..100 {
            assert_eq!(first(0, |t| t >= target), Some(target));
        }
        let far = 1_234_567_890_123;
        assert_eq!(first(7, |t| t >= far), Some(far));
        assert_eq!(first(0, |_| false), None);
    }

    #[test]
    fn divisions_round_as_they_say() {
        assert_eq!((ceil_div(7, 3), ceil_div(6, 3), ceil_div(0, 3)), (3, 2, 0));
        for (a, b, c) in [
            (7, 5, 3),
            (0, 5, 3),
            (9, 4, 6),
            (1 << 90, 1 << 90, (1 << 90) - 1),
        ] {
            let (whole, rest) = mul_div(a, b, c);
            assert!((0..c).contains(&rest));
            if a < 10 {
                assert_eq!((whole, rest), (a * b / c, a * b % c));
            }
            assert_eq!(mul_div_up(a, b, c) - whole, Int::from(rest > 0));
        }
        assert_eq!(mul_div(1 << 90, 1 << 90, 1 << 100), (1 << 80, 0));
        assert_eq!(common_divisor(0, 12), 12);
        assert_eq!(common_divisor(18, 12), 6);
    }
}
