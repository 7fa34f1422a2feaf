//! Places in the counters: one for each command, and one for each subcommand, in the order of the table.
//!
//! Role: lets CONFIG SET be counted apart from CONFIG GET, as Redis does. Place on the path: a command
//! that begins is charged to its slot.
//!
//! Invariant: the slot of a command that has subcommands counts what is refused before its subcommand is
//! looked at, and DEBUG where that is forbidden.

use super::{Spec, TABLE};
use std::sync::LazyLock;

/// Who is counted in a slot.
#[derive(Debug)]
pub struct Slot {
    /// `get`, or `config|set`.
    pub name: String,
    /// The command's place in the table.
    pub command: usize,
}

impl Slot {
    /// The command.
    #[must_use]
    pub fn spec(&self) -> &'static Spec {
        &TABLE[self.command]
    }
}

/// All slots.
pub static SLOTS: LazyLock<Vec<Slot>> = LazyLock::new(|| {
    let of_command = |(command, spec): (usize, &'static Spec)| {
        let own = Slot { name: spec.name.to_owned(), command };
        let subs = spec.subcommands.iter();
        let subs = subs.map(move |sub| Slot { name: format!("{}|{}", spec.name, sub.name), command });
        std::iter::once(own).chain(subs)
    };
    TABLE.iter().enumerate().flat_map(of_command).collect()
});

/// The slot of each command.
static FIRST: LazyLock<Vec<usize>> = LazyLock::new(|| {
    let slots = |command: usize| SLOTS.iter().position(|slot| slot.command == command);
    (0..TABLE.len()).map(|command| slots(command).expect("every command has a slot")).collect()
});

/// The slot of a command, or of its subcommand of this number.
pub(super) fn slot_of(command: usize, subcommand: Option<usize>) -> usize {
    FIRST[command] + subcommand.map_or(0, |number| number + 1)
}

/// The slots that a name means: those of a command with its subcommands, or that of one of these.
pub(super) fn slots_named(name: &[u8]) -> impl Iterator<Item = usize> {
    SLOTS.iter().enumerate().filter_map(move |(index, slot)| {
        let means = |meant: &str| meant.as_bytes().eq_ignore_ascii_case(name);
        (means(&slot.name) || means(slot.spec().name)).then_some(index)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::find;

    #[test]
    fn commands_and_subcommands_have_slots_of_their_own() {
        let named = |name: &str| -> Vec<&str> {
            slots_named(name.as_bytes()).map(|slot| SLOTS[slot].name.as_str()).collect()
        };
        assert_eq!(named("GET"), ["get"]);
        assert_eq!(named("config|SET"), ["config|set"]);
        assert_eq!(
            named("slowlog"),
            ["slowlog", "slowlog|get", "slowlog|help", "slowlog|len", "slowlog|reset"]
        );
        assert!(named("nosuch").is_empty());
        for (command, spec) in TABLE.iter().enumerate() {
            assert_eq!(SLOTS[slot_of(command, None)].name, spec.name);
            assert_eq!(find(spec.name.to_ascii_uppercase().as_bytes()), Some(command));
            for (number, sub) in spec.subcommands.iter().enumerate() {
                let slot = &SLOTS[slot_of(command, Some(number))];
                assert_eq!(
                    (slot.name.as_str(), slot.command),
                    (&*format!("{}|{}", spec.name, sub.name), command)
                );
            }
        }
    }
}
