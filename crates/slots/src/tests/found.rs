//! What the random walks found: a named test for each.

use super::bench::{bytes, del_op, execute, execute_as, formatted, run, set_op, store_op};
use crate::{Command, Cost, DelaySsd, DriveKey, Medium, Slots};
use plimsoll_kv::{ContainerId, Durability, Op, Value};
use std::cell::RefCell;
use std::rc::Rc;

/// What the drive is asked from now on.
fn log(medium: &Medium) -> Rc<RefCell<Vec<Command>>> {
    let commands = Rc::new(RefCell::new(Vec::new()));
    let log = commands.clone();
    medium.set_fault(move |command| {
        log.borrow_mut().push(command);
        None
    });
    commands
}

fn stores(commands: &[Command]) -> Vec<(usize, DriveKey)> {
    let store = |(at, command): (usize, &Command)| match command {
        Command::Store(key, _) => Some((at, *key)),
        _ => None,
    };
    commands.iter().enumerate().filter_map(store).collect()
}

fn has_flush(commands: &[Command]) -> bool {
    commands.contains(&Command::Flush)
}

/// The rider had a slot of its own, and was there after a loss; the value that it came with was not.
#[test]
fn a_rider_moves_only_when_the_batch_that_it_came_with_is_durable() {
    run(1, |reactor| async move {
        let medium = formatted(&reactor).await;
        let slots = Slots::open(&reactor, medium.connect()).await.unwrap();
        let commands = log(&medium);
        let book = store_op(ContainerId(4000), "book", Value::from(vec![1; 20]), false);
        let batch = Op::Batch(vec![set_op("k", &[2; 1000]), book]);
        execute_as(&slots, batch, Durability::Async).await.unwrap();
        slots.compact();
        slots.idle().await;
        let commands = commands.borrow();
        let [(host, _), (home, _), ..] = stores(&commands)[..] else { panic!("{commands:?}") };
        assert!(has_flush(&commands[host..home]), "{commands:?}");
    });
}

/// While it was waited for one rider's slot to be durable, another moved, and nobody waited for that.
#[test]
fn an_object_goes_only_when_all_riders_that_left_it_are_durable() {
    run(2, |reactor| async move {
        let cost = Cost { fixed_ns: 20_000, spread_ns: 20_000, byte_ps: 0, flush_ns: 150_000 };
        for (wait_ns, nth) in (0..600_000).step_by(20_000).flat_map(|ns| (1..22).map(move |nth| (ns, nth))) {
            let medium = formatted(&reactor).await;
            let drive = DelaySsd::new(&reactor, medium.connect(), cost);
            let slots = Slots::open(&reactor, drive).await.unwrap();
            let commands = log(&medium);
            let riders = (0..12).map(|number| set_op(&format!("rider{number}"), &[number; 20]));
            let batch = [set_op("host", &[2; 1000])].into_iter().chain(riders).collect();
            execute(&slots, Op::Batch(batch)).await.unwrap();
            let (_, host) = stores(&commands.borrow())[0];
            medium.lose_power_at(nth, true);
            slots.compact();
            reactor.sleep_ns(wait_ns).await;
            // It may be cut short.
            let _ = execute(&slots, del_op("host")).await;
            slots.idle().await;
            // The worst: of all that was not flushed, what became of the host alone is kept.
            medium.lose_power_by_key(|key, states| if *key == host.0 { states - 1 } else { 0 });
            let slots = Slots::open(&reactor, medium.connect()).await.unwrap();
            for number in 0..12 {
                let rider = bytes(&slots, &format!("rider{number}")).await;
                assert_eq!(rider, Some(vec![number; 20]), "{number} at {nth} after {wait_ns}");
            }
        }
    });
}
