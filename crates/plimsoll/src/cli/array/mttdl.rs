//! `plimsoll array mttdl`: how long redundancy lasts.
//!
//! Role: reads a configuration, refuses what cannot be, prints what the library reckons. Never: it reckons.

use anyhow::Result;
use clap::Args;
use plimsoll_array::{
    Cost, Failures, MEMBERS_MAX, Mechanism, MechanismError, Stored, set_mttdl_approximate_h, set_mttdl_h,
};
use plimsoll_server::config::{ConfigError, Size};
use std::io::{self, Write};
use std::ops::RangeInclusive;

/// Hours of a year of 365.25 days.
const YEAR_H: f64 = 8766.0;
/// Times that make sense, with room to spare on both sides.
const HOURS: RangeInclusive<f64> = 1e-9..=1e12;

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
    /// Hours until such an object is there again.
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
    pub(super) fn run(self) -> Result<()> {
        let model = self.model()?;
        let (mechanisms, left_out) = self.mechanisms(&model)?;
        let mut out = Vec::new();
        writeln!(
            out,
            "{} devices of {}, full; objects of {}; MTTF {} h, MTTR {} h of an object; failures independent",
            self.devices, self.capacity, self.object, self.mttf, self.mttr
        )?;
        write_times(&mut out, &model, &mechanisms)?;
        write_factors(&mut out, &model, &mechanisms)?;
        write_costs(&mut out, &mechanisms)?;
        for why in left_out {
            writeln!(out, "\nleft out: {why}")?;
        }
        print!("{}", String::from_utf8_lossy(&out));
        Ok(())
    }

    /// What is reckoned with, or what is wrong with it.
    fn model(&self) -> Result<Model, ConfigError> {
        for (flag, hours) in [("--mttf", self.mttf), ("--mttr", self.mttr)] {
            if !HOURS.contains(&hours) {
                let (least, most) = (HOURS.start(), HOURS.end());
                return Err(ConfigError(format!(
                    "{flag} {hours:e}: from {least:e} to {most:e} hours are wanted"
                )));
            }
        }
        let sizes = [("--capacity", self.capacity), ("--object", self.object), ("--metadata", self.metadata)];
        if let Some((flag, _)) = sizes.iter().find(|(_, size)| size.0 == 0) {
            return Err(ConfigError(format!("{flag} 0: a size above zero is wanted")));
        }
        if self.devices as usize > MEMBERS_MAX {
            let devices = self.devices;
            return Err(ConfigError(format!("--devices {devices}: an array has {MEMBERS_MAX} at most")));
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
}

/// A mechanism with so many data members and parities, or copies, more, on as many devices as that takes.
fn with_more(mechanism: Mechanism, more_data: u32, more_parities: u32) -> Mechanism {
    match mechanism {
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

/// How long each mechanism keeps data.
fn write_times(out: &mut impl Write, model: &Model, mechanisms: &[Mechanism]) -> io::Result<()> {
    writeln!(
        out,
        "\n{:<16}{:>8}{:>7}{:>12}{:>16}{:>16}{:>16}{:>16}",
        "mechanism", "members", "fatal", "sets", "a set, exact h", "equation 2 h", "the array h", "in years"
    )?;
    for mechanism in mechanisms {
        let (members, fatal) = (mechanism.members(), mechanism.fatal_losses());
        let array_h = model.mttdl_h(*mechanism);
        writeln!(
            out,
            "{:<16}{members:>8}{fatal:>7}{:>12}{:>16}{:>16}{:>16}{:>16}",
            mechanism.to_string(),
            short(mechanism.sets(&model.stored)),
            short(set_mttdl_h(members, fatal, model.failures)),
            short(set_mttdl_approximate_h(members, fatal, model.failures)),
            short(array_h),
            short(array_h / YEAR_H),
        )?;
    }
    Ok(())
}

/// What the time is multiplied by if one thing changes (the paper's table 3, in numbers).
fn write_factors(out: &mut impl Write, model: &Model, mechanisms: &[Mechanism]) -> io::Result<()> {
    let Failures { mttf_h, mttr_h } = model.failures;
    let doubled = Model { failures: Failures { mttf_h: 2.0 * mttf_h, mttr_h }, ..*model };
    let halved = Model { failures: Failures { mttf_h, mttr_h: mttr_h / 2.0 }, ..*model };
    let object_bytes = 2.0 * model.stored.object_bytes;
    let larger = Model { stored: Stored { object_bytes, ..model.stored }, ..*model };
    let changes = [
        ("MTTF is doubled", doubled, (0, 0)),
        ("MTTR is halved", halved, (0, 0)),
        ("one copy or parity more", *model, (0, 1)),
        ("one data member more", *model, (1, 0)),
        ("objects are twice as large", larger, (0, 0)),
    ];
    let names = mechanisms.iter().map(|mechanism| format!("{:>12}", mechanism.name()));
    writeln!(out, "\n{:<28}{}", "MTTDL times, if", names.collect::<String>())?;
    for (name, changed, (data, parities)) in changes {
        let factors = mechanisms.iter().map(|mechanism| {
            let factor = changed.mttdl_h(with_more(*mechanism, data, parities)) / model.mttdl_h(*mechanism);
            format!("{:>12}", short(factor))
        });
        writeln!(out, "{name:<28}{}", factors.collect::<String>())?;
    }
    Ok(())
}

/// What each mechanism costs (the paper's table 4).
fn write_costs(out: &mut impl Write, mechanisms: &[Mechanism]) -> io::Result<()> {
    let columns = ["requests of a store", "requests of a retrieve", "user bytes per byte"];
    writeln!(out, "\n{:<16}{:>20}{:>23}{:>22}", "mechanism", columns[0], columns[1], columns[2])?;
    for mechanism in mechanisms {
        let Cost { store_requests, retrieve_requests, space } = mechanism.cost();
        let name = mechanism.to_string();
        writeln!(out, "{name:<16}{store_requests:>20.2}{retrieve_requests:>23.2}{space:>22.2}")?;
    }
    Ok(())
}

/// A number in few letters, with three digits behind the point.
fn short(number: f64) -> String {
    if number.is_nan() {
        return "-".to_owned(); // Of two numbers above what can be told.
    }
    if number.is_infinite() {
        return "above 1e308".to_owned();
    }
    if (0.01..1e6).contains(&number) { format!("{number:.3}") } else { format!("{number:.3e}") }
}
