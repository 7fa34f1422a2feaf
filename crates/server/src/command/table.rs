//! The table of commands, in the order of their names.

use super::{Spec, Subcommand};
use super::{
    client, compare, config, connection, edit, expire, info, introspect, keys, kill, lock_script, many,
    object, only_subcommands, pubsub, range, rename, replace, replication, scan, server, set, string,
    transaction,
};

const PAIRS: (i32, i32, i32) = (1, -1, 2);
const TWO_KEYS: (i32, i32, i32) = (1, 2, 1);
const NO_KEYS: (i32, i32, i32) = (0, 0, 0);
const ONE_KEY: (i32, i32, i32) = (1, 1, 1);
const ALL_KEYS: (i32, i32, i32) = (1, -1, 1);

const READ_FAST: &[&str] = &["readonly", "fast"];
const WRITE_FAST: &[&str] = &["write", "fast"];
const WRITE_MEMORY: &[&str] = &["write", "denyoom"];
const WRITE_MEMORY_FAST: &[&str] = &["write", "denyoom", "fast"];
const CONNECTION: &[&str] = &["noscript", "loading", "stale", "fast"];
const PUBSUB_FLAGS: &[&str] = &["pubsub", "loading", "stale", "fast"];
const PUBSUB_LISTEN: &[&str] = &["pubsub", "noscript", "loading", "stale"];
const PUBSUB_CATEGORIES: &[&str] = &["@pubsub", "@slow"];
const SCRIPTING: &[&str] = &["noscript", "movablekeys"];
const SCRIPTING_CATEGORIES: &[&str] = &["@slow", "@scripting"];
const ADMIN_SLOW: &[&str] = &["admin", "noscript"];
const ADMIN_DANGEROUS: &[&str] = &["@admin", "@slow", "@dangerous"];
const ADMIN: &[&str] = &["admin", "noscript", "loading", "stale"];

const TRANSACTION_FAST: &[&str] = &["noscript", "loading", "stale", "fast"];
const TRANSACTION_SLOW: &[&str] = &["noscript", "loading", "stale", "skip_slowlog"];
const TRANSACTION_CATEGORIES_FAST: &[&str] = &["@fast", "@transaction"];

const KEYSPACE_READ: &[&str] = &["@keyspace", "@read", "@fast"];
const KEYSPACE_WRITE: &[&str] = &["@keyspace", "@write", "@fast"];
const STRING_READ: &[&str] = &["@read", "@string", "@fast"];
const STRING_READ_SLOW: &[&str] = &["@read", "@string", "@slow"];
const STRING_WRITE: &[&str] = &["@write", "@string", "@slow"];
const STRING_WRITE_FAST: &[&str] = &["@write", "@string", "@fast"];
const FAST_CONNECTION: &[&str] = &["@fast", "@connection"];
const SLOW_CONNECTION: &[&str] = &["@slow", "@connection"];
const DANGEROUS: &[&str] = &["@keyspace", "@write", "@slow", "@dangerous"];

macro_rules! spec {
    ($name:literal, $arity:literal, $flags:expr, $categories:expr, $keys:expr, $handler:expr) => {
        spec!($name, $arity, $flags, $categories, $keys, $handler, &[])
    };
    ($name:literal, $arity:literal, $flags:expr, $categories:expr, $keys:expr, $handler:expr, $subs:expr) => {
        Spec {
            name: $name,
            arity: $arity,
            flags: $flags,
            categories: $categories,
            keys: $keys,
            handler: $handler,
            subcommands: $subs,
        }
    };
}

macro_rules! sub {
    ($name:literal, $arity:literal, $handler:expr, $help:literal) => {
        Subcommand { name: $name, arity: $arity, help: $help, handler: $handler }
    };
}

