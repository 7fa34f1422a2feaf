//! The claim to an address: the cores of a server listen on it together, two servers must not.
//!
//! Role: the cores share their port by `SO_REUSEPORT`, which would let a second server of the same user
//! join them and answer a part of the clients from another device. So a server claims its addresses
//! before it touches a device. Place on the path: none.
//!
//! Invariant: while a server lives, no other one listens on its address: the name is taken before the
//! look whether the port is free, and is given back by the system when the process ends, however it does.

use crate::core::Addresses;
use anyhow::{Context, Result, bail};
use plimsoll_reactor::cannot_listen;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener};
use tokio::time::{Duration, Instant};

/// Claimed addresses, until it is dropped.
pub(super) struct Claims {
    _names: Vec<UnixListener>,
}

/// How long a start waits for an address that is in use, and between two looks: the kernel may still be
/// closing the listeners of a server that was killed a moment ago.
const FREE_MAX: Duration = Duration::from_secs(5);
const FREE_LOOK: Duration = Duration::from_millis(50);

/// Claims the addresses for clients and that of the admin port, after waiting a little for each.
///
/// # Errors
/// Another server has claimed it, another process listens there, or nobody could: it is no address of this
/// machine, or takes a right that this process has not.
pub(super) async fn claim(addresses: Addresses, admin: SocketAddr) -> Result<Claims> {
    let mut names = Vec::new();
    let all = [("resp", addresses.plain), ("tls-resp", addresses.tls), ("admin", Some(admin))];
    for (setting, address) in all {
        if let Some(address) = address {
            names.extend(claim_one(setting, address).await?);
        }
    }
    Ok(Claims { _names: names })
}

/// Port 0 needs no name: the system gives a port that nobody has.
async fn claim_one(setting: &str, address: SocketAddr) -> Result<Option<UnixListener>> {
    let until = Instant::now() + FREE_MAX;
    let mut is_told = false;
    loop {
        match try_claim(setting, address)? {
            Claim::Held(name) => return Ok(name),
            Claim::Taken(by) if Instant::now() >= until => {
                bail!("{setting}: {by} {address}; stop it or choose another port with --{setting}")
            }
            Claim::Taken(_) => {
                if !std::mem::replace(&mut is_told, true) {
                    tracing::warn!("{setting}: {address} is in use; waiting {} s for it", FREE_MAX.as_secs());
                }
                tokio::time::sleep(FREE_LOOK).await;
            }
        }
    }
}

/// What came of a try.
enum Claim {
    Held(Option<UnixListener>),
    /// By whom.
    Taken(&'static str),
}

fn try_claim(setting: &str, address: SocketAddr) -> Result<Claim> {
    let mut name = None;
    if address.port() != 0 {
        name = take_name(address).with_context(|| format!("{setting}: {address} cannot be claimed"))?;
        if name.is_none() {
            return Ok(Claim::Taken("another server has"));
        }
    }
    match is_free(address).map_err(io::Error::from) {
        Ok(()) => Ok(Claim::Held(name)),
        Err(error) if error.kind() == ErrorKind::AddrInUse => Ok(Claim::Taken("another process listens on")),
        Err(error) => Err(cannot_listen(address, &error)).with_context(|| setting.to_owned()),
    }
}

/// The name of an address, unless somebody has it. Names of the abstract namespace belong to the network
/// namespace, as ports do.
fn take_name(address: SocketAddr) -> io::Result<Option<UnixListener>> {
    let name = UnixAddress::from_abstract_name(format!("plimsoll/resp/{address}"))?;
    match UnixListener::bind_addr(&name) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => Ok(None),
        bound => bound.map(Some),
    }
}

/// Binds without `SO_REUSEPORT`, which fails while anybody listens, and gives the address back.
fn is_free(address: SocketAddr) -> rustix::io::Result<()> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let descriptor = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&descriptor, true)?;
    rustix::net::bind(&descriptor, &address)
}
