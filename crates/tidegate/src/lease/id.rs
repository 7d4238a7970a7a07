//! Names of leases.

use tidegate_core::LeaseId;

/// 128 random bits of the operating system: nobody can guess a lease and give it back.
pub(crate) fn random_id() -> LeaseId {
    let mut bytes = [0; 16];
    // Only early at boot, or without any source of random numbers, can this fail, and then the
    // standard library's maps panic as well.
    getrandom::fill(&mut bytes).expect("the operating system has random numbers");
    LeaseId(u128::from_ne_bytes(bytes))
}
