//! The scripts that are known: of locks, and of counters.
//!
//! Role: tells by its text, or by the digest of one that was sent before, what a script does. Place on the
//! path: asked by EVAL, EVALSHA and SCRIPT.
//!
//! Invariants: a text is known by its words ([`super::lua`]), whatever its layout; its digest is remembered
//! on all cores once somebody sent it. So many at most, without waiting.
//!
//! Never: a script that is not known is taken for one that is.

use super::lua::normal;
use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{LazyLock, OnceLock};

/// What a script gives back: an integer, or nil, which is false in Lua.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answers {
    /// The token was the key's, and what was asked for is done.
    pub(super) done: Option<i64>,
    /// The key holds something else.
    pub(super) different: Option<i64>,
    /// There is no such key.
    pub(super) absent: Option<i64>,
}

pub(super) const INTEGERS: Answers = Answers { done: Some(1), different: Some(0), absent: Some(0) };
pub(super) const BOOLEANS: Answers = Answers { done: Some(1), different: None, absent: None };
const MINUS_ONE: Answers = Answers { done: Some(1), different: Some(-1), absent: Some(-1) };
const THREE: Answers = Answers { absent: Some(-1), ..INTEGERS };

/// A script that is known. Those of a lock have the token as their first argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Script {
    /// Deletes the key if it holds the token.
    Release(Answers),
    /// The same, and tells those who listen to the channel that is the second argument.
    ReleaseAndTell,
    /// Sets or adds to its time, as the third argument says.
    Extend,
    /// Sets its time.
    Renew(Answers),
    /// The same, in seconds.
    RenewSeconds(Answers),
    /// Sets its time, or takes it if it is free.
    Obtain(Answers),
    /// Takes all keys if all are free.
    TakeAll,
    /// Sets the time of all keys if all hold the token.
    ExtendAll,
    /// Deletes those that hold the token.
    ReleaseAll,
    /// Adds to a number.
    Add,
    /// Adds to a number that is there; else the reply is false.
    AddIfThere,
}

/// SHA-1 of the scripts of redis-py's `Lock` (redis/lock.py, releases 3 to 8).
const DIGESTS: [(&str, Script); 3] = [
    ("c3f8721cbb97f72bc19e972846bd7aaf91901658", Script::Release(INTEGERS)),
    ("a4e8783852e6b949f9ef3a97212805108459a890", Script::Extend),
    ("1cac51482acf5858da00f6d685d68f886cd6b6b2", Script::Renew(INTEGERS)),
];

/// What the script of Redis' documentation, and those that people write after it, ask first, do then, and
/// give back: all that these make together are known.
const CONDITIONS: [&str; 4] = [
    "if redis.call('get', KEYS[1]) == ARGV[1] then",
    "if ARGV[1] == redis.call('get', KEYS[1]) then",
    "local value = redis.call('get', KEYS[1]) if value == ARGV[1] then",
    "local value = redis.call('get', KEYS[1]) if ARGV[1] == value then",
];
type ByAnswers = fn(Answers) -> Script;
const CALLS: [(&str, ByAnswers); 4] = [
    ("redis.call('del', KEYS[1])", Script::Release),
    ("redis.call('unlink', KEYS[1])", Script::Release),
    ("redis.call('pexpire', KEYS[1], ARGV[2])", Script::Renew),
    ("redis.call('expire', KEYS[1], ARGV[2])", Script::RenewSeconds),
];
/// Behind a call whose reply is given back; or, with the token there, it is 1 anyway.
const REPLIES: [(&str, &str); 2] = [("return", ""), ("", "return 1")];
const OTHERWISE: [(&str, Answers); 3] =
    [("else return 0 end", INTEGERS), ("else return -1 end", MINUS_ONE), ("end", BOOLEANS)];

