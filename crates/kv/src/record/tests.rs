//! What a recorded run may leave behind, by hand.

use super::{Event, Images, RecordingBlock};
use crate::block::{Block, Origin};
use crate::testing::run;
use plimsoll_reactor::sim::{Random, SECTOR_BYTES};
use plimsoll_reactor::{Buf, FileOptions};
use std::collections::BTreeSet;
use std::rc::Rc;

const BYTES: usize = 4096;

fn began(write: u64, sector: usize, sectors: usize, byte: u8, durable: bool) -> Event {
    let bytes = vec![byte; sectors * SECTOR_BYTES];
    Event::WriteBegan { write, offset: (sector * SECTOR_BYTES) as u64, bytes, durable }
}

fn ended(write: u64) -> Event {
    Event::WriteEnded { write, succeeded: true }
}

/// The first bytes of the first sectors, over many images at the end of these events.
fn outcomes(events: &[Event], sectors: usize) -> BTreeSet<Vec<u8>> {
    let mut images = Images::new(BYTES);
    events.iter().for_each(|event| images.step(event));
    let mut random = Random::stream(1, "images");
    let heads = |image: Vec<u8>| (0..sectors).map(|sector| image[sector * SECTOR_BYTES]).collect();
    (0..200).map(|_| heads(images.cut(&mut random))).collect()
}

fn set(all: &[&[u8]]) -> BTreeSet<Vec<u8>> {
    all.iter().map(|heads| heads.to_vec()).collect()
}

#[test]
fn what_is_not_flushed_survives_whole_torn_or_not_at_all() {
    let torn = set(&[&[0, 0], &[0, 1], &[1, 0], &[1, 1]]);
    assert_eq!(outcomes(&[began(0, 0, 2, 1, false)], 2), torn);
    assert_eq!(outcomes(&[began(0, 0, 2, 1, false), ended(0)], 2), torn);
    // Durable, but not yet said to be.
    assert_eq!(outcomes(&[began(0, 0, 2, 1, true)], 2), torn);
    // A failed write may have written any part.
    let failed = Event::WriteEnded { write: 0, succeeded: false };
    assert_eq!(outcomes(&[began(0, 0, 2, 1, true), failed], 2), torn);
}

#[test]
fn a_durable_write_and_a_flushed_one_survive() {
    assert_eq!(outcomes(&[began(0, 0, 2, 1, true), ended(0)], 2), set(&[&[1, 1]]));
    let flush = |succeeded| [Event::FlushBegan { flush: 2 }, Event::FlushEnded { flush: 2, succeeded }];
    let mut events = vec![began(0, 0, 1, 1, false), ended(0), began(1, 1, 1, 2, false)];
    events.extend(flush(true));
    // The second had not ended when the flush began.
    assert_eq!(outcomes(&events, 2), set(&[&[1, 0], &[1, 2]]));
    events.truncate(3);
    events.extend(flush(false));
    assert_eq!(outcomes(&events, 2), set(&[&[0, 0], &[0, 2], &[1, 0], &[1, 2]]));
}

#[test]
fn the_later_write_of_a_sector_wins_whenever_it_becomes_durable() {
    let mut events = vec![began(0, 0, 1, 1, false), ended(0), began(1, 0, 1, 2, true), ended(1)];
    assert_eq!(outcomes(&events, 1), set(&[&[2]]));
    events.extend([Event::FlushBegan { flush: 2 }, Event::FlushEnded { flush: 2, succeeded: true }]);
    assert_eq!(outcomes(&events, 1), set(&[&[2]]));
    events.push(began(3, 0, 1, 3, false));
    assert_eq!(outcomes(&events, 1), set(&[&[2], &[3]]));
}

#[test]
fn a_run_is_recorded_as_it_happens() {
    run(|reactor, _| async move {
        let file = reactor.open_file("disk", &FileOptions::default()).unwrap();
        let block = RecordingBlock::new(Rc::new(file));
        let (origin, mut buf) = (Origin::FOREGROUND, Buf::zeroed(BYTES));
        buf.fill(7);
        let buf = Rc::new(buf);
        let late = block.write(origin, 0, buf.clone(), true);
        block.write(origin, 8192, buf.clone(), false).await.unwrap();
        assert_eq!(block.position(), 2, "a write that nobody polls has not begun");
        block.flush(origin).await.unwrap();
        late.await.unwrap();
        assert_eq!(block.read(origin, 8192, BYTES).await.unwrap()[..], buf[..]);
        let bytes = buf.to_vec();
        let expected = [
            Event::WriteBegan { write: 0, offset: 8192, bytes: bytes.clone(), durable: false },
            ended(0),
            Event::FlushBegan { flush: 1 },
            Event::FlushEnded { flush: 1, succeeded: true },
            Event::WriteBegan { write: 2, offset: 0, bytes, durable: true },
            ended(2),
        ];
        assert_eq!(block.take(), expected);
        assert_eq!(block.position(), 0);
    });
}
