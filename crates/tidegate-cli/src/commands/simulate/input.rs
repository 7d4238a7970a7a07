//! Files as they are: plain, gzip or Zstandard, which shows in their first bytes; `-` is standard
//! input.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::read::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTANDARD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// A file, decompressed.
pub type Input = Box<dyn Read + Send>;

/// How many bytes have been read of all files, and how many there are where that is known.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    read: Arc<AtomicU64>,
    total: Arc<AtomicU64>,
}

impl Progress {
    /// Bytes read so far, compressed where the files are.
    pub fn read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// The sizes of all files; standard input counts for nothing.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }
}

/// Opens a file or, for `-`, standard input.
pub fn open(path: &str, progress: &Progress) -> io::Result<Input> {
    let raw: Input = if path == "-" {
        Box::new(io::stdin())
    } else {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if metadata.is_dir() {
            return Err(io::Error::from(io::ErrorKind::IsADirectory));
        }
        progress.total.fetch_add(metadata.len(), Ordering::Relaxed);
        Box::new(file)
    };
    decompressed(Box::new(Counted {
        inner: raw,
        read: Arc::clone(&progress.read),
    }))
}

/// A copy of standard input that is gone when it is dropped.
pub struct Spooled(PathBuf);

impl Drop for Spooled {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Puts standard input into a file, if it is among the paths, and its path in their place.
pub fn spool(paths: &mut [String]) -> io::Result<Option<Spooled>> {
    let Some(path) = paths.iter_mut().find(|path| *path == "-") else {
        return Ok(None);
    };
    let name = format!("tidegate-simulate-{}.trace", std::process::id());
    let spooled = Spooled(std::env::temp_dir().join(name));
    let mut options = File::options();
    let mut file = options.write(true).create_new(true).open(&spooled.0)?;
    io::copy(&mut io::stdin().lock(), &mut file)?;
    *path = spooled.0.to_string_lossy().into_owned();
    Ok(Some(spooled))
}

/// Looks at the first bytes and decompresses what is compressed.
fn decompressed(mut raw: Input) -> io::Result<Input> {
    let mut start = Vec::with_capacity(4);
    raw.by_ref().take(4).read_to_end(&mut start)?;
    let compressed = (start.starts_with(&GZIP), start == ZSTANDARD);
    let whole = Cursor::new(start).chain(raw);
    Ok(match compressed {
        (true, _) => Box::new(MultiGzDecoder::new(BufReader::with_capacity(
            1 << 16,
            whole,
        ))),
        (_, true) => Box::new(Zstandard {
            source: BufReader::with_capacity(1 << 16, Box::new(whole)),
            decoder: FrameDecoder::new(),
            inside: false,
        }),
        _ => Box::new(whole),
    })
}

/// Counts what passes.
struct Counted {
    inner: Input,
    read: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(out)?;
        self.read.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// All frames of a Zstandard file, one after the other.
struct Zstandard {
    source: BufReader<Input>,
    decoder: FrameDecoder,
    inside: bool,
}

impl Zstandard {
    /// Begins the next frame, or skips one that holds no data.
    fn begin(&mut self) -> io::Result<()> {
        match self.decoder.reset(&mut self.source) {
            Ok(()) => self.inside = true,
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                length,
                ..
            })) => {
                io::copy(
                    &mut self.source.by_ref().take(u64::from(length)),
                    &mut io::sink(),
                )?;
            }
            Err(error) => return Err(io::Error::other(error)),
        }
        Ok(())
    }
}

impl Read for Zstandard {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.inside && self.decoder.can_collect() > 0 {
                return self.decoder.read(out);
            }
            if self.inside && !self.decoder.is_finished() {
                self.decoder
                    .decode_blocks(&mut self.source, BlockDecodingStrategy::UptoBlocks(1))
                    .map_err(io::Error::other)?;
                continue;
            }
            self.inside = false;
            if self.source.fill_buf()?.is_empty() {
                return Ok(0);
            }
            self.begin()?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};
    use std::io::Write;

    fn read(bytes: Vec<u8>) -> io::Result<String> {
        let mut text = String::new();
        decompressed(Box::new(Cursor::new(bytes)))?.read_to_string(&mut text)?;
        Ok(text)
    }

    fn gzip(text: &str) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    }

    fn zstandard(text: &str) -> Vec<u8> {
        compress_to_vec(text.as_bytes(), CompressionLevel::Fastest)
    }

    #[test]
    fn files_are_decompressed_by_what_they_hold_and_not_by_their_name() {
        let long = "line\n".repeat(100_000);
        for text in ["", "a", "abc", "plain text", &long] {
            assert_eq!(read(text.into()).unwrap(), text);
            assert_eq!(read(gzip(text)).unwrap(), text);
            assert_eq!(read(zstandard(text)).unwrap(), text);
        }
    }

    #[test]
    fn rotated_files_that_were_joined_are_read_to_their_end() {
        assert_eq!(
            read([gzip("one\n"), gzip("two\n")].concat()).unwrap(),
            "one\ntwo\n"
        );
        let skippable = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc".to_vec();
        let joined = [zstandard("one\n"), skippable, zstandard("two\n")].concat();
        assert_eq!(read(joined).unwrap(), "one\ntwo\n");
    }

    #[test]
    fn a_file_that_was_cut_off_is_an_error_and_not_a_short_file() {
        let text: String = (0..10_000)
            .map(|n| format!("{n} {}\n", n * 7919 % 10_007))
            .collect();
        for whole in [gzip(&text), zstandard(&text)] {
            assert!(read(whole[..whole.len() / 2].to_vec()).is_err());
        }
    }
}
