//! Stores that wait for space: on a device that is half full nobody waits in vain.

mod opening;

use opening::{live, open_with, run, world};
use plimsoll_flash::Options;
use plimsoll_kv::{Expiry, Op, Value};
use std::cell::Cell;
use std::rc::Rc;

const SEGMENT_BYTES: u32 = 64 << 10;
const DISK: usize = 24 << 20;
const KEYS: u64 = 1000;
const CLIENTS: u64 = 400;
const STORES: u64 = 100;

fn store(number: u64) -> Op {
    opening::store(format!("k{number}"), Value::from(vec![1; 12_000]), Expiry::Never)
}

/// More stores waited than the space that had come free was for. Those that it was not for were told that
/// there is none, for at that instant nothing was left to clean.
#[test]
fn who_finds_others_quicker_waits_on() {
    live(&world(DISK), |reactor| async move {
        let options = Options { known_bytes: 64 << 10, ..Options::default() };
        let partition = open_with(&reactor, SEGMENT_BYTES, options).await;
        for number in 0..KEYS {
            run(&partition, store(number)).await.expect("there is room");
        }
        let metrics = partition.metrics();
        assert!(metrics.live_bytes < metrics.live_bytes_max * 6 / 10, "about half full: {metrics:?}");
        let left = Rc::new(Cell::new(CLIENTS));
        for client in 0..CLIENTS {
            let (partition, left) = (partition.clone(), left.clone());
            reactor.spawn(plimsoll_reactor::Work::Kv, async move {
                for step in 0..STORES {
                    let scattered = (client * STORES + step).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    let number = (scattered >> 33) % KEYS;
                    run(&partition, store(number)).await.expect("it is half full");
                }
                left.set(left.get() - 1);
            });
        }
        while left.get() > 0 {
            reactor.sleep_ns(10_000_000).await;
        }
        assert!(partition.metrics().cleaned_segments > 50, "{:?}", partition.metrics());
        assert_eq!(partition.metrics().no_space, 0);
    });
}
