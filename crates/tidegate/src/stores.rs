//! The stores of a configuration document, opened.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{env, fs, io};

use tidegate_config::AlgorithmProblem;
use tidegate_config::model::{self, OnStoreFailure, Secret};
use tidegate_core::Timestamp;
use tidegate_valkey::{
    Atomicity, Client, ClientError, ClientOptions, Event, KeySpace, StoreCall, UrlError,
    ValkeyStore,
};

use crate::shared::{FailureMode, SharedLimiter, SharedLimiterBuilder};

/// The stores of a configuration document, opened.
///
/// A store that gives no answer is opened all the same: its limits do as their failure modes say
/// until it does.
///
/// ```no_run
/// use tidegate::{SharedLimiterBuilder, StoreWatch, Stores};
/// use tidegate_config::{Purpose, load};
///
/// # async fn first_use() -> Result<(), Box<dyn std::error::Error>> {
/// let config = load("tidegate.yaml".as_ref(), Purpose::Inspect)?.config;
/// let stores = Stores::open(&config.stores, &Stores::default(), &StoreWatch::default())?;
/// let limit = config.limit("per-user").ok_or("no such limit")?;
/// let store = limit.store.and_then(|position| stores.get(position)).ok_or("in memory")?;
/// let limiter = SharedLimiterBuilder::from_config(limit, store)?.build();
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Stores(Vec<Opened>);

#[derive(Clone, Debug)]
struct Opened {
    name: String,
    settings: Settings,
    store: ValkeyStore,
}

/// Everything that a store was opened with: if it is the same, so is the store.
#[derive(Clone, PartialEq, Eq)]
struct Settings {
    store: model::Store,
    password: Option<String>,
    sentinel_password: Option<String>,
    key_secret: Option<String>,
    ca: Option<Vec<u8>>,
    certificate: Option<(Vec<u8>, Vec<u8>)>,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

type OnEvent = dyn Fn(&str, &Event) + Send + Sync;
type OnCall = dyn Fn(&str, &StoreCall) + Send + Sync;

/// Who is told what happens at stores; nobody by default. Both run within the stores' work and must
/// not block.
#[derive(Clone, Default)]
pub struct StoreWatch {
    event: Option<Arc<OnEvent>>,
    call: Option<Arc<OnCall>>,
}

impl StoreWatch {
    /// Calls `observer` with the name of a store whenever something changes there.
    #[must_use]
    pub fn events(mut self, observer: impl Fn(&str, &Event) + Send + Sync + 'static) -> Self {
        self.event = Some(Arc::new(observer));
        self
    }

    /// Calls `observer` with the name of a store after each step that it was asked for.
    #[must_use]
    pub fn calls(mut self, observer: impl Fn(&str, &StoreCall) + Send + Sync + 'static) -> Self {
        self.call = Some(Arc::new(observer));
        self
    }
}

impl fmt::Debug for StoreWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreWatch").finish_non_exhaustive()
    }
}

/// Why a store cannot be opened. No message shows a secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenStoreError {
    /// A file that the store needs cannot be read.
    #[error(
        "store `{store}`: cannot read {} for its {what}; is the path right, and may this user read \
         it?",
        .path.display()
    )]
    File {
        /// The store.
        store: String,
        /// What the file holds.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A variable of the environment is missing, or is no text.
    #[error("store `{store}`: the variable {variable} for its {what} is not set; set it")]
    Variable {
        /// The store.
        store: String,
        /// What the variable holds.
        what: &'static str,
        /// Its name.
        variable: String,
    },
    /// The URL names no store.
    #[error("store `{store}`: {source}")]
    Url {
        /// The store.
        store: String,
        /// What is wrong with it.
        source: UrlError,
    },
    /// A certificate or key is of no use.
    #[error("store `{store}`: {source}")]
    Certificate {
        /// The store.
        store: String,
        /// What is wrong with it.
        source: ClientError,
    },
}

