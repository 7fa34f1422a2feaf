//! `device` and `[array]`: which devices are served, and how several of them protect what they hold.
//!
//! Invariants: a device is named once, by whatever path; what several devices cannot be is refused before
//! anything is opened.

use super::{ConfigError, OnFullName, Size};
use plimsoll_array::{Goal, Mechanism, Policy, PolicyError, SizeRange};
use serde::{Deserialize, Serialize, Serializer};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Devices of an array at most.
pub const DEVICES_MAX: usize = 64;
/// Copies of each object, unless the array has fewer devices or the file says otherwise.
const COPIES_DEFAULT: u32 = 3;
/// Shards, or objects of a set, and parities, likewise.
const DATA_DEFAULT: u32 = 4;
const PARITIES_DEFAULT: u32 = 2;

/// How objects are protected, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MechanismName {
    /// Each object has whole copies on several devices.
    Replication,
    /// Each object is on one device: what a device holds is lost with it.
    Hashing,
    /// Each object is cut into shards, with parities, on as many devices.
    Splitting,
    /// Each object is whole on one device, and objects of several devices share parities.
    Packing,
    /// The array chooses among the others, by what is done with objects of each size.
    Auto,
}

/// What mechanisms are chosen for, by its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum GoalName {
    /// Least bytes on devices.
    #[default]
    Space,
    /// Least time of devices.
    Throughput,
}

/// What may stand in the file below `[array]`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ArrayLayer {
    /// See [`Protection::mechanism`].
    pub mechanism: Option<MechanismName>,
    /// See [`Protection::copies`].
    pub copies: Option<u32>,
    /// See [`Protection::data`].
    pub data: Option<u32>,
    /// See [`Protection::parities`].
    pub parities: Option<u32>,
    /// See [`Chosen::goal`].
    pub goal: Option<GoalName>,
    /// See [`Chosen::failures`].
    pub failures: Option<u32>,
    /// See [`ArrayConfig::degraded`].
    pub degraded: Option<bool>,
    /// See [`ArrayConfig::rebuild_rate`].
    pub rebuild_rate: Option<Size>,
    /// See [`ArrayConfig::stateless`].
    pub stateless: Option<bool>,
    /// See [`ArrayConfig::custom`].
    pub custom: Option<Vec<String>>,
    /// See [`ArrayConfig::sizes`].
    pub sizes: Option<Vec<SizeLayer>>,
}

/// What may stand in the file below one of `[[array.sizes]]`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SizeLayer {
    /// See [`SizeConfig::to`].
    pub to: Option<Size>,
    /// See [`Protection::mechanism`].
    pub mechanism: Option<MechanismName>,
    /// See [`Protection::copies`].
    pub copies: Option<u32>,
    /// See [`Protection::data`].
    pub data: Option<u32>,
    /// See [`Protection::parities`].
    pub parities: Option<u32>,
}

/// How several devices are one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ArrayConfig {
    /// How objects are protected, of whatever size they are.
    #[serde(flatten)]
    pub all: Option<Protection>,
    /// How mechanisms are chosen, instead.
    #[serde(flatten)]
    pub chosen: Option<Chosen>,
    /// Open even if so many devices are missing that those that are there may lack acknowledged writes.
    pub degraded: bool,
    /// Bytes a second at which a device is rebuilt at most; nothing: as fast as it goes.
    pub rebuild_rate: Option<Size>,
    /// Writes read what devices hold, instead of asking their memory.
    pub stateless: bool,
    /// What clients may ask for, object by object, beside what the configuration says.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "by_name")]
    pub custom: Vec<Mechanism>,
    /// How objects are protected by their sizes, in ascending order, instead.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sizes: Vec<SizeConfig>,
}

/// A mechanism and what it consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Protection {
    /// How objects are protected.
    pub mechanism: MechanismName,
    /// Copies of each object, with replication.
    pub copies: Option<u32>,
    /// Shards that each object is cut into, with splitting; objects that share parities, with packing.
    pub data: Option<u32>,
    /// Parities of an object, with splitting, or of a set of objects, with packing: so many devices may be
    /// lost.
    pub parities: Option<u32>,
}

/// Mechanisms that are chosen by what is done with objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Chosen {
    mechanism: MechanismName,
    /// What for.
    pub goal: GoalName,
    /// So many devices may be lost, whatever is chosen.
    pub failures: u32,
    #[serde(skip)]
    devices: u32,
}

/// Objects of a range of sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct SizeConfig {
    /// The longest value of the range, which begins where the one before ends; nothing: without an end.
    pub to: Option<Size>,
    /// How they are protected.
    #[serde(flatten)]
    pub protection: Protection,
}

