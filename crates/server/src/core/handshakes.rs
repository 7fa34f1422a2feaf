//! Handshakes of TLS that are under way on this core.
//!
//! Role: lets a connection come to its session when its handshake is over, and bounds those that are not.
//! Place on the path: between the accept and the session.
//!
//! Invariants: a connection counts among the clients from its accept; at most [`HANDSHAKES_MAX`] are under
//! way, each for [`HANDSHAKE_NS_MAX`] at most; clients that fail fill neither the memory nor the log.

use super::Core;
use crate::limits::{HANDSHAKE_NS_MAX, HANDSHAKES_MAX};
use crate::stream::Stream;
use crate::tls::{HandshakeError, TlsSocket, handshake};
use futures_util::future::{Either, select};
use plimsoll_reactor::sync::Bell;
use plimsoll_reactor::{Socket, Work};
use rustls::ServerConfig;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

/// Those under way, the oldest first.
#[derive(Default)]
pub(super) struct Handshakes {
    /// Each with what cuts it.
    under_way: RefCell<BTreeMap<u64, Rc<Bell>>>,
    next: Cell<u64>,
}

impl Handshakes {
    /// A new one begins; the oldest one is cut if there are too many.
    fn enter(&self) -> (u64, Rc<Bell>) {
        let (number, cut) = (self.next.get(), Rc::new(Bell::default()));
        self.next.set(number + 1);
        let mut under_way = self.under_way.borrow_mut();
        if under_way.len() >= HANDSHAKES_MAX
            && let Some((_, oldest)) = under_way.pop_first()
        {
            oldest.ring();
        }
        under_way.insert(number, cut.clone());
        (number, cut)
    }

    /// Ends all.
    pub(super) fn cut_all(&self) {
        self.under_way.borrow().values().for_each(|cut| cut.ring());
    }
}

/// Why a client did not come through.
enum Failure {
    Cut,
    Late,
    Error(HandshakeError),
}

/// Begins the handshake of a connection that was admitted.
pub(super) fn begin(core: &Rc<Core>, socket: Socket, local: SocketAddr, config: Arc<ServerConfig>) {
    let (number, cut) = core.handshakes.enter();
    let core = core.clone();
    core.reactor.clone().spawn(Work::Network, async move {
        let peer = socket.peer();
        let result = {
            let shaken = pin!(handshake(&socket, config));
            let late = pin!(core.reactor.sleep_ns(HANDSHAKE_NS_MAX));
            match select(shaken, select(pin!(cut.heard()), late)).await {
                Either::Left((result, _)) => result.map_err(Failure::Error),
                Either::Right((Either::Left(_), _)) => Err(Failure::Cut),
                Either::Right((Either::Right(_), _)) => Err(Failure::Late),
            }
        };
        core.handshakes.under_way.borrow_mut().remove(&number);
        match result {
            Ok(shaken) if !core.stopping.get() => {
                core.begin(Stream::Tls(Box::new(TlsSocket::new(socket, shaken))), local);
            }
            result => {
                core.shared.dismiss();
                if let Err(failure) = result {
                    core.note_failure(peer, &failure);
                }
                // Only now: who sees the end finds it counted.
                drop(socket);
            }
        }
    });
}

impl Core {
    /// Counts a client that did not come through, and tells of it unless one was told of just now.
    fn note_failure(&self, peer: Option<SocketAddr>, failure: &Failure) {
        let why: &dyn std::fmt::Display = match failure {
            Failure::Error(HandshakeError::Silent) => return,
            Failure::Cut if self.stopping.get() => return,
            Failure::Cut => &"cut: too many handshakes are under way",
            Failure::Late => &"not over in time",
            Failure::Error(error) => error,
        };
        self.shared.core(self.reactor.core()).handshakes_failed.add(1);
        let Some(untold) = self.seldom.handshakes.due(self.reactor.now_ns()) else { return };
        let peer = peer.map(|address| address.to_string()).unwrap_or_default();
        tracing::warn!(peer, %why, untold, "a client did not come through the TLS handshake");
    }
}