/// All commands, in the order of their names.
pub static TABLE: &[Spec] = &[
    spec!("append", 3, WRITE_MEMORY_FAST, STRING_WRITE_FAST, ONE_KEY, edit::append),
    spec!("auth", -2, CONNECTION, FAST_CONNECTION, NO_KEYS, connection::auth),
    spec!("bgsave", -1, ADMIN_SLOW, ADMIN_DANGEROUS, NO_KEYS, replication::bgsave),
    spec!("client", -2, CONNECTION, SLOW_CONNECTION, NO_KEYS, only_subcommands, CLIENT),
    spec!("command", -1, &["loading", "stale"], SLOW_CONNECTION, NO_KEYS, introspect::all, COMMAND),
    spec!("config", -2, ADMIN, ADMIN_DANGEROUS, NO_KEYS, only_subcommands, CONFIG),
    spec!("copy", -3, WRITE_MEMORY, &["@keyspace", "@write", "@slow"], TWO_KEYS, rename::copy),
    spec!("dbsize", 1, READ_FAST, KEYSPACE_READ, NO_KEYS, server::dbsize),
    spec!("decr", 2, WRITE_MEMORY_FAST, STRING_WRITE_FAST, ONE_KEY, edit::decr),
    spec!("decrby", 3, WRITE_MEMORY_FAST, STRING_WRITE_FAST, ONE_KEY, edit::decrby),
    spec!("del", -2, &["write"], &["@keyspace", "@write", "@slow"], ALL_KEYS, keys::del),
    spec!("delex", -2, WRITE_FAST, STRING_WRITE_FAST, ONE_KEY, compare::delex),
    spec!("delifeq", 3, WRITE_FAST, STRING_WRITE_FAST, ONE_KEY, compare::delifeq),
    spec!("discard", 1, TRANSACTION_FAST, TRANSACTION_CATEGORIES_FAST, NO_KEYS, transaction::discard),
    spec!("echo", 2, &["loading", "stale", "fast"], FAST_CONNECTION, NO_KEYS, connection::echo),
    spec!("eval", -3, SCRIPTING, SCRIPTING_CATEGORIES, NO_KEYS, lock_script::eval),
    spec!("evalsha", -3, SCRIPTING, SCRIPTING_CATEGORIES, NO_KEYS, lock_script::evalsha),
    spec!("exec", 1, TRANSACTION_SLOW, &["@slow", "@transaction"], NO_KEYS, transaction::exec),
    spec!("exists", -2, READ_FAST, KEYSPACE_READ, ALL_KEYS, keys::exists),
    spec!("expire", -3, WRITE_FAST, KEYSPACE_WRITE, ONE_KEY, expire::expire),
    spec!("expireat", -3, WRITE_FAST, KEYSPACE_WRITE, ONE_KEY, expire::expireat),
    spec!("expiretime", 2, READ_FAST, KEYSPACE_READ, ONE_KEY, expire::expiretime),
    spec!("flushall", -1, &["write"], DANGEROUS, NO_KEYS, server::flushall),
    spec!("flushdb", -1, &["write"], DANGEROUS, NO_KEYS, server::flushdb),
    spec!("get", 2, READ_FAST, STRING_READ, ONE_KEY, string::get),
    spec!("getdel", 2, WRITE_FAST, STRING_WRITE_FAST, ONE_KEY, replace::getdel),
    spec!("getex", -2, WRITE_FAST, STRING_WRITE_FAST, ONE_KEY, replace::getex),
    spec!("getrange", 4, &["readonly"], STRING_READ_SLOW, ONE_KEY, range::getrange),
    spec!("getset", 3, WRITE_MEMORY_FAST, STRING_WRITE_FAST, ONE_KEY, replace::getset),
    spec!("hello", -1, CONNECTION, FAST_CONNECTION, NO_KEYS, connection::hello),
    spec!("incr", 2, WRITE_MEMORY_FAST, STRING_WRITE_FAST, ONE_KEY, edit::incr),
    spec!("incrby", 3, WRITE_MEMORY_FAST, STRING_WRITE_FAST, ONE_KEY, edit::incrby),
    spec!("incrbyfloat", 3, WRITE_MEMORY_FAST, STRING_WRITE_FAST, ONE_KEY, edit::incrbyfloat),
    spec!("info", -1, &["loading", "stale"], &["@slow", "@dangerous"], NO_KEYS, info::info),
    spec!("keys", 2, &["readonly"], &["@keyspace", "@read", "@slow", "@dangerous"], NO_KEYS, scan::keys),
    spec!(
        "lastsave",
        1,
        &["loading", "stale", "fast"],
        &["@admin", "@fast", "@dangerous"],
        NO_KEYS,
        replication::lastsave
    ),
    spec!("memory", -2, &["readonly"], &["@read", "@slow"], NO_KEYS, only_subcommands, MEMORY),
    spec!("mget", -2, READ_FAST, STRING_READ, ALL_KEYS, string::mget),
    spec!("mset", -3, WRITE_MEMORY, STRING_WRITE, PAIRS, many::mset),
    spec!("msetnx", -3, WRITE_MEMORY, STRING_WRITE, PAIRS, many::msetnx),
    spec!("multi", 1, TRANSACTION_FAST, TRANSACTION_CATEGORIES_FAST, NO_KEYS, transaction::multi),
    spec!("object", -2, &["readonly"], &["@keyspace", "@read", "@slow"], NO_KEYS, only_subcommands, OBJECT),
    spec!("persist", 2, WRITE_FAST, KEYSPACE_WRITE, ONE_KEY, expire::persist),
    spec!("pexpire", -3, WRITE_FAST, KEYSPACE_WRITE, ONE_KEY, expire::pexpire),
    spec!("pexpireat", -3, WRITE_FAST, KEYSPACE_WRITE, ONE_KEY, expire::pexpireat),
    spec!("pexpiretime", 2, READ_FAST, KEYSPACE_READ, ONE_KEY, expire::pexpiretime),
    spec!("ping", -1, &["fast"], FAST_CONNECTION, NO_KEYS, connection::ping),
    spec!("psetex", 4, WRITE_MEMORY, STRING_WRITE, ONE_KEY, replace::psetex),
    spec!("psubscribe", -2, PUBSUB_LISTEN, PUBSUB_CATEGORIES, NO_KEYS, pubsub::psubscribe),
    spec!("pttl", 2, READ_FAST, KEYSPACE_READ, ONE_KEY, expire::pttl),
    spec!("publish", 3, PUBSUB_FLAGS, &["@pubsub", "@fast"], NO_KEYS, pubsub::publish),
    spec!("pubsub", -2, &[], &["@slow"], NO_KEYS, only_subcommands, PUBSUB),
    spec!("punsubscribe", -1, PUBSUB_LISTEN, PUBSUB_CATEGORIES, NO_KEYS, pubsub::punsubscribe),
    spec!("quit", -1, CONNECTION, FAST_CONNECTION, NO_KEYS, connection::quit),
    spec!("randomkey", 1, &["readonly"], &["@keyspace", "@read", "@slow"], NO_KEYS, scan::randomkey),
    spec!("rename", 3, &["write"], &["@keyspace", "@write", "@slow"], TWO_KEYS, rename::rename),
    spec!("renamenx", 3, WRITE_FAST, KEYSPACE_WRITE, TWO_KEYS, rename::renamenx),
    spec!("reset", 1, CONNECTION, FAST_CONNECTION, NO_KEYS, connection::reset),
    spec!("role", 1, CONNECTION, &["@admin", "@fast", "@dangerous"], NO_KEYS, replication::role),
    spec!("save", 1, ADMIN_SLOW, ADMIN_DANGEROUS, NO_KEYS, replication::save),
    spec!("scan", -2, &["readonly"], &["@keyspace", "@read", "@slow"], NO_KEYS, scan::scan),
    spec!("script", -2, &[], &["@slow"], NO_KEYS, only_subcommands, SCRIPT),
    spec!("select", 2, &["loading", "stale", "fast"], FAST_CONNECTION, NO_KEYS, connection::select),
    spec!("set", -3, WRITE_MEMORY, STRING_WRITE, ONE_KEY, set::set),
    spec!("setex", 4, WRITE_MEMORY, STRING_WRITE, ONE_KEY, replace::setex),
    spec!("setnx", 3, WRITE_MEMORY_FAST, STRING_WRITE_FAST, ONE_KEY, replace::setnx),
    spec!("setrange", 4, WRITE_MEMORY, STRING_WRITE, ONE_KEY, edit::setrange),
    spec!("strlen", 2, READ_FAST, STRING_READ, ONE_KEY, string::strlen),
    spec!("subscribe", -2, PUBSUB_LISTEN, PUBSUB_CATEGORIES, NO_KEYS, pubsub::subscribe),
    spec!("substr", 4, &["readonly"], STRING_READ_SLOW, ONE_KEY, range::getrange),
    spec!("time", 1, &["loading", "stale", "fast"], &["@fast"], NO_KEYS, server::time),
    spec!("touch", -2, READ_FAST, KEYSPACE_READ, ALL_KEYS, keys::exists),
    spec!("ttl", 2, READ_FAST, KEYSPACE_READ, ONE_KEY, expire::ttl),
    spec!("type", 2, READ_FAST, KEYSPACE_READ, ONE_KEY, keys::kind),
    spec!("unlink", -2, WRITE_FAST, KEYSPACE_WRITE, ALL_KEYS, keys::del),
    spec!("unsubscribe", -1, PUBSUB_LISTEN, PUBSUB_CATEGORIES, NO_KEYS, pubsub::unsubscribe),
    spec!("unwatch", 1, TRANSACTION_FAST, TRANSACTION_CATEGORIES_FAST, NO_KEYS, transaction::unwatch),
    spec!("wait", 3, &["noscript"], SLOW_CONNECTION, NO_KEYS, replication::wait),
    spec!("waitaof", 4, &["noscript"], SLOW_CONNECTION, NO_KEYS, replication::waitaof),
    spec!("watch", -2, TRANSACTION_FAST, TRANSACTION_CATEGORIES_FAST, ALL_KEYS, transaction::watch),
];

