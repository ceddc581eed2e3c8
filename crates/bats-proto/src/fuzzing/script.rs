//! Reads decisions from bytes. Beyond the end all bytes are zero.

use crate::wire::varint::MAX_VARINT;

#[derive(Debug)]
pub(super) struct Script<'a> {
    rest: &'a [u8],
}

impl<'a> Script<'a> {
    pub(super) fn new(data: &'a [u8]) -> Self {
        Self { rest: data }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    pub(super) fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.array())
    }

    pub(super) fn array<const N: usize>(&mut self) -> [u8; N] {
        core::array::from_fn(|_| match self.rest.split_first() {
            Some((&byte, rest)) => {
                self.rest = rest;
                byte
            }
            None => 0,
        })
    }

    /// A length byte and that many bytes.
    pub(super) fn bytes(&mut self) -> &'a [u8] {
        let len = usize::from(self.u8()).min(self.rest.len());
        let (bytes, rest) = self.rest.split_at(len);
        self.rest = rest;
        bytes
    }

    /// A number likely to trigger defects: near the correct one, a power of two, or huge.
    pub(super) fn number(&mut self, near: u64) -> u64 {
        let kind = self.u8();
        let value = match kind >> 5 {
            0 => u64::from(kind & 31),
            1 => near.saturating_sub(u64::from(kind & 31)),
            2 => near + u64::from(kind & 31),
            3 => u64::from(self.u16()),
            4 => near.saturating_add(u64::from(self.u16()) << (kind & 31)),
            5 => 1 << (self.u8() % 62),
            6 => MAX_VARINT - u64::from(kind & 31),
            _ => u64::from_be_bytes(self.array()),
        };
        value.min(MAX_VARINT)
    }
}
