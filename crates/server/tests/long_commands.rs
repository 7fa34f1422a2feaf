//! Long commands of many clients at once: senders are held back before any of them is cut.

use crate::common::{Bench, Client, Setup, encoded, run, send_in_background, show};
use plimsoll_reactor::Work;
use plimsoll_server::budget::Budget;

/// What clients may hold; the longest command is three eighths of it.
const BUDGET: Budget = Budget { client_bytes_max: 32 << 20, ..Budget::NOT_GIVEN };

fn setup() -> Setup {
    Setup { cores: 1, partitions: 1, budget: BUDGET, ..Setup::default() }
}

/// Stores so many MiB with one command, in values of so many bytes.
fn long_command(name: &str, mib: usize, value_bytes: usize) -> Vec<u8> {
    let value = "v".repeat(value_bytes);
    let keys: Vec<String> = (0..(mib << 20) / value_bytes).map(|number| format!("{name}:{number}")).collect();
    let words = keys.iter().flat_map(|key| [key.as_str(), &value]);
    encoded(&std::iter::once("MSET").chain(words).collect::<Vec<_>>())
}

async fn sends(bench: &Bench, bytes: Vec<u8>) -> Client {
    let client = bench.client().await;
    send_in_background(bench, &client, bytes);
    client
}

/// So many clients send a command of so many MiB each at the same instant, in values of so many bytes.
async fn all_are_answered(bench: &Bench, count: usize, (mib, value_bytes): (usize, usize)) {
    let mut clients = Vec::new();
    for number in 0..count {
        clients.push(sends(bench, long_command(&number.to_string(), mib, value_bytes)).await);
    }
    for client in &mut clients {
        assert_eq!(show(&client.next().await.unwrap()), "+OK", "values of {value_bytes} bytes");
    }
    assert_eq!(bench.cut(), 0);
}

/// Eight of 50 MiB within 256 MiB: three were cut, and told nothing.
#[test]
fn clients_that_send_long_commands_at_once_wait_for_each_other() {
    for value_bytes in [10 << 20, 1 << 20, 60_000] {
        run(setup(), move |bench| async move {
            all_are_answered(&bench, 8, (10, value_bytes)).await;
            bench.client().await.expect("EXISTS 0:0 7:0", ":2").await;
            assert!(bench.held_bytes() < 2 << 20, "{} bytes", bench.held_bytes());
        });
    }
}

/// What each may send before it waits is more than clients may hold together.
#[test]
fn clients_that_are_many_wait_for_each_other_too() {
    let budget = Budget { client_bytes_max: 16 << 20, ..Budget::NOT_GIVEN };
    for value_bytes in [2 << 20, 60_000] {
        run(Setup { budget, ..setup() }, move |bench| async move {
            all_are_answered(&bench, 60, (2, value_bytes)).await;
        });
    }
}

/// What was announced counted as held: a few bytes each had honest clients cut.
#[test]
fn who_announces_much_and_sends_nothing_keeps_nobody_out() {
    run(setup(), |bench| async move {
        let mut idle = Vec::new();
        for _ in 0..60 {
            idle.push(sends(&bench, b"*3\r\n$4\r\nMSET\r\n$1\r\na\r\n$12000000\r\n".to_vec()).await);
        }
        bench.pause_ms(100).await;
        assert!(bench.held_bytes() < 2 << 20, "{} bytes", bench.held_bytes());
        let begun_ns = bench.reactor.now_ns();
        let mut honest = sends(&bench, long_command("k", 11, 11 << 20)).await;
        assert_eq!(show(&honest.next().await.unwrap()), "+OK");
        assert!(bench.reactor.now_ns() - begun_ns < 1_000_000_000, "it waited for them");
        assert_eq!(bench.cut(), 0);
        drop(idle);
    });
}

/// Those that stop in the middle have their turns taken from them, and are cut for those that go on.
#[test]
fn who_stops_in_the_middle_of_a_long_command_keeps_others_waiting_for_a_while_only() {
    for value_bytes in [10 << 20, 60_000] {
        run(setup(), move |bench| async move {
            let mut stuck = Vec::new();
            for _ in 0..6 {
                let mut half = long_command("stuck", 10, value_bytes);
                half.truncate(9 << 20);
                stuck.push(sends(&bench, half).await);
            }
            bench.pause_ms(100).await;
            assert!(bench.held_bytes() > 15 << 20, "they hold half of what clients may");
            let begun_ns = bench.reactor.now_ns();
            bench.client().await.expect("SET short v", "+OK").await;
            assert!(bench.reactor.now_ns() - begun_ns < 100_000_000, "a short command waits for no turn");
            let mut honest = sends(&bench, long_command("k", 10, value_bytes)).await;
            assert_eq!(show(&honest.next().await.unwrap()), "+OK");
            let waited_ns = bench.reactor.now_ns() - begun_ns;
            assert!(waited_ns < 4_000_000_000, "it waited for {} ms", waited_ns / 1_000_000);
            assert!(bench.held_bytes() <= BUDGET.client_bytes_max);
            drop(stuck);
        });
    }
}

/// One that is too long for its share is refused in words, and its connection goes on.
#[test]
fn a_command_that_is_too_long_for_its_share_is_refused_in_words() {
    run(setup(), |bench| async move {
        let mut client = sends(&bench, long_command("k", 13, 13 << 20)).await;
        assert_eq!(show(&client.next().await.unwrap()), "-ERR argument is too long");
        client.expect("CONFIG GET client-query-buffer-limit", "[client-query-buffer-limit 12582912]").await;
        let mut client = sends(&bench, long_command("k", 13, 60_000)).await;
        assert_eq!(show(&client.next().await.unwrap()), "-ERR Protocol error: too big query buffer");
        assert_eq!(bench.cut(), 0);
    });
}

