//! Histories: members that fail, come back and are filled while the server dies and clients go on, in any
//! order. What was acknowledged is there in the end, and what was read of a write that failed stays so.

use super::bench::{Bench, del, get, keys, run, set};
use crate::{Array, Mechanism, MemberState, OpenError, Policy, SizeRange};
use plimsoll_kv::Error;
use plimsoll_kv::fault::FaultPolicy;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

#[derive(Clone, Debug)]
enum Step {
    Set(u8, u8),
    Delete(u8),
    Get(u8),
    Fail(usize),
    /// All answer again, and are filled.
    Heal,
    /// All answer again, and those that are out are opened anew and filled.
    Reopen,
    /// The server dies, and is started with those that were in or answer; if it does not start so, with all.
    Crash,
    Scrub,
    Rest,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0_u8..24;
    let step = prop_oneof![
        8 => (key.clone(), any::<u8>()).prop_map(|(key, value)| Step::Set(key, value)),
        3 => key.clone().prop_map(Step::Delete),
        4 => key.prop_map(Step::Get),
        3 => (0_usize..6).prop_map(Step::Fail),
        1 => Just(Step::Heal),
        1 => Just(Step::Reopen),
        1 => Just(Step::Crash),
        1 => Just(Step::Scrub),
        2 => Just(Step::Rest),
    ];
    proptest::collection::vec(step, 1..80)
}

/// What a key may hold: one thing, unless a change of it failed.
type May = BTreeSet<Option<Vec<u8>>>;

struct Tried {
    bench: Bench,
    array: Rc<Array>,
    failed: BTreeSet<usize>,
    may: BTreeMap<u8, May>,
}

impl Tried {
    fn may(&mut self, key: u8) -> &mut May {
        self.may.entry(key).or_insert_with(|| May::from([None]))
    }

    fn changed<T>(&mut self, key: u8, to: Option<Vec<u8>>, done: Result<T, Error>) {
        match done {
            Ok(_) => *self.may(key) = May::from([to]),
            Err(Error::NotFound) => {
                assert!(self.may(key).contains(&None), "{key} was there");
                *self.may(key) = May::from([None]);
            }
            Err(_) => drop(self.may(key).insert(to)),
        }
    }

    async fn look(&mut self, key: u8, must: bool) {
        let found = match get(&self.array, &format!("k{key}")).await {
            Ok(item) => Some(item.bytes),
            Err(Error::NotFound) => None,
            Err(error) => return assert!(!must, "k{key}: {error}"),
        };
        assert!(self.may(key).contains(&found), "k{key}: {found:?} of {:?}", self.may[&key]);
        *self.may(key) = May::from([found]);
    }

    fn heal(&mut self) {
        self.bench.members.iter().for_each(|member| member.set_policy(FaultPolicy::Never));
        self.failed.clear();
    }

    async fn take(&mut self, step: Step) {
        match step {
            Step::Set(key, value) => {
                let value = vec![value; 1 + usize::from(value) % 40];
                let done = set(&self.array, &format!("k{key}"), &value).await;
                self.changed(key, Some(value), done);
            }
            Step::Delete(key) => {
                let done = del(&self.array, &format!("k{key}")).await;
                self.changed(key, None, done);
            }
            Step::Get(key) => self.look(key, false).await,
            Step::Fail(member) => {
                self.bench.members[member].set_policy(FaultPolicy::From(1));
                self.failed.insert(member);
            }
            Step::Heal => {
                self.heal();
                (0..6).for_each(|member| self.array.rebuild(member));
            }
            Step::Reopen => {
                self.heal();
                let members = self.array.status().members;
                for member in (0..6).filter(|member| members[*member].state == MemberState::Out) {
                    self.array.let_go(member);
                    let back = self.array.bring_back(member, self.bench.opened_anew(member)).await;
                    back.expect("it is the one that went");
                    self.array.rebuild(member);
                }
            }
            Step::Crash => {
                // Who was in last is there: of others nobody could know that they were left behind.
                let status = self.array.status();
                let is_in = |member: &usize| status.members[*member].state == MemberState::In;
                let (were_in, missing): (Vec<usize>, Vec<usize>) =
                    self.failed.iter().partition(|it| is_in(it));
                for member in were_in {
                    self.bench.members[member].set_policy(FaultPolicy::Never);
                    self.failed.remove(&member);
                }
                self.array = match self.bench.try_open(&missing).await {
                    Ok(array) => array,
                    Err(OpenError::TooManyMissing { .. }) => {
                        self.heal();
                        self.bench.open().await
                    }
                    Err(error) => panic!("{error}"),
                };
            }
            Step::Scrub => self.array.scrub(),
            Step::Rest => self.bench.reactor.sleep_ns(1_000_000_000).await,
        }
    }
}

