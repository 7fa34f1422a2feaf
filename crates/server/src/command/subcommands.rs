//! The subcommands of the commands that have any, in the order of their names.

use super::{Subcommand, help};
use super::{
    absent, acl, client, config, debug, introspect, kill, latency, memory, object, pause, pubsub, script,
    slowlog,
};

macro_rules! sub {
    ($name:literal, $arity:literal, $handler:expr, $help:literal) => {
        Subcommand { name: $name, arity: $arity, has_key: false, help: $help, handler: $handler }
    };
}

/// One whose argument is a key.
macro_rules! sub_of_key {
    ($name:literal, $arity:literal, $handler:expr, $help:literal) => {
        Subcommand { name: $name, arity: $arity, has_key: true, help: $help, handler: $handler }
    };
}

/// Each has it.
const HELP: Subcommand = sub!("help", 2, help, "Print this help.");

pub(super) const ACL: &[Subcommand] = &[
    sub!("cat", -2, acl::cat, "[<category>]: List the commands of a category, or all categories."),
    sub!("deluser", -3, acl::deluser, "<username> [<username> ...]: Delete users: there is none but one."),
    sub!("getuser", 3, acl::getuser, "<username>: Get the user's details."),
    HELP,
    sub!("list", 2, acl::list, "Show the user in the format of Redis' configuration."),
    sub!("load", 2, acl::no_file, "Reload users from a file: refused, there is none."),
    sub!("log", -2, acl::log, "[<count> | RESET]: Show the entries of the log: none is kept."),
    sub!("save", 2, acl::no_file, "Save users to a file: refused, there is none."),
    sub!("setuser", -3, acl::setuser, "<username> <attribute> ...: Create or modify a user: refused."),
    sub!("users", 2, acl::users, "List the names of all users."),
    sub!("whoami", 2, acl::whoami, "Return the name of the user of this connection."),
];

pub(super) const CLIENT: &[Subcommand] = &[
    sub!("caching", 3, pause::caching, "(YES|NO): Track the keys of the next command: refused."),
    sub!("getname", 2, client::getname, "Return the name of the current connection."),
    sub!("getredir", 2, pause::getredir, "Return the client ID that tracking redirects to: -1."),
    HELP,
    sub!("id", 2, client::id, "Return the ID of the current connection."),
    sub!("info", 2, client::info, "Return information about the current client connection."),
    sub!(
        "kill",
        -3,
        kill::kill,
        "<ip:port>|<option> <value> ...: Kill connections by ID, ADDR, LADDR, TYPE, MAXAGE."
    ),
    sub!("list", -2, client::list, "[TYPE <type> | ID <id> ...]: Return information about connections."),
    sub!("no-evict", 3, client::no_evict, "(ON|OFF) Protect current client connection from eviction."),
    sub!("no-touch", 3, client::no_touch, "(ON|OFF) Will not touch LRU/LFU stats when this mode is on."),
    sub!("pause", -3, pause::pause, "<timeout> [WRITE|ALL]: Hold all commands, or writes, for milliseconds."),
    sub!("reply", 3, pause::reply, "(ON|OFF|SKIP): Control the replies sent to the current connection."),
    sub!("setinfo", 4, client::setinfo, "<option> <value>: Set client meta attr (LIB-NAME or LIB-VER)."),
    sub!("setname", 3, client::setname, "<name>: Assign the name to the current connection."),
    sub!("tracking", -3, pause::tracking, "(ON|OFF) [<option> ...]: Tell of changed keys: ON is refused."),
    sub!("trackinginfo", 2, pause::trackinginfo, "Report the tracking of the current connection."),
    sub!("unblock", -3, pause::unblock, "<clientid> [TIMEOUT|ERROR]: Unblock a client: none ever waits."),
    sub!("unpause", 2, pause::unpause, "End the pause, resuming traffic."),
];