/// It stayed in memory until its client had sent all of it: a million arguments more, if that is what it had
/// announced. So did short arguments between long ones, and nobody counted them (found by a reader).
#[test]
fn what_has_come_of_a_command_that_is_too_long_is_forgotten() {
    let (long, short) = ("v".repeat(5 << 20), "v".repeat(60_000));
    let longs = ["MSET", "a", &long, "b", &long, "c", &long];
    let shorts = ["k", &short].repeat(100);
    let commands = [encoded(&longs), encoded(&[&longs[..], &shorts, &["d", &long]].concat())];
    for command in commands {
        run(setup(), move |bench| {
            let mut begun = command.clone();
            let rest = begun.split_off(begun.len() - 1000);
            async move {
                let mut client = sends(&bench, begun).await;
                bench.pause_ms(1000).await;
                assert!(bench.held_bytes() < 1 << 20, "{} bytes", bench.held_bytes());
                send_in_background(&bench, &client, rest);
                assert_eq!(show(&client.next().await.unwrap()), "-ERR argument is too long");
                client.expect("PING", "+PONG").await;
            }
        });
    }
}

/// Also where its name is what is long, and where it is too long.
#[test]
fn a_long_command_that_is_not_known_is_refused_by_its_name() {
    run(setup(), |bench| async move {
        let (long, longer) = ("N".repeat(5 << 20), "v".repeat(13 << 20));
        let name = "N".repeat(128);
        for (words, begins_with) in [
            (["NOSUCH", &long], "-ERR unknown command 'NOSUCH', with args beginning with: 'NNN".to_owned()),
            (["NOSUCH", &longer], "-ERR unknown command 'NOSUCH', with args beginning with: ".to_owned()),
            ([long.as_str(), "x"], format!("-ERR unknown command '{name}', with args beginning with: 'x' ")),
        ] {
            let mut client = sends(&bench, encoded(&words)).await;
            let answer = show(&client.next().await.unwrap());
            assert!(answer.starts_with(&begins_with), "{}", &answer[..answer.len().min(300)]);
            client.expect("PING", "+PONG").await;
        }
    });
}

/// What came behind its long arguments had no limit at all (found by a reader).
#[test]
fn short_arguments_make_a_command_too_long_as_long_ones_do() {
    run(setup(), |bench| async move {
        let (long, short) = ("v".repeat(11 << 20), "v".repeat(60_000));
        for (shorts, answer) in [(10, "+OK"), (30, "-ERR argument is too long")] {
            let command = [&["MSET", "a", &long][..], &["k", &short].repeat(shorts)].concat();
            let mut client = sends(&bench, encoded(&command)).await;
            assert_eq!(show(&client.next().await.unwrap()), answer);
            client.expect("PING", "+PONG").await;
        }
    });
}

/// Nobody counted the short ones between long ones (found by a reader).
#[test]
fn short_arguments_between_long_ones_count_as_held() {
    run(setup(), |bench| async move {
        let (long, short) = ("v".repeat(5 << 20), "v".repeat(60_000));
        let shorts = ["k", &short].repeat(20);
        let command = encoded(&[&["MSET", "a", &long][..], &shorts, &["b", &long]].concat());
        let mut client = sends(&bench, command[..command.len() - 1000].to_vec()).await;
        bench.pause_ms(1000).await;
        assert!(bench.held_bytes() > 2 * long.len() + 20 * short.len(), "{} bytes", bench.held_bytes());
        send_in_background(&bench, &client, command[command.len() - 1000..].to_vec());
        assert_eq!(show(&client.next().await.unwrap()), "+OK");
        assert!(bench.held_bytes() < 1 << 20, "{} bytes", bench.held_bytes());
    });
}

/// Each of those whose turn has come sends on, and so is cut last: those who held nothing were cut before
/// them.
#[test]
fn who_holds_little_is_cut_for_nobody() {
    idle_clients_stay_beside(&["PING"]);
}

/// Who asks not to be cut is, before those are that hold nothing (found by an audit).
#[test]
fn who_holds_little_is_cut_for_nobody_who_asks_to_stay() {
    idle_clients_stay_beside(&["CLIENT", "NO-EVICT", "ON"]);
}

/// Clients that hold too much together, and have said something before.
fn idle_clients_stay_beside(said: &'static [&'static str]) {
    run(setup(), |bench| async move {
        let mut idle = Vec::new();
        for _ in 0..5 {
            let mut client = bench.client().await;
            client.expect("SUBSCRIBE news", "[subscribe news :1]").await;
            idle.push(client);
        }
        let half = long_command("slow", 11, 11 << 20);
        for _ in 0..12 {
            let (mut client, mut half) = (bench.client().await, half.clone());
            client.call(said).await;
            half.truncate(10 << 20);
            let reactor = bench.reactor.clone();
            bench.reactor.spawn(Work::Network, async move {
                for some in half.chunks(100 << 10) {
                    let _ = client.socket.send(some.to_vec()).await;
                    reactor.sleep_ns(50_000_000).await;
                }
                reactor.sleep_ns(60_000_000_000).await;
            });
        }
        bench.pause_ms(30_000).await;
        assert!(bench.cut() > 0, "they hold too much together");
        let listening = show(&bench.client().await.call(&["PUBLISH", "news", "x"]).await);
        assert_eq!(listening, ":5", "of those who hold nothing none is cut");
        drop(idle);
    });
}
