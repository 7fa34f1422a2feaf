//! `plimsoll array`: what is asked about an array.
//!
//! Role: reads a configuration, refuses what cannot be, prints what the library reckons. Never: it reckons.

use anyhow::Result;
use clap::{Args, Subcommand};
use plimsoll_array::{Failures, Mechanism, MechanismError, Stored, set_mttdl_approximate_h, set_mttdl_h};
use plimsoll_server::config::{ConfigError, Size};

/// Hours of a year of 365.25 days.
const YEAR_H: f64 = 8766.0;

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Say how long each mechanism keeps data on devices that fail, what that depends on, and what it costs.
    Mttdl(Mttdl),
}

/// The devices, and what is stored on them.
#[derive(Args, Debug)]
pub(crate) struct Mttdl {
    /// Devices of the array.
    #[arg(long, value_name = "COUNT", default_value_t = 6)]
    devices: u32,
    /// Bytes of one device; all are taken to be full.
    #[arg(long, value_name = "SIZE", default_value = "1TiB")]
    capacity: Size,
    /// Mean bytes of a value with its key.
    #[arg(long, value_name = "SIZE", default_value = "4KiB")]
    object: Size,
    /// Mean bytes of a packed set's metadata object.
    #[arg(long, value_name = "SIZE", default_value = "256")]
    metadata: Size,
    /// Hours after which an object on a device fails, in the mean.
    #[arg(long, value_name = "HOURS", default_value_t = 2e6)]
    mttf: f64,
    /// Hours until it is there again.
    #[arg(long, value_name = "HOURS", default_value_t = 0.5)]
    mttr: f64,
    /// Copies of replication.
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    copies: u32,
    /// Data shards of splitting, objects of packing.
    #[arg(long, value_name = "COUNT", default_value_t = 4)]
    data: u32,
    /// Parities of both.
    #[arg(long, value_name = "COUNT", default_value_t = 2)]
    parities: u32,
}

impl Command {
    pub(crate) fn run(self) -> Result<()> {
        match self {
            Command::Mttdl(mttdl) => mttdl.run(),
        }
    }
}

/// What is reckoned with.
#[derive(Clone, Copy)]
struct Model {
    stored: Stored,
    failures: Failures,
}

impl Model {
    /// Hours until any set of full devices is lost: equation 1.
    fn mttdl_h(&self, mechanism: Mechanism) -> f64 {
        let set_h = set_mttdl_h(mechanism.members(), mechanism.fatal_losses(), self.failures);
        set_h / mechanism.sets(&self.stored)
    }
}

impl Mttdl {
    fn run(self) -> Result<()> {
        let model = self.model()?;
        let (mechanisms, left_out) = self.mechanisms(&model)?;
        println!(
            "{} devices of {}, full; objects of {}; MTTF {} h, MTTR {} h; failures independent\n",
            self.devices, self.capacity, self.object, self.mttf, self.mttr
        );
        print_times(&model, &mechanisms);
        self.print_factors(&model, &mechanisms);
        print_costs(&mechanisms);
        for why in left_out {
            println!("\nleft out: {why}");
        }
        Ok(())
    }

    /// What is reckoned with, or what is wrong with it.
    fn model(&self) -> Result<Model, ConfigError> {
        for (flag, hours) in [("--mttf", self.mttf), ("--mttr", self.mttr)] {
            if !(hours.is_finite() && hours > 0.0) {
                return Err(ConfigError(format!("{flag} {hours}: hours above zero are wanted")));
            }
        }
        let sizes = [("--capacity", self.capacity), ("--object", self.object), ("--metadata", self.metadata)];
        if let Some((flag, _)) = sizes.iter().find(|(_, size)| size.0 == 0) {
            return Err(ConfigError(format!("{flag} 0: a size above zero is wanted")));
        }
        let stored = Stored {
            capacity_bytes: f64::from(self.devices) * self.capacity.0 as f64,
            object_bytes: self.object.0 as f64,
            metadata_bytes: self.metadata.0 as f64,
        };
        Ok(Model { stored, failures: Failures { mttf_h: self.mttf, mttr_h: self.mttr } })
    }