impl ArrayConfig {
    /// What the file says for so many devices; nothing for one.
    pub(super) fn new(
        layer: Option<ArrayLayer>,
        devices: usize,
        on_full: OnFullName,
    ) -> Result<Option<ArrayConfig>, ConfigError> {
        if devices == 1 {
            return match layer {
                None => Ok(None),
                Some(_) => Err(refusal(
                    "array: one device is given, and an array has several; name them all in device, or leave \
                     [array] out",
                )),
            };
        }
        if on_full == OnFullName::Evict {
            return Err(refusal(
                "on-full: several devices do not evict yet; leave it out, or serve one device",
            ));
        }
        let layer = layer.unwrap_or_default();
        if layer.rebuild_rate == Some(Size(0)) {
            return Err(refusal(
                "array.rebuild-rate: 0 bytes a second would never end; leave it out for as fast as it goes",
            ));
        }
        let degraded = layer.degraded.unwrap_or(false);
        let custom = layer.custom.unwrap_or_default();
        let custom: Result<Vec<Mechanism>, _> = custom.iter().map(|name| name.parse()).collect();
        let mut config = ArrayConfig {
            all: None,
            chosen: None,
            degraded,
            rebuild_rate: layer.rebuild_rate,
            stateless: layer.stateless.unwrap_or(false),
            custom: custom.map_err(|error| ConfigError(format!("array.custom: {error}")))?,
            sizes: Vec::new(),
        };
        let ArrayLayer { mechanism, copies, data, parities, goal, failures, .. } = layer;
        let all = SizeLayer { to: None, mechanism, copies, data, parities };
        if mechanism != Some(MechanismName::Auto) && (goal.is_some() || failures.is_some()) {
            return Err(refusal(
                "array.goal, array.failures: only mechanism = \"auto\" has them; leave them out",
            ));
        }
        match layer.sizes {
            None if mechanism == Some(MechanismName::Auto) => {
                config.chosen = Some(Chosen::new(&all, goal, failures, devices as u32)?);
            }
            None => config.all = Some(Protection::new("array.", &all, devices as u32)?),
            Some(_) if all.says_something() => {
                return Err(refusal(
                    "array.sizes: each range has a mechanism of its own; leave mechanism, copies, data and \
                     parities out above them",
                ));
            }
            Some(sizes) => {
                let range = |(number, layer): (usize, &SizeLayer)| {
                    let protection = Protection::new(&range_prefix(number), layer, devices as u32)?;
                    Ok(SizeConfig { to: layer.to, protection })
                };
                config.sizes = sizes.iter().enumerate().map(range).collect::<Result<_, ConfigError>>()?;
            }
        }
        config.checked(devices as u32).map(Some)
    }

    fn checked(self, devices: u32) -> Result<ArrayConfig, ConfigError> {
        let by_size = match (self.all, self.chosen) {
            (_, Some(chosen)) => {
                chosen.policy().map_err(|error| ConfigError(format!("array.failures: {error}")))?
            }
            (Some(all), _) => all.mechanism().into(),
            (None, None) => Policy::by_size(&self.ranges())
                .map_err(|error| ConfigError(format!("array.sizes: {error}")))?,
        };
        let policy = by_size.with_custom(&self.custom);
        let policy = policy.map_err(|error| ConfigError(format!("array.custom: {error}")))?;
        let ranges = self.sizes.iter().enumerate();
        let ranges = ranges.map(|(number, size)| (range_prefix(number), size.protection.mechanism()));
        let custom = self.custom.iter().map(|mechanism| ("array.custom: ".to_owned(), *mechanism));
        for (prefix, mechanism) in ranges.chain(custom) {
            mechanism.checked(devices).map_err(|error| ConfigError(format!("{prefix}{error}")))?;
        }
        policy.check(devices).map_err(|error| ConfigError(format!("array: {error}")))?;
        Ok(self)
    }

    fn ranges(&self) -> Vec<SizeRange> {
        let range = |size: &SizeConfig| SizeRange {
            value_bytes_max: size.to.map_or(u64::MAX, |to| to.0),
            mechanism: size.protection.mechanism(),
        };
        self.sizes.iter().map(range).collect()
    }

    /// By which mechanism each size is protected, and what clients may ask for instead.
    #[must_use]
    pub fn policy(&self) -> Policy {
        let by_size = match (self.all, self.chosen) {
            (_, Some(chosen)) => chosen.policy(),
            (Some(all), _) => Ok(all.mechanism().into()),
            (None, None) => Policy::by_size(&self.ranges()),
        };
        by_size.and_then(|policy| policy.with_custom(&self.custom)).expect("checked when it was read")
    }
}

/// What stands before what an error says of a range of sizes: they have no names, and stand in order.
fn range_prefix(number: usize) -> String {
    format!("array.sizes, range {}: ", number + 1)
}

impl GoalName {
    fn goal(self) -> Goal {
        match self {
            GoalName::Space => Goal::Space,
            GoalName::Throughput => Goal::Throughput,
        }
    }
}

