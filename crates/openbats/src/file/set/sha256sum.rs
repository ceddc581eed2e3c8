//! SHA-256 hash files next to files: `FILE.sha256sum`, in the format of `sha256sum -c`.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{Context, SHA256};
use data_encoding::HEXLOWER_PERMISSIVE;
use rustix::fs::OFlags;

use super::tree::ReadProgress;
use crate::file::storage::rename_without_replacing;

/// Largest size in bytes that is read of a hash file.
const MAX_HASH_FILE: u64 = 64 << 10;

/// The path of a file's hash file.
pub(super) fn hash_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".sha256sum");
    name.into()
}

/// Reads the hash file of a file, if there is one: 64 hexadecimal digits at the beginning of a
/// line, alone or followed by the file's name.
///
/// # Errors
/// The hash file exists, but cannot be read or holds no hash of this file.
pub(super) fn read(path: &Path) -> Result<Option<[u8; 32]>, String> {
    let hash_file = hash_path(path);
    match File::open(&hash_file) {
        Ok(file) => hash_in(file, &hash_file, path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        // There is no hash file if its name would be too long.
        Err(error) if error.kind() == io::ErrorKind::InvalidFilename => Ok(None),
        Err(error) => Err(format!("cannot read {}: {error}", hash_file.display())),
    }
}

/// Finds the hash of the file `path` in the open hash file `hash_file`.
fn hash_in(file: File, hash_file: &Path, path: &Path) -> Result<Option<[u8; 32]>, String> {
    let mut text = String::new();
    file.take(MAX_HASH_FILE)
        .read_to_string(&mut text)
        .map_err(|error| format!("cannot read {}: {error}", hash_file.display()))?;
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    text.lines()
        .find_map(|line| parse(line, name))
        .map(Some)
        .ok_or_else(|| format!("{} holds no SHA-256 hash of {name}", hash_file.display()))
}

fn parse(line: &str, name: &str) -> Option<[u8; 32]> {
    let (digits, remainder) = line.split_at_checked(64)?;
    // Two spaces, or a space and an asterisk, precede the name.
    let named = remainder.trim_end().trim_start_matches([' ', '*']);
    if !(named.is_empty() || Path::new(named).file_name()? == name) {
        return None;
    }
    HEXLOWER_PERMISSIVE.decode(digits.as_bytes()).ok()?.try_into().ok()
}

/// Computes the hash of a file's content.
pub(super) fn hash(file: &File, progress: &mut ReadProgress<'_>) -> io::Result<[u8; 32]> {
    use std::os::unix::fs::FileExt;
    let mut context = Context::new(&SHA256);
    let mut buffer = vec![0; crate::file::CHUNK];
    let mut at = 0;
    loop {
        match file.read_at(&mut buffer, at)? {
            0 => break,
            count => {
                context.update(buffer.get(..count).unwrap_or(&buffer));
                at = at.saturating_add(count as u64);
                progress.add(count as u64);
            }
        }
    }
    let mut hash = [0; 32];
    hash.copy_from_slice(context.finish().as_ref());
    Ok(hash)
}

/// The result of writing a hash file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HashWrite {
    /// It was written.
    Written,
    /// It existed with the same hash.
    Unchanged,
    /// It existed with other content and was not replaced.
    Conflict,
}

/// Writes the hash file of a file, atomically. An existing file is replaced only if `replaces` is
/// set; symbolic links are not followed.
pub(super) fn write(path: &Path, hash: &[u8; 32], replaces: bool) -> io::Result<HashWrite> {
    write_as(&hash_path(path), path, hash, replaces)
}

/// Like [`write`], with another name of the hash file.
pub(super) fn write_as(
    hash_file: &Path,
    path: &Path,
    hash: &[u8; 32],
    replaces: bool,
) -> io::Result<HashWrite> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let random = u64::from_ne_bytes(random);
    let temporary =
        Temporary(hash_file.with_file_name(format!(".{name}.{random:016x}.sha256sum.part")));
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .custom_flags(OFlags::NOFOLLOW.bits() as i32)
        .open(&temporary.0)?;
    file.write_all(format!("{digits}  {name}\n").as_bytes())?;
    if replaces {
        fs::rename(&temporary.0, hash_file)?;
        return Ok(HashWrite::Written);
    }
    match rename_without_replacing(&temporary.0, hash_file) {
        Ok(()) => Ok(HashWrite::Written),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            match hash_at(hash_file, path) == Some(*hash) {
                true => Ok(HashWrite::Unchanged),
                false => Ok(HashWrite::Conflict),
            }
        }
        Err(error) => Err(error),
    }
}

/// Reads the hash of `path` from a regular file, if it holds one.
fn hash_at(hash_file: &Path, path: &Path) -> Option<[u8; 32]> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(hash_file).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    hash_in(file, hash_file, path).ok()?
}

/// A file that is removed when dropped, unless it was renamed.
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
    fn the_forms_of_sha256sum_are_parsed() {
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
    fn hash_files_are_compatible_with_sha256sum() {
        let directory = std::env::temp_dir().join(format!("openbats-sha-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("abc");
        fs::write(&path, "abc").unwrap();
        let found = hash(&File::open(&path).unwrap(), &mut ReadProgress::new(&|_| {})).unwrap();
        // FIPS 180-4, example B.1.
        assert_eq!(found[..4], [0xba, 0x78, 0x16, 0xbf]);
        assert_eq!(read(&path), Ok(None));
        assert_eq!(write(&path, &found, false).unwrap(), HashWrite::Written);
        assert_eq!(write(&path, &found, false).unwrap(), HashWrite::Unchanged);
        assert_eq!(read(&path), Ok(Some(found)));
        let text = fs::read_to_string(hash_path(&path)).unwrap();
        assert!(text.ends_with("20015ad  abc\n"), "{text}");
        // Other files, links to files and dangling links are not replaced.
        for other in [Some("mine"), None] {
            fs::remove_file(hash_path(&path)).unwrap();
            let kept = directory.join("kept");
            match other {
                Some(text) => fs::write(&kept, text).unwrap(),
                None => fs::remove_file(&kept).unwrap(),
            }
            std::os::unix::fs::symlink(&kept, hash_path(&path)).unwrap();
            assert_eq!(write(&path, &found, false).unwrap(), HashWrite::Conflict);
            assert_eq!(fs::read_to_string(&kept).ok().as_deref(), other);
            assert!(hash_path(&path).is_symlink());
        }
        assert_eq!(write(&path, &found, true).unwrap(), HashWrite::Written);
        assert!(!hash_path(&path).is_symlink() && !directory.join("kept").exists());
        assert_eq!(
            fs::read_dir(&directory).unwrap().count(),
            2,
            "only the file and its hash file exist"
        );
        fs::remove_dir_all(directory).unwrap();
    }
}
