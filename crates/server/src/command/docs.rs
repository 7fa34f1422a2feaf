//! What COMMAND DOCS and COMMAND GETKEYSANDFLAGS tell beyond the table of commands.
//!
//! Invariant: every command has a row: a test looks.

/// What is told of a command.
pub(super) struct Doc {
    name: &'static str,
    /// The version of Redis, or of Valkey, that had it first; of what they have not, the version of Plimsoll.
    pub(super) since: &'static str,
    pub(super) group: &'static str,
    pub(super) complexity: &'static str,
    pub(super) summary: &'static str,
}

const fn row(
    name: &'static str,
    since: &'static str,
    group: &'static str,
    complexity: &'static str,
    summary: &'static str,
) -> Doc {
    Doc { name, since, group, complexity, summary }
}

/// In the order of their names.
static DOCS: &[Doc] = &[
    row("acl", "6.0.0", "server", "O(1)", "Tell of the users and categories."),
    row("append", "2.0.0", "string", "O(1)", "Append bytes to the value of a key."),
    row("asking", "3.0.0", "cluster", "O(1)", "Sent by cluster clients: refused."),
    row("auth", "1.0.0", "connection", "O(1)", "Give the password."),
    row("bgsave", "1.0.0", "server", "O(1)", "Wait until everything acknowledged is on stable media."),
    row("client", "2.4.0", "connection", "O(N)", "Commands about connections."),
    row("cluster", "3.0.0", "cluster", "O(1)", "Commands about a cluster: refused."),
    row("command", "2.8.13", "server", "O(N)", "Tell of the commands."),
    row("config", "2.0.0", "server", "O(N)", "Read and set parameters."),
    row("copy", "6.2.0", "generic", "O(1)", "Copy a key to another one."),
    row("dbsize", "1.0.0", "server", "O(1)", "Count the keys of the database."),
    row("debug", "1.0.0", "server", "O(1)", "Commands for tests of clients, if they are allowed."),
    row("decr", "1.0.0", "string", "O(1)", "Subtract one from the integer of a key."),
    row("decrby", "1.0.0", "string", "O(1)", "Subtract a number from the integer of a key."),
    row("del", "1.0.0", "generic", "O(N)", "Delete keys."),
    row("delex", "8.4.0", "string", "O(1)", "Delete a key, if a condition on its value holds."),
    row("delifeq", "9.0.0", "string", "O(1)", "Delete a key, if it has this value."),
    row("discard", "2.0.0", "transactions", "O(N)", "Give up a transaction."),
    row("dump", "2.6.0", "generic", "O(1)", "Give the value of a key in a form for RESTORE."),
    row("echo", "1.0.0", "connection", "O(1)", "Give a text back."),
    row("eval", "2.6.0", "scripting", "O(1)", "Run a known script of a lock."),
    row("evalsha", "2.6.0", "scripting", "O(1)", "Run a known script of a lock, by its digest."),
    row("exec", "1.2.0", "transactions", "O(N)", "Run the commands of a transaction."),
    row("exists", "1.0.0", "generic", "O(N)", "Count which of these keys exist."),
    row("expire", "1.0.0", "generic", "O(1)", "Let a key expire in so many seconds."),
    row("expireat", "1.2.0", "generic", "O(1)", "Let a key expire at a time in seconds."),
    row("expiretime", "7.0.0", "generic", "O(1)", "Tell when a key expires, in seconds."),
    row("flushall", "1.0.0", "server", "O(1)", "Empty all databases."),
    row("flushdb", "1.0.0", "server", "O(1)", "Empty the database."),
    row("function", "7.0.0", "scripting", "O(1)", "Commands about functions: there are none."),
    row("get", "1.0.0", "string", "O(1)", "Get the value of a key."),
    row("getdel", "6.2.0", "string", "O(1)", "Get the value of a key, and delete it."),
    row("getex", "6.2.0", "string", "O(1)", "Get the value of a key, and set when it expires."),
    row("getrange", "2.4.0", "string", "O(N)", "Get a part of the value of a key."),
    row("getset", "1.0.0", "string", "O(1)", "Set the value of a key, and get the old one."),
    row("hello", "6.0.0", "connection", "O(1)", "Choose the protocol, and give the password."),
    row("incr", "1.0.0", "string", "O(1)", "Add one to the integer of a key."),
    row("incrby", "1.0.0", "string", "O(1)", "Add a number to the integer of a key."),
    row("incrbyfloat", "2.6.0", "string", "O(1)", "Add a number to the number of a key."),
    row("info", "1.0.0", "server", "O(1)", "Tell how the server is."),
    row("keys", "1.0.0", "generic", "O(N)", "List the keys that match a pattern."),
    row("kv.meta", "0.1.0", "string", "O(N)", "Tell where the pieces of a value stand, and read them all."),
    row(
        "kv.store",
        "0.1.0",
        "string",
        "O(1)",
        "Set the value of a key, protected by a mechanism of its own.",
    ),
    row("lastsave", "1.0.0", "server", "O(1)", "Tell when everything was on stable media last."),
    row("latency", "2.8.13", "server", "O(N)", "Tell of latencies."),
    row("lolwut", "5.0.0", "server", "O(1)", "Show a ship, and the version."),
    row("memory", "4.0.0", "server", "O(1)", "Tell of memory."),
    row("mget", "1.0.0", "string", "O(N)", "Get the values of keys."),
    row("module", "4.0.0", "server", "O(1)", "Commands about modules: there are none."),
    row("monitor", "1.0.0", "server", "O(1)", "Watch all commands as they begin."),
    row("mset", "1.0.1", "string", "O(N)", "Set the values of keys."),
    row("msetnx", "1.0.1", "string", "O(N)", "Set the values of keys, if none of them exists."),
    row("multi", "1.2.0", "transactions", "O(1)", "Begin a transaction."),
    row("object", "2.2.3", "generic", "O(1)", "Tell of the value of a key."),
    row("persist", "2.2.0", "generic", "O(1)", "Let a key not expire."),
    row("pexpire", "2.6.0", "generic", "O(1)", "Let a key expire in so many milliseconds."),
    row("pexpireat", "2.6.0", "generic", "O(1)", "Let a key expire at a time in milliseconds."),
    row("pexpiretime", "7.0.0", "generic", "O(1)", "Tell when a key expires, in milliseconds."),
    row("ping", "1.0.0", "connection", "O(1)", "See whether the server answers."),
    row("psetex", "2.6.0", "string", "O(1)", "Set the value of a key that expires in so many milliseconds."),
    row("psubscribe", "2.0.0", "pubsub", "O(N)", "Listen to the channels that match patterns."),
    row("pttl", "2.6.0", "generic", "O(1)", "Tell in how many milliseconds a key expires."),
    row("publish", "2.0.0", "pubsub", "O(N)", "Give a message to those who listen to a channel."),
    row("pubsub", "2.8.0", "pubsub", "O(N)", "Tell of channels and those who listen."),
    row("punsubscribe", "2.0.0", "pubsub", "O(N)", "Listen to the channels that match patterns no more."),
    row("quit", "1.0.0", "connection", "O(1)", "Close the connection."),
    row("randomkey", "1.0.0", "generic", "O(1)", "Give some key."),
    row("readonly", "3.0.0", "cluster", "O(1)", "Sent by cluster clients: refused."),
    row("readwrite", "3.0.0", "cluster", "O(1)", "Sent by cluster clients: refused."),
    row("rename", "1.0.0", "generic", "O(1)", "Give a key another name."),
    row("renamenx", "1.0.0", "generic", "O(1)", "Give a key another name that is free."),
    row("reset", "6.2.0", "connection", "O(1)", "Put the connection back to how it began."),
    row("restore", "2.6.0", "generic", "O(1)", "Set a key to what DUMP gave."),
    row("role", "2.8.12", "server", "O(1)", "Tell the role in replication: master."),
    row("save", "1.0.0", "server", "O(1)", "Wait until everything acknowledged is on stable media."),
    row("scan", "2.8.0", "generic", "O(1)", "List keys page by page."),
    row("script", "2.6.0", "scripting", "O(N)", "Commands about scripts."),
    row("select", "1.0.0", "connection", "O(1)", "Choose the database."),
    row("set", "1.0.0", "string", "O(1)", "Set the value of a key."),
    row("setex", "2.0.0", "string", "O(1)", "Set the value of a key that expires in so many seconds."),
    row("setnx", "1.0.0", "string", "O(1)", "Set the value of a key that does not exist."),
    row("setrange", "2.2.0", "string", "O(N)", "Write into the value of a key."),
    row("shutdown", "1.0.0", "server", "O(1)", "Stop the server in order."),
    row("slowlog", "2.2.12", "server", "O(N)", "Tell of the commands that took long."),
    row("strlen", "2.2.0", "string", "O(1)", "Tell how long the value of a key is."),
    row("subscribe", "2.0.0", "pubsub", "O(N)", "Listen to channels."),
    row("substr", "1.0.0", "string", "O(N)", "Get a part of the value of a key."),
    row("time", "2.6.0", "server", "O(1)", "Tell the time."),
    row("touch", "3.2.1", "generic", "O(N)", "Count which of these keys exist."),
    row("ttl", "1.0.0", "generic", "O(1)", "Tell in how many seconds a key expires."),
    row("type", "1.0.0", "generic", "O(1)", "Tell the type of a key."),
    row("unlink", "4.0.0", "generic", "O(N)", "Delete keys."),
    row("unsubscribe", "2.0.0", "pubsub", "O(N)", "Listen to channels no more."),
    row("unwatch", "2.2.0", "transactions", "O(1)", "Forget the watched keys."),
    row("wait", "3.0.0", "generic", "O(1)", "Wait for replicas: there are none."),
    row("waitaof", "7.2.0", "generic", "O(1)", "Wait until everything acknowledged is on stable media."),
    row("watch", "2.2.0", "transactions", "O(N)", "Let a transaction fail if a key changes."),
];

