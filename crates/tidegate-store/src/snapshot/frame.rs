//! The frame: a magic number and a version, blocks with their lengths, a block of length 0, and a
//! checksum over all of it.
//!
//! Blocks let a writer begin before it knows how much there will be, and a reader stop exactly at
//! the end, so that several snapshots can lie in one file.

use std::hash::Hasher as _;
use std::io::{self, ErrorKind, Read, Write};

use siphasher::sip::SipHasher13;

use super::SnapshotError;

const MAGIC: [u8; 8] = *b"tidegate";
const VERSION: u16 = 1;

/// The length from which a block is written, and the longest that is read.
const BLOCK: usize = 1 << 16;

/// Finds damage, not forgery: the keys are known.
fn checksum() -> SipHasher13 {
    SipHasher13::new_with_keys(u64::from_le_bytes(MAGIC), VERSION.into())
}

/// Writes a frame around a body. Without [`Self::finish`] it has no end, and cannot be read.
pub(super) struct FrameWriter<'a> {
    out: &'a mut dyn Write,
    hash: SipHasher13,
    block: Vec<u8>,
}

impl<'a> FrameWriter<'a> {
    pub(super) fn new(out: &'a mut dyn Write) -> io::Result<Self> {
        let mut frame = Self {
            out,
            hash: checksum(),
            block: Vec::with_capacity(BLOCK),
        };
        frame.put(&MAGIC)?;
        frame.put(&VERSION.to_le_bytes())?;
        Ok(frame)
    }

    pub(super) fn finish(mut self) -> io::Result<()> {
        self.end_block()?;
        self.put(&0_u32.to_le_bytes())?;
        self.out.write_all(&self.hash.finish().to_le_bytes())?;
        self.out.flush()
    }

    fn end_block(&mut self) -> io::Result<()> {
        if self.block.is_empty() {
            return Ok(());
        }
        let block = std::mem::take(&mut self.block);
        let length = u32::try_from(block.len()).map_err(io::Error::other)?;
        self.put(&length.to_le_bytes())?;
        self.put(&block)?;
        self.block = block;
        self.block.clear();
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.write(bytes);
        self.out.write_all(bytes)
    }
}

impl Write for FrameWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(BLOCK - self.block.len());
        self.block.extend_from_slice(&bytes[..taken]);
        if self.block.len() == BLOCK {
            self.end_block()?;
        }
        Ok(taken)
    }

    /// Does nothing: a block goes out when it is full.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads a frame. Returns its body.
pub(super) fn read_frame(source: &mut dyn Read) -> Result<Vec<u8>, SnapshotError> {
    let mut hash = checksum();
    let magic: [u8; 8] = array(source, &mut hash)?;
    if magic != MAGIC {
        return Err(SnapshotError::NotASnapshot);
    }
    let version = u16::from_le_bytes(array(source, &mut hash)?);
    if version > VERSION {
        return Err(SnapshotError::Newer {
            found: version,
            known: VERSION,
        });
    }
    let mut body = Vec::new();
    loop {
        let length = u32::from_le_bytes(array(source, &mut hash)?) as usize;
        if length > BLOCK || version != VERSION {
            return Err(SnapshotError::Damaged);
        }
        if length == 0 {
            break;
        }
        let start = body.len();
        body.resize(start + length, 0);
        fill(source, &mut body[start..])?;
        hash.write(&body[start..]);
    }
    let expected = hash.finish();
    if u64::from_le_bytes(array(source, &mut hash)?) != expected {
        return Err(SnapshotError::Damaged);
    }
    Ok(body)
}

fn array<const N: usize>(
    source: &mut dyn Read,
    hash: &mut SipHasher13,
) -> Result<[u8; N], SnapshotError> {
    let mut bytes = [0; N];
    fill(source, &mut bytes)?;
    hash.write(&bytes);
    Ok(bytes)
}

fn fill(source: &mut dyn Read, bytes: &mut [u8]) -> Result<(), SnapshotError> {
    source.read_exact(bytes).map_err(|error| {
        if error.kind() == ErrorKind::UnexpectedEof {
            SnapshotError::Truncated
        } else {
            SnapshotError::Read(error)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut frame = FrameWriter::new(&mut bytes).unwrap();
        frame.write_all(body).unwrap();
        frame.finish().unwrap();
        bytes
    }

    #[test]
    fn what_was_written_is_read_and_not_a_byte_more() {
        for length in [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7] {
            let body: Vec<u8> = (0..length).map(|n| n as u8).collect();
            let mut bytes = framed(&body);
            bytes.extend(b"next");
            let mut source = bytes.as_slice();
            assert_eq!(read_frame(&mut source).unwrap(), body);
            assert_eq!(source, b"next");
        }
    }

    #[test]
    fn a_frame_that_is_cut_or_changed_anywhere_is_refused() {
        let bytes = framed(b"some body of a frame");
        for length in 0..bytes.len() {
            let error = read_frame(&mut &bytes[..length]).unwrap_err();
            assert!(
                matches!(error, SnapshotError::Truncated),
                "{length}: {error}"
            );
        }
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                assert!(read_frame(&mut changed.as_slice()).is_err(), "{at} {bit}");
            }
        }
    }

    #[test]
    fn a_later_version_is_named() {
        let mut bytes = framed(b"");
        bytes[8] = 2;
        let error = read_frame(&mut bytes.as_slice()).unwrap_err();
        assert!(matches!(error, SnapshotError::Newer { found: 2, known: 1 }));
    }
}