const CLIENT: &[Subcommand] = &[
    sub!("getname", 2, client::getname, "Return the name of the current connection."),
    sub!("id", 2, client::id, "Return the ID of the current connection."),
    sub!("info", 2, client::info, "Return information about the current client connection."),
    sub!(
        "kill",
        -3,
        kill::kill,
        "<ip:port>|<option> <value> ...: Kill connections by ID, ADDR, LADDR, TYPE, MAXAGE."
    ),
    sub!("list", -2, client::list, "Return information about client connections."),
    sub!("no-evict", 3, client::no_evict, "(ON|OFF) Protect current client connection from eviction."),
    sub!("no-touch", 3, client::no_touch, "(ON|OFF) Will not touch LRU/LFU stats when this mode is on."),
    sub!("setinfo", 4, client::setinfo, "<option> <value>: Set client meta attr (LIB-NAME or LIB-VER)."),
    sub!("setname", 3, client::setname, "<name>: Assign the name to the current connection."),
];

const COMMAND: &[Subcommand] = &[
    sub!("count", 2, introspect::count, "Return the total number of commands in this server."),
    sub!("docs", -2, introspect::docs, "[<name> ...]: Return documentation: none is kept here."),
    sub!("getkeys", -3, introspect::getkeys, "<full-command>: Return the keys from a full command."),
    sub!("info", -2, introspect::info, "[<name> ...]: Return details about commands, all by default."),
    sub!("list", -2, introspect::list, "[FILTERBY ...]: Return a list of all commands in this server."),
];

