//! The slow log of a core: the last commands that took long.
//!
//! Role: keeps what SLOWLOG GET tells. Place on the path: a command's words are copied, cut short, when
//! it begins, and kept if it turns out slow.
//!
//! Invariants: an entry holds at most 32 words of 128 bytes, as in Redis; the log holds as many entries
//! as `slowlog-max-len` says; numbers of entries are unique over all cores and grow.
//!
//! Never: a password.

use crate::answers::{Fields, put_bytes, put_number};
use crate::parameters::Parameter;
use crate::secrets;
use crate::shared::Shared;
use std::cell::RefCell;
use std::collections::VecDeque;

/// Words of a command that an entry keeps; the last one then says how many there were more.
const WORDS_MAX: usize = 32;
/// Bytes of a word that an entry keeps.
const WORD_BYTES_MAX: usize = 128;
/// Buffers kept for the words of further commands, and what one may have grown to.
const SPARE_MAX: usize = 256;
const SPARE_BYTES_MAX: usize = 512;

/// A slow command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) id: u64,
    /// Wall time of its beginning in seconds.
    pub(crate) time_s: u64,
    pub(crate) duration_us: u64,
    /// The part of it that its operations were with their partitions.
    pub(crate) device_us: u64,
    /// The client's address and name.
    pub(crate) peer: Vec<u8>,
    pub(crate) name: Vec<u8>,
    /// Its words, as [`SlowLog::capture`] made them.
    pub(crate) words: Vec<u8>,
}

/// The slow log of one core.
#[derive(Debug, Default)]
pub(crate) struct SlowLog {
    entries: RefCell<VecDeque<Entry>>,
    spare: RefCell<Vec<Vec<u8>>>,
}

/// Whether the slow log remembers anything.
pub(crate) fn is_on(shared: &Shared) -> bool {
    let parameters = &shared.parameters;
    parameters.get(Parameter::SlowlogLogSlowerThan) >= 0 && parameters.get(Parameter::SlowlogMaxLen) > 0
}

/// Whether a command that took so long is remembered.
fn is_slow(shared: &Shared, duration_us: u64) -> bool {
    let least = u64::try_from(shared.parameters.get(Parameter::SlowlogLogSlowerThan));
    is_on(shared) && least.is_ok_and(|least| duration_us >= least)
}

fn put_word(words: &mut Vec<u8>, word: &[u8]) {
    let more = word.len().saturating_sub(WORD_BYTES_MAX);
    if more == 0 {
        put_bytes(words, word);
        return;
    }
    let tail = format!("... ({more} more bytes)");
    put_bytes(words, &[&word[..WORD_BYTES_MAX], tail.as_bytes()].concat());
}

impl SlowLog {
    /// The words of a command, cut as Redis cuts them.
    pub(crate) fn capture<'a>(&self, args: impl ExactSizeIterator<Item = &'a [u8]> + Clone) -> Vec<u8> {
        let mut words = self.spare.borrow_mut().pop().unwrap_or_default();
        let count = args.len();
        let shown = if count > WORDS_MAX { WORDS_MAX - 1 } else { count };
        for (index, word) in args.clone().take(shown).enumerate() {
            let hidden = secrets::is_secret(args.clone(), index);
            put_word(&mut words, if hidden { secrets::SHOWN } else { word });
        }
        if shown < count {
            put_bytes(&mut words, format!("... ({} more arguments)", count - shown).as_bytes());
        }
        words
    }

    /// Words that are not needed any more.
    pub(crate) fn give_back(&self, mut words: Vec<u8>) {
        let mut spare = self.spare.borrow_mut();
        if spare.len() < SPARE_MAX && (1..=SPARE_BYTES_MAX).contains(&words.capacity()) {
            words.clear();
            spare.push(words);
        }
    }

    /// Keeps a command if it was slow and has an entry, which is made only then.
    pub(crate) fn consider(
        &self,
        shared: &Shared,
        duration_us: u64,
        words: Vec<u8>,
        entry: impl FnOnce() -> Option<Entry>,
    ) {
        let may_stay = !words.is_empty() && is_slow(shared, duration_us);
        let Some(entry) = may_stay.then(entry).flatten() else {
            self.give_back(words);
            return;
        };
        let mut entries = self.entries.borrow_mut();
        entries.push_front(Entry { id: shared.next_slow(), duration_us, words, ..entry });
        entries.truncate(length_max(shared));
    }

    /// How many entries there are.
    pub(crate) fn len(&self) -> u64 {
        self.entries.borrow().len() as u64
    }

    /// Forgets all.
    pub(crate) fn reset(&self) {
        self.entries.borrow_mut().clear();
    }

    /// The latest entries as fields.
    pub(crate) fn tell(&self, count: usize) -> Vec<u8> {
        let mut answer = Vec::new();
        for entry in self.entries.borrow().iter().take(count) {
            for number in [entry.id, entry.time_s, entry.duration_us, entry.device_us] {
                put_number(&mut answer, number);
            }
            for bytes in [&entry.peer, &entry.name, &entry.words] {
                put_bytes(&mut answer, bytes);
            }
        }
        answer
    }
}

/// Entries that are kept.
pub(crate) fn length_max(shared: &Shared) -> usize {
    shared.parameters.get(Parameter::SlowlogMaxLen).max(0) as usize
}

/// The latest entries of all cores.
pub(crate) fn merge(answers: &[Vec<u8>], count: usize) -> Vec<Entry> {
    let mut entries = Vec::new();
    for answer in answers {
        let mut fields = Fields(answer);
        while !fields.is_empty() {
            let [id, time_s, duration_us, device_us] = std::array::from_fn(|_| fields.number());
            let [peer, name, words] = std::array::from_fn(|_| fields.bytes().to_vec());
            entries.push(Entry { id, time_s, duration_us, device_us, peer, name, words });
        }
    }
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.id));
    entries.truncate(count);
    entries
}

impl Entry {
    /// The words of the command.
    pub(crate) fn words(&self) -> Vec<Vec<u8>> {
        let (mut fields, mut words) = (Fields(&self.words), Vec::new());
        while !fields.is_empty() {
            words.push(fields.bytes().to_vec());
        }
        words
    }
}
