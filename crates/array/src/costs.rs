//! Costs: what each form asks of devices, and what it keeps, for values of one length.
//!
//! Role: the model by which the picker compares mechanisms. Place on the path: none. The counts of requests
//! are those that tests hold the array to (`plimsoll sim run kvmd-mechanisms`); bytes are counted at the
//! devices, whichever way they go.
//!
//! Never: it is taken for a measurement. What follows from it is a comparison.

use plimsoll_kv::Form;

/// Bytes that come with each record of a store: key, header, the journal's record.
const STORE_BYTES: f64 = 150.0;
/// The same of a read, and of a delete.
const READ_BYTES: f64 = 50.0;
const DELETE_BYTES: f64 = 120.0;
/// Bytes that a device keeps with each record: key, header, frame.
const RECORD_BYTES: f64 = 100.0;
/// Shards keep what they replace until all are there, and give it up many at a time.
const RELEASE: f64 = 1.1;
/// Requests of an overwrite of a packed value beside its store: what is replaced is read, and sets are
/// looked through.
const REGROUP: f64 = 1.2;
/// What a set's records name, for each of its values.
const SET_BYTES: f64 = 120.0;

/// What is done with values of some length, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Mix {
    pub(crate) stores: f64,
    pub(crate) updates: f64,
    pub(crate) retrieves: f64,
    pub(crate) deletes: f64,
}

/// What devices are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Load {
    pub(crate) requests: f64,
    pub(crate) bytes: f64,
}

impl Load {
    fn of(requests: f64, bytes: f64) -> Load {
        Load { requests, bytes }
    }

    fn times(self, count: f64) -> Load {
        Load::of(self.requests * count, self.bytes * count)
    }

    fn and(self, other: Load) -> Load {
        Load::of(self.requests + other.requests, self.bytes + other.bytes)
    }
}

/// Store, update, retrieve and delete of a value of so many bytes, where others may be packed: what is
/// overwritten is read first then, its first piece.
fn each(form: Form, bytes: f64) -> [Load; 4] {
    match form {
        Form::Copies(copies) => {
            let copies = f64::from(copies);
            let store = Load::of(copies, copies * (bytes + STORE_BYTES));
            [
                store,
                store.and(Load::of(1.0, bytes)),
                Load::of(1.0, bytes + READ_BYTES),
                Load::of(copies, copies * DELETE_BYTES),
            ]
        }
        Form::Shards { data, parities } => {
            let (data, all) = (f64::from(data), f64::from(data) + f64::from(parities));
            let store = Load::of(all, all * (bytes / data + STORE_BYTES));
            let update = Load::of(RELEASE * all + 1.0, store.bytes + bytes / data);
            [store, update, Load::of(data, bytes + data * READ_BYTES), Load::of(all, all * DELETE_BYTES)]
        }
        Form::Packed { data, parities } => {
            let (data, parities) = (f64::from(data), f64::from(parities));
            let share = (data + parities) / data;
            let beside = (1.0 + parities) * STORE_BYTES + SET_BYTES;
            let store = Load::of(share, share * bytes + beside);
            // What is replaced is read, and stays beside its set for a while.
            let update = store.and(Load::of(REGROUP, 2.0 * bytes));
            let delete = Load::of(3.0 + parities, 2.0 * bytes + (1.0 + parities) * DELETE_BYTES);
            [store, update, Load::of(1.0, bytes + READ_BYTES), delete]
        }
    }
}

/// What a mixture of operations on values of so many bytes asks of devices.
pub(crate) fn load(form: Form, bytes: f64, mix: &Mix) -> Load {
    let counts = [mix.stores, mix.updates, mix.retrieves, mix.deletes];
    each(form, bytes)
        .into_iter()
        .zip(counts)
        .fold(Load::default(), |sum, (one, count)| sum.and(one.times(count)))
}

/// Bytes that devices keep of a value of so many bytes.
pub(crate) fn space(form: Form, bytes: f64) -> f64 {
    match form {
        Form::Copies(copies) => f64::from(copies) * (bytes + RECORD_BYTES),
        Form::Shards { data, parities } => {
            (f64::from(data) + f64::from(parities)) * (bytes / f64::from(data) + RECORD_BYTES)
        }
        Form::Packed { data, parities } => {
            let (data, parities) = (f64::from(data), f64::from(parities));
            bytes * (data + parities) / data + (1.0 + parities) * RECORD_BYTES + SET_BYTES
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COPIES: Form = Form::Copies(3);
    const SHARDS: Form = Form::Shards { data: 4, parities: 2 };
    const PACKED: Form = Form::Packed { data: 4, parities: 2 };

    #[test]
    fn requests_are_those_that_are_counted() {
        let requests = |form| each(form, 4096.0).map(|load| (load.requests * 10.0).round() / 10.0);
        assert_eq!(requests(COPIES), [3.0, 4.0, 1.0, 3.0]);
        assert_eq!(requests(SHARDS), [6.0, 7.6, 4.0, 6.0]);
        assert_eq!(requests(PACKED), [1.5, 2.7, 1.0, 5.0]);
    }

    #[test]
    fn short_values_take_least_space_packed_and_the_shortest_lose_that_to_names() {
        let least = |bytes: f64| {
            let by_space = |a: &&Form, b: &&Form| space(**a, bytes).total_cmp(&space(**b, bytes));
            *[COPIES, SHARDS, PACKED].iter().min_by(by_space).unwrap()
        };
        assert_eq!([16.0, 1024.0, 16_384.0].map(least), [COPIES, PACKED, PACKED]);
        assert!(space(SHARDS, 65_536.0) / space(PACKED, 65_536.0) < 1.01);
    }
}
