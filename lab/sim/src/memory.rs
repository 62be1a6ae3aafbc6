// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of a simulated guest: pages that exist when they have been written to.

use std::borrow::Cow;
use std::ops::Range;
use telegraphos_testkit::world::Memory;

const PAGE: usize = 4096;

/// Guest memory from address 0. Unwritten bytes are zero.
#[derive(Debug, Default)]
pub(crate) struct Pages(Vec<Option<Box<[u8; PAGE]>>>);

/// Divides bytes at an address by pages: the page, the place in it, and the place in the bytes, of each piece.
fn pieces(address: u64, bytes: usize) -> impl Iterator<Item = (usize, Range<usize>, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let (start, at) = (done, address as usize + done);
        done += (bytes - start).min(PAGE - at % PAGE);
        (start < done).then(|| (at / PAGE, at % PAGE..at % PAGE + (done - start), start..done))
    })
}

/// The page of a word, which does not leave it, and the place in it.
fn place(address: u64, size: u8) -> (usize, Range<usize>) {
    let at = address as usize % PAGE;
    (address as usize / PAGE, at..at + usize::from(size))
}

impl Pages {
    /// Zeroed memory of so many bytes, a multiple of the page size.
    pub(crate) fn new(bytes: u64) -> Pages {
        let mut pages = Vec::new();
        pages.resize_with(bytes as usize / PAGE, || None);
        Pages(pages)
    }

    fn has(&self, address: u64, length: usize) -> Option<()> {
        let end = address.checked_add(length as u64)?;
        (end <= (self.0.len() * PAGE) as u64).then_some(())
    }

    fn page_mut(&mut self, page: usize) -> Option<&mut [u8; PAGE]> {
        Some(self.0.get_mut(page)?.get_or_insert_with(|| Box::new([0; PAGE])))
    }
}

impl Memory for Pages {
    fn bytes(&self, address: u64, length: usize) -> Option<Cow<'_, [u8]>> {
        self.has(address, length)?;
        let mut bytes = vec![0; length];
        for (page, at, part) in pieces(address, length) {
            if let Some(page) = &self.0[page] {
                bytes[part].copy_from_slice(&page[at]);
            }
        }
        Some(bytes.into())
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Option<()> {
        self.has(address, bytes.len())?;
        for (page, at, part) in pieces(address, bytes.len()) {
            self.page_mut(page)?[at].copy_from_slice(&bytes[part]);
        }
        Some(())
    }

    fn word(&self, address: u64, size: u8) -> Option<u64> {
        let (page, at) = place(address, size);
        let Some(page) = self.0.get(page)? else { return Some(0) };
        let mut bytes = [0; 8];
        bytes[..usize::from(size)].copy_from_slice(page.get(at)?);
        Some(u64::from_le_bytes(bytes))
    }

    fn set_word(&mut self, address: u64, size: u8, value: u64) -> Option<()> {
        let (page, at) = place(address, size);
        self.page_mut(page)?.get_mut(at)?.copy_from_slice(&value.to_le_bytes()[..usize::from(size)]);
        Some(())
    }
}
