//! Every command over the simulated network, its errors word by word.

use crate::common::{self, Bench, Setup, encoded, run, show};

fn with_client<F: Future<Output = ()> + 'static>(
    test: impl Fn(Bench, common::Client) -> F + Clone + 'static,
) {
    for (cores, partitions) in [(1, 1), (2, 3), (6, 8)] {
        let test = test.clone();
        run(Setup { cores, partitions, ..Setup::default() }, move |bench| {
            let test = test.clone();
            async move {
                let client = bench.client().await;
                test(bench, client).await;
            }
        });
    }
}

const NOT_INTEGER: &str = "-ERR value is not an integer or out of range";

#[test]
fn get_and_set() {
    with_client(|bench, mut c| async move {
        c.expect("GET k", "nil").await;
        c.expect("SET k v", "+OK").await;
        c.expect("get k", "v").await;
        c.expect("SET k w NX", "nil").await;
        c.expect("SET k w XX", "+OK").await;
        c.expect("SET absent w XX", "nil").await;
        c.expect("SET k x GET", "w").await;
        c.expect("SET k y nx get", "x").await;
        c.expect("SET absent y XX GET", "nil").await;
        c.expect("SET fresh y NX GET", "nil").await;
        c.expect("GET fresh", "y").await;
        c.expect("SET k v EX 100", "+OK").await;
        c.expect("TTL k", ":100").await;
        c.expect("SET k v KEEPTTL", "+OK").await;
        c.expect("TTL k", ":100").await;
        c.expect("SET k v GET KEEPTTL", "v").await;
        c.expect("TTL k", ":100").await;
        c.expect("SET k v", "+OK").await;
        c.expect("TTL k", ":-1").await;
        c.expect("SET k v PX 1500 XX", "+OK").await;
        bench.pause_ms(1600).await;
        c.expect("GET k", "nil").await;
        c.expect("SET k v EXAT 1", "+OK").await;
        c.expect("GET k", "nil").await;
        c.expect("SET k v PXAT 99999999999999", "+OK").await;
        c.expect("PEXPIRETIME k", ":99999999999999").await;
        c.expect("SET '' ''", "+OK").await;
        c.expect("GET ''", "").await;
    });
}

#[test]
fn set_refuses_in_the_words_of_redis() {
    with_client(|_, mut c| async move {
        for words in [
            "SET k v NX XX",
            "SET k v XX NX",
            "SET k v EX",
            "SET k v EX 1 PX 1",
            "SET k v KEEPTTL EX 1",
            "SET k v EX 1 KEEPTTL",
            "SET k v FOO",
            "SET k v ''",
        ] {
            c.expect(words, "-ERR syntax error").await;
        }
        for words in ["SET k v EX 0", "SET k v PX -1", "SET k v EX 9223372036854775807", "SET k v EXAT 0"] {
            c.expect(words, "-ERR invalid expire time in 'set' command").await;
        }
        for words in ["SET k v EX x", "SET k v EX 1.5", "SET k v EX 01", "SET k v EX 99999999999999999999"] {
            c.expect(words, NOT_INTEGER).await;
        }
        c.expect("SET k", "-ERR wrong number of arguments for 'set' command").await;
        c.expect("GET", "-ERR wrong number of arguments for 'get' command").await;
        c.expect("GET k", "nil").await;
    });
}

#[test]
fn several_keys() {
    with_client(|_, mut c| async move {
        for n in 0..40 {
            c.expect(&format!("SET k{n} v{n}"), "+OK").await;
        }
        c.expect("MGET k1 absent k7 k1", "[v1 nil v7 v1]").await;
        c.expect("EXISTS k1 k1 absent k2", ":3").await;
        c.expect("DEL k1 k1 absent k2", ":2").await;
        c.expect("UNLINK k3", ":1").await;
        c.expect("DBSIZE", ":37").await;
        c.expect("TYPE k4", "+string").await;
        c.expect("TYPE k3", "+none").await;
        c.expect("STRLEN k10", ":3").await;
        c.expect("STRLEN k3", ":0").await;
        let all: Vec<String> = (0..1000).map(|n| format!("k{n}")).collect();
        c.expect(&format!("EXISTS {}", all.join(" ")), ":37").await;
        c.expect(&format!("DEL {}", all.join(" ")), ":37").await;
        c.expect("MGET", "-ERR wrong number of arguments for 'mget' command").await;
    });
}