/// Takes steps, heals what is left and looks at every key.
fn replay(policy: &Policy, steps: &[Step]) {
    run(|reactor| {
        let (bench, steps) = (Bench::by_size(&reactor, 6, std::slice::from_ref(policy)), steps.to_vec());
        async move {
            let array = bench.open().await;
            let mut tried = Tried { bench, array, failed: BTreeSet::new(), may: BTreeMap::new() };
            for step in steps {
                tried.take(step).await;
            }
            tried.heal();
            tried.array = tried.bench.open().await;
            tried.bench.whole(&tried.array).await;
            for key in 0..28 {
                tried.look(key, true).await;
            }
            let left = tried.may.values().filter(|may| !may.contains(&None)).count();
            assert_eq!(keys(&tried.array).await, left as u64, "no piece of another is left");
        }
    });
}

/// Found by the test below: those that were being filled got a record that says so, and the one that had
/// failed was emptied.
#[test]
fn a_key_is_not_called_lost_because_a_device_has_just_failed() {
    for number in 0..24 {
        let steps = [
            Step::Set(number, 0),
            Step::Fail(3),
            Step::Fail(4),
            Step::Set(number, 1),
            Step::Heal,
            Step::Set(number + 1, 0),
            Step::Heal,
            Step::Set(number + 2, 0),
            Step::Set(number + 3, 0),
            Step::Fail(1),
            Step::Set(number + 2, 0),
        ];
        replay(&Mechanism::Splitting { data: 4, parities: 2 }.into(), &steps);
    }
}

fn shards_or(other: Mechanism, parities: u32, data: u32) -> Policy {
    let ranges = [
        SizeRange { value_bytes_max: 20, mechanism: Mechanism::Splitting { data, parities } },
        SizeRange { value_bytes_max: u64::MAX, mechanism: other },
    ];
    Policy::by_size(&ranges).unwrap()
}

/// Found by the test below: it was in with what those few knew, and the one that had gone was emptied then.
#[test]
fn a_member_that_was_filled_by_too_few_is_not_in() {
    let steps = [
        Step::Rest,
        Step::Set(10, 100),
        Step::Set(13, 0),
        Step::Fail(2),
        Step::Fail(4),
        Step::Set(3, 0),
        Step::Heal,
        Step::Set(0, 0),
        Step::Heal,
        Step::Fail(4),
        Step::Set(0, 0),
        Step::Fail(3),
        Step::Set(0, 0),
        Step::Set(0, 0),
        Step::Set(0, 0),
    ];
    replay(&shards_or(Mechanism::Packing { data: 1, parities: 2 }, 2, 1), &steps);
}

