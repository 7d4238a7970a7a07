//! Sets of HTTP statuses: what a condition on the status of an answer comes to.

/// Some of the statuses from 0 to 999.
#[derive(Clone, PartialEq, Eq)]
pub struct StatusSet([u64; 16]);

impl StatusSet {
    /// The statuses that a condition holds for, which is asked once for each.
    #[must_use]
    pub fn of(mut holds: impl FnMut(u16) -> bool) -> Self {
        let mut set = [0; 16];
        for status in (0..1_000_u16).filter(|status| holds(*status)) {
            set[usize::from(status / 64)] |= 1 << (status % 64);
        }
        Self(set)
    }

    /// Whether a status is one of them.
    #[must_use]
    pub fn has(&self, status: u16) -> bool {
        let word = self.0.get(usize::from(status / 64)).copied().unwrap_or(0);
        word >> (status % 64) & 1 == 1
    }
}

impl std::fmt::Debug for StatusSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set()
            .entries((0..1_000).filter(|status| self.has(*status)))
            .finish()
    }
}