impl Stores {
    /// Opens stores, and begins to connect without waiting for it. One that `before` has under the
    /// same name and settings, secrets and certificates included, is taken over with its
    /// connections. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// A secret or a certificate cannot be read. Nothing has changed then.
    pub fn open(
        stores: &[model::Store],
        before: &Self,
        watch: &StoreWatch,
    ) -> Result<Self, OpenStoreError> {
        let open = |store: &model::Store| {
            let settings = Settings::read(store)?;
            let kept = before.0.iter().find(|opened| opened.settings == settings);
            if let Some(kept) = kept {
                return Ok(kept.clone());
            }
            Ok(Opened {
                name: store.name.clone(),
                store: settings.open(watch)?,
                settings,
            })
        };
        stores.iter().map(open).collect::<Result<_, _>>().map(Self)
    }

    /// The store at a position of the document.
    #[must_use]
    pub fn get(&self, position: usize) -> Option<&ValkeyStore> {
        self.0.get(position).map(|opened| &opened.store)
    }

    /// All stores with their names, in the order of the document.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &ValkeyStore)> {
        self.0
            .iter()
            .map(|opened| (opened.name.as_str(), &opened.store))
    }

    /// Whether the store at a position is the very one that `other` has at another.
    #[must_use]
    pub fn keeps(&self, position: usize, other: &Self, there: usize) -> bool {
        match (self.0.get(position), other.0.get(there)) {
            (Some(here), Some(there)) => here.settings == there.settings,
            _ => false,
        }
    }
}

impl Settings {
    fn read(store: &model::Store) -> Result<Self, OpenStoreError> {
        let name = &store.name;
        let secret = |secret: &Option<Secret>, what| {
            let read = secret
                .as_ref()
                .map(|secret| read_secret(name, what, secret));
            read.transpose()
        };
        let file = |path: &Path, what| read_file(name, what, path);
        let certificate = match &store.tls.certificate {
            Some((certificate, key)) => Some((
                file(certificate, "certificate")?,
                file(key, "certificate's key")?,
            )),
            None => None,
        };
        Ok(Self {
            password: secret(&store.password, "password")?,
            sentinel_password: secret(&store.sentinel_password, "sentinels' password")?,
            key_secret: secret(&store.key_secret, "key secret")?,
            ca: match &store.tls.ca {
                Some(path) => Some(file(path, "certificate authorities")?),
                None => None,
            },
            certificate,
            store: store.clone(),
        })
    }

    fn open(&self, watch: &StoreWatch) -> Result<ValkeyStore, OpenStoreError> {
        let Self { store, .. } = self;
        let name = || store.name.clone();
        let mut options = ClientOptions::from_url(store.url.as_written())
            .map_err(|source| OpenStoreError::Url {
                store: name(),
                source,
            })?
            .deadline(store.deadline)
            .connect_timeout(store.connect_timeout)
            .connections(usize::try_from(store.connections).unwrap_or(1))
            .failures_until_open(store.breaker_failures);
        if let Some(password) = &self.password {
            options = options.credentials(store.user.as_deref(), password);
        }
        if let Some(password) = &self.sentinel_password {
            options = options.sentinel_credentials(store.sentinel_user.as_deref(), password);
        }
        if let Some(ca) = &self.ca {
            options = options.certificate_authorities(ca.clone());
        }
        if let Some((certificate, key)) = &self.certificate {
            options = options.client_certificate(certificate.clone(), key.clone());
        }
        if let Some(observer) = watch.event.clone() {
            let store = name();
            options = options.observer(move |event| observer(&store, event));
        }
        let client = Client::connect(options).map_err(|source| OpenStoreError::Certificate {
            store: name(),
            source,
        })?;
        let secret = self.key_secret.as_deref().unwrap_or("");
        let space = KeySpace::new(&store.key_prefix, secret.as_bytes());
        let atomicity = match store.atomicity {
            model::Atomicity::Scripts => Atomicity::Scripts,
            model::Atomicity::CompareAndSwap => Atomicity::CompareAndSwap,
        };
        Ok(match watch.call.clone() {
            Some(observer) => {
                let store = name();
                ValkeyStore::observed(client, space, atomicity, move |call| observer(&store, call))
            }
            None => ValkeyStore::with_atomicity(client, space, atomicity),
        })
    }
}

fn read_file(store: &str, what: &'static str, path: &Path) -> Result<Vec<u8>, OpenStoreError> {
    fs::read(path).map_err(|source| OpenStoreError::File {
        store: store.to_owned(),
        what,
        path: path.to_owned(),
        source,
    })
}