#[test]
fn expiry() {
    with_client(|bench, mut c| async move {
        c.expect("EXPIRE k 10", ":0").await;
        c.expect("TTL k", ":-2").await;
        c.expect("PTTL k", ":-2").await;
        c.expect("EXPIRETIME k", ":-2").await;
        c.expect("SET k v", "+OK").await;
        c.expect("EXPIRETIME k", ":-1").await;
        c.expect("EXPIRE k 10 XX", ":0").await;
        c.expect("EXPIRE k 10 GT", ":0").await;
        c.expect("EXPIRE k 10 NX", ":1").await;
        c.expect("EXPIRE k 20 NX", ":0").await;
        c.expect("EXPIRE k 5 GT", ":0").await;
        c.expect("EXPIRE k 20 GT", ":1").await;
        c.expect("EXPIRE k 30 LT", ":0").await;
        c.expect("EXPIRE k 15 lt xx", ":1").await;
        c.expect("TTL k", ":15").await;
        c.expect("PERSIST k", ":1").await;
        c.expect("PERSIST k", ":0").await;
        c.expect("PERSIST absent", ":0").await;
        c.expect("EXPIRE k 15 LT", ":1").await;
        c.expect("PEXPIREAT k 99999999999999", ":1").await;
        c.expect("EXPIRETIME k", ":100000000000").await;
        c.expect("EXPIREAT k 2000000000", ":1").await;
        c.expect("PEXPIRETIME k", ":2000000000000").await;
        c.expect("PEXPIRE k 50", ":1").await;
        bench.pause_ms(60).await;
        c.expect("EXISTS k", ":0").await;
        c.expect("SET k v", "+OK").await;
        c.expect("EXPIRE k -1", ":1").await;
        c.expect("GET k", "nil").await;
        c.expect("SET k v", "+OK").await;
        c.expect("EXPIREAT k 1 NX", ":1").await;
        c.expect("EXISTS k", ":0").await;
        c.expect("EXPIRE k x", NOT_INTEGER).await;
        c.expect("EXPIRE k 1 FOO", "-ERR Unsupported option FOO").await;
        let both = "-ERR NX and XX, GT or LT options at the same time are not compatible";
        c.expect("EXPIRE k 1 NX XX", both).await;
        c.expect("EXPIRE k 1 GT LT", "-ERR GT and LT options at the same time are not compatible").await;
        let invalid = "-ERR invalid expire time in 'expire' command";
        c.expect("EXPIRE k 9223372036854775807", invalid).await;
        let invalid = "-ERR invalid expire time in 'pexpire' command";
        c.expect("PEXPIRE k 9223372036854775807", invalid).await;
    });
}

#[test]
fn databases_are_apart_and_flushed_apart() {
    with_client(|bench, mut c| async move {
        c.expect("SET k 0", "+OK").await;
        c.expect("SELECT 15", "+OK").await;
        c.expect("GET k", "nil").await;
        c.expect("SET k 15", "+OK").await;
        c.expect("SELECT 16", "-ERR DB index is out of range").await;
        c.expect("SELECT -1", "-ERR DB index is out of range").await;
        c.expect("SELECT x", NOT_INTEGER).await;
        c.expect("GET k", "15").await;
        c.expect("FLUSHDB", "+OK").await;
        c.expect("DBSIZE", ":0").await;
        c.expect("SELECT 0", "+OK").await;
        c.expect("DBSIZE", ":1").await;
        c.expect("FLUSHALL ASYNC", "+OK").await;
        c.expect("GET k", "nil").await;
        c.expect("FLUSHDB sync", "+OK").await;
        c.expect("FLUSHALL now", "-ERR syntax error").await;
        let mut other = bench.client().await;
        other.expect("DBSIZE", ":0").await;
    });
}

