//! What it means that a limit counts in a shared store.

use tidegate_config::AlgorithmProblem;
use tidegate_config::model::{Limit, OnStoreFailure, Store, StoreKind};
use tidegate_core::Timestamp;

use super::burst;

/// Where a shared limit counts, and what becomes of it when something there goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// The name of the store.
    pub store: String,
    /// Where the states are, in words; without any password.
    pub kept_in: String,
    /// What happens while the store gives no answer, in a sentence.
    pub without_answer: String,
    /// What the store may forget, and what that admits, in a sentence.
    pub may_lose: String,
}

/// What it means that a limit counts in one of these stores; none of a limit in memory.
///
/// # Errors
/// As [`explain`](super::explain()).
pub fn sharing(limit: &Limit, stores: &[Store]) -> Result<Option<Sharing>, AlgorithmProblem> {
    let Some(store) = limit.store.and_then(|position| stores.get(position)) else {
        return Ok(None);
    };
    let most = burst(&limit.policy(Timestamp::EPOCH)?);
    let servers = match store.url.kind() {
        StoreKind::Single | StoreKind::Unix => "the server",
        StoreKind::Sentinel => "the primary that sentinels know",
        StoreKind::Cluster => "the cluster",
    };
    let within = format!("{:?}", store.deadline);
    let without_answer = match limit.on_store_failure {
        OnStoreFailure::Allow => format!("calls pass uncounted, after {within} at most"),
        OnStoreFailure::Deny => format!("calls are refused with 503, after {within} at most"),
        OnStoreFailure::LocalShare(share) => {
            let part = share.of(most).max(u32::from(most > 0));
            format!(
                "each process goes on by itself with {part} instead of {most}, after {within} at most; \
                 so k processes admit up to k times that"
            )
        }
    };
    let may_lose = match store.url.kind() {
        StoreKind::Single | StoreKind::Unix => format!(
            "all that was counted, if the server restarts without its data: up to {most} more per key"
        ),
        StoreKind::Sentinel | StoreKind::Cluster => format!(
            "what was counted just before a failover, for replicas are a little behind: up to {most} \
             more per key"
        ),
    };
    Ok(Some(Sharing {
        store: store.name.clone(),
        kept_in: format!("store `{}`: {servers} at {}", store.name, store.url),
        without_answer,
        may_lose,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_config::{Purpose, parse};

    #[test]
    fn each_failure_mode_and_each_kind_of_store_has_its_sentence() {
        let text = "
stores:
  one: { valkey: { url: \"redis://u:hunter2@10.0.0.1\", deadline: 5ms } }
  many: { valkey: { url: \"redis+cluster://a,b\" } }
limits:
  half: { algorithm: { sliding_log: { limit: 5/1m } }, store: one }
  open: { algorithm: { sliding_log: { limit: 5/1m } }, store: many, on_store_failure: allow }
  closed: { algorithm: { sliding_log: { limit: 5/1m } }, store: many, on_store_failure: deny }
  memory: { algorithm: { sliding_log: { limit: 5/1m } } }";
        let config = parse("t", text, Purpose::Inspect).unwrap().config;
        let said = |name: &str| {
            let limit = config.limit(name).unwrap();
            sharing(limit, &config.stores).unwrap()
        };
        let half = said("half").unwrap();
        assert!(
            half.without_answer
                .contains("with 2 instead of 5, after 5ms")
        );
        assert!(half.may_lose.contains("restarts"), "{half:?}");
        assert!(!format!("{half:?}").contains("hunter2"), "{half:?}");
        let open = said("open").unwrap();
        assert!(open.without_answer.contains("pass uncounted"), "{open:?}");
        assert!(open.may_lose.contains("failover"), "{open:?}");
        assert!(said("closed").unwrap().without_answer.contains("503"));
        assert_eq!(said("memory"), None);
    }
}
