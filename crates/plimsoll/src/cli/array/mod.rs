//! `plimsoll array`: the array of a server that runs, and what one would be worth.

mod mttdl;
mod online;
mod table;

use super::http::Admin;
use anyhow::Result;
use clap::{Args, Subcommand};
use std::net::SocketAddr;
use std::path::PathBuf;

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Say how the devices of a server are.
    Status {
        #[command(flatten)]
        server: Server,
        /// As the server tells it, in JSON.
        #[arg(long)]
        json: bool,
    },
    /// Put a new device in the place of one, which may be gone; then it is rebuilt.
    Replace {
        #[command(flatten)]
        server: Server,
        /// The device that goes: its path, or its number in the table of `status`.
        old: String,
        /// The device that comes: a block device, or a file, which is made if it is not there.
        new: PathBuf,
        /// Destroy what the new device holds.
        #[arg(long)]
        force: bool,
        /// Do it even if objects are lost with the old device, because others are out.
        #[arg(long)]
        accept_loss: bool,
        /// Show how far the rebuild is, until it has ended.
        #[arg(long)]
        wait: bool,
    },
    /// Begin to rebuild the devices that are there and not in, or go on.
    Rebuild {
        #[command(flatten)]
        server: Server,
        /// Only this one: its path, or its number in the table of `status`.
        device: Option<String>,
        /// Give up what too few devices are left to tell or to read: without that it is waited for.
        #[arg(long)]
        accept_loss: bool,
        /// Show how far the rebuild is, until it has ended.
        #[arg(long)]
        wait: bool,
    },
    /// Compare all copies of everything, and mend what differs.
    Scrub {
        #[command(flatten)]
        server: Server,
        /// Show how far it is, until it has ended.
        #[arg(long)]
        wait: bool,
    },
    /// Say how long each mechanism keeps data on devices that fail, what that depends on, and what it costs.
    Mttdl(mttdl::Mttdl),
}

/// The server that is meant.
#[derive(Args, Debug)]
pub(crate) struct Server {
    /// The admin port of the server.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8379")]
    admin: SocketAddr,
}

impl Command {
    pub(crate) fn run(self) -> Result<()> {
        match self {
            Command::Status { server, json } => online::status(&Admin(server.admin), json),
            Command::Replace { server, old, new, force, accept_loss, wait } => {
                let wish = online::Replacement { old: &old, new: &new, force, accept_loss };
                online::replace(&Admin(server.admin), &wish, wait)
            }
            Command::Rebuild { server, device, accept_loss, wait } => {
                online::rebuild(&Admin(server.admin), (device.as_deref(), accept_loss), wait)
            }
            Command::Scrub { server, wait } => online::scrub(&Admin(server.admin), wait),
            Command::Mttdl(mttdl) => mttdl.run(),
        }
    }
}