/// Found by the test below: what had been read of a write that was refused was gone when others were back.
#[test]
fn what_was_being_changed_when_too_many_went_away_is_decided_when_they_are_back() {
    let packed = shards_or(Mechanism::Packing { data: 1, parities: 2 }, 2, 1);
    let steps = [Step::Fail(1), Step::Fail(0), Step::Set(0, 0), Step::Fail(2), Step::Set(4, 0), Step::Get(4)];
    replay(&packed, &steps);
    // It was put back while another went away.
    let packed = shards_or(Mechanism::Packing { data: 3, parities: 1 }, 1, 3);
    let mut steps = vec![Step::Fail(4), Step::Set(0, 0), Step::Fail(1), Step::Set(3, 0), Step::Get(3)];
    steps.extend([Step::Heal, Step::Fail(2), Step::Set(0, 0)]);
    replay(&packed, &steps);
    // Nobody who was there knew of it.
    let packed = shards_or(Mechanism::Packing { data: 1, parities: 1 }, 1, 1);
    let mut steps = vec![Step::Fail(1), Step::Set(7, 0), Step::Fail(0), Step::Set(11, 0), Step::Heal];
    steps.extend([Step::Fail(5), Step::Set(0, 0), Step::Crash, Step::Get(11)]);
    replay(&packed, &steps);
    // A delete was read, and undone.
    let copies = shards_or(Mechanism::Replication { copies: 3 }, 2, 2);
    let steps = [
        Step::Fail(1),
        Step::Fail(4),
        Step::Set(4, 20),
        Step::Crash,
        Step::Set(5, 0),
        Step::Fail(2),
        Step::Delete(4),
        Step::Get(4),
    ];
    replay(&copies, &steps);
}

/// Found by the test below: a scrub put copies in the place of stubs while too many were away to mend a set,
/// and an overwrite kept nothing then of what those needed who came back.
#[test]
fn a_set_of_which_too_many_devices_are_away_is_left_as_it_is() {
    let mut steps: Vec<Step> = [5, 4, 12, 0, 7, 13, 22].map(|key| Step::Set(key, 0)).into();
    steps.extend([Step::Rest, Step::Set(13, 0), Step::Rest, Step::Scrub, Step::Fail(3), Step::Fail(4)]);
    steps.extend([Step::Delete(0), Step::Set(0, 0), Step::Heal, Step::Set(0, 0), Step::Set(4, 0)]);
    replay(&Mechanism::Packing { data: 4, parities: 1 }.into(), &steps);
}

/// Found by the test below: one that answered no reads, and had not been written since, had a stub of it.
#[test]
fn a_set_of_which_a_device_may_have_a_stub_is_not_taken_apart() {
    let mut steps: Vec<Step> = [2, 18, 2].map(|key| Step::Set(key, 0)).into();
    steps.extend([Step::Rest, Step::Fail(4), Step::Set(2, 0), Step::Rest, Step::Fail(3), Step::Set(18, 0)]);
    replay(&Mechanism::Packing { data: 2, parities: 1 }.into(), &steps);
}

fn mechanism() -> impl Strategy<Value = Mechanism> {
    prop_oneof![
        Just(Mechanism::Hashing),
        (2_u32..=3).prop_map(|copies| Mechanism::Replication { copies }),
        (1_u32..=4, 1_u32..=2).prop_map(|(data, parities)| Mechanism::Splitting { data, parities }),
        (1_u32..=4, 1_u32..=2).prop_map(|(data, parities)| Mechanism::Packing { data, parities }),
    ]
}

/// Several, which survive as much as each other.
fn by_size() -> impl Strategy<Value = Policy> {
    (1_u32..=4, 1_u32..=2, 0_usize..3, 1_usize..3).prop_map(|(data, parities, first, next)| {
        let each = [
            Mechanism::Replication { copies: 1 + parities },
            Mechanism::Splitting { data, parities },
            Mechanism::Packing { data, parities },
        ];
        let ranges = [
            SizeRange { value_bytes_max: 20, mechanism: each[first] },
            SizeRange { value_bytes_max: u64::MAX, mechanism: each[(first + next) % 3] },
        ];
        Policy::by_size(&ranges).unwrap()
    })
}

/// The same histories each time; with PROPTEST_CASES as many others.
fn config() -> ProptestConfig {
    let asked = ProptestConfig::default();
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => asked,
        None => ProptestConfig { cases: 2000, rng_seed: RngSeed::Fixed(20_261_128), ..asked },
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn any_members_go_away_and_come_back_and_nothing_is_lost_or_comes_back(
        policy in prop_oneof![mechanism().prop_map(Policy::from), by_size()],
        steps in steps(),
    ) {
        // On a thread of its own: one that failed leaves its core behind, and is made shorter many times.
        let replayed = std::thread::spawn(move || replay(&policy, &steps)).join();
        prop_assert!(replayed.is_ok(), "the panic above");
    }
}