/// What is told of a command.
pub(super) fn of(name: &str) -> Option<&'static Doc> {
    DOCS.binary_search_by(|doc| doc.name.cmp(name)).ok().map(|index| &DOCS[index])
}

/// What a command does with its keys, as Redis tells it; of SET without GET.
pub(super) fn key_flags(name: &str) -> &'static [&'static str] {
    match name {
        "append" => &["RW", "insert"],
        "set" | "setex" | "psetex" | "mset" | "kv.store" => &["OW", "update"],
        "setnx" | "msetnx" => &["OW", "insert"],
        "setrange" | "expire" | "expireat" | "pexpire" | "pexpireat" | "persist" => &["RW", "update"],
        "del" | "unlink" => &["RM", "delete"],
        "getdel" => &["RW", "access", "delete"],
        "delex" | "delifeq" => &["RW", "delete"],
        "exists" | "touch" | "strlen" | "type" | "watch" | "object" | "memory" => &["RO"],
        _ if is_read_only(name) => &["RO", "access"],
        _ => &["RW", "access", "update"],
    }
}

fn is_read_only(name: &str) -> bool {
    let index = super::find(name.as_bytes());
    index.is_some_and(|index| super::TABLE[index].flags.contains(&"readonly"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_row_and_the_rows_are_in_order() {
        for spec in super::super::TABLE {
            assert!(of(spec.name).is_some(), "{} has no row", spec.name);
        }
        assert!(DOCS.is_sorted_by_key(|doc| doc.name));
    }
}