/// Scripts by a text, in any layout and with any names of what is declared `local`.
const TEXTS: [(&str, Script); 13] = [
    // go-redsync/redsync 4.
    (
        "local val = redis.call('get', KEYS[1]) if val == ARGV[1] then return redis.call('del', KEYS[1])
        elseif val == false then return -1 else return 0 end",
        Script::Release(THREE),
    ),
    (
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2])
        elseif redis.call('set', KEYS[1], ARGV[1], 'px', ARGV[2], 'nx') then return 1 else return 0 end",
        Script::Obtain(INTEGERS),
    ),
    // RedisLockRegistry of Spring Integration 5 and 6: obtain, renew, and let go by each of its two types.
    (
        "local lockClientId = redis.call('get', KEYS[1]) if lockClientId == ARGV[1] then
        redis.call('pexpire', KEYS[1], ARGV[2]) return true elseif not lockClientId then
        redis.call('set', KEYS[1], ARGV[1], 'px', ARGV[2]) return true end return false",
        Script::Obtain(BOOLEANS),
    ),
    (
        "if redis.call('get', KEYS[1]) == ARGV[1] then redis.call('pexpire', KEYS[1], ARGV[2]) return true end
        return false",
        Script::Renew(BOOLEANS),
    ),
    (
        "local lockClientId = redis.call('get', KEYS[1]) if lockClientId == ARGV[1] then
        redis.call('unlink', KEYS[1]) return true end return false",
        Script::Release(BOOLEANS),
    ),
    (
        "local lockClientId = redis.call('get', KEYS[1]) if lockClientId == ARGV[1] then
        redis.call('del', KEYS[1]) return true end return false",
        Script::Release(BOOLEANS),
    ),
    (
        "local lockClientId = redis.call('get', KEYS[1])
        if lockClientId == ARGV[1] and redis.call('unlink', KEYS[1]) == 1 then
        redis.call('publish', ARGV[2], KEYS[1]) return true end return false",
        Script::ReleaseAndTell,
    ),
    (
        "local lockClientId = redis.call('get', KEYS[1])
        if lockClientId == ARGV[1] and redis.call('del', KEYS[1]) == 1 then
        redis.call('publish', ARGV[2], KEYS[1]) return true end return false",
        Script::ReleaseAndTell,
    ),
    // node-redlock 4 and 5.
    (
        "for i, key in ipairs(KEYS) do if redis.call('exists', key) == 1 then return 0 end end
        for i, key in ipairs(KEYS) do redis.call('set', key, ARGV[1], 'px', ARGV[2]) end return #KEYS",
        Script::TakeAll,
    ),
    (
        "for i, key in ipairs(KEYS) do if redis.call('get', key) ~= ARGV[1] then return 0 end end
        for i, key in ipairs(KEYS) do redis.call('set', key, ARGV[1], 'px', ARGV[2]) end return #KEYS",
        Script::ExtendAll,
    ),
    (
        "local count = 0 for i, key in ipairs(KEYS) do if redis.call('get', key) == ARGV[1] then
        redis.pcall('del', key) count = count + 1 end end return count",
        Script::ReleaseAll,
    ),
    // django-redis 7 counts with these (django_redis/client/default.py).
    (
        "local exists = redis.call('exists', KEYS[1])
        if exists == 1 then return redis.call('incrby', KEYS[1], ARGV[1]) else return false end",
        Script::AddIfThere,
    ),
    ("return redis.call('incrby', KEYS[1], ARGV[1])", Script::Add),
];

/// All those texts, as [`normal`] makes them.
static KNOWN: LazyLock<BTreeMap<String, Script>> = LazyLock::new(|| {
    let normal = |text: &str| normal(text).expect("what is known has known words");
    let mut known: BTreeMap<_, _> = TEXTS.iter().map(|(text, script)| (normal(text), *script)).collect();
    for condition in CONDITIONS {
        for (call, script) in CALLS {
            for (before, behind) in REPLIES {
                for (otherwise, answers) in OTHERWISE {
                    let text = format!("{condition} {before} {call} {behind} {otherwise}");
                    known.insert(normal(&text), script(answers));
                }
            }
        }
    }
    known
});

