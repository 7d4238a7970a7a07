//! Directories and ports that are one server's alone.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// Ports that are tried. They lie below those that the system gives to outgoing connections, so
/// that a server which is down for a while finds its port free again, and so do the ports 10,000
/// above, which a cluster's servers talk on.
const PORTS: std::ops::Range<u16> = 10_240..22_000;

/// What a cluster adds to a server's port.
const BUS: u16 = 10_000;

/// A port that no other server of any test on this machine has while this value lives.
#[derive(Debug)]
pub struct Port {
    number: u16,
    /// Locked while the port is taken; the system lets go of it when the process ends.
    _lock: File,
}

impl Port {
    /// A port that is free, and whose bus port is.
    pub fn free() -> Self {
        let folder = folder();
        std::fs::create_dir_all(&folder).expect("a folder for the locks of ports");
        for _ in 0..1000 {
            let number = fastrand::u16(PORTS);
            let lock = File::create(folder.join(number.to_string())).expect("the lock of a port");
            if lock.try_lock().is_ok() && is_free(number) && is_free(number + BUS) {
                return Self {
                    number,
                    _lock: lock,
                };
            }
        }
        panic!("no free port between {} and {}", PORTS.start, PORTS.end);
    }

    pub const fn number(&self) -> u16 {
        self.number
    }

    /// A path for a unix socket that belongs to the port: a target folder may lie too deep for one.
    pub fn socket(&self) -> PathBuf {
        folder().join(format!("{}.socket", self.number))
    }
}

fn folder() -> PathBuf {
    std::env::temp_dir().join("tidegate-testkit-ports")
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

impl Drop for Port {
    fn drop(&mut self) {
        // The lock's file stays: removing it would let two hold a lock of the same name.
        let _ = std::fs::remove_file(self.socket());
    }
}

/// Where `cargo xtask test` puts what it installs.
pub fn tools() -> PathBuf {
    workspace().join(".tools")
}

/// An empty directory under the target folder that goes when the value is dropped.
pub fn directory() -> TempDir {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| workspace().join("target"), PathBuf::from);
    let parent = target.join("testkit");
    std::fs::create_dir_all(&parent).expect("a folder for the servers of tests");
    TempDir::new_in(&parent).expect("a directory for a server")
}

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .and_then(Path::parent)
        .expect("the crate lies two folders below the workspace")
}
