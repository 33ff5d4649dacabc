//! Reading several records of one partition before one answer is made: key packages, an invite's record and bundles.

use super::{Pending, Shard};
use crate::effects::{Effects, StoreRequest};
use bytes::Bytes;
use drover_storage::{RealmId, StoreError};

/// What is done with the records once they are all here.
#[derive(Debug)]
pub(crate) enum Then {
    /// Hand over key packages.
    Packages(super::keys::Fetch),
    /// Answer JOIN bundles.
    Bundles(super::control::BundleRead),
    /// Answer JOIN record.
    Record(super::control::Origin),
    /// Judge a wrap against its slot.
    Wrap(Box<super::wrap::Wrapping>),
    /// Judge a record of the retention chain.
    Retention(Box<super::retention::Retaining>),
    /// Compare a created invite with the one stored under its token.
    Recreated(super::control::Recreated),
}

/// Records being read.
#[derive(Debug)]
pub(super) struct Gather {
    pub(super) then: Then,
    values: Vec<Option<Bytes>>,
    waiting: usize,
    failed: Option<StoreError>,
}

impl Shard {
    /// Reads these records; `then` gets them in the order asked, absent ones as `None`.
    pub(super) fn gather<E: Effects>(
        &mut self,
        partition: &RealmId,
        keys: Vec<Vec<u8>>,
        then: Then,
        fx: &mut E,
    ) {
        let count = keys.len();
        if count == 0 {
            return self.gathered(then, Ok(Vec::new()), fx);
        }
        let gather = self.next_gather;
        self.next_gather += 1;
        self.gathers.insert(
            gather,
            Gather {
                then,
                values: vec![None; count],
                waiting: count,
                failed: None,
            },
        );
        for (at, key) in keys.into_iter().enumerate() {
            let ticket = self.ticket(Pending::Gather { gather, at });
            fx.store(ticket, StoreRequest::Get(partition.clone(), key));
        }
    }

    pub(super) fn gather_read<E: Effects>(
        &mut self,
        gather: u64,
        at: usize,
        result: Result<Option<Bytes>, StoreError>,
        fx: &mut E,
    ) {
        let Some(state) = self.gathers.get_mut(&gather) else {
            return;
        };
        state.waiting -= 1;
        match result {
            Ok(value) => state.values[at] = value,
            Err(error) => state.failed = Some(error),
        }
        if state.waiting == 0
            && let Some(Gather {
                then, values, failed, ..
            }) = self.gathers.remove(&gather)
        {
            self.gathered(then, failed.map_or(Ok(values), Err), fx);
        }
    }

    fn gathered<E: Effects>(
        &mut self,
        then: Then,
        values: Result<Vec<Option<Bytes>>, StoreError>,
        fx: &mut E,
    ) {
        match then {
            Then::Packages(fetch) => self.packages_read(fetch, values, fx),
            Then::Bundles(read) => self.bundles_read(&read, values, fx),
            Then::Wrap(wrapping) => self.wrap_read(wrapping, values, fx),
            Then::Retention(retaining) => self.retention_read(retaining, values, fx),
            Then::Record(origin) => self.record_read(origin, values, fx),
            Then::Recreated(recreated) => self.recreated_read(recreated, values, fx),
        }
    }
}
