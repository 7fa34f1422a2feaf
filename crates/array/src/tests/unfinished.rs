//! Sets that were being made when the server died: nobody relies on what they lack.

use super::bench::{bytes, run, set};
use super::packing::{bench, found_sets, pieces, settled, value};
use crate::placement;
use crate::set::set_named;
use plimsoll_kv::Op;

/// A key with this primary, of so many members.
fn key_at(primary: usize, members: usize, word: &str) -> String {
    let names = (0..).map(|number| format!("{word}:{number}"));
    names.into_iter().find(|name| placement::primary(name.as_bytes(), members) == primary).unwrap()
}

/// Whether a request stores a record of a set.
fn brings_set(op: &Op) -> bool {
    match op {
        Op::Batch(ops) => ops.iter().any(brings_set),
        Op::Store { key, .. } => set_named("{0}", key).is_some(),
        _ => false,
    }
}

/// The set had no parity yet, and named both (seed 1944).
#[test]
fn a_device_that_comes_in_takes_no_copy_away_for_a_set_that_was_never_finished() {
    run(async |reactor| {
        let mut bench = bench(&reactor, 4, 2, 1);
        let names = [key_at(1, 4, "s"), key_at(3, 4, "t")];
        let array = bench.open().await;
        [0, 2].into_iter().for_each(|member| bench.loses(member, brings_set));
        for (number, name) in names.iter().enumerate() {
            set(&array, name, &value(20 + number, 1)).await.unwrap();
        }
        settled(&reactor).await;
        let array = bench.open().await;
        let (found, _) = found_sets(&bench).await;
        assert_eq!((found.len(), found[0].values.len()), (1, 2), "the member of one has a description");
        let out = (found[0].holders[1] as usize + 2) % 4;
        let fresh = bench.fresh(out, 77);
        array.replace(out, fresh).await.unwrap();
        bench.whole(&array).await;
        for (number, name) in names.iter().enumerate() {
            let length = value(20 + number, 1).len();
            assert_eq!(pieces(&bench, name, 2).await, [Some(length), Some(length)], "{name}");
        }
        array.take_out(out, "for a test");
        reactor.sleep_ns(1_000_000).await;
        for (number, name) in names.iter().enumerate() {
            assert_eq!(bytes(&array, name).await, Some(value(20 + number, 1)), "{name}");
        }
    });
}
