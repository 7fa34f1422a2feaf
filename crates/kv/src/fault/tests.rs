//! What fails, fails; what passes, passes; and a seed decides alike twice.

use super::*;
use crate::memory::{Memory, MemoryOptions};
use crate::testing::{execute, get, run, store_op};
use plimsoll_reactor::sim::Random;

#[test]
fn the_nth_request_fails_and_never_reaches_the_device() {
    run(|reactor, _| async move {
        let memory = Memory::new(&reactor, MemoryOptions::default());
        let device = FaultDevice::new(memory.clone(), FaultPolicy::Nth(2), Error::NoSpace);
        assert!(execute(&device, store_op(b"a", b"1")).await.is_ok());
        assert_eq!(execute(&device, store_op(b"b", b"2")).await, Err(Error::NoSpace));
        assert!(execute(&device, store_op(b"c", b"3")).await.is_ok());
        assert_eq!(get(&memory, b"b").await, Err(Error::NotFound));
        assert_eq!(device.failed(), 1);
        device.set_policy(FaultPolicy::When(Box::new(|r| r.op.key() == Some(b"a"))));
        assert_eq!(get(&device, b"a").await, Err(Error::NoSpace));
        assert_eq!(get(&device, b"c").await.unwrap().bytes, b"3");
    });
}

#[test]
fn a_probability_follows_its_seed() {
    let decide = |seed| {
        let mut random = Random::stream(seed, "fault");
        let mut policy =
            FaultPolicy::Probability { ppm: 250_000, random: Box::new(move || random.next_u64()) };
        (0..4000).map(|n| policy.fails(n, &())).collect::<Vec<bool>>()
    };
    assert_eq!(decide(7), decide(7));
    assert_ne!(decide(7), decide(8));
    let failed = decide(7).into_iter().filter(|fails| *fails).count();
    assert!((800..1200).contains(&failed), "{failed} of 4000 failed");
}

#[test]
fn a_block_write_fails_without_being_written() {
    run(|reactor, world| async move {
        let file = reactor.open_file("disk", &Default::default()).unwrap();
        let policy = FaultPolicy::When(Box::new(|op| matches!(op, BlockOp::Write { offset: 4096, .. })));
        let block = FaultBlock::new(Rc::new(file), policy, io::ErrorKind::Other);
        let mut buf = Buf::zeroed(4096);
        buf.fill(7);
        let buf = Rc::new(buf);
        block.write(Origin::FOREGROUND, 0, buf.clone(), true).await.unwrap();
        assert!(block.write(Origin::FOREGROUND, 4096, buf, true).await.is_err());
        assert_eq!(world.with_disk("disk", |d| (d.durable()[0], d.durable()[4096])), (7, 0));
        assert_eq!(block.read(Origin::FOREGROUND, 0, 4096).await.unwrap()[0], 7);
        block.set_policy(FaultPolicy::From(1));
        assert!(block.flush(Origin::FOREGROUND).await.is_err());
        assert_eq!((block.failed(), block.size_bytes(), block.block_bytes()), (2, 1 << 20, 512));
    });
}
