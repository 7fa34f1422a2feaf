//! The array beside one device: any operations, with members that fail, come back and are replaced, give what
//! the one device gives.

use super::bench::{Bench, bytes, del, edit, execute, get, keys, run, set, wish_op};
use crate::{Array, Mechanism, MemberState, Policy, SizeRange};
use plimsoll_kv::fault::FaultPolicy;
use plimsoll_kv::memory::{Memory, MemoryOptions};
use plimsoll_kv::{Edit, Error, Op, Value};
use plimsoll_reactor::Reactor;
use proptest::prelude::*;
use std::rc::Rc;

#[derive(Clone, Debug)]
enum Step {
    /// With a wish, of those mechanisms that there are, or without one.
    Set(u8, Vec<u8>, Option<usize>),
    Append(u8, Vec<u8>),
    Delete(u8),
    Get(u8),
    Clear,
    Fail(usize),
    Replace,
    Scrub,
    /// Nothing is asked for a while.
    Rest,
    Crash,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0_u8..12;
    let value = || proptest::collection::vec(any::<u8>(), 0..40);
    let step = prop_oneof![
        6 => (key.clone(), value(), proptest::option::of(0_usize..8))
            .prop_map(|(key, value, wish)| Step::Set(key, value, wish)),
        3 => (key.clone(), value()).prop_map(|(key, value)| Step::Append(key, value)),
        3 => key.clone().prop_map(Step::Delete),
        4 => key.prop_map(Step::Get),
        1 => Just(Step::Clear),
        1 => (0_usize..8).prop_map(Step::Fail),
        2 => Just(Step::Replace),
        1 => Just(Step::Scrub),
        2 => Just(Step::Rest),
        1 => Just(Step::Crash),
    ];
    proptest::collection::vec(step, 1..60)
}

/// An array and the device that it is compared with.
struct Pair {
    bench: Bench,
    array: Rc<Array>,
    model: Rc<Memory>,
    /// Members that may fail at a time.
    losses: u32,
    replaced: u8,
    /// Policies that come into force one after the other, at each start.
    policies: Vec<Policy>,
    /// Whether the array does without members' memory, likewise.
    stateless: [bool; 2],
    starts: usize,
    /// A member that fails, whether the array has noticed or not.
    broken: Option<usize>,
}

impl Pair {
    async fn take(&mut self, step: Step) {
        let name = |key: u8| format!("key:{key}");
        match step {
            Step::Set(key, value, wish) => {
                set(&self.model, &name(key), &value).await.unwrap();
                let mechanisms: Vec<Mechanism> = self.bench.options.policy.mechanisms().collect();
                let form = wish.map(|wish| mechanisms[wish % mechanisms.len()].form());
                execute(&self.array, wish_op(&name(key), Value::from(value), form)).await.unwrap();
            }
            Step::Append(key, value) => {
                edit(&self.model, &name(key), Edit::Append(value.clone())).await.unwrap();
                edit(&self.array, &name(key), Edit::Append(value)).await.unwrap();
            }
            Step::Delete(key) => {
                let (expected, given) =
                    (del(&self.model, &name(key)).await, del(&self.array, &name(key)).await);
                assert_eq!(expected.err(), given.err());
            }
            Step::Get(key) => {
                assert_eq!(bytes(&self.model, &name(key)).await, bytes(&self.array, &name(key)).await)
            }
            Step::Clear => {
                execute(&self.model, Op::Clear { container: super::DB }).await.unwrap();
                execute(&self.array, Op::Clear { container: super::DB }).await.unwrap();
            }
            Step::Fail(member) => self.fail(member),
            Step::Replace => self.replace().await,
            Step::Scrub => self.array.scrub(),
            Step::Rest => self.bench.reactor.sleep_ns(100_000_000).await,
            Step::Crash => {
                self.starts += 1;
                self.bench.options.policy = self.policies[self.starts % self.policies.len()].clone();
                self.bench.options.stateless = self.stateless[self.starts % 2];
                self.array = match (self.bench.try_open(&[]).await, self.broken) {
                    (Ok(array), _) => array,
                    // A member that failed cannot be read at all: it goes on without.
                    (Err(crate::OpenError::Device { .. }), Some(broken)) => {
                        let mut degraded = self.bench.clone();
                        degraded.options.degraded = true;
                        degraded.try_open(&[broken]).await.expect("the others are there")
                    }
                    (Err(error), _) => panic!("{error}"),
                };
            }
        }
    }

    /// Lets a member fail, if the array can stand it.
    fn fail(&mut self, member: usize) {
        let count = self.bench.members.len();
        let whole = self.array.status().members.iter().all(|member| member.state == MemberState::In);
        if self.broken.is_none() && whole && self.losses > 0 {
            self.bench.members[member % count].set_policy(FaultPolicy::From(1));
            self.broken = Some(member % count);
        }
    }

    async fn replace(&mut self) {
        let Some(broken) = self.broken.take() else { return };
        self.replaced += 1;
        let fresh = self.bench.fresh(broken, 100 + self.replaced);
        self.array.replace(broken, fresh).await.unwrap();
    }

