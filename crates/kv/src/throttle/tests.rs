//! Rates hold over virtual time, and order is kept.

use super::*;
use crate::memory::{Memory, MemoryOptions};
use crate::testing::{execute, get, run, store_op};
use plimsoll_reactor::Work;
use std::cell::RefCell;

#[test]
fn operations_a_second_are_held_and_a_burst_passes() {
    run(|reactor, _| async move {
        let memory = Memory::new(&reactor, MemoryOptions::default());
        let rates = Rates { ops_per_s: 1000, bytes_per_s: 0, burst_ns: 10_000_000 };
        let device = ThrottleDevice::new(&reactor, memory, rates);
        reactor.sleep_ns(1_000_000_000).await;
        let start_ns = reactor.now_ns();
        for _ in 0..110 {
            execute(&device, store_op(b"k", b"v")).await.unwrap();
        }
        let took_ns = reactor.now_ns() - start_ns;
        assert!((98_000_000..102_000_000).contains(&took_ns), "{took_ns}");
    });
}

#[test]
fn bytes_a_second_are_held_for_reads_too() {
    run(|reactor, _| async move {
        let memory = Memory::new(&reactor, MemoryOptions::default());
        let rates = Rates { ops_per_s: 0, bytes_per_s: 1_000_000, burst_ns: 0 };
        let device = ThrottleDevice::new(&reactor, memory, rates);
        execute(&device, store_op(b"k", &[1; 100_000])).await.unwrap();
        let start_ns = reactor.now_ns();
        for _ in 0..10 {
            get(&device, b"k").await.unwrap();
        }
        let took_ns = reactor.now_ns() - start_ns;
        assert!((950_000_000..1_050_000_000).contains(&took_ns), "{took_ns}");
    });
}

#[test]
fn waiting_requests_pass_in_order() {
    run(|reactor, _| async move {
        let memory = Memory::new(&reactor, MemoryOptions::default());
        let rates = Rates { ops_per_s: 100, bytes_per_s: 0, burst_ns: 0 };
        let device = ThrottleDevice::new(&reactor, memory, rates);
        let ended = Rc::new(RefCell::new(Vec::new()));
        for n in 0..20_u8 {
            let (device, ended) = (device.clone(), ended.clone());
            reactor.spawn(Work::Kv, async move {
                execute(&device, store_op(b"k", &[n])).await.unwrap();
                ended.borrow_mut().push(n);
            });
        }
        reactor.sleep_ns(1_000_000_000).await;
        assert_eq!(*ended.borrow(), (0..20).collect::<Vec<u8>>());
        assert_eq!(get(&device, b"k").await.unwrap().bytes, [19]);
    });
}

#[test]
fn a_block_device_is_throttled_too() {
    run(|reactor, _| async move {
        let file = reactor.open_file("disk", &Default::default()).unwrap();
        let rates = Rates { ops_per_s: 0, bytes_per_s: 4096 * 100, burst_ns: 0 };
        let block = ThrottleBlock::new(&reactor, Rc::new(file), rates);
        let start_ns = reactor.now_ns();
        for _ in 0..11 {
            block.read(Origin::FOREGROUND, 0, 4096).await.unwrap();
        }
        let took_ns = reactor.now_ns() - start_ns;
        assert!((99_000_000..102_000_000).contains(&took_ns), "{took_ns}");
    });
}