fn read_secret(store: &str, what: &'static str, secret: &Secret) -> Result<String, OpenStoreError> {
    match secret {
        Secret::File(path) => {
            let bytes = read_file(store, what, path)?;
            let text = String::from_utf8(bytes).map_err(|_| OpenStoreError::File {
                store: store.to_owned(),
                what,
                path: path.clone(),
                source: io::Error::new(io::ErrorKind::InvalidData, "it is no UTF-8 text"),
            })?;
            Ok(text.trim_end_matches(['\r', '\n']).to_owned())
        }
        Secret::Env(variable) => env::var(variable).map_err(|_| OpenStoreError::Variable {
            store: store.to_owned(),
            what,
            variable: variable.clone(),
        }),
    }
}

impl SharedLimiterBuilder {
    /// The numbers and settings of a configured limit, counting in `store`.
    ///
    /// A shared limit has no moment at which it begins to count, so a bucket's `initial` has no
    /// effect.
    ///
    /// # Errors
    /// None for a limit that came from a document and was not changed since.
    pub fn from_config(
        config: &model::Limit,
        store: &ValkeyStore,
    ) -> Result<Self, AlgorithmProblem> {
        let policy = config.policy(Timestamp::EPOCH)?;
        Ok(SharedLimiter::builder(store.clone(), &config.name, policy)
            .failure_mode(failure_mode(config.on_store_failure))
            .local_keys(usize::try_from(config.max_keys).unwrap_or(usize::MAX))
            .charge_denied(config.charge_denied)
            .mode(config.mode.into()))
    }
}

const fn failure_mode(mode: OnStoreFailure) -> FailureMode {
    match mode {
        OnStoreFailure::Allow => FailureMode::Allow,
        OnStoreFailure::Deny => FailureMode::Deny,
        OnStoreFailure::LocalShare(share) => FailureMode::LocalShare {
            millionths: share.0,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tidegate_config::model::{Store, StoreUrl};

    fn open(store: &Store, before: &Stores) -> Result<Stores, OpenStoreError> {
        Stores::open(std::slice::from_ref(store), before, &StoreWatch::default())
    }

    fn at(url: &str) -> Store {
        Store::at("shared", StoreUrl::parse(url).unwrap())
    }

    #[tokio::test]
    async fn a_store_is_taken_over_only_with_the_same_settings_and_secrets() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        fs::write(&file, "old\n").unwrap();
        let mut store = at("redis://127.0.0.1:1");
        store.password = Some(Secret::File(file.clone()));
        let first = open(&store, &Stores::default()).unwrap();
        let again = open(&store, &first).unwrap();
        assert!(again.keeps(0, &first, 0));
        fs::write(&file, "new\n").unwrap();
        let rotated = open(&store, &again).unwrap();
        assert!(!rotated.keeps(0, &again, 0));
        assert!(!format!("{rotated:?}").contains("new"));
        drop(folder);
        let error = open(&store, &rotated).unwrap_err().to_string();
        assert!(
            error.contains("shared") && error.contains("password"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn what_is_missing_is_named() {
        let mut store = at("redis://127.0.0.1:1");
        store.password = Some(Secret::Env("TIDEGATE_NO_SUCH_VARIABLE".into()));
        let error = open(&store, &Stores::default()).unwrap_err().to_string();
        assert!(error.contains("TIDEGATE_NO_SUCH_VARIABLE"), "{error}");
    }

    proptest! {
        /// The document and the client read URLs each for itself: what one takes the other
        /// takes, but for what `%XX` stands for, which is not looked at before it connects.
        #[test]
        fn the_document_and_the_client_agree_on_urls(
            scheme in "(redis|rediss|valkey|valkeys|http)(\\+(unix|cluster|sentinel|x))?",
            rest in "(u?:?p?@)?[a-c\\[\\]:0-9,/?=@]{0,12}(/[a-z]{0,2}(/[0-9]{0,2})?)?(\\?(db|user|password)=[0-9a]{0,2})?",
        ) {
            let url = format!("{scheme}://{rest}");
            let (document, client) = (StoreUrl::parse(&url), ClientOptions::from_url(&url));
            prop_assert_eq!(document.is_ok(), client.is_ok(), "{}: {:?} {:?}", url, document, client);
        }
    }
}
