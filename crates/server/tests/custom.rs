//! KV.STORE and KV.META over one device, which has no mechanisms; those of several are tested in
//! `crates/plimsoll/tests/devices/custom.rs`.

use crate::common::{Setup, run, show};

#[test]
fn kv_store_is_set_and_refuses_mechanisms_that_are_not_there() {
    run(Setup::default(), |bench| async move {
        let mut c = bench.client().await;
        c.expect("KV.STORE k v", "+OK").await;
        c.expect("KV.STORE k w NX", "nil").await;
        c.expect("kv.store k w XX GET EX 100", "v").await;
        c.expect("TTL k", ":100").await;
        c.expect("KV.STORE k x KEEPTTL", "+OK").await;
        c.expect("GET k", "x").await;
        let none = "-ERR MECHANISM needs several devices: values of one have no mechanism";
        c.expect("KV.STORE k y MECHANISM replication 3", none).await;
        c.expect("KV.STORE k y MECHANISM", none).await;
        c.expect("KV.STORE k y EX 0", "-ERR invalid expire time in 'kv.store' command").await;
        c.expect("SET k y MECHANISM hashing", "-ERR syntax error").await;
        c.expect("GET k", "x").await;
        c.expect("COMMAND GETKEYS KV.STORE k v", "[k]").await;
        c.expect("COMMAND GETKEYSANDFLAGS KV.STORE k v", "[[k [+OW +update]]]").await;
        c.expect("MULTI", "+OK").await;
        c.expect("KV.STORE k in-a-transaction", "+QUEUED").await;
        c.expect("EXEC", "[+OK]").await;
        c.expect("GET k", "in-a-transaction").await;
    });
}

#[test]
fn kv_meta_tells_of_one_device_what_is_true_of_it() {
    run(Setup::default(), |bench| async move {
        let mut c = bench.client().await;
        c.expect("KV.META absent", "nil").await;
        c.expect("SET k 123456789", "+OK").await;
        let told = show(&c.call(&["KV.META", "k"]).await);
        let splits = "splits [data :1 parities :0 bytes :9]";
        let piece = "role :0 holds copy device /data/device state in bytes :9 crc32c e3069283 error nil";
        assert!(told.starts_with("[mechanism none version 1."), "{told}");
        assert!(told.ends_with(&format!("bytes :9 code none {splits} devices [[{piece}]]]")), "{told}");
        c.expect("MULTI", "+OK").await;
        c.expect("KV.META k", "-ERR Command not allowed inside a transaction").await;
        c.expect("EXEC", "-EXECABORT Transaction discarded because of previous errors.").await;
    });
}

#[test]
fn long_values_go_the_same_way() {
    run(Setup::default(), |bench| async move {
        let mut c = bench.client().await;
        let value = "x".repeat(5 << 20);
        c.expect(&format!("KV.STORE long {value} EX 100"), "+OK").await;
        c.expect("STRLEN long", &format!(":{}", value.len())).await;
        let told = show(&c.call(&["KV.META", "long"]).await);
        assert!(told.contains(&format!("bytes :{} crc32c ", value.len())), "{told}");
    });
}
