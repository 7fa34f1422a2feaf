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
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::io::ErrorKind;
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

/// Claims the addresses for clients and that of the admin port, after waiting a little for each. Port 0 needs
/// no claim: the system gives a port that nobody has.
///
/// # Errors
/// Another server has claimed it, or another process listens there.
pub(super) async fn claim(addresses: Addresses, admin: SocketAddr) -> Result<Claims> {
    let mut names = Vec::new();
    let all = [("resp", addresses.plain), ("tls-resp", addresses.tls), ("admin", Some(admin))];
    for (setting, address) in all {
        if let Some(address) = address.filter(|address| address.port() != 0) {
            names.push(claim_one(setting, address).await?);
        }
    }
    Ok(Claims { _names: names })
}

async fn claim_one(setting: &str, address: SocketAddr) -> Result<UnixListener> {
    let until = Instant::now() + FREE_MAX;
    let mut is_told = false;
    loop {
        match try_claim(setting, address) {
            Err(_) if Instant::now() < until => {
                if !std::mem::replace(&mut is_told, true) {
                    tracing::warn!("{setting}: {address} is in use; waiting {} s for it", FREE_MAX.as_secs());
                }
                tokio::time::sleep(FREE_LOOK).await;
            }
            claimed => return claimed,
        }
    }
}

fn try_claim(setting: &str, address: SocketAddr) -> Result<UnixListener> {
    // A name in the abstract namespace belongs to the network namespace, as the port does.
    let name = UnixAddress::from_abstract_name(format!("plimsoll/resp/{address}"))?;
    let name = match UnixListener::bind_addr(&name) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            bail!("{setting}: another server has {address}; stop it or choose another port with --{setting}")
        }
        bound => bound.with_context(|| format!("{setting}: {address} cannot be claimed"))?,
    };
    match is_free(address) {
        Ok(()) => Ok(name),
        Err(Errno::ADDRINUSE) => {
            bail!(
                "{setting}: another process listens on {address}; stop it or choose another port with --{setting}"
            )
        }
        // The cores will say what is wrong with it.
        Err(_) => Ok(name),
    }
}

/// Binds without `SO_REUSEPORT`, which fails while anybody listens, and gives the address back.
fn is_free(address: SocketAddr) -> rustix::io::Result<()> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let descriptor = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&descriptor, true)?;
    rustix::net::bind(&descriptor, &address)
}