pub(super) const CLUSTER: &[Subcommand] = &[
    sub!("addslots", -3, absent::no_cluster, "Refused: there is no cluster."),
    sub!("addslotsrange", -4, absent::no_cluster, "Refused: there is no cluster."),
    sub!("bumpepoch", 2, absent::no_cluster, "Refused: there is no cluster."),
    sub!("count-failure-reports", 3, absent::no_cluster, "Refused: there is no cluster."),
    sub!("countkeysinslot", 3, absent::no_cluster, "Refused: there is no cluster."),
    sub!("delslots", -3, absent::no_cluster, "Refused: there is no cluster."),
    sub!("delslotsrange", -4, absent::no_cluster, "Refused: there is no cluster."),
    sub!("failover", -2, absent::no_cluster, "Refused: there is no cluster."),
    sub!("flushslots", 2, absent::no_cluster, "Refused: there is no cluster."),
    sub!("forget", 3, absent::no_cluster, "Refused: there is no cluster."),
    sub!("getkeysinslot", 4, absent::no_cluster, "Refused: there is no cluster."),
    sub!("help", 2, absent::no_cluster, "Refused: there is no cluster."),
    sub!("info", 2, absent::no_cluster, "Refused: there is no cluster."),
    sub!("keyslot", 3, absent::no_cluster, "Refused: there is no cluster."),
    sub!("links", 2, absent::no_cluster, "Refused: there is no cluster."),
    sub!("meet", -4, absent::no_cluster, "Refused: there is no cluster."),
    sub!("myid", 2, absent::no_cluster, "Refused: there is no cluster."),
    sub!("myshardid", 2, absent::no_cluster, "Refused: there is no cluster."),
    sub!("nodes", 2, absent::no_cluster, "Refused: there is no cluster."),
    sub!("replicas", 3, absent::no_cluster, "Refused: there is no cluster."),
    sub!("replicate", 3, absent::no_cluster, "Refused: there is no cluster."),
    sub!("reset", -2, absent::no_cluster, "Refused: there is no cluster."),
    sub!("saveconfig", 2, absent::no_cluster, "Refused: there is no cluster."),
    sub!("set-config-epoch", 3, absent::no_cluster, "Refused: there is no cluster."),
    sub!("setslot", -4, absent::no_cluster, "Refused: there is no cluster."),
    sub!("shards", 2, absent::no_cluster, "Refused: there is no cluster."),
    sub!("slaves", 3, absent::no_cluster, "Refused: there is no cluster."),
    sub!("slots", 2, absent::no_cluster, "Refused: there is no cluster."),
];

pub(super) const COMMAND: &[Subcommand] = &[
    sub!("count", 2, introspect::count, "Return the total number of commands in this server."),
    sub!("docs", -2, introspect::docs, "[<name> ...]: Return documentation of commands, all by default."),
    sub!("getkeys", -3, introspect::getkeys, "<full-command>: Return the keys from a full command."),
    sub!(
        "getkeysandflags",
        -3,
        introspect::getkeysandflags,
        "<full-command>: Return the keys from a full command, and what is done with them."
    ),
    HELP,
    sub!("info", -2, introspect::info, "[<name> ...]: Return details about commands, all by default."),
    sub!("list", -2, introspect::list, "[FILTERBY ...]: Return a list of all commands in this server."),
];

pub(super) const CONFIG: &[Subcommand] = &[
    sub!("get", -3, config::get, "<pattern> ...: Return parameters matching the glob-like patterns."),
    HELP,
    sub!("resetstat", 2, config::resetstat, "Reset statistics reported by the INFO command."),
    sub!("rewrite", 2, config::rewrite, "Write what CONFIG SET has changed into the configuration file."),
    sub!("set", -4, config::set, "<directive> <value> ...: Set parameters, all or none."),
];

