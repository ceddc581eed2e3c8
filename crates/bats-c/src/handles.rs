//! Handles: numbers that stand for objects, never used twice.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

/// What C sees: a number in a pointer's clothes. It is never followed.
pub type Handle = *mut c_void;

static NEXT: AtomicUsize = AtomicUsize::new(1);

/// A number that no other object of this process has or had.
pub(crate) fn new_id() -> usize {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

pub(crate) fn to_handle(id: usize) -> Handle {
    std::ptr::without_provenance_mut(id)
}

/// The objects of one kind that handles stand for.
pub(crate) struct Table<T> {
    items: LazyLock<RwLock<HashMap<usize, Arc<T>>>>,
}

impl<T> Table<T> {
    pub(crate) const fn new() -> Self {
        Self { items: LazyLock::new(RwLock::default) }
    }

    pub(crate) fn insert(&self, id: usize, item: Arc<T>) {
        self.items.write().unwrap_or_else(PoisonError::into_inner).insert(id, item);
    }

    pub(crate) fn get(&self, handle: Handle) -> Option<Arc<T>> {
        self.items.read().unwrap_or_else(PoisonError::into_inner).get(&handle.addr()).cloned()
    }

    /// Takes an object out; it is dropped by the caller, without the table's lock.
    pub(crate) fn remove(&self, id: usize) -> Option<Arc<T>> {
        self.items.write().unwrap_or_else(PoisonError::into_inner).remove(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_object_is_not_found_and_its_number_does_not_return() {
        static TABLE: Table<u8> = Table::new();
        let id = new_id();
        TABLE.insert(id, Arc::new(7));
        assert_eq!(TABLE.get(to_handle(id)).as_deref(), Some(&7));
        assert_eq!(TABLE.remove(id).as_deref(), Some(&7));
        assert!(TABLE.get(to_handle(id)).is_none());
        assert!(TABLE.get(std::ptr::null_mut()).is_none());
        assert!(new_id() > id);
    }
}
