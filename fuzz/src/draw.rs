//! Values from bytes, for targets whose input is no text.

use types::{Bytes, Instant};

/// Draws values until the bytes are used up, and zeros from then on.
#[derive(Debug)]
pub(crate) struct Draw<'a>(pub &'a [u8]);

impl Draw<'_> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().map_or((0, self.0), |(first, rest)| (*first, rest));
        self.0 = rest;
        first
    }

    pub(crate) fn flip(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    pub(crate) fn u64(&mut self) -> u64 {
        (0..8).fold(0, |n, _| n << 8 | u64::from(self.byte()))
    }

    pub(crate) fn i64(&mut self) -> i64 {
        self.u64().cast_signed()
    }

    /// Small numbers and such near the edges of their range oftener than others.
    pub(crate) fn number(&mut self) -> i64 {
        match self.byte() % 6 {
            0 => i64::from(self.byte()),
            1 => -i64::from(self.byte()),
            2 => i64::MAX - i64::from(self.byte()),
            3 => i64::MIN + i64::from(self.byte()),
            4 => i64::from(self.byte()) * 1000,
            _ => self.i64(),
        }
    }

    pub(crate) fn bytes(&mut self) -> Bytes {
        Bytes(self.number().unsigned_abs().min(Bytes::MAX.0))
    }

    /// Near `now`, or anywhere.
    pub(crate) fn instant(&mut self, now: Instant) -> Instant {
        now.plus_millis(self.number())
    }

    /// Up to 40 characters of any kind.
    pub(crate) fn text(&mut self) -> String {
        let length = usize::from(self.byte() % 40);
        (0..length)
            .map(|_| match self.byte() {
                0 => char::from_u32(u32::try_from(self.u64() % 0x11_0000).unwrap_or(0)).unwrap_or('\u{fffd}'),
                byte => char::from(byte),
            })
            .collect()
    }
}
