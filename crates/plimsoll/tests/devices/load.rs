//! A client that writes all the time and knows what was acknowledged.

use crate::process::Client;
use plimsoll_resp::Reply;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Keys that are written, again and again.
const KEYS: usize = 3000;
/// Every so many writes one is a deletion.
const DELETE_EVERY: usize = 17;
/// What takes longer does not happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a key may hold: nothing, or the value of a round.
type Held = Option<usize>;

/// What was acknowledged of each key, and what was sent and not answered.
pub(crate) struct Model {
    acknowledged: Vec<Held>,
    unanswered: Option<(usize, Held)>,
    round: usize,
}

fn name(key: usize) -> Vec<u8> {
    format!("key:{key:06}").into_bytes()
}

/// From a few bytes to some thousands; no two rounds have the same.
fn value(key: usize, round: usize) -> Vec<u8> {
    format!("{key}/{round};").into_bytes().repeat(key * 7 % 400 + 1)
}

impl Model {
    fn new() -> Model {
        Model { acknowledged: vec![None; KEYS], unanswered: None, round: 0 }
    }

    /// Looks at every key. What was not answered may have happened or not; from here on it is known.
    pub(crate) fn check(&mut self, client: &mut Client) {
        for key in 0..KEYS {
            let reply = client.call(&[b"GET", &name(key)]).unwrap();
            let is = |held: Held| match held {
                None => reply == Reply::Null,
                Some(round) => reply == Reply::Bulk(value(key, round)),
            };
            if is(self.acknowledged[key]) {
                continue;
            }
            let asked = self.unanswered.filter(|(of, _)| *of == key).map(|(_, held)| held);
            let happened = asked.is_some_and(is);
            assert!(
                happened,
                "key {key}: acknowledged {:?}, found {}",
                self.acknowledged[key],
                short(&reply)
            );
            self.acknowledged[key] = asked.flatten();
        }
        self.unanswered = None;
    }
}

fn short(reply: &Reply) -> String {
    format!("{reply:?}").chars().take(120).collect()
}

/// A thread that writes.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    writes: Arc<AtomicUsize>,
    model: Arc<Mutex<Model>>,
    thread: JoinHandle<Result<(), String>>,
}

impl Load {
    pub(crate) fn start(resp: &str) -> Load {
        Load::go_on(resp, Model::new())
    }

    /// Writes on from what was known.
    pub(crate) fn go_on(resp: &str, model: Model) -> Load {
        let (stop, writes) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let model = Arc::new(Mutex::new(model));
        let mut client = Client::connect(resp).unwrap();
        let (stopped, counted, known) = (stop.clone(), writes.clone(), model.clone());
        let thread = std::thread::spawn(move || {
            while !stopped.load(SeqCst) {
                write_one(&mut client, &mut known.lock().unwrap())?;
                counted.fetch_add(1, SeqCst);
            }
            Ok(())
        });
        Load { stop, writes, model, thread }
    }

    /// Waits until so many writes have happened in all.
    pub(crate) fn wait_for(&self, writes: usize) {
        let until = Instant::now() + PATIENCE;
        while self.writes.load(SeqCst) < writes {
            assert!(!self.thread.is_finished(), "the load has ended: a write failed");
            assert!(Instant::now() < until, "only {} of {writes} writes", self.writes.load(SeqCst));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn wait_for_more(&self, writes: usize) {
        self.wait_for(self.writes.load(SeqCst) + writes);
    }

    /// Ends it; every write was acknowledged.
    pub(crate) fn stop(self) -> Model {
        self.stop.store(true, SeqCst);
        self.thread.join().unwrap().unwrap();
        Arc::into_inner(self.model).unwrap().into_inner().unwrap()
    }

    /// The server was killed: the last write has no answer.
    pub(crate) fn after_kill(self) -> Model {
        let ended = self.thread.join().unwrap();
        assert!(ended.is_err_and(|what| what.starts_with("no answer")), "the server was killed under load");
        Arc::into_inner(self.model).unwrap().into_inner().unwrap()
    }
}

/// Writes one key, or deletes it.
fn write_one(client: &mut Client, model: &mut Model) -> Result<(), String> {
    model.round += 1;
    let (key, round) = (model.round * 7919 % KEYS, model.round);
    let held = (round % DELETE_EVERY != 0).then_some(round);
    model.unanswered = Some((key, held));
    let (name, value) = (name(key), value(key, round));
    let sent = match held {
        Some(_) => client.call(&[b"SET", &name, &value]),
        None => client.call(&[b"DEL", &name]),
    };
    match sent {
        Ok(Reply::Simple(_) | Reply::Integer(_)) => {
            model.acknowledged[key] = held;
            model.unanswered = None;
            Ok(())
        }
        Ok(reply) => Err(format!("key {key}: {}", short(&reply))),
        Err(error) => Err(format!("no answer: {error}")),
    }
}