#[test]
fn the_connection_and_its_client() {
    with_client(|_, mut c| async move {
        c.expect("PING", "+PONG").await;
        c.expect("PING hello", "hello").await;
        c.expect("PING a b", "-ERR wrong number of arguments for 'ping' command").await;
        c.expect("ECHO hello", "hello").await;
        c.expect("CLIENT GETNAME", "nil").await;
        c.expect("CLIENT SETNAME me", "+OK").await;
        c.expect("CLIENT GETNAME", "me").await;
        let name = "-ERR Client names cannot contain spaces, newlines or special characters.";
        assert_eq!(show(&c.call(&["CLIENT", "SETNAME", "a b"]).await), name);
        c.expect("CLIENT SETINFO lib-name lib", "+OK").await;
        c.expect("CLIENT SETINFO LIB-VER 1.2", "+OK").await;
        c.expect("CLIENT SETINFO foo 1", "-ERR Unrecognized option 'foo'").await;
        c.expect("CLIENT NO-EVICT ON", "+OK").await;
        c.expect("CLIENT NO-TOUCH maybe", "-ERR syntax error").await;
        let maint = "CLIENT MAINT_NOTIFICATIONS ON";
        c.expect(maint, "-ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP.").await;
        c.expect("CLIENT", "-ERR wrong number of arguments for 'client' command").await;
        c.expect("CLIENT ID x", "-ERR wrong number of arguments for 'client|id' command").await;
        let info = show(&c.call(&["CLIENT", "INFO"]).await);
        for part in [
            "id=",
            " addr=127.0.0.1:",
            " name=me ",
            " db=0 ",
            " cmd=client|info ",
            " lib-name=lib lib-ver=1.2\n",
        ] {
            assert!(info.contains(part), "{part} in {info}");
        }
        c.expect("AUTH x", "-ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?").await;
        c.expect("AUTH default x", "+OK").await;
        c.expect("AUTH bob x", "-WRONGPASS invalid username-password pair or user is disabled.").await;
        c.expect("SELECT 3", "+OK").await;
        c.expect("RESET", "+RESET").await;
        c.expect("CLIENT GETNAME", "nil").await;
        c.expect("QUIT", "+OK").await;
        assert!(c.next().await.is_none());
    });
}

#[test]
fn hello_chooses_the_protocol() {
    with_client(|_, mut c| async move {
        let reply = show(&c.call(&["HELLO"]).await);
        assert!(reply.starts_with("[server plimsoll version 7.2.4 proto :2 id :"), "{reply}");
        let reply = show(&c.call(&["HELLO", "3", "AUTH", "default", "x", "SETNAME", "me"]).await);
        assert!(reply.starts_with("%server=plimsoll version=7.2.4 proto=:3 id=:"), "{reply}");
        assert!(reply.ends_with("mode=standalone role=master modules=[]"), "{reply}");
        c.expect("CLIENT GETNAME", "me").await;
        c.expect("CONFIG GET save", "%save=").await;
        c.expect("HELLO 4", "-NOPROTO unsupported protocol version").await;
        c.expect("HELLO x", "-ERR Protocol version is not an integer or out of range").await;
        c.expect("HELLO 3 FOO", "-ERR Syntax error in HELLO option 'FOO'").await;
        c.expect("HELLO 3 AUTH bob", "-ERR Syntax error in HELLO option 'AUTH'").await;
        let wrong = "-WRONGPASS invalid username-password pair or user is disabled.";
        c.expect("HELLO 3 AUTH bob x", wrong).await;
        let reply = show(&c.call(&["HELLO", "2"]).await);
        assert!(reply.starts_with("[server"), "{reply}");
    });
}

