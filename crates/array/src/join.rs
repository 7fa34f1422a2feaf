//! Joining: who belongs to an array, and who of them may be trusted.
//!
//! Role: compares the rosters of the devices that are there, makes one where there is none, and says who is
//! in. Place on the path: the first thing that `open` does.
//!
//! Invariants:
//! * a member that has not the roster that all had is not read: it was put back to an earlier time;
//! * an array goes on without members that are missing only if more than half of all are there that were in:
//!   so whoever was left behind earlier cannot take itself for the array;
//! * nor if values could be read with those that were in, and cannot with those that are there: whoever comes
//!   back later begins with nothing, so going on gives up what stood on them alone;
//! * forms are not added while somebody who is out claims something: by what it does would not be known;
//! * no data is written to a device that holds something and does not belong to the array.

use crate::array::ArrayOptions;
use crate::claims::claimant;
use crate::enough::loses;
use crate::forms::{FORMS_MAX, forms};
use crate::manner::Manner;
use crate::mechanism::MechanismError;
use crate::member::{Joining, Member};
use crate::membership::{roster_key, roster_store};
use crate::open::background;
use crate::placement::{self, ARRAY_CONTAINERS, ROSTER};
use crate::policy::Policy;
use crate::roster::{Entry, Left, MEMBERS_MAX, MemberState, Roster};
use plimsoll_kv::{ContainerId, Device, Error, Op, Output, Request};
use plimsoll_reactor::Reactor;
use std::rc::Rc;

/// Why an array cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The number of devices.
    #[error("an array has 1 to {MEMBERS_MAX} devices, not {0}")]
    Count(usize),
    /// The mechanism.
    #[error("{0}")]
    Mechanism(#[from] MechanismError),
    /// A device failed.
    #[error("{name}: {error}")]
    Device {
        /// Which.
        name: String,
        /// How.
        error: Error,
    },
    /// None of the devices is there.
    #[error("none of the devices is there")]
    Nothing,
    /// A new array lacks devices.
    #[error("{0} is missing, and the others belong to no array yet: a new array needs all its devices")]
    Incomplete(String),
    /// A device of another use.
    #[error("{0} holds data and belongs to no array; give an array empty devices")]
    HoldsData(String),
    /// A device of another array.
    #[error("{0} belongs to another array")]
    OtherArray(String),
    /// A device that was replaced, or never belonged.
    #[error("{0} is no member of the array (any more): was it replaced?")]
    Stranger(String),
    /// A device that comes back and has been in an array that went on without this one.
    #[error("{0} was served without the others since it went: start the server again, with all devices")]
    Ahead(String),
    /// A device that nothing was ever stored on.
    #[error(
        "{0} is empty, and the array has another device in its place that was in: bring that one back, or take \
         this one away and, when the server runs, replace it (plimsoll array replace)"
    )]
    Empty(String),
    /// A device in another's place.
    #[error("{name} is number {is} of the array and was given as number {given}: keep the order")]
    Order {
        /// Which.
        name: String,
        /// Its place in the array, from 1.
        is: usize,
        /// Where it was given.
        given: usize,
    },
    /// Another number of devices than the array has.
    #[error("the array has {has} devices, {given} were given")]
    Size {
        /// That it has.
        has: usize,
        /// That were given.
        given: usize,
    },
    /// The policy was changed too often.
    #[error("values of the array have {0} forms by now, and with these it would be more than {FORMS_MAX}")]
    TooManyForms(usize),
    /// A device that is out has what no other has.
    #[error(
        "{0} is out, and has what no other device has, or may have: as long as it is, [array] has to protect \
         objects as it did; start with that, and change it when the device is in, or replaced"
    )]
    Changed(String),
    /// Too few to be sure.
    #[error(
        "{missing} missing: those that are there may have been left behind by the others; bring them back, or, \
         if they are lost for good, start with `degraded = true` under [array]"
    )]
    TooManyMissing {
        /// Their names, and a verb.
        missing: String,
    },
    /// What is missing holds what nobody else does.
    #[error(
        "{missing} missing, and what stands on too few others cannot be read without: bring them back, or, if \
         they are lost for good, start with `degraded = true` under [array], which gives that up"
    )]
    LosesValues {
        /// Their names, and a verb.
        missing: String,
    },
}

