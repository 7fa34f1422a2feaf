//! What is counted of commands that are refused, in and out of MULTI.

use crate::common::{self, Setup, run, show};

/// What `INFO commandstats` tells of each command but INFO and CONFIG, and the lines of errorstats.
async fn counted(c: &mut common::Client) -> Vec<String> {
    let stats =
        show(&c.call(&["INFO", "commandstats"]).await) + &show(&c.call(&["INFO", "errorstats"]).await);
    let counts = |line: &str| {
        let (name, numbers) = line.strip_prefix("cmdstat_")?.split_once(':')?;
        let numbers: Vec<&str> = numbers.split([',', '=']).collect();
        let is_own = name == "info" || name.starts_with("config|");
        (!is_own).then(|| format!("{name}:{}/{}/{}", numbers[1], numbers[7], numbers[9]))
    };
    let errors = |line: &str| Some(line.strip_prefix("errorstat_")?.replace("count=", ""));
    let mut counted: Vec<_> =
        stats.lines().filter_map(|line| counts(line).or_else(|| errors(line))).collect();
    counted.sort();
    counted
}

#[test]
fn refused_commands_are_counted_as_by_redis() {
    // The counts are those of redis-server 7.0: calls, rejected_calls and failed_calls of each command.
    const COUNTS: &[(&str, &str)] = &[
        ("GET", "ERR:1 get:0/1/0"),
        ("MULTI;GET;EXEC", "ERR:1 EXECABORT:1 exec:1/0/1 get:0/1/0 multi:1/0/0"),
        ("MULTI;GET k;GET;EXEC", "ERR:1 EXECABORT:1 exec:1/0/1 get:0/1/0 multi:1/0/0"),
        ("MULTI;GET k;EXEC", "exec:1/0/0 get:1/0/0 multi:1/0/0"),
        ("NOSUCH a", "ERR:1"),
        ("MULTI;NOSUCH a;EXEC", "ERR:1 EXECABORT:1 exec:1/0/1 multi:1/0/0"),
        ("MULTI;SAVE;EXEC", "ERR:1 EXECABORT:1 exec:1/0/1 multi:1/0/0 save:0/1/0"),
        ("MULTI;SHUTDOWN;EXEC", "ERR:1 EXECABORT:1 exec:1/0/1 multi:1/0/0 shutdown:0/1/0"),
        ("MULTI;SAVE x;EXEC", "ERR:1 EXECABORT:1 exec:1/0/1 multi:1/0/0 save:0/1/0"),
        ("MULTI;WATCH a;EXEC", "ERR:1 exec:1/0/0 multi:1/0/0 watch:1/0/1"),
        ("MULTI;WATCH;EXEC", "ERR:1 EXECABORT:1 exec:1/0/1 multi:1/0/0 watch:0/1/0"),
        ("MULTI;MULTI;EXEC", "ERR:1 exec:1/0/0 multi:2/0/1"),
        ("MULTI;MULTI x;EXEC", "ERR:1 EXECABORT:1 exec:1/0/1 multi:1/1/0"),
        ("MULTI;EXEC x;EXEC", "ERR:1 EXECABORT:1 exec:1/1/1 multi:1/0/0"),
        ("MULTI;DISCARD x;EXEC", "ERR:1 EXECABORT:1 discard:0/1/0 exec:1/0/1 multi:1/0/0"),
        ("EXEC", "ERR:1 exec:1/0/1"),
        ("EXEC x", "EXECABORT:1 exec:0/1/0"),
        ("DISCARD", "ERR:1 discard:1/0/1"),
        ("CLIENT", "ERR:1 client:0/1/0"),
        ("CLIENT NOSUCH", "ERR:1"),
        ("CLIENT GETNAME x", "ERR:1 client|getname:0/1/0"),
        ("MULTI;CLIENT;EXEC", "ERR:1 EXECABORT:1 client:0/1/0 exec:1/0/1 multi:1/0/0"),
        ("MULTI;CLIENT NOSUCH;EXEC", "ERR:1 EXECABORT:1 exec:1/0/1 multi:1/0/0"),
        ("MULTI;CLIENT GETNAME x;EXEC", "ERR:1 EXECABORT:1 client|getname:0/1/0 exec:1/0/1 multi:1/0/0"),
        ("MULTI;SET k v FOO;EXEC", "ERR:1 exec:1/0/0 multi:1/0/0 set:1/0/1"),
        ("MULTI;SELECT 99;EXEC", "ERR:1 exec:1/0/0 multi:1/0/0 select:1/0/1"),
        ("MULTI;AUTH a;EXEC", "ERR:1 auth:1/0/1 exec:1/0/0 multi:1/0/0"),
        ("MULTI;DEBUG OBJECT k;EXEC", "ERR:1 EXECABORT:1 debug:0/1/0 exec:1/0/1 multi:1/0/0"),
        ("DEBUG OBJECT k", "ERR:1 debug:0/1/0"),
        ("MULTI;PING a b c;EXEC", "ERR:1 exec:1/0/0 multi:1/0/0 ping:1/0/1"),
        ("PING a b c", "ERR:1 ping:1/0/1"),
        ("SUBSCRIBE a;GET k", "ERR:1 get:0/1/0 subscribe:1/0/0"),
        ("SUBSCRIBE a;MULTI", "ERR:1 multi:0/1/0 subscribe:1/0/0"),
        ("SUBSCRIBE a;CLIENT ID", "ERR:1 client|id:0/1/0 subscribe:1/0/0"),
        ("SUBSCRIBE a;NOSUCH", "ERR:1 subscribe:1/0/0"),
    ];
    run(Setup::default(), |bench| async move {
        for (lines, expected) in COUNTS {
            let (mut c, mut operator) = (bench.client().await, bench.client().await);
            operator.expect("CONFIG RESETSTAT", "+OK").await;
            for line in lines.split(';') {
                c.call(&line.split(' ').collect::<Vec<_>>()).await;
            }
            assert_eq!(counted(&mut operator).await.join(" "), *expected, "{lines}");
        }
    });
}

#[test]
fn what_does_not_fit_a_transaction_is_counted_as_refused() {
    run(Setup::default(), |bench| async move {
        let mut c = bench.client().await;
        // Refused for its length, long before MULTI's share is used up.
        let huge = "v".repeat(65 << 20);
        c.call(&["SET", "k", "v", &huge]).await;
        assert_eq!(counted(&mut c).await.join(" "), "ERR:1 set:0/1/0");
        c.expect("CONFIG RESETSTAT", "+OK").await;
        c.expect("MULTI", "+OK").await;
        let large = &huge[..40 << 20];
        assert_eq!(show(&c.call(&["SET", "k", large]).await), "+QUEUED");
        let refused = "-ERR the commands of a transaction have too many bytes";
        assert_eq!(show(&c.call(&["SET", "k", large]).await), refused);
        c.expect("EXEC", "-EXECABORT Transaction discarded because of previous errors.").await;
        let counts = "ERR:1 EXECABORT:1 exec:1/0/1 multi:1/0/0 set:0/1/0";
        assert_eq!(counted(&mut c).await.join(" "), counts);
    });
}