#[test]
fn unknown_commands_are_told_so() {
    with_client(|_, mut c| async move {
        c.expect("FOO", "-ERR unknown command 'FOO', with args beginning with: ").await;
        c.expect("lpush a b", "-ERR unknown command 'lpush', with args beginning with: 'a' 'b' ").await;
        let long = "x".repeat(200);
        let expected = format!("-ERR unknown command 'foo', with args beginning with: '{}' ", &long[..128]);
        c.expect(&format!("foo {long} b"), &expected).await;
        let expected = format!("-ERR unknown command '{}', with args beginning with: ", &long[..128]);
        c.expect(&long, &expected).await;
        assert_eq!(
            show(&c.call(&["fo\r\no", "a\nb"]).await),
            "-ERR unknown command 'fo  o', with args beginning with: 'a b' "
        );
    });
}

#[test]
fn command_tells_the_table() {
    with_client(|_, mut c| async move {
        c.expect("COMMAND COUNT", ":97").await;
        let reply = show(&c.call(&["COMMAND"]).await);
        assert!(
            reply.contains("[get :2 [+readonly +fast] :1 :1 :1 [+@read +@string +@fast] [] [] []]"),
            "{reply}"
        );
        c.expect("COMMAND INFO nope", "[nil]").await;
        assert!(show(&c.call(&["COMMAND", "INFO", "CLIENT"]).await).contains("[client|setname :3 "));
        c.expect("COMMAND DOCS nope", "[]").await;
        c.expect("COMMAND LIST FILTERBY PATTERN P*TTL", "[pttl]").await;
        c.expect("COMMAND LIST FILTERBY ACLCAT string", "[append decr decrby delex delifeq get getdel getex getrange getset incr incrby incrbyfloat kv.meta kv.store mget mset msetnx psetex set setex setnx setrange strlen substr]").await;
        c.expect("COMMAND LIST FOO", "-ERR syntax error").await;
        c.expect("COMMAND GETKEYS MGET a b c", "[a b c]").await;
        c.expect("COMMAND GETKEYS SET a b", "[a]").await;
        // Clients of clusters look there for the key: they found none.
        c.expect("COMMAND GETKEYS OBJECT ENCODING k", "[k]").await;
        c.expect("COMMAND GETKEYSANDFLAGS MEMORY USAGE k SAMPLES 0", "[[k [+RO]]]").await;
        c.expect("COMMAND GETKEYS OBJECT FREQ", "-ERR Invalid number of arguments specified for command")
            .await;
        c.expect("COMMAND GETKEYS OBJECT HELP", "-ERR The command has no key arguments").await;
        let of_sub = "[[object|encoding :3 [+readonly] :2 :2 :1 [+@keyspace +@read +@slow] [] [] []]]";
        c.expect("COMMAND INFO object|encoding", of_sub).await;
        c.expect("COMMAND INFO object|nope", "[nil]").await;
        c.expect("COMMAND GETKEYS PING", "-ERR The command has no key arguments").await;
        c.expect("COMMAND GETKEYS NOPE x", "-ERR Invalid command specified").await;
        c.expect("COMMAND GETKEYS GET", "-ERR Invalid number of arguments specified for command").await;
        c.expect("COMMAND GETKEYS EVAL script 0 word", "[]").await;
        c.expect("COMMAND FOO", "-ERR unknown subcommand 'FOO'. Try COMMAND HELP.").await;
        let wrong_use =
            "-ERR unknown subcommand or wrong number of arguments for 'CHANNELS'. Try PUBSUB HELP.";
        c.expect("PUBSUB CHANNELS a b", wrong_use).await;
        // Lines of HELP are simple strings, as in Redis: redis-cli shows bulk strings with their quotes.
        assert!(show(&c.call(&["COMMAND", "HELP"]).await).starts_with("[+COMMAND <subcommand>"));
        // Every command of the table is found by its name and refuses too few arguments.
        for spec in plimsoll_server::command::TABLE {
            assert!(plimsoll_server::command::find(spec.name.to_uppercase().as_bytes()).is_some());
            if spec.arity != -1 && spec.arity != 1 {
                let expected = format!("-ERR wrong number of arguments for '{}' command", spec.name);
                c.expect(spec.name, &expected).await;
            }
        }
        assert!(plimsoll_server::command::TABLE.is_sorted_by(|a, b| a.name < b.name));
    });
}