/// Whether a partition of a lone device belongs to an array: it must not be served as if it did not.
///
/// # Errors
/// The device fails.
pub async fn is_member(
    device: &Rc<dyn Device>,
    partition: u16,
    partitions: u16,
) -> plimsoll_kv::Result<bool> {
    let tag = placement::tag(partition, partitions);
    match read_roster(device, &tag).await {
        Ok(roster) => Ok(roster.is_some()),
        Err(error) => Err(error),
    }
}

/// The roster that is in force, not yet written anew, and the members by it.
pub(crate) async fn join(
    reactor: &Reactor,
    tag: &str,
    mut members: Vec<Joining>,
    options: &ArrayOptions,
) -> Result<(Roster, Vec<Member>), OpenError> {
    check(&members, &options.policy)?;
    let rosters = rosters(&mut members, tag).await?;
    let newest = rosters.iter().flatten().max_by_key(|roster| roster.epoch).cloned();
    let mut roster = match newest {
        Some(roster) if roster.opens > 0 => roster,
        begun => begin(reactor, &members, tag, begun, options).await?,
    };
    finish_replacements(&mut roster, &members, &rosters).await?;
    compare(&roster, &members, &rosters)?;
    let members = decide(&mut roster, members, &rosters, options)?;
    extend(&mut roster, &options.policy, &members)?;
    Ok((roster, members))
}

/// Looks at what was asked for.
fn check(members: &[Joining], policy: &Policy) -> Result<(), OpenError> {
    if !(1..=MEMBERS_MAX).contains(&members.len()) {
        return Err(OpenError::Count(members.len()));
    }
    policy.check(members.len() as u32)?;
    if members.iter().all(|member| member.device.is_err()) {
        return Err(OpenError::Nothing);
    }
    Ok(())
}

