//! Each sector of a device in turn cannot be read: what does not lie there is served.

use crate::bad_sectors::Worn;
use crate::list_support::list_all;
use crate::opening::{DATABASE, delete, disk, formatted, live, run, store, world};
use plimsoll_flash::format::{SegmentHeader, SegmentKind};
use plimsoll_flash::layout::Layout;
use plimsoll_flash::{Options, Partition, Superblock, inspect};
use plimsoll_kv::{Error, Expiry, Op, Output, Value};
use plimsoll_reactor::Reactor;
use plimsoll_reactor::sim::{Random, World};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

const DISK_BYTES: usize = 4 << 20;
const SEGMENT_BYTES: u32 = 64 << 10;
const SECTOR_BYTES: u64 = 4096;
const KEYS: u64 = 240;
const CHANGES: usize = 1500;

type Values = BTreeMap<Vec<u8>, Vec<u8>>;

fn key(number: u64) -> Vec<u8> {
    format!("key:{number}").into_bytes()
}

fn options() -> Options {
    Options { checkpoint_transitions_min: 100, ..Options::default() }
}

/// Stores and deletes until segments were cleaned and checkpoints written; then a clean stop or a power loss.
async fn history(reactor: Reactor, is_clean: bool, values: Rc<RefCell<Values>>) {
    let block = Rc::new(disk(&reactor));
    let superblock = formatted(&*block, SEGMENT_BYTES).await;
    let partition = Partition::open(&reactor, block, &superblock, 0, options()).await.expect("it opens");
    let mut random = Random::stream(5, "changes");
    for step in 0..CHANGES {
        let key = key(random.below(KEYS));
        if random.below(8) == 0 {
            let deleted = run(&partition, delete(key.clone())).await;
            assert!(matches!(deleted, Ok(_) | Err(Error::NotFound)), "{deleted:?}");
            values.borrow_mut().remove(&key);
        } else {
            let value = vec![step as u8; 500 + random.below(12_000) as usize];
            let stored = store(key.clone(), Value::from(value.clone()), Expiry::Never);
            run(&partition, stored).await.expect("there is room");
            values.borrow_mut().insert(key, value);
        }
    }
    let metrics = partition.metrics();
    assert!(metrics.cleaned_segments > 10 && metrics.checkpoints > 3, "{metrics:?}");
    if is_clean {
        partition.close().await.expect("nothing fails");
    }
}

async fn read(partition: &Rc<Partition>, key: Vec<u8>) -> plimsoll_kv::Result<Vec<u8>> {
    match run(partition, Op::Retrieve { container: DATABASE, key, range: None, pin: false }).await? {
        Output::Found(item) => Ok(item.bytes),
        other => panic!("{other:?}"),
    }
}

/// Everything but what lies in the sector is there, listed, and can be replaced: how many keys are lost with
/// it, or why the partition does not open.
async fn serve(reactor: Reactor, sector: u64, values: Rc<Values>) -> Result<usize, String> {
    let worn = Worn::new(disk(&reactor), sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES);
    let block = Rc::new(worn);
    let superblock = inspect(&*block).await.expect("there is a second superblock");
    let partition = match Partition::open(&reactor, block.clone(), &superblock, 0, options()).await {
        Ok(partition) => partition,
        Err(error) => return Err(error.to_string()),
    };
    let mut lost = BTreeSet::new();
    for (key, value) in &*values {
        match read(&partition, key.clone()).await {
            Ok(found) => assert_eq!(&found, value),
            Err(Error::Unreadable(_)) => drop(lost.insert(key.clone())),
            Err(error) => panic!("{error}"),
        }
    }
    assert!(lost.len() <= 10, "{} lost with sector {sector}", lost.len());
    let listed: BTreeSet<_> = list_all(&partition, 0, b"", || 100, true).await.into_iter().collect();
    let whole: BTreeSet<_> = values.keys().filter(|key| !lost.contains(*key)).cloned().collect();
    assert!(listed.is_superset(&whole) && listed.iter().all(|key| values.contains_key(key)));
    for number in (0..KEYS).step_by(10) {
        let value = Value::from(vec![7; 3000]);
        run(&partition, store(key(number), value, Expiry::Never)).await.expect("stored");
    }
    partition.check_accounts().expect("the accounts agree");
    partition.close().await.expect("nothing else fails");
    Ok(lost.len())
}

