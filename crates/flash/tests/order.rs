//! Operations that begin one after the other: each finds what those before it left, and nothing later.

use crate::opening::{DATABASE, DISK_BYTES, delete, live, open, run, store, upload, world};
use futures_util::future::join_all;
use plimsoll_flash::Partition;
use plimsoll_kv::{Device, Error, Expiry, Op, Output, UploadId, Value};
use std::rc::Rc;

const KEYS: u8 = 8;

fn name(number: u8) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

/// A value of three parts that is not its key's yet.
async fn three_parts(partition: &Rc<Partition>, key: &[u8], byte: u8) -> UploadId {
    upload(partition, key, &vec![byte; 3 * partition.part_bytes()]).await.expect("there is room")
}

/// Pipelined GETs before DEL had answered that the key is not there: its parts had ended, for the delete
/// was applied while its record was read.
#[test]
fn a_read_finds_a_value_in_parts_that_a_later_write_takes_away() {
    let changes: [fn(Vec<u8>, UploadId) -> Op; 3] = [
        |key, _| delete(key),
        |key, _| store(key, b"short".to_vec().into(), Expiry::Never),
        |key, other| store(key, Value::Upload(other), Expiry::Never),
    ];
    for change in changes {
        let world = world(DISK_BYTES);
        live(&world, move |reactor| async move {
            let partition = open(&reactor).await;
            let mut others = Vec::new();
            for number in 0..KEYS {
                let first = three_parts(&partition, &name(number), number).await;
                let first = store(name(number), Value::Upload(first), Expiry::Never);
                run(&partition, first).await.unwrap();
                others.push(three_parts(&partition, &name(number), 100).await);
            }
            let get = |key| Op::Retrieve { container: DATABASE, key, range: None, pin: true };
            let pairs = (0..KEYS).flat_map(|number| {
                let other = others[usize::from(number)];
                [get(name(number)), change(name(number), other)]
            });
            let outputs = join_all(pairs.map(|op| run(&partition, op))).await;
            for (number, output) in (0..KEYS).zip(outputs.iter().step_by(2)) {
                let Ok(Output::Found(item)) = output else { panic!("{number}: {output:?}") };
                let (key, upload) = (name(number), item.upload.expect("the value in parts"));
                let read = Op::RetrievePart { upload, key: key.clone(), part: 1, range: None };
                let Ok(Output::Found(part)) = run(&partition, read).await else { panic!("it is pinned") };
                assert!(part.bytes.iter().all(|byte| *byte == number));
                run(&partition, Op::Unpin { upload, key: key.clone() }).await.unwrap();
                reactor.sleep_ns(100_000_000).await;
                let gone = run(&partition, Op::Pin { upload, key }).await;
                assert_eq!(gone, Err(Error::Invalid("no such upload")), "nobody reads it any more");
            }
        });
    }
}