#[test]
fn info_and_config_say_what_clients_read() {
    with_client(|_, mut c| async move {
        c.expect("SET k v EX 100", "+OK").await;
        c.expect("GET k", "v").await;
        let info = show(&c.call(&["INFO"]).await);
        for line in [
            "# Server\r\n",
            "redis_version:7.2.4\r\n",
            "server_name:plimsoll\r\n",
            "redis_mode:standalone\r\n",
            "role:master\r\n",
            "loading:0\r\n",
            "run_id:0123456789012345678901234567890123456789\r\n",
            "tcp_port:6379\r\n",
            "connected_clients:1\r\n",
            "cluster_enabled:0\r\n",
            "keyspace_hits:1\r\n",
            "# Keyspace\r\ndb0:keys=1,expires=1,avg_ttl=0\r\n",
            "# Plimsoll\r\n",
        ] {
            assert!(info.contains(line), "{line} in {info}");
        }
        assert!(!info.contains("cmdstat_"));
        let some = show(&c.call(&["INFO", "replication", "COMMANDSTATS"]).await);
        assert!(some.contains("role:master") && some.contains("cmdstat_set:calls=1,usec="), "{some}");
        assert!(!some.contains("redis_version"));
        assert!(show(&c.call(&["INFO", "everything"]).await).contains("cmdstat_get:calls=1,"));
        c.expect("CONFIG GET port bind", "[bind 127.0.0.1 port 6379]").await;
        c.expect("CONFIG GET maxmemory maxmemory-p*", "[maxmemory 0 maxmemory-policy noeviction]").await;
        c.expect("CONFIG GET nothing", "[]").await;
        c.expect("CONFIG GET databases", "[databases 16]").await;
        let immutable = "can't set immutable config";
        let expected = format!("-ERR CONFIG SET failed (possibly related to argument 'save') - {immutable}");
        c.expect("CONFIG SET save ''", &expected).await;
        let expected = "-ERR Unknown option or number of arguments for CONFIG SET - 'foo'";
        c.expect("CONFIG SET foo 1", expected).await;
        c.expect("CONFIG REWRITE", "-ERR The server is running without a config file").await;
        c.expect("CONFIG RESETSTAT", "+OK").await;
        assert!(show(&c.call(&["INFO", "stats"]).await).contains("keyspace_hits:0\r\n"));
        let time = show(&c.call(&["TIME"]).await);
        assert!(time.starts_with("[1767225") && time.ends_with(']'), "{time}");
    });
}

#[test]
fn client_list_sees_the_connections_of_all_cores() {
    with_client(|bench, mut c| async move {
        let mut others = Vec::new();
        for _ in 0..20 {
            others.push(bench.client().await);
        }
        for (index, other) in others.iter_mut().enumerate() {
            other.expect(&format!("CLIENT SETNAME n{index}"), "+OK").await;
        }
        let list = show(&c.call(&["CLIENT", "LIST"]).await);
        assert_eq!(list.lines().count(), 21, "{list}");
        assert!((0..20).all(|index| list.contains(&format!(" name=n{index} "))), "{list}");
        let one = show(&c.call(&["CLIENT", "LIST", "ID", "1"]).await);
        assert!(one.starts_with("id=1 ") && one.lines().count() == 1, "{one}");
        c.expect("CLIENT LIST TYPE pubsub", "").await;
        c.expect("CLIENT LIST TYPE x", "-ERR Unknown client type 'x'").await;
        c.expect("CLIENT LIST ID x", "-ERR Invalid client ID").await;
        drop(others);
        bench.pause_ms(10).await;
        assert_eq!(show(&c.call(&["CLIENT", "LIST"]).await).lines().count(), 1);
        assert_eq!(bench.shared.connections(), 1);
    });
}