pub(crate) async fn read_roster(device: &Rc<dyn Device>, tag: &str) -> plimsoll_kv::Result<Option<Roster>> {
    let op = Op::Retrieve { container: ROSTER, key: roster_key(tag), range: None, pin: false };
    match background(device, op).await {
        Ok(Output::Found(item)) => Roster::decode(&item.bytes)
            .map(Some)
            .map_err(|what| Error::Unreadable(format!("its roster {what}"))),
        Ok(_) | Err(Error::NotFound) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The roster that stands on each device. One that cannot be read, while others are, says nothing of its
/// device: that counts as missing.
async fn rosters(members: &mut [Joining], tag: &str) -> Result<Vec<Option<Roster>>, OpenError> {
    let (mut rosters, mut failure) = (Vec::with_capacity(members.len()), None);
    for member in members {
        let Ok(device) = &member.device else {
            rosters.push(None);
            continue;
        };
        rosters.push(match read_roster(device, tag).await {
            Ok(roster) => roster,
            Err(error @ Error::Unreadable(_)) => {
                member.device = Err(format!("its roster cannot be read: {error}"));
                failure = Some(OpenError::Device { name: member.name.clone(), error });
                None
            }
            Err(error) => return Err(OpenError::Device { name: member.name.clone(), error }),
        });
    }
    match failure {
        Some(failure) if rosters.iter().all(Option::is_none) => Err(failure),
        _ => Ok(rosters),
    }
}

/// Makes an array of empty devices: nothing is stored before its roster stands on all of them.
async fn begin(
    reactor: &Reactor,
    members: &[Joining],
    tag: &str,
    begun: Option<Roster>,
    options: &ArrayOptions,
) -> Result<Roster, OpenError> {
    let mut array = [0; 16];
    array[..8].copy_from_slice(&reactor.random_u64().to_le_bytes());
    array[8..].copy_from_slice(&reactor.random_u64().to_le_bytes());
    let entries =
        members.iter().map(|member| Entry { device: member.id, state: MemberState::In, left: None });
    let roster = begun.unwrap_or(Roster {
        array,
        epoch: 1,
        settled: 0,
        opens: 0,
        forms: forms(&options.policy),
        members: entries.collect(),
    });
    for member in members {
        let Ok(device) = &member.device else { return Err(OpenError::Incomplete(member.name.clone())) };
        let failed = |error| OpenError::Device { name: member.name.clone(), error };
        if !is_empty(device).await.map_err(failed)? {
            return Err(OpenError::HoldsData(member.name.clone()));
        }
        let request: Request = Manner::background().request(roster_store(tag, roster.encode()));
        device.clone().execute(request).await.map_err(failed)?;
    }
    Ok(roster)
}

/// True if nothing of an array is on a device.
async fn is_empty(device: &Rc<dyn Device>) -> plimsoll_kv::Result<bool> {
    for container in 0..ARRAY_CONTAINERS {
        let op = Op::Stats { container: ContainerId(container) };
        let Output::Stats(stats) = background(device, op).await? else { continue };
        if stats.keys > 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A device that was made to take the place of one that is out, and had not yet taken it when the server
/// ended, takes it now.
async fn finish_replacements(
    roster: &mut Roster,
    members: &[Joining],
    rosters: &[Option<Roster>],
) -> Result<(), OpenError> {
    let known: Vec<[u8; 16]> = roster.members.iter().map(|entry| entry.device).collect();
    for ((entry, own), member) in roster.members.iter_mut().zip(rosters).zip(members) {
        let Ok(device) = &member.device else { continue };
        if own.is_some() || known.contains(&member.id) {
            continue;
        }
        let empty = is_empty(device).await;
        if !empty.map_err(|error| OpenError::Device { name: member.name.clone(), error })? {
            continue;
        }
        if entry.state == MemberState::In {
            return Err(OpenError::Empty(member.name.clone()));
        }
        tracing::info!(device = member.name, "it takes the place of one that is out: that was interrupted");
        entry.replace(member.id);
        entry.state = MemberState::Out;
    }
    Ok(())
}

/// Compares the devices with the roster.
fn compare(roster: &Roster, members: &[Joining], rosters: &[Option<Roster>]) -> Result<(), OpenError> {
    if roster.members.len() != members.len() {
        return Err(OpenError::Size { has: roster.members.len(), given: members.len() });
    }
    for (given, (member, own)) in members.iter().zip(rosters).enumerate() {
        if own.as_ref().is_some_and(|own| own.array != roster.array) {
            return Err(OpenError::OtherArray(member.name.clone()));
        }
        if member.device.is_err() || roster.members[given].device == member.id {
            continue;
        }
        let is = roster.members.iter().position(|entry| entry.device == member.id);
        let name = member.name.clone();
        return Err(match is {
            Some(is) => OpenError::Order { name, is: is + 1, given: given + 1 },
            None => OpenError::Stranger(name),
        });
    }
    Ok(())
}

/// Adds what values are made into from now on.
fn extend(roster: &mut Roster, policy: &Policy, members: &[Member]) -> Result<(), OpenError> {
    let new: Vec<_> = forms(policy).into_iter().filter(|form| !roster.forms.contains(form)).collect();
    if new.is_empty() {
        return Ok(());
    }
    if roster.forms.len() + new.len() > FORMS_MAX {
        return Err(OpenError::TooManyForms(roster.forms.len()));
    }
    let with_new = [&roster.forms[..], &new].concat();
    if let Some(claimant) = claimant(roster, &roster.forms).or_else(|| claimant(roster, &with_new)) {
        return Err(OpenError::Changed(members[claimant].status.name.clone()));
    }
    tracing::warn!(%policy, "objects are protected in another way from now on; those that are there keep theirs");
    roster.forms.extend(new);
    Ok(())
}

/// Why a member is not in that comes back as it went.
pub(crate) const MISSED: &str = "it has missed writes";

/// Why a member is not in; empty if it is.
fn lacking(roster: &Roster, entry: &Entry, own: Option<&Roster>, member: &Joining) -> String {
    let reason = match (&member.device, entry.state) {
        (Err(why), _) => why,
        (Ok(_), MemberState::In) if own.is_none() && roster.opens > 0 => "it was formatted anew",
        (Ok(_), MemberState::In) if own.is_some_and(|own| own.epoch < roster.settled) => {
            "it was put back as it was at an earlier time"
        }
        (Ok(_), MemberState::In) => "",
        (Ok(_), MemberState::Out) if own.is_none() => "it takes the place of another",
        (Ok(_), MemberState::Out) => MISSED,
        // A write or transaction that the end of the server cut short may be on the others and not on it: it
        // begins anew, with nothing, unless all are named (`filled`).
        (Ok(_), MemberState::Resyncing) => "it was being resynchronised when the server ended",
    };
    reason.to_owned()
}

/// Looks whether enough of those that were in still are.
fn check_enough(roster: &Roster, given: &[Joining], reasons: &[String]) -> Result<(), OpenError> {
    let were_in: Vec<bool> = roster.members.iter().map(|entry| entry.state == MemberState::In).collect();
    let are_in: Vec<bool> =
        were_in.iter().zip(reasons).map(|(was, reason)| *was && reason.is_empty()).collect();
    let gone = (0..given.len()).filter(|member| were_in[*member] && !are_in[*member]);
    let name = |member: usize| {
        let how = if given[member].device.is_ok() { " as it was last" } else { "" };
        format!("{}{how}", given[member].name)
    };
    let names: Vec<String> = gone.map(name).collect();
    let verb = if names.len() == 1 { "is" } else { "are" };
    let missing = format!("{} {verb}", names.join(", "));
    let there = are_in.iter().filter(|is_in| **is_in).count();
    if there == 0 || (!names.is_empty() && 2 * there <= given.len()) {
        return Err(OpenError::TooManyMissing { missing });
    }
    if loses(roster.forms.iter().copied(), &were_in, &are_in) {
        return Err(OpenError::LosesValues { missing });
    }
    Ok(())
}

/// Decides who is in.
fn decide(
    roster: &mut Roster,
    given: Vec<Joining>,
    rosters: &[Option<Roster>],
    options: &ArrayOptions,
) -> Result<Vec<Member>, OpenError> {
    let each = roster.members.iter().zip(rosters).zip(&given);
    let reasons: Vec<String> =
        each.map(|((entry, own), member)| lacking(roster, entry, own.as_ref(), member)).collect();
    let is_any_in = reasons.iter().any(String::is_empty);
    if !options.degraded || !is_any_in {
        check_enough(roster, &given, &reasons)?;
    }
    let mut members = Vec::with_capacity(given.len());
    let left = Left::at(roster.epoch + 1, roster.settled);
    let settled = roster.settled;
    for (((entry, reason), member), own) in roster.members.iter_mut().zip(reasons).zip(given).zip(rosters) {
        let goes_on = entry.state == MemberState::Resyncing
            && member.device.is_ok()
            && own.as_ref().is_some_and(|own| own.epoch >= settled);
        if !reason.is_empty() {
            if entry.state == MemberState::In {
                entry.left = left;
                // It is there, and has not got what it had.
                if member.device.is_ok() {
                    entry.give_up();
                }
            }
            entry.state = MemberState::Out;
            tracing::warn!(device = member.name, reason, "a device of the array is not in");
        }
        let id = entry.device;
        let member = Member::new(Joining { id, ..member }, entry.state, &reason);
        members.push(Member { goes_on, ..member });
    }
    Ok(members)
}