    async fn compare(&self) {
        assert_eq!(keys(&self.model).await, keys(&self.array).await);
        for key in 0..12 {
            let name = format!("key:{key}");
            match (get(&self.model, &name).await, get(&self.array, &name).await) {
                (Ok(expected), Ok(given)) => assert_eq!(expected.bytes, given.bytes, "{name}"),
                (expected, given) => {
                    assert_eq!((expected.err(), given.err()), (Some(Error::NotFound), Some(Error::NotFound)));
                }
            }
        }
    }
}

const MEMBERS: u32 = 6;

fn mechanism() -> impl Strategy<Value = Mechanism> {
    prop_oneof![
        1 => Just(Mechanism::Hashing),
        4 => (2_u32..=4).prop_map(|copies| Mechanism::Replication { copies }),
        4 => (1_u32..=4, 1_u32..=2).prop_map(|(data, parities)| Mechanism::Splitting { data, parities }),
        4 => (1_u32..=4, 1_u32..=2).prop_map(|(data, parities)| Mechanism::Packing { data, parities }),
    ]
}

/// One to three ranges of the sizes that are stored, and what may be wished for beside them.
fn policy() -> impl Strategy<Value = Policy> {
    let custom = proptest::collection::vec(mechanism(), 0..=2);
    (proptest::collection::vec(mechanism(), 1..=3), custom).prop_map(|(mechanisms, mut custom)| {
        custom.dedup();
        let ends = [8, 24, u64::MAX].into_iter().skip(3 - mechanisms.len());
        let range = |(value_bytes_max, mechanism)| SizeRange { value_bytes_max, mechanism };
        let ranges: Vec<SizeRange> = ends.zip(mechanisms).map(range).collect();
        Policy::by_size(&ranges).and_then(|policy| policy.with_custom(&custom)).expect("they ascend")
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_sizes_by_any_mechanisms_give_what_one_device_gives(
        policies in proptest::collection::vec(policy(), 1..=3),
        stateless in any::<[bool; 2]>(),
        steps in steps(),
    ) {
        let all = policies.iter().flat_map(Policy::mechanisms);
        let losses = all.map(|mechanism| mechanism.fatal_losses() - 1).min().expect("there is one");
        compare(&steps, (losses, stateless), |reactor| {
            Bench::by_size(reactor, MEMBERS as usize, &policies)
        });
    }

    #[test]
    fn copies_give_what_one_device_gives(members in 1_usize..6, copies in 1_u32..4, steps in steps()) {
        let copies = copies.min(members as u32);
        compare(&steps, (copies - 1, [false, true]), |reactor| Bench::new(reactor, members, copies));
    }

    #[test]
    fn shards_give_what_one_device_gives(
        (data, parities, spare) in (1_u32..5, 1_u32..3, 0_usize..3),
        steps in steps(),
    ) {
        let members = (data + parities) as usize + spare;
        compare(&steps, (parities, [false, true]), |reactor| Bench::split(reactor, members, data, parities));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn what_is_packed_gives_what_one_device_gives(
        (data, parities, spare) in (1_u32..5, 1_u32..3, 0_usize..3),
        stateless in any::<[bool; 2]>(),
        steps in steps(),
    ) {
        let members = (data + parities) as usize + spare;
        let packing = Policy::from(Mechanism::Packing { data, parities });
        compare(&steps, (parities, stateless), |reactor| {
            Bench::by_size(reactor, members, std::slice::from_ref(&packing))
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// The drives lose power whenever the server dies, and what they had not flushed.
    #[test]
    fn over_kv_ssds_too_any_mechanisms_give_what_one_device_gives(
        policies in proptest::collection::vec(policy(), 1..=3),
        stateless in any::<[bool; 2]>(),
        steps in steps(),
    ) {
        let all = policies.iter().flat_map(Policy::mechanisms);
        let losses = all.map(|mechanism| mechanism.fatal_losses() - 1).min().expect("there is one");
        compare(&steps, (losses, stateless), |reactor| {
            Bench::over_ssds(reactor, MEMBERS as usize, &policies)
        });
    }
}

/// Takes the same steps with an array and with one device.
fn compare(steps: &[Step], (losses, stateless): (u32, [bool; 2]), bench: impl Fn(&Reactor) -> Bench) {
    run(|reactor| {
        let (steps, mut bench) = (steps.to_vec(), bench(&reactor));
        bench.options.stateless = stateless[0];
        async move {
            let array = bench.open().await;
            let model = Memory::new(&reactor, MemoryOptions::default());
            let policies = bench.policies.clone();
            let mut pair = Pair {
                bench,
                array,
                model,
                losses,
                replaced: 0,
                policies,
                stateless,
                starts: 0,
                broken: None,
            };
            for (number, step) in steps.into_iter().enumerate() {
                if number % 4 == 0 {
                    pair.array.kept.waits();
                }
                pair.take(step).await;
            }
            pair.compare().await;
        }
    });
}
