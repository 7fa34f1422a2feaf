//! Members that are KV SSDs: what is asked of the drives, and what is left when they lose power.

use super::bench::{Bench, bytes, del, run, set};
use crate::{Mechanism, Policy};
use plimsoll_kv::{Completion, ContainerId, Device, Error, LocalFuture, Request, Result};
use plimsoll_reactor::Reactor;
use plimsoll_reactor::sync::Permits;
use plimsoll_slots::{Commands, Cost, DelaySsd, FormatOptions, Medium, Slots};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// What a command costs: enough for others to come between.
const COST: Cost = Cost { fixed_ns: 10_000, spread_ns: 20_000, byte_ps: 0, flush_ns: 20_000 };

/// A drive, and the adapter over it, which is opened by the first request after power was lost.
pub(super) struct Ssd {
    reactor: Reactor,
    medium: Medium,
    opening: Rc<Permits>,
    slots: RefCell<Option<Rc<Slots>>>,
}

impl Ssd {
    pub(super) fn new(reactor: &Reactor) -> Rc<Ssd> {
        let (medium, opening) = (Medium::new(1 << 20, u64::MAX), Permits::new(1));
        Rc::new(Ssd { reactor: reactor.clone(), medium, opening, slots: RefCell::new(None) })
    }

    /// What was not flushed may be lost, each key by itself.
    pub(super) fn lose_power(&self) {
        *self.slots.borrow_mut() = None;
        let reactor = self.reactor.clone();
        self.medium.lose_power(move |states| (reactor.random_u64() % states as u64) as usize);
    }

    async fn opened(&self) -> Result<Rc<Slots>> {
        let _permit = self.opening.acquire(1).await;
        if let Some(slots) = self.slots.borrow().clone() {
            return Ok(slots);
        }
        let drive = || DelaySsd::new(&self.reactor, self.medium.connect(), COST);
        let failed = |error: plimsoll_slots::OpenError| Error::ReadOnly(error.to_string());
        if self.medium.objects().is_empty() {
            let options = FormatOptions { value_bytes_max: Some(1032), part_bytes: Some(163) };
            Slots::format(&self.reactor, drive(), options).await.map_err(failed)?;
        }
        let slots = Slots::open(&self.reactor, drive()).await.map_err(failed)?;
        *self.slots.borrow_mut() = Some(slots.clone());
        Ok(slots)
    }
}

impl Device for Ssd {
    fn execute(self: Rc<Self>, request: Request) -> LocalFuture<Result<Completion>> {
        Box::pin(async move {
            let slots = self.slots.borrow().clone();
            match slots {
                Some(slots) => slots.execute(request).await,
                None => self.opened().await?.execute(request).await,
            }
        })
    }

    fn lacks(&self, container: ContainerId, key: &[u8]) -> bool {
        self.slots.borrow().as_ref().is_some_and(|slots| slots.lacks(container, key))
    }

    fn value_bytes_max(&self) -> usize {
        1032
    }

    fn part_bytes(&self) -> usize {
        163
    }
}

/// Commands of all drives: stores, retrieves, deletes.
async fn asked(bench: &Bench) -> (u64, u64, u64) {
    for ssd in &bench.ssds {
        let slots = ssd.slots.borrow().clone();
        if let Some(slots) = slots {
            slots.idle().await;
        }
    }
    let all = bench.ssds.iter().map(|ssd| ssd.medium.commands());
    let add = |a: Commands, b: Commands| Commands {
        stores: a.stores + b.stores,
        retrieves: a.retrieves + b.retrieves,
        deletes: a.deletes + b.deletes,
        ..a
    };
    let all = all.fold(Commands::default(), add);
    (all.stores, all.retrieves, all.deletes)
}

fn policy(mechanism: Mechanism) -> [Policy; 1] {
    [mechanism.into()]
}

