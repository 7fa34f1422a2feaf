//! Sets of packed values beside crashes, losses, transactions and each other.

use super::bench::{Bench, DB, bytes, del, execute, get, retrieve_op, run, set, wish_op};
use super::packing::{bench, check, fill, found_sets, pieces, set_key, settled, value};
use crate::header::Header;
use crate::placement::{self, container, sets};
use crate::set::Set;
use crate::{Mechanism, Policy};
use futures_util::future::join_all;
use plimsoll_kv::fault::FaultPolicy;
use plimsoll_kv::transaction::{Action, Held};
use plimsoll_kv::{Condition, Error, Expiry, Op, Output, Request, Value};

/// A key with this primary.
fn key_at(primary: usize, word: &str) -> String {
    let names = (0..).map(|number| format!("{word}:{number}"));
    names.into_iter().find(|name| placement::primary(name.as_bytes(), 6) == primary).unwrap()
}

/// Without a device its keys ask two others in turns, before an update too: they had all asked the next one,
/// which had the work of two.
#[test]
fn keys_of_one_device_take_turns_whom_else_they_ask() {
    run(async |reactor| {
        for out in 0..6 {
            let bench = bench(&reactor, 6, 4, 2);
            let array = bench.open().await;
            for number in 0..600 {
                set(&array, &format!("key:{number}"), &value(number % 100, 1)).await.unwrap();
            }
            settled(&reactor).await;
            bench.members[out].set_policy(FaultPolicy::From(1));
            let is_its = |name: &String| placement::primary(name.as_bytes(), 6) == out;
            let its: Vec<String> = (0..600).map(|number| format!("key:{number}")).filter(is_its).collect();
            set(&array, &its[0], b"finds that it is out").await.unwrap();
            settled(&reactor).await;
            bench.asked();
            for name in &its[1..] {
                let look = Op::Exist { container: DB, key: name.as_bytes().to_vec() };
                execute(&array, look).await.unwrap();
            }
            in_turns(&bench, out, its.len() as u64 - 1, "reads");
            for name in &its[1..] {
                set(&array, name, b"another").await.unwrap();
            }
            in_turns(&bench, out, its.len() as u64 - 1, "updates");
        }
    });
}

/// So many keys of a member that is out asked the two behind it, each about as often.
fn in_turns(bench: &Bench, out: usize, keys: u64, what: &str) {
    let asked = bench.asked_each();
    let [next, second] = [1, 2].map(|role| asked[(out + role) % 6].reads);
    assert!(next + second >= keys, "{what} without {out}: {asked:?}");
    assert!(next.max(second) * 3 < (next + second) * 2, "{what} without {out}: {asked:?}");
}

#[test]
fn a_value_that_finds_no_company_keeps_its_protection() {
    run(async |reactor| {
        let bench = bench(&reactor, 6, 4, 2);
        let array = bench.open().await;
        let s: Vec<String> = (0..4).map(|primary| key_at(primary, "s")).collect();
        let t: Vec<String> = [4, 5, 2, 3].into_iter().map(|primary| key_at(primary, "t")).collect();
        for names in [&s, &t] {
            for (number, name) in names.iter().enumerate() {
                set(&array, name, &value(20 + number, 1)).await.unwrap();
            }
            settled(&reactor).await;
        }
        for gone in [&s[3], &t[2], &t[3]] {
            del(&array, gone).await.unwrap();
        }
        settled(&reactor).await;
        for gone in [&s[1], &s[2], &t[0], &t[1]] {
            del(&array, gone).await.unwrap();
        }
        settled(&reactor).await;
        // One member is lost: r is 2.
        bench.members[0].set_policy(FaultPolicy::From(1));
        let given = bytes(&array, &s[0]).await;
        assert_eq!(given, Some(value(20, 1)));
    });
}