#[test]
fn inline_commands_work_and_http_does_not() {
    with_client(|bench, mut c| async move {
        c.send(b"SET k \"a b\"\r\n\r\nGET k\r\n".to_vec()).await;
        assert_eq!(show(&c.next().await.unwrap()), "+OK");
        assert_eq!(show(&c.next().await.unwrap()), "a b");
        for attack in [
            "POST / HTTP/1.1\r\nHost: x\r\n\r\nSET k evil\r\n",
            "GET / HTTP/1.1\r\nHost: x\r\n\r\nSET k evil\r\n",
        ] {
            let mut browser = bench.client().await;
            browser.send(attack.into()).await;
            while let Some(reply) = browser.next().await {
                assert!(matches!(reply, plimsoll_resp::Reply::Error(_)), "{reply:?}");
            }
        }
        c.expect("GET k", "a b").await;
    });
}

#[test]
fn scan_goes_through_all_partitions() {
    with_client(|_, mut c| async move {
        let mut pipeline = Vec::new();
        for n in 0..1000 {
            pipeline.extend(encoded(&["SET", &format!("key:{n}"), "v"]));
        }
        c.send(pipeline).await;
        for _ in 0..1000 {
            assert_eq!(show(&c.next().await.unwrap()), "+OK");
        }
        for (options, expected) in
            [(&["COUNT", "7"][..], 1000), (&["MATCH", "key:?"], 10), (&["TYPE", "hash"], 0)]
        {
            let (mut cursor, mut seen) = ("0".to_owned(), std::collections::BTreeSet::new());
            loop {
                let reply = c.call(&[&["SCAN", &cursor][..], options].concat()).await;
                let plimsoll_resp::Reply::Array(parts) = reply else { panic!("{reply:?}") };
                let plimsoll_resp::Reply::Array(keys) = &parts[1] else { panic!("{parts:?}") };
                seen.extend(keys.iter().map(show));
                cursor = show(&parts[0]);
                if cursor == "0" {
                    break;
                }
            }
            assert_eq!(seen.len(), expected, "{options:?}");
        }
        c.expect("SCAN x", "-ERR invalid cursor").await;
        c.expect("SCAN 0 COUNT 0", "-ERR syntax error").await;
        c.expect("SCAN 0 COUNT x", NOT_INTEGER).await;
        c.expect("SCAN 0 COUNT", "-ERR syntax error").await;
        c.expect("SCAN 18446744073709551615", "[0 []]").await;
    });
}

#[test]
fn the_pages_name_what_is_served() {
    let page = |name: &str| {
        let path = format!("{}/../../{name}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).unwrap()
    };
    let table = plimsoll_server::command::TABLE;
    assert!(page("README.md").contains(&format!("{} commands", table.len())), "README.md: {}", table.len());
    let changes = page("CHANGELOG.md");
    for spec in table {
        let name = spec.name.to_ascii_uppercase();
        let mut words = changes.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '.');
        let is_named = words.any(|word| word.trim_end_matches('.') == name);
        assert!(is_named, "CHANGELOG.md does not name {name}");
    }
}

#[test]
fn a_restore_looks_for_the_key_before_its_time() {
    run(Setup::default(), |bench| async move {
        let mut c = bench.client().await;
        c.expect("SET a 1", "+OK").await;
        for time in ["-5", "soon"] {
            c.expect(&format!("RESTORE a {time} x"), "-BUSYKEY Target key name already exists.").await;
        }
        c.expect("RESTORE a -5 x REPLACE", "-ERR Invalid TTL value, must be >= 0").await;
        c.expect("RESTORE b soon x", "-ERR value is not an integer or out of range").await;
        c.expect("RESTORE b 5 x", "-ERR DUMP payload version or checksum are wrong").await;
        for twice in ["FREQ 1 FREQ 2", "IDLETIME 1 IDLETIME 2"] {
            c.expect(&format!("RESTORE b 5 x {twice}"), "-ERR DUMP payload version or checksum are wrong")
                .await;
        }
        c.expect("RESTORE b 5 x FREQ 1 IDLETIME 2", "-ERR syntax error").await;
        c.expect("MEMORY USAGE none SAMPLES 1 SAMPLES 2", "nil").await;
        c.expect("MEMORY USAGE none SAMPLES 1 SAMPLES", "-ERR syntax error").await;
        c.expect("GET a", "1").await;
    });
}
