//! A shard's table of connections: found by index, told apart from earlier users of the slot by a generation.

use drover_engine::ConnId;

struct Entry<T> {
    generation: u32,
    // Boxed, so that the table never moves connections when it grows and a free slot is small.
    value: Option<Box<T>>,
}

/// The table.
pub(crate) struct Slab<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
        }
    }

    /// The id the next insertion will give.
    pub(crate) fn next_id(&self) -> ConnId {
        match self.free.last() {
            Some(slot) => ConnId {
                slot: *slot,
                generation: self.entries[*slot as usize].generation,
            },
            None => ConnId {
                slot: self.entries.len() as u32,
                generation: 0,
            },
        }
    }

    pub(crate) fn insert(&mut self, value: T) -> ConnId {
        let id = self.next_id();
        let value = Some(Box::new(value));
        match self.free.pop() {
            Some(slot) => self.entries[slot as usize].value = value,
            None => self.entries.push(Entry { generation: 0, value }),
        }
        id
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: ConnId) -> Option<&mut T> {
        match self.entries.get_mut(id.slot as usize) {
            Some(entry) if entry.generation == id.generation => entry.value.as_deref_mut(),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn get(&self, id: ConnId) -> Option<&T> {
        match self.entries.get(id.slot as usize) {
            Some(entry) if entry.generation == id.generation => entry.value.as_deref(),
            _ => None,
        }
    }

    /// The id of whoever uses the slot now.
    pub(crate) fn id_at(&self, slot: u32) -> Option<ConnId> {
        let entry = self.entries.get(slot as usize)?;
        entry.value.is_some().then_some(ConnId {
            slot,
            generation: entry.generation,
        })
    }

    pub(crate) fn remove(&mut self, id: ConnId) -> Option<Box<T>> {
        let entry = self.entries.get_mut(id.slot as usize)?;
        if entry.generation != id.generation {
            return None;
        }
        let value = entry.value.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(id.slot);
        Some(value)
    }

    /// All ids in use.
    pub(crate) fn ids(&self) -> Vec<ConnId> {
        (0..self.entries.len() as u32)
            .filter_map(|slot| self.id_at(slot))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_id_finds_nothing() {
        let mut slab = Slab::new();
        let first = slab.insert("a");
        assert_eq!(slab.remove(first).as_deref(), Some(&"a"));
        let second = slab.insert("b");
        assert_eq!(first.slot, second.slot);
        assert!(slab.get_mut(first).is_none());
        assert!(slab.remove(first).is_none());
        assert_eq!(slab.get_mut(second), Some(&mut "b"));
        assert_eq!(slab.ids(), [second]);
    }
}