#[test]
fn a_value_that_may_expire_keeps_its_protection_when_others_of_its_set_go() {
    run(async |reactor| {
        let bench = bench(&reactor, 6, 4, 2);
        let array = bench.open().await;
        let s: Vec<String> = (0..4).map(|primary| key_at(primary, "s")).collect();
        let each = s.iter().enumerate().map(async |(number, name)| {
            set(&array, name, &value(20 + number, 1)).await.unwrap();
        });
        join_all(each).await;
        settled(&reactor).await;
        let (expiry, condition) = (Expiry::At(reactor.wall_ms() + 86_400_000), Condition::None);
        let key = s[0].clone().into_bytes();
        execute(&array, Op::SetExpiry { container: DB, key, expiry, condition }).await.unwrap();
        settled(&reactor).await;
        for name in &s[1..] {
            del(&array, name).await.unwrap();
        }
        settled(&reactor).await;
        bench.members[0].set_policy(FaultPolicy::From(1));
        let given = bytes(&array, &s[0]).await;
        assert_eq!(given, Some(value(20, 1)));
    });
}

/// A stub cannot be read, once: it is written again. Then its key is overwritten, and one member lost.
#[test]
fn a_stub_that_had_rotted_and_its_value_was_overwritten_takes_nothing_from_the_set() {
    run(async |reactor| {
        let bench = bench(&reactor, 5, 4, 1);
        let array = bench.open().await;
        let s: Vec<String> = (0..4)
            .map(|primary| {
                let names = (0..).map(|number| format!("s:{number}"));
                names.into_iter().find(|name| placement::primary(name.as_bytes(), 5) == primary).unwrap()
            })
            .collect();
        let each = s.iter().enumerate().map(async |(number, name)| {
            set(&array, name, &value(20 + number, 1)).await.unwrap();
        });
        join_all(each).await;
        settled(&reactor).await;
        // The stub of the first is lost, as by rot, and written again by a comparison of the key.
        let empty = Op::Store {
            container: container(DB, 1),
            key: s[0].clone().into_bytes(),
            value: plimsoll_kv::Value::from(Vec::new()),
            condition: Condition::None,
            expiry: Expiry::Never,
            retain: false,
            want_previous: false,
            form: None,
        };
        execute(&bench.below[1], empty).await.unwrap();
        array.suspect(&array.place(DB, s[0].as_bytes()).unwrap());
        assert_eq!(bytes(&array, &s[0]).await, Some(value(20, 1)));
        set(&array, &s[0], b"new").await.unwrap();
        settled(&reactor).await;
        bench.members[1].set_policy(FaultPolicy::From(1));
        let given = bytes(&array, &s[1]).await;
        assert_eq!(given, Some(value(21, 1)));
    });
}

/// A round is cut: one of its four primaries did not get its batch. Then one member is lost, what stands as
/// copies is overwritten, and another member is lost.
#[test]
fn keys_of_a_round_that_was_cut_do_not_rely_on_what_others_of_it_gave_up() {
    run(async |reactor| {
        let bench = bench(&reactor, 6, 4, 2);
        let array = bench.open().await;
        fill(&array, 80, 1).await;
        settled(&reactor).await;
        let s: Vec<String> = (0..4).map(|primary| key_at(primary, "s")).collect();
        let name = s[2].clone().into_bytes();
        bench.loses(2, move |op| match op {
            Op::Batch(ops) => ops.iter().any(|op| op.key() == Some(&name[..])),
            _ => false,
        });
        fill(&array, 80, 2).await;
        for (number, name) in s.iter().enumerate() {
            let (array, name) = (array.clone(), name.clone());
            reactor.spawn(plimsoll_reactor::Work::Kv, async move {
                let _ = set(&array, &name, &value(20 + number, 1)).await;
            });
        }
        reactor.sleep_ns(1_000_000_000).await;
        let array = bench.open().await;
        let mut read = Vec::new();
        let mut copied = Vec::new();
        for name in &s {
            read.push(bytes(&array, name).await);
            if read.last() != Some(&None) && pieces(&bench, name, 2).await[1].is_some() {
                copied.push(name);
            }
        }
        array.take_out(5, "for a test");
        reactor.sleep_ns(1_000_000).await;
        for name in copied {
            set(&array, name, b"new").await.unwrap();
        }
        settled(&reactor).await;
        bench.members[2].set_policy(FaultPolicy::From(1));
        let given = bytes(&array, &s[2]).await;
        assert!(given == read[2] || given.as_deref() == Some(b"new"), "what was read stays");
    });
}

