//! Delays in virtual time are exact.

use super::*;
use crate::memory::{Memory, MemoryOptions};
use crate::testing::{execute, get, run, store_op};

#[test]
fn a_delay_has_a_fixed_part_and_one_for_each_byte() {
    run(|reactor, _| async move {
        let memory = Memory::new(&reactor, MemoryOptions::default());
        let device = DelayDevice::new(&reactor, memory, Delay { fixed_ns: 1_000_000, byte_ps: 1_000_000 });
        let start_ns = reactor.now_ns();
        execute(&device, store_op(b"k", &[0; 1000])).await.unwrap();
        let stored_ns = reactor.now_ns();
        assert!((2_000_000..2_100_000).contains(&(stored_ns - start_ns)), "{}", stored_ns - start_ns);
        assert_eq!(get(&device, b"k").await.unwrap().length, 1000);
        let read_ns = reactor.now_ns() - stored_ns;
        assert!((2_000_000..2_100_000).contains(&read_ns), "{read_ns}");
        assert!(get(&device, b"absent").await.is_err());
    });
}

#[test]
fn a_block_delay_adds_to_the_device() {
    run(|reactor, _| async move {
        let file = reactor.open_file("disk", &Default::default()).unwrap();
        let block = DelayBlock::new(&reactor, Rc::new(file), Delay { fixed_ns: 5_000_000, byte_ps: 0 });
        let start_ns = reactor.now_ns();
        block.write(Origin::FOREGROUND, 0, Rc::new(Buf::zeroed(4096)), false).await.unwrap();
        block.flush(Origin::FOREGROUND).await.unwrap();
        block.read(Origin::FOREGROUND, 0, 4096).await.unwrap();
        let took_ns = reactor.now_ns() - start_ns;
        assert!((15_000_000..16_500_000).contains(&took_ns), "{took_ns}");
    });
}
