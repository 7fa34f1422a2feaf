//! The command line.
//!
//! Role: reads flags, calls what they ask for, turns errors into words and an exit code: 0 success,
//! 1 failure, 2 wrong usage.

#[macro_use] // First: its macros stand for those of the library in all that follows.
mod out;

mod array;
mod bench;
mod device;
mod doctor;
mod http;
mod sim;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use plimsoll_server::config::{
    Config, ConfigError, DriverName, DurabilityName, Layer, Listen, OnFullName, Password, Size,
};
use plimsoll_server::{log, serve};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

/// A key-value store for flash that speaks the Redis protocol.
#[derive(Parser, Debug)]
#[command(name = "plimsoll", version, propagate_version = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Serve a device, or several as one.
    Serve(Box<Serve>),
    /// Make, describe or check a device.
    Device {
        #[command(subcommand)]
        command: device::Command,
    },
    /// Look at, mend and reckon with an array of devices.
    Array {
        #[command(subcommand)]
        command: array::Command,
    },
    /// Measure a server: throughput and latencies, with every value proved.
    Bench(Box<bench::Bench>),
    /// Say what this machine allows and lacks, and what mends it.
    Doctor(doctor::Doctor),
    /// Simulate: the server's own code in virtual time.
    Sim {
        #[command(subcommand)]
        command: sim::Command,
    },
}

#[derive(Args, Debug)]
struct Serve {
    /// A TOML file with these settings; flags win over it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The directory of the data [default: plimsoll-data].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// The file or block device that holds the data; given several times, they are an array [default: a file
    /// in the data directory].
    #[arg(long, value_name = "PATH")]
    device: Option<Vec<PathBuf>>,
    /// Size of each file that has to be made [default: 4GiB].
    #[arg(long, value_name = "SIZE")]
    size: Option<Size>,
    /// The processors to run on, as 0-3 or 0,2 [default: all].
    #[arg(long, value_name = "LIST")]
    cores: Option<String>,
    /// What speaks to the kernel [default: auto].
    #[arg(long, value_enum)]
    driver: Option<DriverName>,
    /// Where RESP is served, or none [default: 127.0.0.1:6379].
    #[arg(long, value_name = "ADDR")]
    resp: Option<Listen>,
    /// Where RESP is served over TLS, or none [default: none].
    #[arg(long, value_name = "ADDR")]
    tls_resp: Option<Listen>,
    /// The server's certificate in PEM, with those that lead to its authority.
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// The key of that certificate in PEM.
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// Clients have to show certificates signed by one of these, in PEM [default: they need none].
    #[arg(long, value_name = "FILE")]
    tls_client_ca: Option<PathBuf>,
    /// Where NVMe/TCP is served: not in this version.
    #[arg(long, value_name = "ADDR", hide = true)]
    nvme: Option<String>,
    /// Where metrics and the status page are served [default: 127.0.0.1:8379].
    #[arg(long, value_name = "ADDR")]
    admin: Option<SocketAddr>,
    /// Memory for values that were read, of all cores together; 0: none [default: 64MiB].
    #[arg(long, value_name = "SIZE")]
    cache: Option<Size>,
    /// Memory of everything that the server holds [default: as much as clients, cache and keys take].
    #[arg(long, value_name = "SIZE")]
    memory: Option<Size>,
    /// What an acknowledged write is worth [default: sync].
    #[arg(long, value_enum)]
    durability: Option<DurabilityName>,
    /// What becomes of stores when the device is full [default: error].
    #[arg(long, value_enum)]
    on_full: Option<OnFullName>,
    /// Connections at most [default: 10000].
    #[arg(long, value_name = "COUNT")]
    clients_max: Option<u64>,
    /// A file whose first line is the password that clients have to give.
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Serve without a password even where others can reach it.
    #[arg(long)]
    unprotected: bool,
    /// Print the configuration in force and end; a password is left out.
    #[arg(long)]
    print_config: bool,
}

impl Serve {
    fn config(self) -> Result<Config> {
        let file = match &self.config {
            Some(path) => Layer::read(path)?,
            None => Layer::default(),
        };
        let flags = Layer {
            data: self.data,
            device: self.device,
            size: self.size,
            cores: self.cores,
            driver: self.driver,
            resp: self.resp,
            tls_resp: self.tls_resp,
            tls_cert: self.tls_cert,
            tls_key: self.tls_key,
            tls_client_ca: self.tls_client_ca,
            admin: self.admin,
            durability: self.durability,
            on_full: self.on_full,
            clients_max: self.clients_max,
            password: self.password_file.as_deref().map(Password::read).transpose()?,
            unprotected: self.unprotected.then_some(true),
            nvme: self.nvme,
            cache: self.cache,
            memory: self.memory,
            ..Layer::default()
        };
        Ok(Config::new(flags.over(file), self.config, &serve::processors()?)?)
    }

    fn run(self) -> Result<()> {
        let print = self.print_config;
        let config = self.config()?;
        if print {
            print!("{}", config.print());
            return Ok(());
        }
        serve::serve(config)
    }
}

/// Runs the program.
#[must_use]
pub(crate) fn main() -> ExitCode {
    // Wrong flags end the process here, with 2.
    let cli = Cli::parse();
    // Simulated servers say thousands of times what a real one says once.
    let log = log::to_stderr(match cli.command {
        Command::Sim { .. } => "off",
        Command::Bench(_) | Command::Doctor(_) => "warn",
        _ => "info",
    });
    let result = match cli.command {
        Command::Serve(serve) => serve.run(),
        Command::Device { command } => command.run(),
        Command::Array { command } => command.run(),
        Command::Bench(bench) => bench.run(),
        Command::Doctor(doctor) => doctor.run(),
        Command::Sim { command } => command.run(),
    };
    match result.and(out::end()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log.say(&format!("plimsoll: {error:#}"));
            ExitCode::from(if error.is::<ConfigError>() { 2 } else { 1 })
        }
    }
}