/// Texts that are longer are none of these.
const TEXT_BYTES_MAX: usize = 2048;
/// How many digests are remembered.
const REMEMBERED_MAX: usize = 64;

/// SHA-1 in hexadecimal digits.
pub(super) type Digest = String;

/// The digests of scripts that somebody sent.
#[derive(Debug)]
pub struct Remembered([OnceLock<(Digest, Script)>; REMEMBERED_MAX]);

impl Default for Remembered {
    fn default() -> Self {
        Remembered(std::array::from_fn(|_| OnceLock::new()))
    }
}

impl Remembered {
    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.0.iter().take_while(|slot| slot.get().is_some()).count()
    }

    /// The script of a digest.
    pub(super) fn by_digest(&self, digest: &[u8]) -> Option<Script> {
        let is_it = |known: &str| known.as_bytes().eq_ignore_ascii_case(digest);
        let built_in = DIGESTS.iter().find(|(known, _)| is_it(known)).map(|(_, script)| *script);
        let sent = || self.0.iter().map_while(OnceLock::get).find(|(known, _)| is_it(known));
        built_in.or_else(|| sent().map(|(_, script)| *script))
    }

    /// Remembers the digest of a script that is known, and tells it; nothing if there is no room.
    pub(super) fn remember(&self, text: &[u8], script: Script) -> Option<Digest> {
        let digest = digest_of(text);
        if self.by_digest(digest.as_bytes()).is_some() {
            return Some(digest);
        }
        // Another core may take a slot meanwhile: then it is the next one.
        let is_kept = self.0.iter().any(|slot| slot.set((digest.clone(), script)).is_ok());
        is_kept.then_some(digest)
    }
}

fn digest_of(text: &[u8]) -> Digest {
    digest(&SHA1_FOR_LEGACY_USE_ONLY, text).as_ref().iter().fold(String::new(), |mut digits, byte| {
        write!(digits, "{byte:02x}").expect("a string takes all");
        digits
    })
}

/// The script of a text. What else is given back may stand behind the end of the condition, whose first
/// branch returns.
pub(super) fn by_text(text: &[u8]) -> Option<Script> {
    if text.len() > TEXT_BYTES_MAX {
        return None;
    }
    let words = normal(std::str::from_utf8(text).ok()?)?;
    let with_else = words.rsplit_once(" end return ");
    let with_else = with_else.map(|(first, other)| format!("{first} else return {other} end"));
    [with_else, Some(words)]
        .into_iter()
        .flatten()
        .find_map(|words| exactly(&words).or_else(|| silent(&words)))
}

/// The script of a text whose other branch says what it would give back anyway: nil, which false is to Redis.
fn silent(words: &str) -> Option<Script> {
    let endings = [" else return nil end", " else return false end"];
    let first = endings.into_iter().find_map(|ending| words.strip_suffix(ending))?;
    exactly(&format!("{first} end"))
}

