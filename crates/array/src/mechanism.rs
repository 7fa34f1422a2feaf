//! The four mechanisms by which an object is protected: what a set of each is, survives, and costs.
//!
//! Source: KVMD (FAST'20), sections 3 and 5; the formulas of its section on reliability, and its table 4.
//!
//! Invariant: a mechanism that was checked against a number of devices has each member of a set on a device
//! of its own.

use plimsoll_kv::Form;
use std::fmt;
use std::str::FromStr;

/// Members of a set at most: data and parities.
pub const SET_MEMBERS_MAX: u32 = 32;

/// How an object is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// It is not: one copy.
    Hashing,
    /// So many whole copies.
    Replication {
        /// Copies, the first included.
        copies: u32,
    },
    /// The object is cut into shards.
    Splitting {
        /// Shards of data.
        data: u32,
        /// Shards of parity.
        parities: u32,
    },
    /// Whole objects of several devices share parities.
    Packing {
        /// Objects of a full set.
        data: u32,
        /// Parities of a set, and copies of its metadata for each object.
        parities: u32,
    },
}

/// Why a mechanism is not possible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MechanismError {
    /// No name of one.
    #[error("'{0}' is no mechanism: hashing, replication COPIES, splitting or packing DATA+PARITIES is")]
    Unknown(String),
    /// Nothing of what there has to be something of.
    #[error("{0} needs at least one of each of its parts")]
    Empty(Mechanism),
    /// More members than a code has.
    #[error("{mechanism} has {members} members; a set has {SET_MEMBERS_MAX} at most")]
    TooLarge {
        /// What was asked for.
        mechanism: Mechanism,
        /// Its members.
        members: u64,
    },
    /// Two members would share a device.
    #[error("{mechanism} needs {members} devices, there are {devices}")]
    TooFewDevices {
        /// What was asked for.
        mechanism: Mechanism,
        /// Its members.
        members: u32,
        /// Devices that there are.
        devices: u32,
    },
}

/// What is stored, as far as the number of sets depends on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stored {
    /// Bytes of all devices together; they are taken to be full.
    pub capacity_bytes: f64,
    /// Mean bytes of a user's object.
    pub object_bytes: f64,
    /// Mean bytes of a packed set's metadata object.
    pub metadata_bytes: f64,
}

/// What a mechanism costs, in full sets and without headers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Requests to devices for one store of a user.
    pub store_requests: f64,
    /// Requests to devices for one retrieve of a whole object.
    pub retrieve_requests: f64,
    /// Bytes of users for each byte stored, without metadata.
    pub space: f64,
}

impl Mechanism {
    /// The mechanism, if it can be on so many devices.
    ///
    /// # Errors
    /// It has no data, copies or parities, too many of them, or more than there are devices.
    pub fn checked(self, devices: u32) -> Result<Mechanism, MechanismError> {
        let parts = match self {
            Mechanism::Hashing => [1, 0],
            Mechanism::Replication { copies } => [copies, 0],
            Mechanism::Splitting { data, parities } | Mechanism::Packing { data, parities } => {
                [data, parities]
            }
        };
        let has_parities = matches!(self, Mechanism::Splitting { .. } | Mechanism::Packing { .. });
        if parts[0] == 0 || (has_parities && parts[1] == 0) {
            return Err(MechanismError::Empty(self));
        }
        let members = u64::from(parts[0]) + u64::from(parts[1]);
        if members > u64::from(SET_MEMBERS_MAX) {
            return Err(MechanismError::TooLarge { mechanism: self, members });
        }
        let members = self.members();
        if members > devices {
            return Err(MechanismError::TooFewDevices { mechanism: self, members, devices });
        }
        Ok(self)
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Mechanism::Hashing => "hashing",
            Mechanism::Replication { .. } => "replication",
            Mechanism::Splitting { .. } => "splitting",
            Mechanism::Packing { .. } => "packing",
        }
    }

    /// What it makes of a value.
    #[must_use]
    pub fn form(self) -> Form {
        assert!(self.members() <= SET_MEMBERS_MAX, "checked against the number of devices");
        match self {
            Mechanism::Splitting { data, parities } => {
                Form::Shards { data: data as u8, parities: parities as u8 }
            }
            Mechanism::Packing { data, parities } => {
                Form::Packed { data: data as u8, parities: parities as u8 }
            }
            copies => Form::Copies(copies.members() as u8),
        }
    }

    /// Members of a set, each on a device of its own: N of the model.
    #[must_use]
    pub fn members(self) -> u32 {
        match self {
            Mechanism::Hashing => 1,
            Mechanism::Replication { copies } => copies,
            Mechanism::Splitting { data, parities } | Mechanism::Packing { data, parities } => {
                data + parities
            }
        }
    }

    /// The loss of so many members loses data: f of the model.
    #[must_use]
    pub fn fatal_losses(self) -> u32 {
        match self {
            Mechanism::Hashing => 1,
            Mechanism::Replication { copies } => copies,
            Mechanism::Splitting { parities, .. } | Mechanism::Packing { parities, .. } => parities + 1,
        }
    }

    /// Bytes of a set, as the paper counts them: a metadata object for each member of a pack, though its text
    /// stores `data` x `parities` of them (14 requests for four stores of 4+2).
    #[must_use]
    pub fn set_bytes(self, stored: &Stored) -> f64 {
        let members = f64::from(self.members());
        match self {
            Mechanism::Hashing | Mechanism::Replication { .. } => members * stored.object_bytes,
            Mechanism::Splitting { data, .. } => members * stored.object_bytes / f64::from(data),
            Mechanism::Packing { .. } => members * (stored.object_bytes + stored.metadata_bytes),
        }
    }

    /// Sets on full devices: what the time of one set is divided by (equation 1).
    #[must_use]
    pub fn sets(self, stored: &Stored) -> f64 {
        stored.capacity_bytes / self.set_bytes(stored)
    }

    /// What it costs.
    #[must_use]
    pub fn cost(self) -> Cost {
        let members = f64::from(self.members());
        let (store_requests, retrieve_requests, space) = match self {
            Mechanism::Hashing | Mechanism::Replication { .. } => (members, 1.0, 1.0 / members),
            Mechanism::Splitting { data, .. } => (members, f64::from(data), f64::from(data) / members),
            Mechanism::Packing { data, parities } => {
                let (data, parities) = (f64::from(data), f64::from(parities));
                // Each object has its set's metadata once for each parity.
                ((data + parities + data * parities) / data, 1.0, data / members)
            }
        };
        Cost { store_requests, retrieve_requests, space }
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Mechanism::Hashing => Ok(()),
            Mechanism::Replication { copies } => write!(f, " {copies}"),
            Mechanism::Splitting { data, parities } | Mechanism::Packing { data, parities } => {
                write!(f, " {data}+{parities}")
            }
        }
    }
}

