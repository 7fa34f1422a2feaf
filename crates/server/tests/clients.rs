//! CLIENT LIST and CLIENT KILL over several cores.

use crate::common::{Setup, encoded, run, show};

#[test]
fn clients_are_listed_and_killed_wherever_they_are() {
    for cores in [1, 2, 6] {
        run(Setup { cores, ..Setup::default() }, |bench| async move {
            let mut c = bench.client().await;
            let mut others = Vec::new();
            for number in 0..6 {
                let mut other = bench.client().await;
                other.expect(&format!("CLIENT SETNAME n{number}"), "+OK").await;
                if number == 5 {
                    other.expect("SUBSCRIBE news", "[subscribe news :1]").await;
                }
                others.push(other);
            }
            let lines = |text: &str| text.lines().filter(|line| line.contains("id=")).count();
            assert_eq!(lines(&show(&c.call(&["CLIENT", "LIST"]).await)), 7);
            assert_eq!(lines(&show(&c.call(&["CLIENT", "LIST", "TYPE", "normal"]).await)), 6);
            let listening = show(&c.call(&["CLIENT", "LIST", "TYPE", "pubsub"]).await);
            assert!(lines(&listening) == 1 && listening.contains("name=n5"), "{listening}");
            let list = show(&c.call(&["CLIENT", "LIST"]).await);
            let line = list.lines().find(|line| line.contains("name=n0")).unwrap();
            let field = |name: &str| line.split(' ').find_map(|field| field.strip_prefix(name)).unwrap();
            c.expect(&format!("CLIENT KILL ID {}", field("id=")), ":1").await;
            c.expect(&format!("CLIENT KILL ID {}", field("id=")), ":0").await;
            assert!(others.remove(0).next().await.is_none(), "its connection has ended");
            c.expect("CLIENT KILL TYPE pubsub", ":1").await;
            c.expect("PUBLISH news x", ":0").await;
            c.expect("CLIENT KILL MAXAGE 1000", ":0").await;
            c.expect("CLIENT KILL 10.0.0.1:5", "-ERR No such client").await;
            c.expect("CLIENT KILL ID 0", "-ERR client-id should be greater than 0").await;
            c.expect("CLIENT KILL TYPE nobody", "-ERR Unknown client type 'nobody'").await;
            c.expect("CLIENT KILL TYPE", "-ERR No such client").await;
            c.expect("CLIENT KILL SKIPME maybe", "-ERR syntax error").await;
            c.expect("CLIENT KILL USER other", "-ERR No such user 'other'").await;
            c.expect("CLIENT KILL TYPE normal", ":4").await;
            bench.pause_ms(10).await;
            assert_eq!(bench.shared.connections(), 1);
            // Itself, after the answer.
            c.send([encoded(&["CLIENT", "KILL", "SKIPME", "no"]), encoded(&["PING"])].concat()).await;
            assert_eq!(show(&c.next().await.unwrap()), ":1");
            assert!(c.next().await.is_none());
        });
    }
}
