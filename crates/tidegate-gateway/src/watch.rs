//! Notices when a file has other content.
//!
//! The content itself is compared, so that it makes no difference how the file was replaced:
//! written in place, renamed over, or by a symbolic link that now leads elsewhere. A change
//! counts once it has been the same twice in a row, so that a file is not taken half written.

use std::io;
use std::path::{Path, PathBuf};

/// A file that is looked at now and then.
#[derive(Debug)]
pub struct Watch {
    path: PathBuf,
    /// What was last handed out.
    known: Vec<u8>,
    /// What was last seen, if it is not what is known.
    fresh: Option<Vec<u8>>,
}

impl Watch {
    /// Watches a file whose content is known.
    #[must_use]
    pub fn new(path: &Path, known: impl Into<Vec<u8>>) -> Self {
        Self {
            path: path.to_owned(),
            known: known.into(),
            fresh: None,
        }
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Looks at the file: the new content, if it has changed and has settled.
    ///
    /// A file that is missing at the moment has not changed: it is being replaced, or the last
    /// content is still the one to go by.
    pub fn look(&mut self) -> Option<&[u8]> {
        match std::fs::read(&self.path) {
            Ok(content) if content == self.known => self.fresh = None,
            Ok(content) if self.fresh.as_ref() == Some(&content) => {
                self.fresh = None;
                self.known = content;
                return Some(&self.known);
            }
            Ok(content) => self.fresh = Some(content),
            Err(_) => {}
        }
        None
    }

    /// Reads the file at once, changed or not.
    ///
    /// # Errors
    /// There is no such file, or it cannot be read.
    pub fn read(&mut self) -> io::Result<&[u8]> {
        self.known = std::fs::read(&self.path)?;
        self.fresh = None;
        Ok(&self.known)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_change_is_noticed_once_and_when_it_has_settled() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "old").unwrap();
        let mut watch = Watch::new(&path, "old");
        assert_eq!(watch.look(), None);
        fs::write(&path, "ne").unwrap();
        assert_eq!(watch.look(), None);
        fs::write(&path, "new").unwrap();
        assert_eq!(watch.look(), None);
        assert_eq!(watch.look(), Some(b"new".as_slice()));
        assert_eq!(watch.look(), None);
    }

    #[test]
    fn it_makes_no_difference_how_a_file_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(folder.path().join("1"), "one").unwrap();
        fs::write(folder.path().join("2"), "two").unwrap();
        std::os::unix::fs::symlink(folder.path().join("1"), &path).unwrap();
        let mut watch = Watch::new(&path, "one");
        fs::remove_file(&path).unwrap();
        assert_eq!(watch.look(), None);
        std::os::unix::fs::symlink(folder.path().join("2"), &path).unwrap();
        assert_eq!(watch.look(), None);
        assert_eq!(watch.look(), Some(b"two".as_slice()));
        fs::write(folder.path().join("3"), "three").unwrap();
        fs::rename(folder.path().join("3"), &path).unwrap();
        assert_eq!(watch.look(), None);
        assert_eq!(watch.look(), Some(b"three".as_slice()));
    }

    #[test]
    fn a_change_that_is_taken_back_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mut watch = Watch::new(&path, "old");
        fs::write(&path, "new").unwrap();
        assert_eq!(watch.look(), None);
        fs::write(&path, "old").unwrap();
        assert_eq!(watch.look(), None);
        assert_eq!(watch.look(), None);
        assert_eq!(watch.read().unwrap(), b"old");
    }
}