/// A write is one store on each member, with the journal's record behind its head.
#[test]
fn a_copy_or_shard_is_one_command() {
    run(async |reactor| {
        for (mechanism, store, update, read) in [
            (Mechanism::Replication { copies: 3 }, (3, 0, 0), (3, 0, 0), (0, 1, 0)),
            // Each shard that is replaced is released.
            (Mechanism::Splitting { data: 4, parities: 2 }, (6, 0, 0), (6, 0, 6), (0, 4, 0)),
        ] {
            let bench = Bench::over_ssds(&reactor, 6, &policy(mechanism));
            let array = bench.open().await;
            set(&array, "warm", &[1; 600]).await.unwrap();
            reactor.sleep_ns(1_000_000_000).await;
            asked(&bench).await;
            set(&array, "k", &[7; 600]).await.unwrap();
            reactor.sleep_ns(1_000_000_000).await;
            assert_eq!(asked(&bench).await, store, "{mechanism:?}: a store");
            set(&array, "k", &[8; 600]).await.unwrap();
            reactor.sleep_ns(1_000_000_000).await;
            assert_eq!(asked(&bench).await, update, "{mechanism:?}: an update");
            assert_eq!(bytes(&array, "k").await, Some(vec![8; 600]));
            assert_eq!(asked(&bench).await, read, "{mechanism:?}: a retrieve");
        }
    });
}

#[test]
fn what_was_acknowledged_is_there_after_all_drives_lost_power() {
    run(async |reactor| {
        let mechanisms = [
            Mechanism::Replication { copies: 3 },
            Mechanism::Splitting { data: 4, parities: 2 },
            Mechanism::Packing { data: 4, parities: 2 },
        ];
        for mechanism in mechanisms {
            let bench = Bench::over_ssds(&reactor, 6, &policy(mechanism));
            let mut array = bench.open().await;
            for round in 0..5_u8 {
                for number in 0..40_u8 {
                    set(&array, &format!("k{number}"), &[round, number]).await.unwrap();
                }
                del(&array, &format!("k{round}")).await.unwrap();
                array = bench.open().await;
                for number in 0..40_u8 {
                    let expected = (number != round).then(|| vec![round, number]);
                    assert_eq!(bytes(&array, &format!("k{number}")).await, expected, "{mechanism:?}");
                }
            }
        }
    });
}

/// The server dies at any request to any member, and all drives lose power at that instant.
#[test]
fn writes_that_a_power_loss_cuts_short_are_there_or_not_and_stay_so() {
    run(async |reactor| {
        let mechanisms = [
            Mechanism::Replication { copies: 3 },
            Mechanism::Splitting { data: 4, parities: 2 },
            Mechanism::Packing { data: 4, parities: 2 },
        ];
        let mut cut_short = 0;
        for (mechanism, nth) in mechanisms.iter().flat_map(|one| (1..80).map(move |nth| (*one, nth))) {
            let bench = Bench::over_ssds(&reactor, 6, &policy(mechanism));
            let array = bench.open().await;
            let mut holds: BTreeMap<String, Option<Vec<u8>>> = BTreeMap::new();
            for number in 0..4_u8 {
                set(&array, &format!("k{number}"), &[number; 50]).await.unwrap();
                holds.insert(format!("k{number}"), Some(vec![number; 50]));
            }
            bench.dies_at(nth, |_| true);
            let mut unsure = None;
            for number in 0..60_u8 {
                let key = format!("k{}", number % 4);
                let after = (number % 7 != 3).then(|| vec![number; 30 + usize::from(number)]);
                let done = match &after {
                    Some(value) => set(&array, &key, value).await,
                    None => del(&array, &key).await,
                };
                match done {
                    Ok(_) | Err(Error::NotFound) => drop(holds.insert(key, after)),
                    Err(_) => {
                        unsure = Some((key, after));
                        break;
                    }
                }
            }
            cut_short += usize::from(unsure.is_some());
            for _ in 0..2 {
                let array = bench.open().await;
                for key in holds.keys().cloned().collect::<Vec<_>>() {
                    let is = bytes(&array, &key).await;
                    match unsure.take_if(|(unsure, _)| *unsure == key) {
                        Some((_, after)) => {
                            assert!(is == after || is == holds[&key], "{mechanism:?}, {nth}: {key}");
                            holds.insert(key, is); // From here on it is this.
                        }
                        None => assert_eq!(is, holds[&key], "{mechanism:?}, {nth}: {key}"),
                    }
                }
            }
        }
        assert!(cut_short > 200, "{cut_short} of 237 were cut short");
    });
}
