//! Handles: numbers that identify objects and are never reused.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

/// A handle in C: a number with a pointer type. It is never dereferenced.
pub type Handle = *mut c_void;

static NEXT: AtomicUsize = AtomicUsize::new(1);

/// A new number, unique in this process.
pub(crate) fn new_id() -> usize {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

pub(crate) fn to_handle(id: usize) -> Handle {
    std::ptr::without_provenance_mut(id)
}

/// The objects of one kind, by their handles.
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

    /// Removes an object and returns it, so that the caller drops it without holding the table's
    /// lock.
    pub(crate) fn remove(&self, id: usize) -> Option<Arc<T>> {
        self.items.write().unwrap_or_else(PoisonError::into_inner).remove(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_object_is_not_found_and_its_number_is_not_reused() {
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
