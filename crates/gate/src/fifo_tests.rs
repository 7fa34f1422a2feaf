//! The order and the bound.

use super::*;
use crate::Kind;
use plimsoll_kv::block::Origin;

const ASK: Ask = Ask { origin: Origin::FOREGROUND, kind: Kind::Read, bytes: 4096 };

#[test]
fn admits_in_order_up_to_the_bound() {
    let mut fifo = Fifo::new(2);
    for number in 0..4 {
        fifo.arrive(Ticket(number), ASK);
    }
    assert_eq!(fifo.admit(), Some(Ticket(0)));
    assert_eq!(fifo.admit(), Some(Ticket(1)));
    assert_eq!(fifo.admit(), None);
    fifo.withdraw(Ticket(2));
    fifo.complete(ASK, Some(1));
    assert_eq!(fifo.admit(), Some(Ticket(3)));
    assert_eq!(fifo.admit(), None);
}

#[test]
#[should_panic(expected = "completes once")]
fn completes_no_more_than_it_admitted() {
    Fifo::new(1).complete(ASK, Some(1));
}
