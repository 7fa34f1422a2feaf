//! The table of commands, in the order of their names.

use super::Spec;
use super::subcommands::{
    ACL, CLIENT, CLUSTER, COMMAND, CONFIG, DEBUG, FUNCTION, LATENCY, MEMORY, MODULE, OBJECT, PUBSUB, SCRIPT,
    SLOWLOG,
};
use super::{
    absent, compare, connection, custom, dump, edit, exec, expire, info, introspect, keys, many, monitor,
    only_subcommands, pubsub, range, rename, replace, replication, scan, script, server, set, shutdown,
    string, transaction,
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
const BEFORE_AUTH: &[&str] = &["noscript", "loading", "stale", "fast", "no_auth", "allow_busy"];
const PUBSUB_FLAGS: &[&str] = &["pubsub", "loading", "stale", "fast"];
const PUBSUB_LISTEN: &[&str] = &["pubsub", "noscript", "loading", "stale"];
const PUBSUB_CATEGORIES: &[&str] = &["@pubsub", "@slow"];
const SCRIPTING: &[&str] = &["noscript", "stale", "skip_monitor", "no_mandatory_keys", "movablekeys"];
const SCRIPTING_CATEGORIES: &[&str] = &["@slow", "@scripting"];
const ADMIN_SLOW: &[&str] = &["admin", "noscript"];
const ADMIN_DANGEROUS: &[&str] = &["@admin", "@slow", "@dangerous"];
const SHUTDOWN: &[&str] = &["admin", "noscript", "loading", "stale", "no_multi", "allow_busy"];
const ADMIN: &[&str] = &["admin", "noscript", "loading", "stale"];

const TRANSACTION_FAST: &[&str] = &["noscript", "loading", "stale", "fast", "allow_busy"];
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

/// All commands, in the order of their names.
pub static TABLE: &[Spec] = &[
    spec!("acl", -2, ADMIN, ADMIN_DANGEROUS, NO_KEYS, only_subcommands, ACL),
    spec!("append", 3, WRITE_MEMORY_FAST, STRING_WRITE_FAST, ONE_KEY, edit::append),
    spec!("asking", 1, &["fast"], FAST_CONNECTION, NO_KEYS, absent::no_cluster),
    spec!("auth", -2, BEFORE_AUTH, FAST_CONNECTION, NO_KEYS, connection::auth),
    spec!("bgsave", -1, ADMIN_SLOW, ADMIN_DANGEROUS, NO_KEYS, replication::bgsave),
    spec!("client", -2, CONNECTION, SLOW_CONNECTION, NO_KEYS, only_subcommands, CLIENT),
    spec!("cluster", -2, &[], &["@slow"], NO_KEYS, only_subcommands, CLUSTER),
    spec!("command", -1, &["loading", "stale"], SLOW_CONNECTION, NO_KEYS, introspect::all, COMMAND),
    spec!("config", -2, ADMIN, ADMIN_DANGEROUS, NO_KEYS, only_subcommands, CONFIG),
    spec!("copy", -3, WRITE_MEMORY, &["@keyspace", "@write", "@slow"], TWO_KEYS, rename::copy),
    spec!("dbsize", 1, READ_FAST, KEYSPACE_READ, NO_KEYS, server::dbsize),
    spec!("debug", -2, ADMIN, ADMIN_DANGEROUS, NO_KEYS, only_subcommands, DEBUG),
    spec!("decr", 2, WRITE_MEMORY_FAST, STRING_WRITE_FAST, ONE_KEY, edit::decr),
    spec!("decrby", 3, WRITE_MEMORY_FAST, STRING_WRITE_FAST, ONE_KEY, edit::decrby),
    spec!("del", -2, &["write"], &["@keyspace", "@write", "@slow"], ALL_KEYS, keys::del),
    spec!("delex", -2, WRITE_FAST, STRING_WRITE_FAST, ONE_KEY, compare::delex),
    spec!("delifeq", 3, WRITE_FAST, STRING_WRITE_FAST, ONE_KEY, compare::delifeq),
    spec!("discard", 1, TRANSACTION_FAST, TRANSACTION_CATEGORIES_FAST, NO_KEYS, transaction::discard),
    spec!("dump", 2, &["readonly"], &["@keyspace", "@read", "@slow"], ONE_KEY, dump::dump),
    spec!("echo", 2, &["loading", "stale", "fast"], FAST_CONNECTION, NO_KEYS, connection::echo),
    spec!("eval", -3, SCRIPTING, SCRIPTING_CATEGORIES, NO_KEYS, script::eval),
    spec!("evalsha", -3, SCRIPTING, SCRIPTING_CATEGORIES, NO_KEYS, script::evalsha),
    spec!("exec", 1, TRANSACTION_SLOW, &["@slow", "@transaction"], NO_KEYS, exec::exec),
    spec!("exists", -2, READ_FAST, KEYSPACE_READ, ALL_KEYS, keys::exists),
    spec!("expire", -3, WRITE_FAST, KEYSPACE_WRITE, ONE_KEY, expire::expire),
    spec!("expireat", -3, WRITE_FAST, KEYSPACE_WRITE, ONE_KEY, expire::expireat),
    spec!("expiretime", 2, READ_FAST, KEYSPACE_READ, ONE_KEY, expire::expiretime),
    spec!("flushall", -1, &["write"], DANGEROUS, NO_KEYS, server::flushall),
    spec!("flushdb", -1, &["write"], DANGEROUS, NO_KEYS, server::flushdb),
    spec!("function", -2, &[], &["@slow"], NO_KEYS, only_subcommands, FUNCTION),
    spec!("get", 2, READ_FAST, STRING_READ, ONE_KEY, string::get),
    spec!("getdel", 2, WRITE_FAST, STRING_WRITE_FAST, ONE_KEY, replace::getdel),
    spec!("getex", -2, WRITE_FAST, STRING_WRITE_FAST, ONE_KEY, replace::getex),
    spec!("getrange", 4, &["readonly"], STRING_READ_SLOW, ONE_KEY, range::getrange),
    spec!("getset", 3, WRITE_MEMORY_FAST, STRING_WRITE_FAST, ONE_KEY, replace::getset),
    spec!("hello", -1, BEFORE_AUTH, FAST_CONNECTION, NO_KEYS, connection::hello),
    spec!("incr", 2, WRITE_MEMORY_FAST, STRING_WRITE_FAST, ONE_KEY, edit::incr),
    spec!("incrby", 3, WRITE_MEMORY_FAST, STRING_WRITE_FAST, ONE_KEY, edit::incrby),
    spec!("incrbyfloat", 3, WRITE_MEMORY_FAST, STRING_WRITE_FAST, ONE_KEY, edit::incrbyfloat),
    spec!("info", -1, &["loading", "stale"], &["@slow", "@dangerous"], NO_KEYS, info::info),
    spec!("keys", 2, &["readonly"], &["@keyspace", "@read", "@slow", "@dangerous"], NO_KEYS, scan::keys),
    spec!("kv.meta", 2, &["readonly"], STRING_READ_SLOW, ONE_KEY, custom::meta),
    spec!("kv.store", -3, WRITE_MEMORY, STRING_WRITE, ONE_KEY, set::set),
    spec!(
        "lastsave",
        1,
        &["loading", "stale", "fast"],
        &["@admin", "@fast", "@dangerous"],
        NO_KEYS,
        replication::lastsave
    ),
    spec!("latency", -2, ADMIN, ADMIN_DANGEROUS, NO_KEYS, only_subcommands, LATENCY),
    spec!("lolwut", -1, READ_FAST, &["@read", "@fast"], NO_KEYS, absent::lolwut),
    spec!("memory", -2, &["readonly"], &["@read", "@slow"], NO_KEYS, only_subcommands, MEMORY),
    spec!("mget", -2, READ_FAST, STRING_READ, ALL_KEYS, string::mget),
    spec!("module", -2, ADMIN, ADMIN_DANGEROUS, NO_KEYS, only_subcommands, MODULE),
    spec!("monitor", 1, ADMIN, ADMIN_DANGEROUS, NO_KEYS, monitor::monitor),
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
    spec!("quit", -1, BEFORE_AUTH, FAST_CONNECTION, NO_KEYS, connection::quit),
    spec!("randomkey", 1, &["readonly"], &["@keyspace", "@read", "@slow"], NO_KEYS, scan::randomkey),
    spec!("readonly", 1, &["loading", "stale", "fast"], FAST_CONNECTION, NO_KEYS, absent::no_cluster),
    spec!("readwrite", 1, &["loading", "stale", "fast"], FAST_CONNECTION, NO_KEYS, absent::no_cluster),
    spec!("rename", 3, &["write"], &["@keyspace", "@write", "@slow"], TWO_KEYS, rename::rename),
    spec!("renamenx", 3, WRITE_FAST, KEYSPACE_WRITE, TWO_KEYS, rename::renamenx),
    spec!("reset", 1, BEFORE_AUTH, FAST_CONNECTION, NO_KEYS, connection::reset),
    spec!(
        "restore",
        -4,
        WRITE_MEMORY,
        &["@keyspace", "@write", "@slow", "@dangerous"],
        ONE_KEY,
        dump::restore
    ),
    spec!("role", 1, CONNECTION, &["@admin", "@fast", "@dangerous"], NO_KEYS, replication::role),
    spec!("save", 1, ADMIN_SLOW, ADMIN_DANGEROUS, NO_KEYS, replication::save),
    spec!("scan", -2, &["readonly"], &["@keyspace", "@read", "@slow"], NO_KEYS, scan::scan),
    spec!("script", -2, &[], &["@slow"], NO_KEYS, only_subcommands, SCRIPT),
    spec!("select", 2, &["loading", "stale", "fast"], FAST_CONNECTION, NO_KEYS, connection::select),
    spec!("set", -3, WRITE_MEMORY, STRING_WRITE, ONE_KEY, set::set),
    spec!("setex", 4, WRITE_MEMORY, STRING_WRITE, ONE_KEY, replace::setex),
    spec!("setnx", 3, WRITE_MEMORY_FAST, STRING_WRITE_FAST, ONE_KEY, replace::setnx),
    spec!("setrange", 4, WRITE_MEMORY, STRING_WRITE, ONE_KEY, edit::setrange),
    spec!("shutdown", -1, SHUTDOWN, ADMIN_DANGEROUS, NO_KEYS, shutdown::shutdown),
    spec!("slowlog", -2, ADMIN, ADMIN_DANGEROUS, NO_KEYS, only_subcommands, SLOWLOG),
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