/// A disk with a history, what is on it, and the values of its keys.
fn image(is_clean: bool) -> (World, Vec<u8>, Rc<Values>) {
    let world = world(DISK_BYTES);
    let values = Rc::new(RefCell::new(Values::new()));
    let noted = values.clone();
    live(&world, move |reactor| history(reactor, is_clean, noted.clone()));
    let image = world.with_disk("disk", |disk| disk.durable().to_vec());
    (world, image, Rc::new(values.take()))
}

/// Serves an image without one sector; see [`serve`].
fn serve_image(world: &World, image: &[u8], sector: u64, values: &Rc<Values>) -> Result<usize, String> {
    world.with_disk("disk", |disk| disk.load(image));
    let (values, told) = (values.clone(), Rc::new(RefCell::new(None)));
    let telling = told.clone();
    live(world, move |reactor| {
        let (values, telling) = (values.clone(), telling.clone());
        async move { drop(telling.replace(Some(serve(reactor, sector, values).await))) }
    });
    told.take().expect("the life has ended")
}

#[test]
fn whatever_sector_cannot_be_read_everything_else_is_served() {
    for is_clean in [true, false] {
        let (world, image, values) = image(is_clean);
        let mut refused = 0;
        for sector in 0..DISK_BYTES as u64 / SECTOR_BYTES {
            let Err(why) = serve_image(&world, &image, sector, &values) else { continue };
            let offset = why.strip_prefix("reading partition 0: a bad sector, device offset ").expect(&why);
            assert_eq!(offset.parse::<u64>().expect(&why) / SECTOR_BYTES, sector);
            assert!(is_all_there_is(&image, sector, is_clean), "sector {sector}: {why}");
            refused += 1;
        }
        assert!((1..80).contains(&refused), "{refused} refused");
    }
}

/// Building the keys' order from the records waited for ever for one that could not be read: so did listings,
/// checkpoints and the end.
#[test]
fn keys_are_put_in_order_around_a_bad_sector() {
    let (world, mut image, values) = image(true);
    let layout = layout_of(&image);
    for segment in 0..layout.segments {
        let start = layout.segment_offset(segment) as usize;
        let header = SegmentHeader::decode(&image[start..], layout.identity, segment);
        if header.is_ok_and(|header| header.kind == SegmentKind::Keys) {
            image[start..start + SEGMENT_BYTES as usize].fill(0);
        }
    }
    let sectors = (0..DISK_BYTES as u64 / SECTOR_BYTES).step_by(13);
    let losses: Vec<usize> =
        sectors.filter_map(|sector| serve_image(&world, &image, sector, &values).ok()).collect();
    assert!(losses.len() > 70 && losses.iter().filter(|lost| **lost > 0).count() > 10, "{losses:?}");
}

fn layout_of(image: &[u8]) -> Layout {
    let superblock = Superblock::decode(&image[..SECTOR_BYTES as usize]).expect("it is formatted");
    Layout::new(&superblock, 0)
}

/// True if what lies in a sector is nowhere else, and without it nobody knows what was stored: a checkpoint,
/// or the log since the last one.
fn is_all_there_is(image: &[u8], sector: u64, is_clean: bool) -> bool {
    let superblock = Superblock::decode(&image[..SECTOR_BYTES as usize]).expect("it is formatted");
    let layout = Layout::new(&superblock, 0);
    let segment =
        (sector * SECTOR_BYTES).checked_sub(layout.segment_offset(0)).map(|at| at / layout.segment_bytes);
    let Some(segment) = segment else { return false };
    let start = layout.segment_offset(segment as u32);
    let is_head = start / SECTOR_BYTES == sector;
    match SegmentHeader::decode(&image[start as usize..], layout.identity, segment as u32) {
        Ok(header) if header.kind == SegmentKind::Checkpoint => true,
        Ok(header) if header.kind == SegmentKind::Log => is_head || !is_clean,
        // Where the log may have gone on.
        _ => is_head && !is_clean,
    }
}