#[test]
fn a_scrub_beside_a_rebuild_stores_nothing_twice() {
    run(async |reactor| {
        let mut bench = bench(&reactor, 6, 4, 2);
        bench.options.rebuild_bytes_per_s = 10_000;
        let array = bench.open().await;
        fill(&array, 120, 1).await;
        settled(&reactor).await;
        let first = bench.fresh(1, 61);
        array.replace(1, first).await.unwrap();
        reactor.sleep_ns(10_000_000).await;
        array.scrub();
        bench.whole(&array).await;
        settled(&reactor).await;
        check(&array, 120, 1).await;
        assert_eq!(found_sets(&bench).await.1, 0, "ghosts");
    });
}

/// A transaction that holds everything looks at what is packed, and its device is out.
#[test]
fn a_transaction_that_holds_everything_reads_what_is_packed_without_its_device() {
    run(async |reactor| {
        let bench = bench(&reactor, 6, 4, 2);
        let array = bench.open().await;
        fill(&array, 24, 1).await;
        settled(&reactor).await;
        array.take_out(placement::primary(b"key:5", 6), "for a test");
        reactor.sleep_ns(1_000_000).await;
        let hold = Op::Transaction { partition: 0, id: None, action: Action::Hold(Held::everything()) };
        let Ok(Output::Held(id)) = execute(&array, hold).await else { panic!() };
        let action = Action::Retrieve { container: DB, key: b"key:5".to_vec(), range: None, pin: false };
        let look = Op::Transaction { partition: 0, id: Some(id), action };
        let Ok(Output::Found(item)) = execute(&array, look).await else { panic!() };
        assert_eq!(item.bytes, value(5, 1));
    });
}

/// Two transactions each look at what is in a set with what the other holds, and devices are out.
#[test]
fn transactions_that_hold_values_of_each_others_sets_do_not_wait_for_ever() {
    run(async |reactor| {
        let bench = bench(&reactor, 6, 4, 2);
        let array = bench.open().await;
        fill(&array, 24, 1).await;
        settled(&reactor).await;
        let (found, _) = found_sets(&bench).await;
        let of = |set: &Set, primary: usize| {
            let key = |it: &&crate::set::Packed| placement::primary(&it.key, 6) == primary;
            set.values.iter().find(key).map(|it| it.key.clone())
        };
        let both = |out: usize| found.iter().filter(move |set| of(set, out).is_some()).collect::<Vec<_>>();
        let out = (0..6).find(|out| both(*out).len() > 1).unwrap();
        let (a, b) = (both(out)[0], both(out)[1]);
        let other = |set: &Set| {
            set.values.iter().find(|it| placement::primary(&it.key, 6) != out).unwrap().key.clone()
        };
        array.take_out(out, "for a test");
        reactor.sleep_ns(1_000_000).await;
        let mut each = Vec::new();
        // The first looks at its own of set a, and holds another of set b; the second the other way round.
        for (looks, holds) in [(of(a, out).unwrap(), other(b)), (of(b, out).unwrap(), other(a))] {
            let held = Held::keys(vec![(DB, looks.clone()), (DB, holds)]);
            let hold = Op::Transaction { partition: 0, id: None, action: Action::Hold(held) };
            let Ok(Output::Held(id)) = execute(&array, hold).await else { panic!() };
            each.push((id, looks));
        }
        let looks = each.into_iter().map(async |(id, key)| {
            let action = Action::Retrieve { container: DB, key, range: None, pin: false };
            let looked = execute(&array, Op::Transaction { partition: 0, id: Some(id), action }).await;
            assert!(matches!(looked, Ok(Output::Found(_)) | Err(Error::Overloaded)), "{looked:?}");
        });
        join_all(looks).await;
    });
}