/// As it is printed.
impl FromStr for Mechanism {
    type Err = MechanismError;

    fn from_str(name: &str) -> Result<Mechanism, MechanismError> {
        let unknown = || MechanismError::Unknown(name.to_owned());
        let number = |word: &str| word.parse::<u32>().map_err(|_| unknown());
        match name.split_once(' ') {
            None if name == "hashing" => Ok(Mechanism::Hashing),
            Some(("replication", copies)) => Ok(Mechanism::Replication { copies: number(copies)? }),
            Some((which @ ("splitting" | "packing"), set)) => {
                let (data, parities) = set.split_once('+').ok_or_else(unknown)?;
                let (data, parities) = (number(data)?, number(parities)?);
                Ok(match which {
                    "splitting" => Mechanism::Splitting { data, parities },
                    _ => Mechanism::Packing { data, parities },
                })
            }
            _ => Err(unknown()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPLICATION: Mechanism = Mechanism::Replication { copies: 3 };
    const SPLITTING: Mechanism = Mechanism::Splitting { data: 4, parities: 2 };
    const PACKING: Mechanism = Mechanism::Packing { data: 4, parities: 2 };

    #[test]
    fn requests_and_space_are_those_of_table_4() {
        let cost = |mechanism: Mechanism| {
            let cost = mechanism.cost();
            (cost.store_requests, cost.retrieve_requests, cost.space)
        };
        assert_eq!(cost(Mechanism::Hashing), (1.0, 1.0, 1.0));
        assert_eq!(cost(REPLICATION), (3.0, 1.0, 1.0 / 3.0));
        assert_eq!(cost(SPLITTING), (6.0, 4.0, 4.0 / 6.0));
        assert_eq!(cost(PACKING), (14.0 / 4.0, 1.0, 4.0 / 6.0), "14 requests for four stores");
    }

    #[test]
    fn a_name_that_is_printed_is_read_and_no_other() {
        for mechanism in [Mechanism::Hashing, REPLICATION, SPLITTING, PACKING] {
            assert_eq!(mechanism.to_string().parse(), Ok(mechanism));
            assert_eq!(mechanism.form().to_string(), mechanism.to_string());
        }
        for wrong in ["", "hash", "hashing 1", "replication", "replication x", "splitting 4", "packing 4"] {
            let words = wrong.parse::<Mechanism>().unwrap_err().to_string();
            assert!(words.starts_with(&format!("'{wrong}' is no mechanism: hashing")), "{words}");
        }
    }

    #[test]
    fn sets_are_what_fills_the_devices() {
        let stored = Stored { capacity_bytes: 6e12, object_bytes: 4000.0, metadata_bytes: 1000.0 };
        assert_eq!(Mechanism::Hashing.sets(&stored), 1.5e9);
        assert_eq!(REPLICATION.sets(&stored), 0.5e9);
        assert_eq!(SPLITTING.sets(&stored), 1e9);
        assert_eq!(PACKING.sets(&stored), 0.2e9);
    }

    #[test]
    fn what_cannot_be_is_refused_in_words() {
        let words = |mechanism: Mechanism, devices| mechanism.checked(devices).unwrap_err().to_string();
        assert_eq!(SPLITTING.checked(6), Ok(SPLITTING));
        assert_eq!(words(SPLITTING, 5), "splitting 4+2 needs 6 devices, there are 5");
        assert_eq!(words(Mechanism::Hashing, 0), "hashing needs 1 devices, there are 0");
        let large = Mechanism::Packing { data: u32::MAX, parities: 2 };
        assert_eq!(words(large, 64), "packing 4294967295+2 has 4294967297 members; a set has 32 at most");
        for empty in [
            Mechanism::Replication { copies: 0 },
            Mechanism::Splitting { data: 0, parities: 2 },
            Mechanism::Packing { data: 4, parities: 0 },
        ] {
            assert_eq!(words(empty, 64), format!("{empty} needs at least one of each of its parts"));
        }
    }
}
