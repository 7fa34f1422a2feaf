//! The manner of a request: what it says besides what to do.
//!
//! Role: whatever the array asks members for, for a client or by itself, it asks in a manner: with whose
//! durability, of which class, within which transaction. Place on the path: every request to a member.
//!
//! Invariants: what the array writes is durable when it says so, on every member; what a transaction holds
//! is asked for within it, or by who changes nothing and waits for nobody.

use plimsoll_kv::transaction::Action;
use plimsoll_kv::{Class, ContainerId, Durability, Op, Request, Room, TransactionId};

/// What a request says besides what to do.
#[derive(Clone)]
pub(crate) struct Manner {
    request: Request,
    order: Order,
    partition: u16,
}

/// When keys are read that somebody may hold.
#[derive(Clone, Copy)]
enum Order {
    /// After those who hold them.
    InTurn,
    /// By the transaction that holds them: on the members, too.
    Within(TransactionId),
    /// As they are now, whoever holds them.
    Aside,
}

impl Manner {
    pub(crate) fn of(request: &Request) -> Manner {
        // Not a clone of all of it: its operation may bring a long value.
        let Request { tenant, class, deadline_ns: _, durability, lifetime, room: _, op: _ } = *request;
        // Members are waited for: a write that one refused because it is late others would have made.
        let request = Request {
            tenant,
            class,
            deadline_ns: 0,
            durability,
            lifetime,
            room: Room::OfStores,
            op: Op::Sync,
        };
        Manner { request, order: Order::InTurn, partition: 0 }
    }

    /// The transaction that asks, if one does.
    pub(crate) fn transaction(&self) -> Option<TransactionId> {
        match self.order {
            Order::Within(id) => Some(id),
            Order::InTurn | Order::Aside => None,
        }
    }

    /// What is promised of what is written.
    pub(crate) fn durability(&self) -> Durability {
        self.request.durability
    }

    /// The same, of a transaction.
    pub(crate) fn within(&self, partition: u16, id: TransactionId) -> Manner {
        Manner { order: Order::Within(id), partition, ..self.clone() }
    }

    /// The same for who waits for nobody's keys.
    pub(crate) fn aside(&self, partition: u16) -> Manner {
        Manner { order: Order::Aside, partition, ..self.clone() }
    }

    /// Whether somebody waits.
    pub(crate) fn class(&self) -> Class {
        self.request.class
    }

    /// True for what a transaction asks.
    pub(crate) fn is_within(&self) -> bool {
        self.transaction().is_some()
    }

    /// Reads a key.
    pub(crate) fn retrieve(
        &self,
        container: ContainerId,
        key: &[u8],
        range: Option<(u64, u64)>,
        pin: bool,
    ) -> Request {
        let key = key.to_vec();
        if let Order::InTurn = self.order {
            return self.request(Op::Retrieve { container, key, range, pin });
        }
        let action = Action::Retrieve { container, key, range, pin };
        self.request(Op::Transaction { partition: self.partition, id: self.transaction(), action })
    }

    /// A request of the array's own, that nobody waits for.
    pub(crate) fn background() -> Manner {
        let request = Request::new(Durability::Sync, Op::Sync);
        Manner::of(&Request { class: Class::Background, ..request })
    }

    /// The same request for something else. What the array writes is durable when it says so, on every
    /// member: a slot of the journal is given back then.
    pub(crate) fn request(&self, op: Op) -> Request {
        let durability = match self.request.durability {
            Durability::Async => Durability::Group,
            durable => durable,
        };
        Request { op, durability, ..self.request.clone() }
    }
}
