//! Guides for who comes from another crate. There is nothing in here but text.

#[doc = include_str!("../docs/from_governor.md")]
pub mod from_governor {}

#[cfg(feature = "tower")]
#[doc = include_str!("../docs/from_tower_governor.md")]
pub mod from_tower_governor {}
