//! The rate of a rebuild.

use super::bench::run;
use crate::pace::Pace;
use futures_util::future::join_all;

#[test]
fn keys_are_spread_over_time_whatever_they_turn_out_to_have() {
    run(async |reactor| {
        // A byte takes a microsecond.
        let pace = Pace::new(&reactor, 1_000_000);
        let begin_ns = reactor.now_ns();
        let took = async |bytes| {
            let expected = pace.begin().await;
            let at_us = (reactor.now_ns() - begin_ns) / 1000;
            pace.end(expected, bytes);
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
        let unlimited = Pace::new(&reactor, 0);
        let at_ns = reactor.now_ns();
        for _ in 0..9 {
            let expected = unlimited.begin().await;
            unlimited.end(expected, 1 << 30);
        }
        assert_eq!(reactor.now_ns(), at_ns);
    });
}