impl Chosen {
    fn new(
        all: &SizeLayer,
        goal: Option<GoalName>,
        failures: Option<u32>,
        devices: u32,
    ) -> Result<Chosen, ConfigError> {
        if all.copies.or(all.data).or(all.parities).is_some() {
            return Err(refusal(
                "array.copies, array.data, array.parities: auto chooses them by goal and failures; leave them out",
            ));
        }
        Ok(Chosen {
            mechanism: MechanismName::Auto,
            goal: goal.unwrap_or_default(),
            failures: failures.unwrap_or(if devices < 4 { 1 } else { PARITIES_DEFAULT }),
            devices,
        })
    }

    fn policy(&self) -> Result<Policy, PolicyError> {
        Policy::chosen(self.goal.goal(), self.failures, self.devices)
    }
}

impl SizeLayer {
    fn says_something(&self) -> bool {
        self.mechanism.is_some() || self.copies.or(self.data).or(self.parities).is_some()
    }
}

impl Protection {
    /// What was asked for, and as much of the default as there are devices for; `prefix` where it stands.
    fn new(prefix: &str, asked: &SizeLayer, devices: u32) -> Result<Protection, ConfigError> {
        let mechanism = asked.mechanism.unwrap_or(MechanismName::Replication);
        let (has_copies, has_parities) = match mechanism {
            MechanismName::Auto => {
                return Err(ConfigError(format!(
                    "{prefix}mechanism: auto chooses for all sizes; name it under [array], without sizes"
                )));
            }
            MechanismName::Replication => (true, false),
            MechanismName::Hashing => (false, false),
            MechanismName::Splitting | MechanismName::Packing => (false, true),
        };
        if asked.copies.is_some() && !has_copies {
            let other = match mechanism {
                MechanismName::Splitting => "splitting has data and parities of each object",
                MechanismName::Packing => "packing has one copy of each object, and parities of several",
                MechanismName::Hashing | MechanismName::Replication | MechanismName::Auto => {
                    "hashing has one copy of each object"
                }
            };
            return Err(ConfigError(format!("{prefix}copies: {other}; leave it out, or choose replication")));
        }
        if (asked.data.is_some() || asked.parities.is_some()) && !has_parities {
            return Err(ConfigError(format!(
                "{prefix}data, parities: only splitting and packing have them; leave them out"
            )));
        }
        let (mut copies, mut data, mut parities) = (None, None, None);
        match mechanism {
            MechanismName::Hashing | MechanismName::Auto => {}
            MechanismName::Replication => copies = Some(asked.copies.unwrap_or(COPIES_DEFAULT.min(devices))),
            MechanismName::Splitting | MechanismName::Packing => {
                let most = asked.parities.unwrap_or(if devices < 4 { 1 } else { PARITIES_DEFAULT });
                parities = Some(most);
                let room = DATA_DEFAULT.min(devices.saturating_sub(most)).max(1);
                data = Some(asked.data.unwrap_or(room));
            }
        }
        Ok(Protection { mechanism, copies, data, parities })
    }

    /// The mechanism with its parameters.
    #[must_use]
    pub fn mechanism(&self) -> Mechanism {
        let (data, parities) = (self.data.unwrap_or(1), self.parities.unwrap_or(1));
        match self.mechanism {
            MechanismName::Auto => unreachable!("refused when it was read"),
            MechanismName::Hashing => Mechanism::Hashing,
            MechanismName::Replication => Mechanism::Replication { copies: self.copies.unwrap_or(1) },
            MechanismName::Splitting => Mechanism::Splitting { data, parities },
            MechanismName::Packing => Mechanism::Packing { data, parities },
        }
    }
}

fn by_name<S: Serializer>(mechanisms: &[Mechanism], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(mechanisms.iter().map(Mechanism::to_string))
}

fn refusal(words: &str) -> ConfigError {
    ConfigError(words.to_owned())
}

/// Where a path leads; of a file that is not there, where it would be made.
fn target(path: &Path) -> PathBuf {
    let whole = std::fs::canonicalize(path);
    whole.unwrap_or_else(|_| {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = std::fs::canonicalize(parent.unwrap_or(Path::new(".")));
        let made = parent.ok().zip(path.file_name()).map(|(parent, name)| parent.join(name));
        made.unwrap_or_else(|| path.to_owned())
    })
}

/// The devices to serve, if so many and each of them once.
pub(super) fn checked_devices(devices: Vec<PathBuf>) -> Result<Vec<PathBuf>, ConfigError> {
    if devices.len() > DEVICES_MAX {
        let count = devices.len();
        return Err(ConfigError(format!("device: {count} were given; an array has {DEVICES_MAX} at most")));
    }
    let mut seen: BTreeMap<PathBuf, &Path> = BTreeMap::new();
    for path in &devices {
        if let Some(first) = seen.insert(target(path), path) {
            let (first, second) = (first.display(), path.display());
            return Err(ConfigError(format!(
                "device: {first} and {second} are the same device; name each once"
            )));
        }
    }
    Ok(devices)
}
