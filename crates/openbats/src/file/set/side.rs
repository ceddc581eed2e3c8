//! SHA-256 hashes beside files: `FILE.sha256sum`, in the format of `sha256sum -c`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{Context, SHA256};
use rustix::fs::OFlags;

use super::tree::Pulse;
use crate::file::storage::rename_without_replacing;

/// Bytes of a file with one hash at most.
const MAX_SIDE: u64 = 64 << 10;

/// Where the hash of a file is.
pub(super) fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".sha256sum");
    name.into()
}

/// The hash beside a file, if there is one: 64 hexadecimal digits at the beginning of a line, by
/// itself or with the file's name.
///
/// # Errors
/// There is such a file and it cannot be read, or holds no hash of this file.
pub(super) fn read(path: &Path) -> Result<Option<[u8; 32]>, String> {
    let side = beside(path);
    match File::open(&side) {
        Ok(file) => hash_in(file, &side, path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        // A name that is too long for a hash beside it has none.
        Err(error) if error.kind() == io::ErrorKind::InvalidFilename => Ok(None),
        Err(error) => Err(format!("cannot read {}: {error}", side.display())),
    }
}

/// The hash of the file `path` in a file of hashes, opened as `side`.
fn hash_in(file: File, side: &Path, path: &Path) -> Result<Option<[u8; 32]>, String> {
    let mut text = String::new();
    file.take(MAX_SIDE)
        .read_to_string(&mut text)
        .map_err(|error| format!("cannot read {}: {error}", side.display()))?;
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    text.lines()
        .find_map(|line| parse(line, name))
        .map(Some)
        .ok_or_else(|| format!("{} holds no SHA-256 hash of {name}", side.display()))
}

fn parse(line: &str, name: &str) -> Option<[u8; 32]> {
    let (digits, rest) = line.split_at_checked(64)?;
    // Two blanks, or a blank and an asterisk, stand before the name.
    let named = rest.trim_end().trim_start_matches([' ', '*']);
    if !(named.is_empty() || Path::new(named).file_name()? == name) {
        return None;
    }
    let mut hash = [0; 32];
    for (byte, pair) in hash.iter_mut().zip(digits.as_bytes().chunks(2)) {
        let value = |digit: u8| char::from(digit).to_digit(16);
        *byte = (value(pair[0])? * 16 + value(pair[1])?) as u8;
    }
    Some(hash)
}

/// The hash of a file's content.
pub(super) fn hash(file: &File, pulse: &mut Pulse<'_>) -> io::Result<[u8; 32]> {
    use std::os::unix::fs::FileExt;
    let mut context = Context::new(&SHA256);
    let mut buffer = vec![0; crate::file::CHUNK];
    let mut at = 0;
    loop {
        match file.read_at(&mut buffer, at)? {
            0 => break,
            count => {
                context.update(&buffer[..count]);
                at += count as u64;
                pulse.beat(count as u64);
            }
        }
    }
    let mut hash = [0; 32];
    hash.copy_from_slice(context.finish().as_ref());
    Ok(hash)
}

/// What stands at the place of a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Put {
    /// The hash, written now.
    New,
    /// The hash, as it had been.
    Same,
    /// Something else, which was left alone.
    Taken,
}

/// Writes the hash beside a file, at once or not at all. What is there already is replaced only if
/// `replaces` says so; links are not followed.
pub(super) fn put(path: &Path, hash: &[u8; 32], replaces: bool) -> io::Result<Put> {
    put_as(&beside(path), path, hash, replaces)
}

/// As [`put`], under a name of its own.
pub(super) fn put_as(side: &Path, path: &Path, hash: &[u8; 32], replaces: bool) -> io::Result<Put> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let random = u64::from_ne_bytes(random);
    let temporary = Temporary(side.with_file_name(format!(".{name}.{random:016x}.sha256sum.part")));
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .custom_flags(OFlags::NOFOLLOW.bits() as i32)
        .open(&temporary.0)?;
    file.write_all(format!("{digits}  {name}\n").as_bytes())?;
    if replaces {
        fs::rename(&temporary.0, side)?;
        return Ok(Put::New);
    }
    match rename_without_replacing(&temporary.0, side) {
        Ok(()) => Ok(Put::New),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            match hash_at(side, path) == Some(*hash) {
                true => Ok(Put::Same),
                false => Ok(Put::Taken),
            }
        }
        Err(error) => Err(error),
    }
}

/// The hash of `path` that a regular file holds, if it does.
fn hash_at(side: &Path, path: &Path) -> Option<[u8; 32]> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(side).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    hash_in(file, side, path).ok()?
}

/// A file that goes away unless it was renamed.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_forms_are_read_and_others_refused() {
        let hash = "0123456789abcdefABCDEF".repeat(3)[..64].to_owned();
        for line in [
            hash.clone(),
            format!("{hash}  x.bin"),
            format!("{hash} *x.bin"),
            format!("{hash}  /some/where/x.bin\n"),
        ] {
            assert_eq!(parse(&line, "x.bin").unwrap()[0], 0x01, "{line}");
        }
        for line in ["", "ab", &format!("{hash}  other"), &"g".repeat(64), &"é".repeat(64)] {
            assert_eq!(parse(line, "x.bin"), None, "{line}");
        }
    }

    #[test]
    fn hashes_are_those_of_sha256sum() {
        let directory = std::env::temp_dir().join(format!("openbats-sha-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("abc");
        fs::write(&path, "abc").unwrap();
        let found = hash(&File::open(&path).unwrap(), &mut Pulse::new(&|_| {})).unwrap();
        // FIPS 180-4, example B.1.
        assert_eq!(found[..4], [0xba, 0x78, 0x16, 0xbf]);
        assert_eq!(read(&path), Ok(None));
        assert_eq!(put(&path, &found, false).unwrap(), Put::New);
        assert_eq!(put(&path, &found, false).unwrap(), Put::Same);
        assert_eq!(read(&path), Ok(Some(found)));
        let text = fs::read_to_string(beside(&path)).unwrap();
        assert!(text.ends_with("20015ad  abc\n"), "{text}");
        // What is not ours stays, be it a file, a link to one, or a link to nowhere.
        for other in [Some("mine"), None] {
            fs::remove_file(beside(&path)).unwrap();
            let kept = directory.join("kept");
            match other {
                Some(text) => fs::write(&kept, text).unwrap(),
                None => fs::remove_file(&kept).unwrap(),
            }
            std::os::unix::fs::symlink(&kept, beside(&path)).unwrap();
            assert_eq!(put(&path, &found, false).unwrap(), Put::Taken);
            assert_eq!(fs::read_to_string(&kept).ok().as_deref(), other);
            assert!(beside(&path).is_symlink());
        }
        assert_eq!(put(&path, &found, true).unwrap(), Put::New);
        assert!(!beside(&path).is_symlink() && !directory.join("kept").exists());
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 2, "nothing else is left");
        fs::remove_dir_all(directory).unwrap();
    }
}