pub(super) const DEBUG: &[Subcommand] = &[
    HELP,
    sub_of_key!("object", 3, debug::object, "<key>: Show low level info about a key and its value."),
    sub!("sleep", 3, debug::sleep, "<seconds>: Let this connection wait; decimals allowed."),
];

pub(super) const FUNCTION: &[Subcommand] = &[
    sub!("flush", -2, absent::function_flush, "[ASYNC|SYNC]: Delete all libraries: there are none."),
    HELP,
    sub!("list", -2, absent::function_list, "[LIBRARYNAME <pattern>] [WITHCODE]: List libraries: none."),
    sub!("stats", 2, absent::function_stats, "Return the running function and the engines: none."),
];

pub(super) const LATENCY: &[Subcommand] = &[
    sub!("doctor", 2, latency::doctor, "Return a human readable latency analysis report."),
    sub!("graph", 3, latency::graph, "<event>: Return an ASCII latency graph for the event class."),
    HELP,
    sub!("histogram", -2, latency::histogram, "[COMMAND ...]: Return cumulative latencies of commands."),
    sub!("history", 3, latency::history, "<event>: Return time-latency samples for the event class."),
    sub!("latest", 2, latency::latest, "Return the latest latency samples for all events."),
    sub!("reset", -2, latency::reset, "[<event> ...]: Reset the samples of event classes, all by default."),
];

pub(super) const MEMORY: &[Subcommand] = &[
    sub!("doctor", 2, memory::doctor, "Return memory problems reports."),
    HELP,
    sub!("purge", 2, memory::purge, "Purge dirty pages: the allocator does so by itself."),
    sub!("stats", 2, memory::stats, "Return information about the memory usage of the server."),
    sub_of_key!(
        "usage",
        -3,
        object::usage,
        "<key> [SAMPLES <count>]: Return the bytes that a key takes, on flash and in memory."
    ),
];

pub(super) const MODULE: &[Subcommand] =
    &[HELP, sub!("list", 2, absent::no_modules, "Return a list of loaded modules: there are none.")];

pub(super) const OBJECT: &[Subcommand] = &[
    sub_of_key!(
        "encoding",
        3,
        object::encoding,
        "<key>: Return the kind of internal representation of the value."
    ),
    sub_of_key!("freq", 3, object::freq, "<key>: Return the access frequency: none is kept."),
    HELP,
    sub_of_key!(
        "idletime",
        3,
        object::idletime,
        "<key>: Return the time since the last access: none is kept."
    ),
    sub_of_key!("refcount", 3, object::refcount, "<key>: Return the number of references of the value."),
];

pub(super) const PUBSUB: &[Subcommand] = &[
    sub!("channels", -2, pubsub::channels, "[<pattern>]: Return the channels that somebody listens to."),
    HELP,
    sub!("numpat", 2, pubsub::numpat, "Return the number of patterns that somebody listens by."),
    sub!("numsub", -2, pubsub::numsub, "[<channel> ...]: Return how many listen to each channel."),
];

pub(super) const SCRIPT: &[Subcommand] = &[
    sub!(
        "exists",
        -3,
        script::script_exists,
        "<sha1> [<sha1> ...]: Return which of these scripts are known."
    ),
    sub!("flush", -2, script::script_flush, "[ASYNC|SYNC]: Does nothing: what is known stays known."),
    HELP,
    sub!("load", 3, script::script_load, "<script>: Return the digest of a script that is known."),
];

pub(super) const SLOWLOG: &[Subcommand] = &[
    sub!(
        "get",
        -2,
        slowlog::get,
        "[<count> [WITHDEVICE]]: Return the latest slow commands (default: 10, -1 mean all). Entries are made \
         of: id, timestamp, time in microseconds, arguments array, client IP and port, client name; with \
         WITHDEVICE also microseconds at the device."
    ),
    HELP,
    sub!("len", 2, slowlog::len, "Return the length of the slowlog."),
    sub!("reset", 2, slowlog::reset, "Reset the slowlog."),
];
