//! Who has not given the password gets nothing but the way to give it.

use crate::common::{Setup, run, show};
use plimsoll_kv::memory::MemoryOptions;

const NOAUTH: &str = "-NOAUTH Authentication required.";
const WRONGPASS: &str = "-WRONGPASS invalid username-password pair or user is disabled.";

#[test]
fn nothing_is_served_before_the_password() {
    run(Setup { password: Some("secret"), ..Setup::default() }, |bench| async move {
        let mut c = bench.client().await;
        for words in ["GET k", "SET k v", "PING", "INFO", "CLIENT ID", "COMMAND COUNT", "FLUSHALL"] {
            c.expect(words, NOAUTH).await;
        }
        c.expect("NOSUCH", "-ERR unknown command 'NOSUCH', with args beginning with: ").await;
        assert!(show(&c.call(&["HELLO", "3"]).await).starts_with("-NOAUTH HELLO must be called"));
        for words in
            ["AUTH wrong", "AUTH secre", "AUTH secrets", "AUTH ''", "AUTH other secret", "AUTH default wrong"]
        {
            c.expect(words, WRONGPASS).await;
        }
        c.expect("AUTH secret", "+OK").await;
        c.expect("SET k v", "+OK").await;
        c.expect("AUTH wrong", WRONGPASS).await;
        c.expect("GET k", "v").await;
        c.expect("RESET", "+RESET").await;
        c.expect("GET k", NOAUTH).await;
        c.expect("AUTH default secret", "+OK").await;
        c.expect("GET k", "v").await;
        let mut other = bench.client().await;
        assert!(show(&other.call(&["HELLO", "3", "AUTH", "default", "secret"]).await).contains("proto=:3"));
        other.expect("GET k", "v").await;
        other.expect("CONFIG GET requirepass", "%").await;
        other.expect("QUIT", "+OK").await;
    });
}

/// As in Redis: commands of ten words, and words of 16 KiB, are enough to give a password.
#[test]
fn before_the_password_nothing_long_is_taken() {
    let memory = MemoryOptions { value_bytes_max: 4096, part_bytes: 1024, ..MemoryOptions::default() };
    run(Setup { password: Some("secret"), memory, ..Setup::default() }, |bench| async move {
        let refused = [("*11\r\n", "multibulk"), ("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$16385\r\n", "bulk")];
        for (bytes, what) in refused {
            let mut c = bench.client().await;
            c.send(bytes.into()).await;
            let reply = show(&c.next().await.expect("a reply"));
            assert_eq!(reply, format!("-ERR Protocol error: unauthenticated {what} length"));
            assert!(c.next().await.is_none(), "the connection is closed");
            assert!(bench.memories.borrow().iter().all(|memory| memory.uploading() == 0));
        }
        let mut c = bench.client().await;
        c.expect("AUTH secret", "+OK").await;
        let long = "x".repeat(16_385);
        assert_eq!(show(&c.call(&["SET", "k", &long]).await), "+OK");
        c.expect("MGET a b c d e f g h i j", "[nil nil nil nil nil nil nil nil nil nil]").await;
        c.expect("RESET", "+RESET").await;
        c.send(b"*11\r\n".to_vec()).await;
        let reply = show(&c.next().await.expect("a reply"));
        assert_eq!(reply, "-ERR Protocol error: unauthenticated multibulk length");
    });
}

#[test]
fn without_a_password_any_is_taken_with_a_name_and_none_without() {
    run(Setup::default(), |bench| async move {
        let mut c = bench.client().await;
        assert!(show(&c.call(&["AUTH", "x"]).await).starts_with("-ERR AUTH <password> called without"));
        c.expect("AUTH default x", "+OK").await;
        c.expect("AUTH other x", WRONGPASS).await;
        c.expect("GET k", "nil").await;
    });
}
