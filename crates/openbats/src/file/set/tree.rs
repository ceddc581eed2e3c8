//! A file's BLAKE3 hash from the hashes of its parts.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use blake3::hazmat::{
    HasherExt, Mode, left_subtree_len, merge_subtrees_non_root, merge_subtrees_root,
};

/// Bytes of a part of files of the usual size.
const PART: u64 = 4 << 20;
/// Parts of a file at most, so that a list of their hashes stays small.
pub(super) const MAX_PARTS: u64 = 1 << 14;

/// The hash of a part; that of the file where it is the only one.
pub(super) type PartHash = [u8; 32];

/// Bytes that are read before someone is told that it goes on: so often that nobody takes a slow
/// disk for a standstill.
const BEAT: u64 = 8 << 20;

/// Tells of what is read and not sent, from time to time and at its end.
pub(super) struct Pulse<'a> {
    bytes: u64,
    tell: &'a dyn Fn(u64),
}

impl<'a> Pulse<'a> {
    pub(super) fn new(tell: &'a dyn Fn(u64)) -> Self {
        Self { bytes: 0, tell }
    }

    /// So many more bytes were read.
    pub(super) fn beat(&mut self, bytes: u64) {
        self.bytes += bytes;
        if self.bytes >= BEAT {
            (self.tell)(std::mem::take(&mut self.bytes));
        }
    }
}

impl Drop for Pulse<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            (self.tell)(self.bytes);
        }
    }
}

/// How a file of some size is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    pub(super) size: u64,
    /// Bytes of each part but the last, a power of two.
    pub(super) part_size: u64,
    /// 0 for an empty file.
    pub(super) parts: u32,
}

impl Cut {
    pub(super) fn new(size: u64) -> Self {
        let mut part_size = PART;
        while size.div_ceil(part_size) > MAX_PARTS {
            part_size *= 2;
        }
        let parts = u32::try_from(size.div_ceil(part_size)).unwrap_or(u32::MAX);
        Self { size, part_size, parts }
    }

    pub(super) fn offset(&self, part: u32) -> u64 {
        u64::from(part) * self.part_size
    }

    /// Bytes of a part.
    pub(super) fn len(&self, part: u32) -> u64 {
        self.size.saturating_sub(self.offset(part)).min(self.part_size)
    }

    /// A hasher for one part.
    pub(super) fn hasher(&self, part: u32) -> PartHasher {
        let mut hasher = blake3::Hasher::new();
        let is_whole = self.parts <= 1;
        if !is_whole {
            hasher.set_input_offset(self.offset(part));
        }
        PartHasher { hasher, is_whole }
    }

    /// The file's hash from all of its parts' hashes.
    pub(super) fn root(&self, parts: &[PartHash]) -> [u8; 32] {
        match parts {
            [] => *blake3::hash(b"").as_bytes(),
            [whole] => *whole,
            _ => {
                let (left, right) = self.halves(parts, self.size);
                *merge_subtrees_root(&left, &right, Mode::Hash).as_bytes()
            }
        }
    }

    fn halves(&self, parts: &[PartHash], size: u64) -> (PartHash, PartHash) {
        let left_size = left_subtree_len(size);
        let middle = usize::try_from(left_size / self.part_size).unwrap_or(usize::MAX);
        let (left, right) = parts.split_at(middle.min(parts.len()));
        (self.subtree(left, left_size), self.subtree(right, size - left_size))
    }

    fn subtree(&self, parts: &[PartHash], size: u64) -> PartHash {
        match parts {
            [] => [0; 32],
            [part] => *part,
            _ => {
                let (left, right) = self.halves(parts, size);
                merge_subtrees_non_root(&left, &right, Mode::Hash)
            }
        }
    }

    /// The hash of a part of a file on disk.
    pub(super) fn hash_part(
        &self,
        file: &File,
        part: u32,
        pulse: &mut Pulse<'_>,
    ) -> io::Result<PartHash> {
        let mut hasher = self.hasher(part);
        let mut buffer = vec![0; super::super::CHUNK];
        let (mut at, end) = (self.offset(part), self.offset(part) + self.len(part));
        while at < end {
            let want = usize::try_from(end - at).unwrap_or(usize::MAX).min(buffer.len());
            file.read_exact_at(&mut buffer[..want], at)?;
            hasher.update(&buffer[..want]);
            at += want as u64;
            pulse.beat(want as u64);
        }
        Ok(hasher.finish())
    }

