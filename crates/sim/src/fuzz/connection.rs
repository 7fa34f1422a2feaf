//! Clients on connections.
use super::life::Life;
use plimsoll_reactor::sim::World;
use std::rc::Rc;
pub(super) fn start(_life: &Rc<Life>, _world: &World) {}
