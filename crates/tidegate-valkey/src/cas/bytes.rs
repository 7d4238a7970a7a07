//! Whole numbers of the lengths that stored values have, high byte first.

/// Reads numbers one after the other; none at the end.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self, length: usize) -> Option<u64> {
        let bytes = self.take(length)?;
        Some(
            bytes
                .iter()
                .fold(0, |number, byte| number << 8 | u64::from(*byte)),
        )
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    pub(super) fn short(&mut self) -> Option<u16> {
        u16::try_from(self.number(2)?).ok()
    }

    pub(super) fn count(&mut self) -> Option<u32> {
        u32::try_from(self.number(4)?).ok()
    }

    /// A sum of a log.
    pub(super) fn sum(&mut self) -> Option<u64> {
        self.number(5)
    }

    pub(super) fn micros(&mut self) -> Option<u64> {
        self.number(7)
    }

    /// A time that may lie before the epoch.
    pub(super) fn signed(&mut self) -> Option<i64> {
        let number = self.number(7)?;
        Some((number << 8).cast_signed() >> 8)
    }

    pub(super) fn long(&mut self) -> Option<u64> {
        self.number(8)
    }

    pub(super) fn is_empty(self) -> bool {
        self.0.is_empty()
    }
}

/// Appends a number's last bytes.
fn push(out: &mut Vec<u8>, number: u64, length: usize) {
    out.extend_from_slice(&number.to_be_bytes()[8 - length..]);
}

pub(super) fn push_count(out: &mut Vec<u8>, count: u64) {
    push(out, count, 4);
}

pub(super) fn push_sum(out: &mut Vec<u8>, sum: u64) {
    push(out, sum, 5);
}

pub(super) fn push_micros(out: &mut Vec<u8>, micros: u64) {
    push(out, micros, 7);
}

pub(super) fn push_signed(out: &mut Vec<u8>, micros: i64) {
    push(out, micros.cast_unsigned(), 7);
}