    /// The mechanisms that so many devices can have, and why not the others.
    fn mechanisms(&self, model: &Model) -> Result<(Vec<Mechanism>, Vec<MechanismError>), ConfigError> {
        let (copies, data, parities) = (self.copies, self.data, self.parities);
        let all = [
            Mechanism::Hashing,
            Mechanism::Replication { copies },
            Mechanism::Splitting { data, parities },
            Mechanism::Packing { data, parities },
        ];
        let (mut mechanisms, mut left_out) = (Vec::new(), Vec::new());
        for mechanism in all {
            match mechanism.checked(self.devices) {
                Ok(_) if mechanism.sets(&model.stored) < 1.0 => {
                    let words = format!("--capacity {}: no set of {mechanism} fits", self.capacity);
                    return Err(ConfigError(words));
                }
                Ok(mechanism) => mechanisms.push(mechanism),
                Err(why @ MechanismError::TooFewDevices { .. }) if self.devices > 0 => left_out.push(why),
                Err(why) => return Err(ConfigError(why.to_string())),
            }
        }
        Ok((mechanisms, left_out))
    }

    /// What the time is multiplied by if one thing changes (the paper's table 3, in numbers).
    fn print_factors(&self, model: &Model, mechanisms: &[Mechanism]) {
        let change = |name: &str, model: &Model, of: &dyn Fn(Mechanism) -> Mechanism, base: &Model| {
            let factors = mechanisms.iter().map(|mechanism| {
                let factor = model.mttdl_h(of(*mechanism)) / base.mttdl_h(*mechanism);
                format!("{:>12}", short(factor))
            });
            println!("{name:<28}{}", factors.collect::<String>());
        };
        let names = mechanisms.iter().map(|mechanism| format!("{:>12}", mechanism.name()));
        println!("\n{:<28}{}", "MTTDL times, if", names.collect::<String>());
        let same = |mechanism| mechanism;
        let Failures { mttf_h, mttr_h } = model.failures;
        let doubled = Model { failures: Failures { mttf_h: 2.0 * mttf_h, mttr_h }, ..*model };
        change("MTTF is doubled", &doubled, &same, model);
        let halved = Model { failures: Failures { mttf_h, mttr_h: mttr_h / 2.0 }, ..*model };
        change("MTTR is halved", &halved, &same, model);
        change("one copy or parity more", model, &with_more(0, 1), model);
        change("one data member more", model, &with_more(1, 0), model);
        let mut larger = *model;
        larger.stored.object_bytes *= 2.0;
        change("objects are twice as large", &larger, &same, model);
    }
}

/// Mechanisms with so many data members and parities, or copies, more, on as many devices as that takes.
fn with_more(more_data: u32, more_parities: u32) -> impl Fn(Mechanism) -> Mechanism {
    move |mechanism| match mechanism {
        Mechanism::Hashing => Mechanism::Hashing,
        Mechanism::Replication { copies } => Mechanism::Replication { copies: copies + more_parities },
        Mechanism::Splitting { data, parities } => {
            Mechanism::Splitting { data: data + more_data, parities: parities + more_parities }
        }
        Mechanism::Packing { data, parities } => {
            Mechanism::Packing { data: data + more_data, parities: parities + more_parities }
        }
    }
}

fn print_times(model: &Model, mechanisms: &[Mechanism]) {
    println!(
        "{:<16}{:>8}{:>7}{:>12}{:>16}{:>16}{:>16}{:>16}",
        "mechanism", "members", "fatal", "sets", "a set, exact h", "equation 2 h", "the array h", "in years"
    );
    for mechanism in mechanisms {
        let (members, fatal) = (mechanism.members(), mechanism.fatal_losses());
        let array_h = model.mttdl_h(*mechanism);
        println!(
            "{:<16}{members:>8}{fatal:>7}{:>12}{:>16}{:>16}{:>16}{:>16}",
            mechanism.to_string(),
            short(mechanism.sets(&model.stored)),
            short(set_mttdl_h(members, fatal, model.failures)),
            short(set_mttdl_approximate_h(members, fatal, model.failures)),
            short(array_h),
            short(array_h / YEAR_H),
        );
    }
}

/// What each mechanism costs (the paper's table 4).
fn print_costs(mechanisms: &[Mechanism]) {
    println!(
        "\n{:<16}{:>20}{:>23}{:>22}",
        "mechanism", "requests of a store", "requests of a retrieve", "user bytes per byte"
    );
    for mechanism in mechanisms {
        let cost = mechanism.cost();
        println!(
            "{:<16}{:>20.2}{:>23.2}{:>22.2}",
            mechanism.to_string(),
            cost.store_requests,
            cost.retrieve_requests,
            cost.space
        );
    }
}

/// A number in few letters, with four digits.
fn short(number: f64) -> String {
    if !number.is_finite() {
        return "above 1e308".to_owned();
    }
    if (0.01..1e6).contains(&number) { format!("{number:.3}") } else { format!("{number:.3e}") }
}
