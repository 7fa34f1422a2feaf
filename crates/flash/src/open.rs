//! Opening and closing a partition.

use crate::format::Superblock;
use crate::keys::Keys;
use crate::known::Known;
use crate::layout::Layout;
use crate::log::Log;
use crate::looks::Looks;
use crate::marks::Marks;
use crate::options::{OnFull, Options};
use crate::partition::Partition;
use crate::planted::{Bug, is_planted};
use crate::prepare::prepare_first;
use crate::recent::Recent;
use crate::recover::{OpenError, Recovered, recover};
use crate::transaction::Transactions;
use plimsoll_kv::key_locks::KeyLocks;
use plimsoll_kv::{Block, Error, Result, WallClock};
use plimsoll_reactor::sync::{Bell, WaitList};
use plimsoll_reactor::{Reactor, Work};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The part of the memory for known keys that short records have.
const RECENT_PART: usize = 4;
/// Checkpoints tried at the end, if the keys cannot be named: more than it takes until they are built anew.
const CLOSING_ATTEMPTS: u32 = 8;

impl Partition {
    /// Recovers a partition and starts its background task.
    ///
    /// # Errors
    /// The device fails, is damaged, or has no room to go on.
    pub async fn open(
        reactor: &Reactor,
        block: Rc<dyn Block>,
        superblock: &Superblock,
        partition: u16,
        options: Options,
    ) -> std::result::Result<Rc<Partition>, OpenError> {
        let fingerprint_bits = options.fingerprint_bits;
        let layout = Layout { fingerprint_bits, ..Layout::new(superblock, partition) };
        let start_ns = reactor.now_ns();
        let mut recovered = recover(&*block, layout).await?;
        if superblock.written_ahead {
            recovered.state.segments.set_prepared(layout.segments);
        } else {
            let is_new = recovered.position.segment == 0 && recovered.anchor.epoch == 0;
            let written = prepare_first(&*block, &layout, &mut recovered.state.segments, is_new).await;
            written.map_err(|error| OpenError::Io { partition: layout.partition, error })?;
        }
        let full = |_| OpenError::Full(partition);
        let segments = &mut recovered.state.segments;
        let log = Log::open(reactor, block.clone(), layout, recovered.position, segments).map_err(full)?;
        if recovered.position.reserved.is_some() {
            let io = |error| OpenError::Io { partition: layout.partition, error };
            log.begin_anew().await.map_err(io)?;
        }
        let first_copy = 1 - recovered.anchor_copy;
        let (replayed, keys) = (recovered.replayed, recovered.state.index.len());
        let clean_stop = recovered.anchor.clean;
        let keys_found = std::mem::take(&mut recovered.keys);
        let keys_in_order = Keys::new(&block, layout, &keys_found);
        let partition = Partition::assemble(reactor, block, layout, options, recovered, log, keys_in_order);
        partition.begin(first_copy).await?;
        let held = partition.hold_prepared().await;
        held.map_err(|error| OpenError::Damaged { partition: layout.partition, what: error.to_string() })?;
        let recovery_ms = (reactor.now_ns() - start_ns) / 1_000_000;
        tracing::info!(
            partition = layout.partition,
            keys,
            replayed,
            clean_stop,
            recovery_ms,
            "partition open"
        );
        reactor.spawn(Work::Background, partition.clone().run_background());
        reactor.spawn(Work::Background, partition.clone().run_keys(keys_found));
        Ok(partition)
    }

    fn assemble(
        reactor: &Reactor,
        block: Rc<dyn Block>,
        layout: Layout,
        options: Options,
        recovered: Recovered,
        log: Rc<Log>,
        keys: Keys,
    ) -> Rc<Partition> {
        let mut state = recovered.state;
        if options.on_full == OnFull::Evict {
            let units = u64::from(layout.segments) * layout.segment_units();
            state.segments.marks = Marks::of_units(units);
        }
        let recent_bytes = options.known_bytes / RECENT_PART;
        state.known = Known::of_bytes(options.known_bytes - recent_bytes);
        state.recent = Recent::of_bytes(recent_bytes);
        state.begin_anew();
        if !is_planted(Bug::LeakedUpload) {
            state.uploads.doom_open();
        }
        Rc::new(Partition {
            reactor: reactor.clone(),
            block,
            layout,
            options,
            state: RefCell::new(state),
            log,
            locks: Rc::new(KeyLocks::default()),
            keys,
            version: Cell::new(recovered.version),
            clock: Rc::new(WallClock::new(reactor)),
            pins: RefCell::new(BTreeMap::new()),
            looks: Looks::default(),
            space: WaitList::default(),
            background: Bell::default(),
            anchor: RefCell::new(recovered.anchor),
            transitions_since: Cell::new(recovered.replayed),
            room: Cell::default(),
            hungry: Cell::new(0),
            stuck: RefCell::default(),
            vain_until_ns: Cell::new(0),
            wanted_until_ns: Cell::new(0),
            wanted: Default::default(),
            above: RefCell::default(),
            closing: Cell::new(false),
            preparing: Cell::new(false),
            background_done: Cell::new(false),
            transactions: Transactions::default(),
            counts: crate::metrics::Counts::default(),
        })
    }

    /// Makes the new epoch durable before anything uses it: first a frame of it, so that the log
    /// always has a header where it goes on, then the anchor.
    async fn begin(self: &Rc<Self>, first_copy: u64) -> std::result::Result<(), OpenError> {
        let io = |error: Error| OpenError::Io {
            partition: self.layout.partition,
            error: std::io::Error::other(error.to_string()),
        };
        self.log.seal(&self.state).await.map_err(io)?;
        let mut anchor = self.anchor.borrow().clone();
        anchor.generation += 1;
        anchor.epoch = self.log.epoch();
        anchor.clean = false;
        let written = crate::checkpoint::write_anchor(&*self.block, &self.layout, &anchor, first_copy).await;
        written.map_err(|error| OpenError::Io { partition: self.layout.partition, error })?;
        self.anchor.replace(anchor);
        Ok(())
    }

    /// Writes everything, then a checkpoint, and ends the background task. Requests must have ended.
    ///
    /// # Errors
    /// The device failed; what was acknowledged is in the log all the same.
    pub async fn close(&self) -> Result<()> {
        self.closing.set(true);
        self.background.ring();
        self.space.wake_all();
        self.space.wait_for(|| self.background_done.get().then_some(())).await;
        if let Some(error) = self.log.failure() {
            self.stop_keys().await;
            return Err(error);
        }
        self.reclaim();
        let mut written = self.checkpoint(true).await;
        for _ in 1..CLOSING_ATTEMPTS {
            // The keys were found damaged meanwhile, and built anew: now they can be named (seed 454). Or
            // a sector of them cannot be read: then they will be.
            if matches!(written, Err(Error::Overloaded | Error::Unreadable(_))) {
                written = self.checkpoint(true).await;
            }
        }
        self.stop_keys().await;
        written?;
        self.log.close().await
    }
}