/// As after a round of which members 3 and one holder got nothing, whose first key got one of its two copies
/// before the server died again; with that crash the key's own device is lost.
#[test]
fn the_only_copy_does_not_give_way_to_a_stub_of_an_unfinished_set() {
    run(async |reactor| {
        let bench = bench(&reactor, 6, 4, 2);
        let array = bench.open().await;
        let s: Vec<String> = (0..4).map(|primary| key_at(primary, "s")).collect();
        fill(&array, 1, 1).await;
        let each = s.iter().enumerate().map(async |(number, name)| {
            set(&array, name, &value(20 + number, 1)).await.unwrap();
        });
        join_all(each).await;
        settled(&reactor).await;
        let (found, _) = found_sets(&bench).await;
        let key = s[0].clone().into_bytes();
        let of = found.iter().find(|set| set.values.iter().any(|it| it.key == key)).unwrap();
        let Ok(Output::Found(own)) = execute(&bench.below[0], retrieve_op(container(DB, 0), &s[0])).await
        else {
            panic!()
        };
        let header = Header { role: 1, ..Header::decode(&own.bytes).unwrap() };
        let copy = Op::Store {
            container: container(DB, 1),
            key: key.clone(),
            value: plimsoll_kv::Value::from(header.before(own.bytes[32..].to_vec())),
            condition: Condition::None,
            expiry: Expiry::Never,
            retain: false,
            want_previous: false,
            form: None,
        };
        execute(&bench.below[1], copy).await.unwrap();
        let delete = |container, key| Op::Delete { container, key, condition: Condition::None };
        let other = of.values.iter().find(|it| placement::primary(&it.key, 6) == 3).unwrap();
        execute(&bench.below[3], delete(container(DB, 0), other.key.clone())).await.unwrap();
        let holder = usize::from(of.holders[0]);
        execute(&bench.below[holder], delete(sets(DB), set_key(of.name))).await.unwrap();
        array.half_written.borrow_mut().entry((DB, key.clone())).or_default();
        array.suspect(&array.place(DB, &key).unwrap());
        array.take_out(0, "for a test");
        reactor.sleep_ns(1_000_000).await;
        let given = get(&array, &s[0]).await;
        assert_eq!(given.unwrap().bytes, value(20, 1));
    });
}

/// Found by the simulator, seed 192: a device came back to a value that expired then, and took a part of the
/// parities along.
#[test]
fn a_device_that_comes_back_keeps_what_expires_for_its_set() {
    run(async |reactor| {
        let mut bench = bench(&reactor, 3, 2, 1);
        let array = bench.open().await;
        fill(&array, 24, 1).await;
        settled(&reactor).await;
        let (found, _) = found_sets(&bench).await;
        let full = found.iter().find(|set| set.values.len() == 2).unwrap();
        let (expires, stays) = (full.values[0].key.clone(), full.values[1].key.clone());
        let primary = placement::primary(&expires, 3);
        array.take_out(primary, "for a test");
        reactor.sleep_ns(1_000_000).await;
        let (expiry, condition) = (Expiry::At(reactor.wall_ms() + 3000), Condition::None);
        execute(&array, Op::SetExpiry { container: DB, key: expires, expiry, condition }).await.unwrap();
        let fresh = bench.fresh(primary, 77);
        array.replace(primary, fresh).await.unwrap();
        bench.whole(&array).await;
        reactor.sleep_ns(5_000_000_000).await;
        bench.members[placement::primary(&stays, 3)].set_policy(FaultPolicy::From(1));
        let name = String::from_utf8_lossy(&stays).into_owned();
        assert!(bytes(&array, &name).await.is_some(), "{name}");
    });
}

