//! Computes a file's BLAKE3 hash from the hashes of its parts.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use blake3::hazmat::{
    HasherExt, Mode, left_subtree_len, merge_subtrees_non_root, merge_subtrees_root,
};

/// Part size in bytes of most files.
const PART: u64 = 4 << 20;
/// Most parts of a file, so that a list of their hashes stays small.
pub(super) const MAX_PARTS: u64 = 1 << 14;

/// The hash of a part; if a file has only one part, the hash of the file.
pub(super) type PartHash = [u8; 32];

/// Bytes between two reports of progress: frequent enough that a slow disk does not look like a
/// stall.
const REPORT_INTERVAL: u64 = 8 << 20;

/// Reports the number of bytes read, at intervals and when dropped.
pub(super) struct ReadProgress<'a> {
    bytes: u64,
    report: &'a dyn Fn(u64),
}

impl<'a> ReadProgress<'a> {
    pub(super) fn new(report: &'a dyn Fn(u64)) -> Self {
        Self { bytes: 0, report }
    }

    /// Counts bytes that were read.
    pub(super) fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        if self.bytes >= REPORT_INTERVAL {
            (self.report)(std::mem::take(&mut self.bytes));
        }
    }
}

impl Drop for ReadProgress<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            (self.report)(self.bytes);
        }
    }
}

/// Parts of a file: the lowest bit of the first byte is the first part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::file) struct PartSet(pub(super) Vec<u8>);

impl PartSet {
    /// An empty set for a file of this many parts.
    pub(super) fn new(parts: u32) -> Self {
        Self(vec![0; parts.div_ceil(8) as usize])
    }

    /// All parts of a file of this many.
    pub(super) fn all(parts: u32) -> Self {
        let mut set = Self::new(parts);
        (0..parts).for_each(|part| set.insert(part));
        set
    }

    /// Its parts, of a file of this many.
    pub(super) fn iter(&self, parts: u32) -> impl Iterator<Item = u32> + '_ {
        (0..parts).filter(|part| self.contains(*part))
    }

    pub(super) fn insert(&mut self, part: u32) {
        if let Some(byte) = self.0.get_mut(part as usize / 8) {
            *byte |= 1 << (part % 8);
        }
    }

    pub(super) fn contains(&self, part: u32) -> bool {
        self.0.get(part as usize / 8).is_some_and(|byte| byte & 1 << (part % 8) != 0)
    }
}

/// How a file is divided into parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PartLayout {
    pub(super) size: u64,
    /// Size in bytes of each part but the last, a power of two.
    pub(super) part_size: u64,
    /// 0 for an empty file.
    pub(super) parts: u32,
}

impl PartLayout {
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

    /// Size of a part in bytes.
    pub(super) fn len(&self, part: u32) -> u64 {
        self.size.saturating_sub(self.offset(part)).min(self.part_size)
    }

    /// Creates a hasher for one part.
    pub(super) fn hasher(&self, part: u32) -> PartHasher {
        let mut hasher = blake3::Hasher::new();
        let is_whole = self.parts <= 1;
        if !is_whole {
            hasher.set_input_offset(self.offset(part));
        }
        PartHasher { hasher, is_whole }
    }

    /// Computes the file's hash from the hashes of all its parts.
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

    /// Computes the hash of a part of a file on disk.
    pub(super) fn hash_part(
        &self,
        file: &File,
        part: u32,
        progress: &mut ReadProgress<'_>,
    ) -> io::Result<PartHash> {
        let mut hasher = self.hasher(part);
        let mut buffer = vec![0; super::super::CHUNK];
        let (mut at, end) = (self.offset(part), self.offset(part) + self.len(part));
        while at < end {
            let want = usize::try_from(end - at).unwrap_or(usize::MAX).min(buffer.len());
            file.read_exact_at(&mut buffer[..want], at)?;
            hasher.update(&buffer[..want]);
            at += want as u64;
            progress.add(want as u64);
        }
        Ok(hasher.finish())
    }

    /// Computes the hashes of parts of a file on disk.
    pub(super) fn hash_parts(
        &self,
        file: &File,
        parts: &[u32],
        progress: &mut ReadProgress<'_>,
    ) -> io::Result<Vec<PartHash>> {
        parts.iter().map(|part| self.hash_part(file, *part, progress)).collect()
    }
}

/// Whether a range of a file is a hole. False on file systems that cannot report holes.
pub(super) fn is_hole(file: &File, offset: u64, length: u64) -> bool {
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
    fn the_root_of_part_hashes_is_the_file_hash() {
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
            let layout = PartLayout::new(size);
            let mut hashes = Vec::new();
            for (part, bytes) in content.chunks(PART as usize).enumerate() {
                let mut hasher = layout.hasher(part as u32);
                assert_eq!(layout.len(part as u32), bytes.len() as u64);
                let (first, second) = bytes.split_at(bytes.len() / 3);
                hasher.update(first);
                hasher.update(second);
                hashes.push(hasher.finish());
            }
            assert_eq!(hashes.len(), layout.parts as usize);
            assert_eq!(layout.root(&hashes), *blake3::hash(&content).as_bytes(), "{size}");
        }
    }

    #[test]
    fn parts_without_data_are_holes() {
        let path = std::env::temp_dir().join(format!("openbats-holes-{}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
        let file = file.unwrap();
        let layout = PartLayout::new(1 << 40);
        file.set_len(1 << 40).unwrap();
        file.write_all_at(b"x", layout.offset(5) + 7).unwrap();
        std::fs::remove_file(path).unwrap();
        for part in 0..layout.parts {
            assert_eq!(is_hole(&file, layout.offset(part), layout.len(part)), part != 5, "{part}");
        }
    }

    #[test]
    fn sets_of_parts_have_a_bit_for_each() {
        for parts in [0, 1, 8, 9, 16_384] {
            let mut set = PartSet::new(parts);
            assert_eq!(set.0.len(), parts.div_ceil(8) as usize);
            for part in (0..parts + 3).filter(|part| part % 3 == 0) {
                set.insert(part);
            }
            for part in 0..parts + 3 {
                assert_eq!(set.contains(part), part % 3 == 0 && part / 8 < parts.div_ceil(8));
            }
            assert!(set.iter(parts).eq((0..parts).step_by(3)));
            assert!(PartSet::all(parts).iter(parts).eq(0..parts));
        }
    }

    #[test]
    fn the_number_of_parts_is_bounded() {
        for size in [1 << 30, 1 << 36, (1 << 36) + 1, 1 << 45, u64::MAX / 2, u64::MAX] {
            let layout = PartLayout::new(size);
            assert!(u64::from(layout.parts) <= MAX_PARTS && layout.parts > 0, "{size}");
            assert!(layout.part_size.is_power_of_two());
            assert_eq!(layout.offset(layout.parts - 1) + layout.len(layout.parts - 1), size);
        }
        assert_eq!(PartLayout::new(1 << 36).part_size, PART);
    }
}
