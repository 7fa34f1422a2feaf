//! Members that are slow, or do not answer at all.

use super::bench::{Bench, bytes, run, set};
use super::packing;
use crate::{Array, Joining, MemberState};
use futures_util::future::{Either, join_all, select};
use plimsoll_kv::throttle::{Rates, ThrottleDevice};
use plimsoll_kv::{Completion, Device, LocalFuture, Op, Request, Result};
use plimsoll_reactor::Reactor;
use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;

const SECOND_NS: u64 = 1_000_000_000;

/// A device that answers late.
pub(super) struct Late {
    reactor: Reactor,
    below: Rc<dyn Device>,
    pub(super) late_ns: Cell<u64>,
    /// To which requests.
    pub(super) late_to: Cell<fn(&Op) -> bool>,
}

impl Device for Late {
    fn execute(self: Rc<Self>, request: Request) -> LocalFuture<Result<Completion>> {
        Box::pin(async move {
            if self.late_to.get()(&request.op) {
                self.reactor.sleep_ns(self.late_ns.get()).await;
            }
            self.below.clone().execute(request).await
        })
    }
    fn value_bytes_max(&self) -> usize {
        self.below.value_bytes_max()
    }
    fn part_bytes(&self) -> usize {
        self.below.part_bytes()
    }
}

pub(super) async fn open(reactor: &Reactor, bench: &Bench) -> (Rc<Array>, Vec<Rc<Late>>) {
    let (reactor, late_ns) = (reactor.clone(), Cell::new(0));
    let late = bench.given(&[]).into_iter().map(|given| {
        let below = given.device.clone().expect("nothing is missing");
        let (late_ns, late_to) = (late_ns.clone(), Cell::new((|_: &Op| true) as fn(&Op) -> bool));
        (given, Rc::new(Late { reactor: reactor.clone(), below, late_ns, late_to }))
    });
    let (given, late): (Vec<Joining>, Vec<Rc<Late>>) = late.unzip();
    let given = given.into_iter().zip(&late).map(|(given, late)| {
        let device: Rc<dyn Device> = late.clone();
        Joining { device: Ok(device), ..given }
    });
    let array = Array::open(&reactor, 0, 1, given.collect(), bench.options.clone()).await;
    (array.expect("all are there"), late)
}

/// Found by the simulator, seeds 2377, 2733, 3265, 4260, 5283, 6303, 6768, 7909, 8203 and 8208: a read that
/// another answer overtook was writing the roster, nobody wrote it after that, and no write of the partition
/// ended any more.
#[test]
fn a_roster_whose_writer_is_given_up_is_written_by_the_next() {
    run(async |reactor| {
        let bench = Bench::new(&reactor, 3, 2);
        let (array, late) = open(&reactor, &bench).await;
        late[0].late_ns.set(1_000_000);
        let writes = Box::pin(array.take_out_now(2, "for a test"));
        let overtakes = pin!(reactor.sleep_ns(1_000));
        let first = select(writes, overtakes).await;
        assert!(matches!(first, Either::Right(_)), "the roster waits for a slow member");
        drop(first);
        set(&array, "k", b"v").await.unwrap();
        assert_eq!(bytes(&array, "k").await, Some(b"v".to_vec()));
        assert_eq!(array.state(2), MemberState::Out);
    });
}

#[test]
fn a_read_does_not_wait_long_for_a_slow_member() {
    run(async |reactor| {
        let bench = Bench::new(&reactor, 3, 2);
        let (array, late) = open(&reactor, &bench).await;
        for number in 0..30 {
            set(&array, &format!("key:{number}"), b"v").await.unwrap();
        }
        late[1].late_ns.set(5 * SECOND_NS);
        for number in 0..30 {
            let began_ns = reactor.now_ns();
            assert_eq!(bytes(&array, &format!("key:{number}")).await.as_deref(), Some(&b"v"[..]));
            assert!(reactor.now_ns() - began_ns < SECOND_NS / 10);
        }
        assert_eq!(array.status().members[1].state, MemberState::In, "it is slow, and still right");
    });
}

#[test]
fn a_member_that_does_not_answer_a_write_is_out() {
    run(async |reactor| {
        let bench = Bench::new(&reactor, 3, 3);
        let (array, late) = open(&reactor, &bench).await;
        set(&array, "k", b"1").await.unwrap();
        late[2].late_ns.set(3600 * SECOND_NS);
        let began_ns = reactor.now_ns();
        set(&array, "k", b"2").await.unwrap();
        assert!((10 * SECOND_NS..11 * SECOND_NS).contains(&(reactor.now_ns() - began_ns)));
        let status = array.status();
        assert_eq!(status.members[2].state, MemberState::Out);
        assert!(status.members[2].reason.contains("has not answered for 10 seconds"), "{status:?}");
        let began_ns = reactor.now_ns();
        set(&array, "k", b"3").await.unwrap();
        assert_eq!(bytes(&array, "k").await.as_deref(), Some(&b"3"[..]));
        assert!(reactor.now_ns() - began_ns < SECOND_NS / 10, "nobody waits for it any more");
    });
}

/// Two devices are out, and another is slow: of sets that had both parities on those two nobody can compute
/// its values, and it gives them itself (seed 27).
#[test]
fn a_slow_device_gives_what_its_set_cannot() {
    run(async |reactor| {
        let bench = packing::bench(&reactor, 6, 4, 2);
        let (array, late) = open(&reactor, &bench).await;
        packing::fill(&array, 60, 1).await;
        packing::settled(&reactor).await;
        for out in [2, 3] {
            array.take_out_now(out, "it is lost").await.unwrap();
        }
        for slow in [0, 1, 4, 5] {
            late[slow].late_ns.set(SECOND_NS / 5);
            packing::check(&array, 60, 1).await;
            late[slow].late_ns.set(0);
        }
    });
}

/// Devices serve in turn, and busy ones late: a read that was asked of another as well keeps its turn there,
/// and whoever computes the value meanwhile may wait behind it.
#[test]
fn a_read_that_was_asked_of_another_as_well_holds_up_nobody() {
    run(async |reactor| {
        let bench = packing::bench(&reactor, 6, 4, 2);
        let rates = Rates { ops_per_s: 300, bytes_per_s: 0, burst_ns: 0 };
        let throttled = bench.given(&[]).into_iter().map(|given| {
            let device: Rc<dyn Device> = ThrottleDevice::new(&reactor, given.device.unwrap(), rates);
            Joining { device: Ok(device), ..given }
        });
        let array = Array::open(&reactor, 0, 1, throttled.collect(), bench.options.clone()).await.unwrap();
        packing::fill(&array, 60, 1).await;
        reactor.sleep_ns(5 * SECOND_NS).await;
        array.take_out(1, "for the test");
        reactor.sleep_ns(SECOND_NS).await;
        let begun_ns = reactor.now_ns();
        let reads = (0..60).map(async |number| {
            let given = bytes(&array, &format!("key:{number}")).await;
            assert_eq!(given, Some(packing::value(number, 1)), "key:{number}");
        });
        join_all(reads).await;
        assert!(reactor.now_ns() - begun_ns < 5 * SECOND_NS, "{} ns", reactor.now_ns() - begun_ns);
    });
}