fn exactly(words: &str) -> Option<Script> {
    KNOWN.get(words).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RELEASE: &str =
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

    #[test]
    fn a_digest_is_that_of_redis() {
        // SCRIPT LOAD of redis-server 7.0.
        assert_eq!(digest_of(b"return 1"), "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    }

    #[test]
    fn comments_do_not_hide_what_a_script_does() {
        assert_eq!(by_text(RELEASE.as_bytes()), Some(Script::Release(INTEGERS)));
        let commented = RELEASE.replace(" then", " then -- it is ours\n");
        assert_eq!(by_text(commented.as_bytes()), Some(Script::Release(INTEGERS)));
        for other in
            [format!("--[[\n{RELEASE}\n--]]"), format!("-- {RELEASE}"), format!("{RELEASE} return 1")]
        {
            assert_eq!(by_text(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn a_script_is_known_however_its_condition_is_written() {
        let get = r#"redis.call("get", KEYS[1])"#;
        let del = r#"return redis.call("del", KEYS[1])"#;
        for same in [
            format!("if ARGV[1] == {get} then {del} else return 0 end"),
            format!("if {get} == ARGV[1] then {del}; end; return 0;"),
            format!("if ARGV[1] == {get} then {del} end return 0"),
            format!("if ({get} == ARGV[1]) then {del} else return 0 end"),
            format!("local v = {get}; if v == ARGV[1] then {del} end return 0"),
        ] {
            assert_eq!(by_text(same.as_bytes()), Some(Script::Release(INTEGERS)), "{same}");
        }
        for silent in ["end", "else return nil end", "end return false"] {
            let text = format!("if {get} == ARGV[1] then {del} {silent}");
            assert_eq!(by_text(text.as_bytes()), Some(Script::Release(BOOLEANS)), "{text}");
        }
        let less = format!("if {get} == ARGV[1] then {del} else return -1 end");
        assert_eq!(by_text(less.as_bytes()), Some(Script::Release(MINUS_ONE)));
        for other in [
            format!("if {get} == ARGV[1] then {del} end return 1"),
            format!("if {get} ~= ARGV[1] then {del} end return 0"),
            format!("if {get} == ARGV[1] then redis.call('del', KEYS[1]) end return 0"),
            format!("{RELEASE};;"),
            // Lua ends a comment there, too: this does something else (found by an audit).
            format!("if {get} == ARGV[1] then {del} end --x\r redis.call('set', KEYS[1], '')\nreturn 0"),
            RELEASE.replace("KEYS", "keys"),
            RELEASE.replace("then", "then;"),
        ] {
            assert_eq!(by_text(other.as_bytes()), None, "{other}");
        }
    }

    /// Of all but DEL only those were known that give 0 (found by an audit).
    #[test]
    fn whatever_is_done_with_a_lock_may_answer_in_each_way() {
        let (unlink, renew) = (r#"redis.call("UNLINK", KEYS[1])"#, "redis.call('pexpire', KEYS[1], ARGV[2])");
        let expire = "redis.call('expire', KEYS[1], ARGV[2])";
        for (call, script) in
            [(unlink, Script::Release as ByAnswers), (renew, Script::Renew), (expire, Script::RenewSeconds)]
        {
            for (otherwise, answers) in [
                ("else return 0 end", INTEGERS),
                ("end return 0", INTEGERS),
                ("else return -1 end", MINUS_ONE),
                ("else return nil end", BOOLEANS),
                ("end return false", BOOLEANS),
                ("end", BOOLEANS),
            ] {
                for text in [
                    format!("if redis.call('get', KEYS[1]) == ARGV[1] then return {call} {otherwise}"),
                    format!("if ARGV[1] == redis.call('get', KEYS[1]) then return {call} {otherwise}"),
                    format!(
                        "local v = redis.call('get', KEYS[1]) if v == ARGV[1] then return {call} {otherwise}"
                    ),
                    format!("if redis.call('get', KEYS[1]) == ARGV[1] then {call} return 1 {otherwise}"),
                ] {
                    assert_eq!(by_text(text.as_bytes()), Some(script(answers)), "{text}");
                }
            }
        }
    }

    #[test]
    fn digests_are_remembered_while_there_is_room() {
        let remembered = Remembered::default();
        for number in 0..REMEMBERED_MAX {
            let text = format!("{RELEASE}{}", " ".repeat(number));
            let digest = remembered.remember(text.as_bytes(), Script::Add).unwrap();
            assert_eq!(remembered.by_digest(digest.to_uppercase().as_bytes()), Some(Script::Add));
            assert_eq!(remembered.remember(text.as_bytes(), Script::Add), Some(digest), "once");
            assert_eq!(remembered.count(), number + 1);
        }
        assert_eq!(remembered.remember(b"another", Script::Add), None);
    }
}
