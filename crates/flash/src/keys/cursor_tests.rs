//! Tests of merging: layers of tables against a map that takes them one after the other.

use super::*;
use crate::keys::block::name_of;
use crate::keys::table::Table;
use futures_util::FutureExt;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn now<T>(future: impl Future<Output = Result<T>>) -> T {
    future.now_or_never().expect("tables never wait").expect("tables never fail")
}

proptest! {
    #[test]
    fn the_newest_source_decides(
        layers in vec(vec((0_u32..3, vec(0_u8..3, 0..4), any::<bool>()), 0..20), 0..6),
        generation in 0_u32..3,
        key in vec(0_u8..3, 0..4),
    ) {
        let mut expected = BTreeMap::new();
        let mut sources = Vec::new();
        for layer in layers {
            let table = Rc::new(Table::default());
            for (generation, key, deleted) in layer {
                table.note(generation, &key, deleted);
                expected.insert(name_of(generation, &key), deleted);
            }
            sources.insert(0, Source::Table(TableCursor::new(table)));
        }
        let from = name_of(generation, &key);
        let mut merged = Merged::new(sources);
        now(merged.seek(&from));
        let mut found = Vec::new();
        let mut name = Vec::new();
        while let Some(deleted) = now(merged.next(&mut name)) {
            found.push((name.clone(), deleted));
        }
        let expected: Vec<_> = expected.split_off(&from).into_iter().collect();
        prop_assert_eq!(found, expected);
    }
}
