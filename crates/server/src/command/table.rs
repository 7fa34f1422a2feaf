//! The table of commands, in the order of their names.

use super::{Spec, Subcommand};
use super::{
    client, config, connection, expire, info, introspect, keys, only_subcommands, scan, server, set, string,
};

const NO_KEYS: (i32, i32, i32) = (0, 0, 0);
const ONE_KEY: (i32, i32, i32) = (1, 1, 1);
const ALL_KEYS: (i32, i32, i32) = (1, -1, 1);

const READ_FAST: &[&str] = &["readonly", "fast"];
const WRITE_FAST: &[&str] = &["write", "fast"];
const CONNECTION: &[&str] = &["noscript", "loading", "stale", "fast"];
const ADMIN: &[&str] = &["admin", "noscript", "loading", "stale"];

const KEYSPACE_READ: &[&str] = &["@keyspace", "@read", "@fast"];
const KEYSPACE_WRITE: &[&str] = &["@keyspace", "@write", "@fast"];
const STRING_READ: &[&str] = &["@read", "@string", "@fast"];
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
    spec!("auth", -2, CONNECTION, FAST_CONNECTION, NO_KEYS, connection::auth),
    spec!("client", -2, CONNECTION, SLOW_CONNECTION, NO_KEYS, only_subcommands, CLIENT),
    spec!("command", -1, &["loading", "stale"], SLOW_CONNECTION, NO_KEYS, introspect::all, COMMAND),
    spec!("config", -2, ADMIN, &["@admin", "@slow", "@dangerous"], NO_KEYS, only_subcommands, CONFIG),
    spec!("dbsize", 1, READ_FAST, KEYSPACE_READ, NO_KEYS, server::dbsize),
    spec!("del", -2, &["write"], &["@keyspace", "@write", "@slow"], ALL_KEYS, keys::del),
    spec!("echo", 2, &["loading", "stale", "fast"], FAST_CONNECTION, NO_KEYS, connection::echo),
    spec!("exists", -2, READ_FAST, KEYSPACE_READ, ALL_KEYS, keys::exists),
    spec!("expire", -3, WRITE_FAST, KEYSPACE_WRITE, ONE_KEY, expire::expire),
    spec!("expireat", -3, WRITE_FAST, KEYSPACE_WRITE, ONE_KEY, expire::expireat),
    spec!("expiretime", 2, READ_FAST, KEYSPACE_READ, ONE_KEY, expire::expiretime),
    spec!("flushall", -1, &["write"], DANGEROUS, NO_KEYS, server::flushall),
    spec!("flushdb", -1, &["write"], DANGEROUS, NO_KEYS, server::flushdb),
    spec!("get", 2, READ_FAST, STRING_READ, ONE_KEY, string::get),
    spec!("hello", -1, CONNECTION, FAST_CONNECTION, NO_KEYS, connection::hello),
    spec!("info", -1, &["loading", "stale"], &["@slow", "@dangerous"], NO_KEYS, info::info),
    spec!("mget", -2, READ_FAST, STRING_READ, ALL_KEYS, string::mget),
    spec!("persist", 2, WRITE_FAST, KEYSPACE_WRITE, ONE_KEY, expire::persist),
    spec!("pexpire", -3, WRITE_FAST, KEYSPACE_WRITE, ONE_KEY, expire::pexpire),
    spec!("pexpireat", -3, WRITE_FAST, KEYSPACE_WRITE, ONE_KEY, expire::pexpireat),
    spec!("pexpiretime", 2, READ_FAST, KEYSPACE_READ, ONE_KEY, expire::pexpiretime),
    spec!("ping", -1, &["fast"], FAST_CONNECTION, NO_KEYS, connection::ping),
    spec!("pttl", 2, READ_FAST, KEYSPACE_READ, ONE_KEY, expire::pttl),
    spec!("quit", -1, CONNECTION, FAST_CONNECTION, NO_KEYS, connection::quit),
    spec!("reset", 1, CONNECTION, FAST_CONNECTION, NO_KEYS, connection::reset),
    spec!("scan", -2, &["readonly"], &["@keyspace", "@read", "@slow"], NO_KEYS, scan::scan),
    spec!("select", 2, &["loading", "stale", "fast"], FAST_CONNECTION, NO_KEYS, connection::select),
    spec!("set", -3, &["write", "denyoom"], &["@write", "@string", "@slow"], ONE_KEY, set::set),
    spec!("strlen", 2, READ_FAST, STRING_READ, ONE_KEY, string::strlen),
    spec!("time", 1, &["loading", "stale", "fast"], &["@fast"], NO_KEYS, server::time),
    spec!("ttl", 2, READ_FAST, KEYSPACE_READ, ONE_KEY, expire::ttl),
    spec!("type", 2, READ_FAST, KEYSPACE_READ, ONE_KEY, keys::kind),
    spec!("unlink", -2, WRITE_FAST, KEYSPACE_WRITE, ALL_KEYS, keys::del),
];

const CLIENT: &[Subcommand] = &[
    sub!("getname", 2, client::getname, "Return the name of the current connection."),
    sub!("id", 2, client::id, "Return the ID of the current connection."),
    sub!("info", 2, client::info, "Return information about the current client connection."),
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
