//! SHA-256 hashes beside files: `FILE.sha256sum`, in the format of `sha256sum -c`.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{Context, SHA256};

/// Octets of a file with one hash at most.
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
    let file = match File::open(&side) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        // A name that is too long for a hash beside it has none.
        Err(error) if error.kind() == io::ErrorKind::InvalidFilename => return Ok(None),
        Err(error) => return Err(format!("cannot read {}: {error}", side.display())),
    };
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
    for (octet, pair) in hash.iter_mut().zip(digits.as_bytes().chunks(2)) {
        let value = |digit: u8| char::from(digit).to_digit(16);
        *octet = (value(pair[0])? * 16 + value(pair[1])?) as u8;
    }
    Some(hash)
}

/// The hash of a file's content.
pub(super) fn hash(file: &File) -> io::Result<[u8; 32]> {
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
            }
        }
    }
    let mut hash = [0; 32];
    hash.copy_from_slice(context.finish().as_ref());
    Ok(hash)
}

/// Writes the hash beside a file; an older one is replaced at once or not at all.
pub(super) fn write(path: &Path, hash: &[u8; 32]) -> io::Result<()> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let digits: String = hash.iter().map(|octet| format!("{octet:02x}")).collect();
    let side = beside(path);
    let temporary = side.with_file_name(format!(".{name}.sha256sum.part"));
    fs::write(&temporary, format!("{digits}  {name}\n"))?;
    fs::rename(&temporary, &side)
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
        let found = hash(&File::open(&path).unwrap()).unwrap();
        // FIPS 180-4, example B.1.
        assert_eq!(found[..4], [0xba, 0x78, 0x16, 0xbf]);
        assert_eq!(read(&path), Ok(None));
        write(&path, &found).unwrap();
        assert_eq!(read(&path), Ok(Some(found)));
        let text = fs::read_to_string(beside(&path)).unwrap();
        assert!(text.ends_with("20015ad  abc\n"), "{text}");
        fs::remove_dir_all(directory).unwrap();
    }
}