/// Where every key is compared, none of them ever counts as compared (seed 20115).
#[test]
fn a_device_is_given_its_stubs_though_every_key_is_compared() {
    run(async |reactor| {
        let mut bench = bench(&reactor, 3, 2, 1);
        let array = bench.open().await;
        fill(&array, 24, 1).await;
        settled(&reactor).await;
        let (found, _) = found_sets(&bench).await;
        let full = found.iter().find(|set| set.values.len() == 2).unwrap();
        let name = String::from_utf8_lossy(&full.values[0].key).into_owned();
        let holder = (placement::primary(name.as_bytes(), 3) + 1) % 3;
        array.distrusted.set(true);
        let fresh = bench.fresh(holder, 77);
        array.replace(holder, fresh).await.unwrap();
        bench.whole(&array).await;
        settled(&reactor).await;
        assert_eq!(pieces(&bench, &name, 2).await, [Some(full.values[0].value_bytes as usize), None]);
    });
}

/// Nobody regroups then, and what is written then is in no set (seed 21420).
#[test]
fn what_is_overwritten_again_and_again_while_a_device_is_out_leaves_one_ghost_each() {
    run(async |reactor| {
        let bench = bench(&reactor, 3, 2, 1);
        let array = bench.open().await;
        fill(&array, 24, 1).await;
        settled(&reactor).await;
        array.take_out(2, "for a test");
        settled(&reactor).await;
        for generation in 2..12 {
            fill(&array, 24, generation).await;
        }
        settled(&reactor).await;
        let (_, ghosts) = found_sets(&bench).await;
        assert!(ghosts <= 24, "{ghosts} ghosts of 24 keys");
        check(&array, 24, 11).await;
    });
}

/// Who would know is out, and where another set's values have a stub this one's have none.
#[test]
fn a_value_of_a_set_with_fewer_parities_than_others_leaves_its_ghost() {
    run(async |reactor| {
        let few = Mechanism::Packing { data: 3, parities: 1 };
        let policy = Policy::from(Mechanism::Packing { data: 1, parities: 2 }).with_custom(&[few]).unwrap();
        let bench = Bench::by_size(&reactor, 6, &[policy]);
        let array = bench.open().await;
        // The first value's member has the second's stub.
        let (first, second) = (key_at(1, "s"), key_at(0, "t"));
        for name in [&first, &second] {
            let wish = wish_op(name, Value::from(value(20, 1)), Some(few.form()));
            execute(&array, wish).await.unwrap();
        }
        settled(&reactor).await;
        bench.members[1].set_policy(FaultPolicy::From(1));
        del(&array, &second).await.unwrap();
        assert_eq!(bytes(&array, &first).await, Some(value(20, 1)));
    });
}

/// With two devices replaced and a block of a third one damaged, keys were taken for ones whose set a crash
/// had cut short, and deleted: absent instead of an error.
#[test]
fn a_key_of_whose_set_one_piece_is_damaged_and_one_is_gone_is_lost_and_not_absent() {
    run(async |reactor| {
        let mut bench = bench(&reactor, 3, 2, 1);
        let rot = Error::Unreadable("rot".to_owned());
        let faults = [0, 1, 2].map(|member| bench.fails(member, &rot));
        let array = bench.open().await;
        fill(&array, 40, 1).await;
        settled(&reactor).await;
        let (found, _) = found_sets(&bench).await;
        let [damaged, gone] = [0, 1].map(|at| found[0].values[at].key.clone());
        let delete = Op::Delete { container: DB, key: gone.clone(), condition: Condition::None };
        execute(&bench.below[placement::primary(&gone, 3)], delete).await.unwrap();
        let rotten = damaged.clone();
        let fails =
            move |request: &Request| matches!(&request.op, Op::Retrieve { key, .. } if *key == rotten);
        faults[placement::primary(&damaged, 3)].set_policy(FaultPolicy::When(Box::new(fails)));
        // As after a kill: any key may have been cut short.
        let name = String::from_utf8_lossy(&damaged).into_owned();
        array.distrusted.set(true);
        array.suspect(&array.place(DB, &damaged).unwrap());
        for _ in 0..2 {
            let read = get(&array, &name).await;
            assert!(matches!(read, Err(Error::Unreadable(_))), "{read:?}");
        }
        faults[placement::primary(&damaged, 3)].set_policy(FaultPolicy::Never);
        assert!(bytes(&array, &name).await.is_some(), "nothing of it was taken away");
    });
}
