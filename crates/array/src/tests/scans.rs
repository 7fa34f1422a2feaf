//! Scans over members that cannot read some of their keys.

use super::bench::{Bench, DB, execute, run, set};
use crate::{Array, Joining};
use plimsoll_kv::{Completion, Device, LocalFuture, Op, Output, Request, Result};
use std::collections::BTreeSet;
use std::rc::Rc;

/// A device that cannot read the key "lost" when it tells its keys.
struct Damaged(Rc<dyn Device>);

impl Device for Damaged {
    fn execute(self: Rc<Self>, request: Request) -> LocalFuture<Result<Completion>> {
        Box::pin(async move {
            let mut done = self.0.clone().execute(request).await?;
            if let Output::Scanned(page) = &mut done.output {
                let before = page.keys.len();
                page.keys.retain(|key| key != b"lost");
                page.lacks_some = page.keys.len() < before;
            }
            Ok(done)
        })
    }
    fn value_bytes_max(&self) -> usize {
        self.0.value_bytes_max()
    }
    fn part_bytes(&self) -> usize {
        self.0.part_bytes()
    }
}

/// Three members with copies of 200 keys, of which the first so many cannot read one.
async fn damaged(bench: &Bench, count: usize) -> Rc<Array> {
    let given = bench.given(&[]).into_iter().enumerate().map(|(number, given)| {
        let device = given.device.clone().expect("nothing is missing");
        let damaged: Rc<dyn Device> = Rc::new(Damaged(device.clone()));
        Joining { device: Ok(if number < count { damaged } else { device }), ..given }
    });
    let array = Array::open(&bench.reactor, 0, 1, given.collect(), bench.options.clone()).await;
    let array = array.expect("all are there");
    for number in 0..200 {
        set(&array, &format!("key:{number}"), b"v").await.unwrap();
    }
    set(&array, "lost", b"v").await.unwrap();
    array
}

async fn scanned(array: &Rc<Array>, limit: usize) -> (BTreeSet<Vec<u8>>, bool) {
    let (mut keys, mut cursor, mut lacks_some) = (BTreeSet::new(), 0, false);
    loop {
        let op = Op::Scan { container: DB, cursor, limit };
        let Ok(Output::Scanned(page)) = execute(array, op).await else { panic!("scanned") };
        keys.extend(page.keys);
        lacks_some |= page.lacks_some;
        cursor = page.cursor;
        if cursor == 0 {
            return (keys, lacks_some);
        }
    }
}

/// Found by the simulator, seed 9656: SCAN left out a key of which one member could not read the record.
#[test]
fn a_key_that_one_member_cannot_read_another_tells() {
    run(async |reactor| {
        for (damaged_members, limit) in (0..=2).flat_map(|count| [(count, 7), (count, 1000)]) {
            let bench = Bench::new(&reactor, 3, 3);
            let array = damaged(&bench, damaged_members).await;
            let (keys, lacks_some) = scanned(&array, limit).await;
            assert!(keys.contains(&b"lost"[..]), "{damaged_members} cannot read it");
            assert_eq!((keys.len(), lacks_some), (201, false));
        }
        let array = damaged(&Bench::new(&reactor, 3, 3), 3).await;
        let (keys, lacks_some) = scanned(&array, 7).await;
        assert_eq!((keys.len(), lacks_some), (200, true), "nobody can");
    });
}
