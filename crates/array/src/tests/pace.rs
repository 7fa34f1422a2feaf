//! The rate of a rebuild.

use super::bench::{Bench, run, set};
use crate::pace::Pace;
use futures_util::future::join_all;

#[test]
fn keys_are_spread_over_time_whatever_they_turn_out_to_have() {
    run(async |reactor| {
        // A byte takes a microsecond.
        let pace = Pace::new(1_000_000);
        let begin_ns = reactor.now_ns();
        let took = async |bytes| {
            let turn = pace.turn(reactor.now_ns());
            reactor.sleep_until(turn.at_ns).await;
            let at_us = (reactor.now_ns() - begin_ns) / 1000;
            pace.end(turn, bytes);
            at_us
        };
        assert_eq!(
            join_all([10, 10, 10].map(took)).await,
            [0, 10, 20],
            "not as much as the first was taken for"
        );
        assert_eq!(
            join_all([10, 10, 10].map(took)).await,
            [30, 40, 50],
            "nor at once, if they wait together"
        );
        assert_eq!(took(0).await, 60);
        assert_eq!(took(20).await, 70, "what was there already took its time, too");
        assert_eq!(took(20).await, 90);
        let unlimited = Pace::new(0);
        for _ in 0..9 {
            let turn = unlimited.turn(7);
            assert_eq!(turn.at_ns, 7);
            unlimited.end(turn, 1 << 30);
        }
    });
}

/// 32 values of a mebibyte were begun before it was known how long one is: ten seconds' worth at once.
#[test]
fn no_more_is_begun_than_a_second_takes() {
    let pace = Pace::new(3 << 20);
    let keys = [0; 100];
    let mut rest = &keys[..];
    let mut next = |bytes| {
        let next = pace.next_of(&mut rest);
        next.iter().for_each(|_| pace.end(pace.turn(0), bytes));
        next.len()
    };
    assert_eq!([1 << 20, 1 << 20, 4096, 4096, 9 << 20, 0, 1 << 20].map(&mut next), [1, 3, 3, 32, 32, 1, 1]);
    let mut rest = &keys[..];
    assert_eq!((Pace::new(0).next_of(&mut rest).len(), rest.len()), (100, 0), "there is no limit");
}

#[test]
fn an_array_that_ends_does_not_wait_for_the_turns_of_keys() {
    run(async |reactor| {
        let mut bench = Bench::new(&reactor, 3, 2);
        bench.options.rebuild_bytes_per_s = 1;
        let array = bench.open().await;
        for number in 0..40 {
            set(&array, &format!("key:{number}"), b"v").await.unwrap();
        }
        array.take_out(0, "for a test");
        reactor.sleep_ns(1_000_000).await;
        array.rebuild(0);
        reactor.sleep_ns(1_000_000).await;
        assert!(array.status().members[0].keys_total > 0, "it is under way");
        let begin_ns = reactor.now_ns();
        array.close().await;
        assert!(reactor.now_ns() - begin_ns < 1_000_000_000);
    });
}

#[test]
fn a_scrub_reads_no_faster_than_a_rebuild_may_copy() {
    run(async |reactor| {
        for rate in [0, 100_000] {
            let mut bench = Bench::new(&reactor, 3, 3);
            bench.options.rebuild_bytes_per_s = rate;
            let array = bench.open().await;
            for number in 0..100 {
                set(&array, &format!("key:{number}"), &[7; 100]).await.unwrap();
            }
            let begin_ns = reactor.now_ns();
            array.scrub();
            while array.status().scrubbing {
                reactor.sleep_ns(1_000_000).await;
            }
            // Each of 3 devices tells each key, and all 3 are read then: 90 000 bytes, but for the last turn.
            let took_ms = (reactor.now_ns() - begin_ns) / 1_000_000;
            match rate {
                0 => assert!(took_ms < 50, "{took_ms} ms"),
                _ => assert!((850..1100).contains(&took_ms), "{took_ms} ms"),
            }
            assert_eq!(array.status().scrub_errors, 0);
        }
    });
}