    /// The hashes of the parts of a file that may have holes. A part that is a hole has no hash
    /// and gets zeros, so that a large file of which little has arrived is quickly looked through.
    pub(super) fn hash_parts_of_sparse(
        &self,
        file: &File,
        pulse: &mut Pulse<'_>,
    ) -> io::Result<Vec<PartHash>> {
        (0..self.parts)
            .map(|part| match is_hole(file, self.offset(part), self.len(part)) {
                true => Ok([0; 32]),
                false => self.hash_part(file, part, pulse),
            })
            .collect()
    }

    /// The hashes of all parts of a file on disk.
    pub(super) fn hash_parts(
        &self,
        file: &File,
        pulse: &mut Pulse<'_>,
    ) -> io::Result<Vec<PartHash>> {
        (0..self.parts).map(|part| self.hash_part(file, part, pulse)).collect()
    }
}

/// Whether a range of a file was never written. A file system that cannot tell says no.
fn is_hole(file: &File, offset: u64, length: u64) -> bool {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{SeekFrom, seek};
        match seek(file, SeekFrom::Data(offset)) {
            Ok(data) => data >= offset + length,
            Err(error) => error == rustix::io::Errno::NXIO,
        }
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (file, offset, length);
        false
    }
}

#[derive(Debug)]
pub(super) struct PartHasher {
    hasher: blake3::Hasher,
    is_whole: bool,
}

impl PartHasher {
    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
    }

    pub(super) fn finish(&self) -> PartHash {
        match self.is_whole {
            true => *self.hasher.finalize().as_bytes(),
            false => self.hasher.finalize_non_root(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_from_parts_is_that_of_the_whole() {
        for size in [
            0,
            1,
            1_024,
            PART - 1,
            PART,
            PART + 1,
            2 * PART,
            2 * PART + 7,
            3 * PART,
            5 * PART + 1_025,
            7 * PART - 1,
        ] {
            let content: Vec<u8> = (0..size).map(|x| (x * 31 + x / 977) as u8).collect();
            let cut = Cut::new(size);
            let mut hashes = Vec::new();
            for (part, bytes) in content.chunks(PART as usize).enumerate() {
                let mut hasher = cut.hasher(part as u32);
                assert_eq!(cut.len(part as u32), bytes.len() as u64);
                let (first, second) = bytes.split_at(bytes.len() / 3);
                hasher.update(first);
                hasher.update(second);
                hashes.push(hasher.finish());
            }
            assert_eq!(hashes.len(), cut.parts as usize);
            assert_eq!(cut.root(&hashes), *blake3::hash(&content).as_bytes(), "{size}");
        }
    }

    #[test]
    fn holes_have_no_hash_and_what_is_written_has() {
        let path = std::env::temp_dir().join(format!("openbats-holes-{}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
        let file = file.unwrap();
        let cut = Cut::new(1 << 40);
        file.set_len(1 << 40).unwrap();
        file.write_all_at(b"x", cut.offset(5) + 7).unwrap();
        let hashes = cut.hash_parts_of_sparse(&file, &mut Pulse::new(&|_| {})).unwrap();
        std::fs::remove_file(path).unwrap();
        for (part, hash) in hashes.iter().enumerate() {
            assert_eq!(*hash != [0; 32], part == 5, "{part}");
        }
    }

    #[test]
    fn files_of_any_size_have_a_bounded_number_of_parts() {
        for size in [1 << 30, 1 << 36, (1 << 36) + 1, 1 << 45, u64::MAX / 2, u64::MAX] {
            let cut = Cut::new(size);
            assert!(u64::from(cut.parts) <= MAX_PARTS && cut.parts > 0, "{size}");
            assert!(cut.part_size.is_power_of_two());
            assert_eq!(cut.offset(cut.parts - 1) + cut.len(cut.parts - 1), size);
        }
        assert_eq!(Cut::new(1 << 36).part_size, PART);
    }
}