const CONFIG: &[Subcommand] = &[
    sub!("get", -3, config::get, "<pattern> ...: Return parameters matching the glob-like patterns."),
    sub!("resetstat", 2, config::resetstat, "Reset statistics reported by the INFO command."),
    sub!("rewrite", 2, config::rewrite, "Rewrite the configuration file: refused, it is yours."),
    sub!("set", -4, config::set, "<directive> <value>: Set a parameter: refused, they are fixed at start."),
];

const MEMORY: &[Subcommand] = &[sub!(
    "usage",
    -3,
    object::usage,
    "<key> [SAMPLES <count>]: Return the bytes that a key takes, on flash and in memory."
)];

const OBJECT: &[Subcommand] = &[
    sub!("encoding", 3, object::encoding, "<key>: Return the kind of internal representation of the value."),
    sub!("freq", 3, object::freq, "<key>: Return the access frequency: none is kept."),
    sub!("refcount", 3, object::refcount, "<key>: Return the number of references of the value."),
];

const PUBSUB: &[Subcommand] = &[
    sub!("channels", -2, pubsub::channels, "[<pattern>]: Return the channels that somebody listens to."),
    sub!("numpat", 2, pubsub::numpat, "Return the number of patterns that somebody listens by."),
    sub!("numsub", -2, pubsub::numsub, "[<channel> ...]: Return how many listen to each channel."),
];

const SCRIPT: &[Subcommand] = &[
    sub!(
        "exists",
        -3,
        lock_script::script_exists,
        "<sha1> [<sha1> ...]: Return which of these scripts are known."
    ),
    sub!("flush", -2, lock_script::script_flush, "[ASYNC|SYNC]: Forget what was loaded: nothing can be."),
];
