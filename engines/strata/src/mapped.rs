//! A list in memory pages of its own, for large lists with a short life.
//!
//! Owns: the mapping. Must not: know the purpose of the list. Any thread.
//!
//! glibc keeps freed blocks of up to 32 MiB for later allocations, although the budget has given that memory to
//! somebody else meanwhile. A mapping goes back to the system when it is dropped, whatever the program's allocator
//! does.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use engine_api::Result;
use memmap2::{Advice, MmapMut, MmapRaw};

use crate::file::io_error;
use crate::storage::PAGE_BYTES;

/// A growable list. Pages of its capacity that were never written take no memory.
pub(crate) struct Mapped<T> {
    map: MmapRaw,
    length: usize,
    _items: PhantomData<T>,
}

// SAFETY: the list owns its items, as a `Vec` does.
unsafe impl<T: Send> Send for Mapped<T> {}
// SAFETY: a shared list gives out nothing but shared items, as a `Vec` does.
unsafe impl<T: Sync> Sync for Mapped<T> {}

impl<T> Mapped<T> {
    /// Creates an empty list with room for `items` items.
    ///
    /// # Errors
    /// `Retry`: there is no memory.
    pub(crate) fn with_room(items: usize) -> Result<Self> {
        const { assert!(align_of::<T>() <= PAGE_BYTES && size_of::<T>() > 0) };
        let bytes = items.saturating_mul(size_of::<T>()).max(1);
        let map = MmapMut::map_anon(bytes).map_err(|e| io_error(format!("no memory: bytes={bytes}"), e))?;
        Ok(Self { map: map.into(), length: 0, _items: PhantomData })
    }

    /// Asks for huge pages, for a list that is read at random.
    pub(crate) fn make_huge(&self) {
        // Only advice: a kernel without huge pages gives small ones.
        self.map.advise(Advice::HugePage).ok();
    }

    /// Collects `items` into a list with room for `room` of them.
    ///
    /// # Errors
    /// As [`Mapped::with_room`].
    pub(crate) fn of(room: usize, items: impl Iterator<Item = T>) -> Result<Self> {
        let mut list = Self::with_room(room)?;
        for item in items {
            list.push(item)?;
        }
        Ok(list)
    }

    /// Appends an item. A full list moves to a mapping of twice the size.
    ///
    /// # Errors
    /// As [`Mapped::with_room`].
    #[inline]
    pub(crate) fn push(&mut self, item: T) -> Result<()> {
        if self.length == self.map.len() / size_of::<T>() {
            self.grow()?;
        }
        // SAFETY: the mapping has room for the item, begins at a page, and belongs to this list alone.
        unsafe { self.items().add(self.length).write(item) };
        self.length += 1;
        Ok(())
    }

    #[cold]
    fn grow(&mut self) -> Result<()> {
        let mut larger = Self::with_room((2 * self.length).max(PAGE_BYTES / size_of::<T>()).max(1))?;
        // SAFETY: this many items were written here and have room there; the two mappings do not overlap.
        unsafe { larger.items().copy_from_nonoverlapping(self.items(), self.length) };
        // The items have moved: this list must be empty when its pages are given back.
        larger.length = std::mem::take(&mut self.length);
        *self = larger;
        Ok(())
    }

    fn items(&self) -> *mut T {
        self.map.as_mut_ptr().cast()
    }
}

impl Mapped<u64> {
    /// Creates a list of `count` zeros.
    ///
    /// # Errors
    /// As [`Mapped::with_room`].
    pub(crate) fn zeros(count: usize) -> Result<Self> {
        let mut list = Self::with_room(count)?;
        // The kernel gives out zeroed pages.
        list.length = count;
        Ok(list)
    }
}

impl<T> Deref for Mapped<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `length` items were written, and only a mutable borrow of the list changes them.
        unsafe { std::slice::from_raw_parts(self.items(), self.length) }
    }
}

impl<T> DerefMut for Mapped<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: `length` items were written, and the list is borrowed mutably for as long as the slice lives.
        unsafe { std::slice::from_raw_parts_mut(self.items(), self.length) }
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: these items were written, and nobody reads them any more.
        unsafe { std::ptr::drop_in_place(std::ptr::slice_from_raw_parts_mut(self.items(), self.length)) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn items_stay_while_a_list_grows_and_are_dropped_once() {
        let item = Rc::new(7);
        let mut list = Mapped::with_room(0).expect("memory");
        for n in 0..2000u32 {
            list.push((n, Rc::clone(&item))).expect("memory");
        }
        assert_eq!((list.len(), Rc::strong_count(&item)), (2000, 2001));
        assert!(list.iter().zip(0..).all(|((found, _), n)| *found == n));
        list[5].0 = 50;
        assert_eq!((list.len(), list[5].0, Rc::strong_count(&item)), (2000, 50, 2001));
        drop(list);
        assert_eq!(Rc::strong_count(&item), 1);
        let zeros = Mapped::zeros(5000).expect("memory");
        assert!(zeros.len() == 5000 && zeros.iter().all(|number| *number == 0));
    }
}
