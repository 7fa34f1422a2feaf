//! The background task of a partition: reclaim, checkpoint, reap, evict, clean, sweep, write ahead.
//!
//! Place on the path: none; it sleeps until something wakes it, and then does one bounded piece of
//! work after the other until nothing is due.
//!
//! Invariant: when it finds nothing to do and stores wait for space, it says so (`stuck`), so that
//! they fail rather than wait for ever.

use crate::clean::{Heads, Ranking, Sweep};
use crate::evict::Hand;
use crate::partition::Partition;
use crate::reap::{LOOK_NS, Reaper};
use futures_util::future::select;
use plimsoll_kv::{Error, Result};
use std::pin::pin;
use std::rc::Rc;

/// Cleaning begins when fewer segments than this are free beyond those that stores leave alone, or than this
/// part of what live records do not take. Every segment kept free is one that holds nothing live: at 80 %
/// fullness one in a hundred costs about 5 % more writing.
const AHEAD_MIN: u32 = 2;
const AHEAD_PART: u64 = 32;
/// More bytes than that are not kept free: stores take some milliseconds for them.
const AHEAD_BYTES_MAX: u64 = 64 << 20;
/// A crowded device evicts before it writes a checkpoint, if that would make so small a part of it cleanable.
const FEW_LOG_SEGMENTS_PART: u32 = 16;
/// Segments that cleaning fills at a time.
const HEAD_SEGMENTS: u32 = 2;
/// Free segments beyond those kept, below which records of emptied containers stay: that they go takes of the
/// log, which only a checkpoint gives back.
const SWEEP_SEGMENTS: u32 = 2;
/// After a failed piece of work the background rests this long.
const RETRY_DELAY_NS: u64 = 100_000_000;
/// So long it waits for the keys' order at a time, where only a checkpoint makes room, which waits for it.
const KEYS_DELAY_NS: u64 = 50_000_000;

/// Where each kind of work stands.
#[derive(Default)]
struct Works {
    heads: Heads,
    sweep: Sweep,
    hand: Hand,
    ranking: Ranking,
    /// A checkpoint that was due found too little room: so many segments were free.
    hindered_at: Option<u32>,
}

impl Partition {
    /// Runs until the partition closes.
    pub(crate) async fn run_background(self: Rc<Self>) {
        let (mut works, mut reaper) = (Works::default(), Reaper::default());
        while !self.closing.get() && self.log.failure().is_none() {
            match self.background_step(&mut works, &mut reaper).await {
                Ok(true) => {
                    if self.hungry.get() == 0 {
                        self.stuck.take(); // Nobody has to hear any more that there was nothing to do.
                    }
                    self.reactor.yield_now().await;
                }
                Ok(false) if self.keys.give_up_merge() => {}
                Ok(false) => self.rest().await,
                Err(error) => {
                    if error != Error::NoSpace {
                        tracing::warn!(partition = self.layout.partition, %error, "background work failed; it will be tried again");
                    }
                    self.let_waiters_look().await;
                    // A device that takes no writes is not one that is full.
                    let is_broken = matches!(error, Error::ReadOnly(_));
                    self.give_up_waiters(if is_broken { error } else { Error::NoSpace });
                    self.reactor.sleep_ns(RETRY_DELAY_NS).await;
                }
            }
        }
        self.background_done.set(true);
        self.space.wake_all();
    }

    /// Lets all who wait for space look at what there is.
    async fn let_waiters_look(&self) {
        if self.hungry.get() > 0 {
            self.space.wake_all();
            self.reactor.yield_now().await;
        }
    }

    /// Nothing is left to do: whoever still waits for space waits in vain.
    fn give_up_waiters(&self, error: Error) {
        if self.hungry.get() > 0 {
            self.stuck.replace(Some(error));
        }
        self.space.wake_all();
    }

    async fn rest(&self) {
        // There may be space by now for some of them. What those take may be what the others lack: then this
        // is called to work again, and nobody has waited in vain.
        self.let_waiters_look().await;
        if !self.background.is_rung() {
            self.give_up_waiters(Error::NoSpace);
        }
        if self.has_expiring() {
            let look = self.reactor.sleep_ns(LOOK_NS);
            select(pin!(self.background.heard()), pin!(look)).await;
        } else {
            self.background.heard().await;
        }
    }

    /// One piece of work; true if there may be more. Reaping and all else take turns.
    async fn background_step(self: &Rc<Self>, works: &mut Works, reaper: &mut Reaper) -> Result<bool> {
        if !std::mem::take(&mut reaper.had_its_turn) && self.reap(reaper, &mut works.heads).await? {
            reaper.had_its_turn = true;
            return Ok(true);
        }
        Ok(self.make_room(works).await? || self.reap(reaper, &mut works.heads).await?)
    }

    /// One piece of work that makes room, or keeps starts quick; true if there may be more.
    async fn make_room(self: &Rc<Self>, works: &mut Works) -> Result<bool> {
        let kept = self.kept_segments();
        self.state.borrow_mut().segments.kept = kept;
        self.reclaim();
        if self.end_uploads().await? || self.prepare_ahead().await? {
            return Ok(true);
        }
        if self.checkpoint_is_due() && self.checkpoint_if_room(works).await? {
            return Ok(true);
        }
        if self.has_room_to_sweep() && self.sweep(&mut works.heads, &mut works.sweep).await? {
            return Ok(true);
        }
        if self.must_evict() && self.evict_or_leave(works, false).await? {
            return Ok(true);
        }
        if !self.is_short() {
            // What was stored since the last checkpoint can be evicted after the next (world 30201).
            return Ok(self.must_evict() && self.has_newer_log() && self.wait_for_keys_order().await);
        }
        // What died lately comes free once its transitions are durable. That is waited for if it will do, or
        // if there is no room for more before; else it becomes so while a victim is read.
        let coming = self.coming_segments();
        let will_do = self.state.borrow().segments.free_count_all() + coming >= self.free_low();
        if coming > 0 && (will_do || self.is_tight()) {
            return self.flush_and_reclaim().await;
        }
        if self.hungry.get() > 0 {
            self.log.close_building(); // Stores do not, as they wait.
        }
        if self.checkpoint_frees_enough() && self.checkpoint_if_room(works).await? {
            return Ok(true);
        }
        let newer = self.has_newer_log();
        let victims = self.victims(&mut works.ranking).await;
        if !victims.is_empty() {
            match self.clean(&victims, &mut works.heads).await {
                Err(Error::NoSpace) if self.take_coming().await? => return Ok(true),
                Err(Error::NoSpace) if newer => {}
                cleaned => return cleaned.map(|()| true),
            }
        }
        let log_segments = self.log.position().1 - self.anchor.borrow().log_number;
        let few = log_segments < u64::from(self.layout.segments / FEW_LOG_SEGMENTS_PART).max(4);
        if self.is_crowded() && few && self.evict_or_leave(works, true).await? {
            return Ok(true);
        }
        // Nothing to clean, or no room to, but what recovery would replay: a checkpoint makes it
        // cleanable, and frees what is dead of it.
        if newer {
            if !self.wait_for_keys_order().await {
                self.checkpoint(false).await?;
            }
            return Ok(true);
        }
        // Live records lie so densely that there is nothing to clean.
        if self.evicts() && self.evict_or_leave(works, true).await? || self.take_coming().await? {
            return Ok(true);
        }
        // But what goes of emptied containers, if little by little: each time a checkpoint follows.
        self.sweep(&mut works.heads, &mut works.sweep).await
    }

    /// Writes a checkpoint; false if it would wait for the keys' order, or there is no room for it, or was
    /// none and no more has come free: cleaning goes first.
    async fn checkpoint_if_room(&self, works: &mut Works) -> Result<bool> {
        let free = self.state.borrow().segments.free_count_all();
        if !self.keys.let_checkpoint() || works.hindered_at.is_some_and(|before| free <= before) {
            return Ok(false);
        }
        works.hindered_at = None;
        match self.checkpoint(false).await {
            Err(Error::NoSpace) => {
                works.hindered_at = Some(free);
                Ok(false)
            }
            written => written.map(|()| true),
        }
    }

    /// Waits a while, if a checkpoint would wait for the keys' order; false if it would not. What comes free
    /// meanwhile is to be cleaned: so it is not the checkpoint that waits.
    async fn wait_for_keys_order(&self) -> bool {
        let waits = !self.keys.let_checkpoint();
        if waits {
            self.reactor.sleep_ns(KEYS_DELAY_NS).await;
        }
        waits
    }

    /// True if the log has gone on to another segment since the last checkpoint.
    fn has_newer_log(&self) -> bool {
        self.log.position().1 > self.anchor.borrow().log_number
    }

    /// Waits until what emptied segments is durable; true if that gave some back.
    async fn take_coming(&self) -> Result<bool> {
        if self.coming_segments() == 0 { Ok(false) } else { self.flush_and_reclaim().await }
    }

    async fn flush_and_reclaim(&self) -> Result<bool> {
        self.log.flush().await?;
        self.reclaim();
        Ok(true)
    }

    /// Evicts, or leaves it to the rest of a step to make room for the deletes; true if there may be more to
    /// evict.
    async fn evict_or_leave(self: &Rc<Self>, works: &mut Works, is_short: bool) -> Result<bool> {
        let evicted = self.evict(&mut works.hand, is_short).await;
        if works.hand.begins_round() {
            self.close_heads(&mut works.heads);
        }
        match evicted {
            Err(Error::NoSpace) => Ok(false),
            // What was stored since the last checkpoint can be evicted after the next.
            Ok(false) if self.must_evict() && self.has_newer_log() => self.checkpoint_if_room(works).await,
            // And what stands where the log is being written, once that goes on elsewhere.
            Ok(false) if self.must_evict() => match self.roll_live_log() {
                Err(Error::NoSpace) => Ok(false),
                rolled => rolled,
            },
            evicted => evicted,
        }
    }

    /// Lets the log go on in its next segment, if anything in this one is live; true if so.
    pub(crate) fn roll_live_log(&self) -> Result<bool> {
        let open = self.log.position().0;
        let segments = &mut self.state.borrow_mut().segments;
        if segments.get(open).live_units == 0 {
            return Ok(false);
        }
        self.log.roll(segments).map(|()| true)
    }

    /// True if records of emptied containers may go: more is free than what checkpoints and cleaning need.
    fn has_room_to_sweep(&self) -> bool {
        self.state.borrow().segments.free_count() > self.kept_segments() + SWEEP_SEGMENTS
    }

    /// Free segments below which cleaning begins.
    fn free_low(&self) -> u32 {
        self.store_reserve() + self.segments_ahead()
    }

    /// Free segments that cleaning keeps for stores to take while it goes on.
    fn segments_ahead(&self) -> u32 {
        let spare_units = self.live_units_max().saturating_sub(self.claimed_units());
        let spare = spare_units / self.layout.segment_units();
        let most = AHEAD_BYTES_MAX / self.layout.segment_bytes;
        AHEAD_MIN.max((spare / AHEAD_PART).min(most) as u32)
    }

    /// True if stores wait for segments, or will soon, and there are some to clean into.
    pub(crate) fn is_pressed(&self) -> bool {
        let few = self.store_reserve() + self.segments_ahead() / 2;
        let is_pressed = self.hungry.get() > 0 || self.state.borrow().segments.free_count() < few;
        is_pressed && !self.is_tight()
    }

    /// True if too few segments are free to clean several victims together: what is live of them goes to two,
    /// and only then do they come free.
    fn is_tight(&self) -> bool {
        self.state.borrow().segments.free_count() < self.kept_segments() + HEAD_SEGMENTS
    }

    /// True if segments should be made free.
    fn is_short(&self) -> bool {
        self.state.borrow().segments.free_count_all() < self.free_low()
    }

    /// True if a checkpoint gives back several times the bytes that it takes.
    fn checkpoint_frees_enough(&self) -> bool {
        let checkpoint_bytes = self.checkpoint_bytes();
        let state = self.state.borrow();
        let pinned =
            state.segments.pinned_empty(self.anchor.borrow().log_number) + self.keys.pinned_segments();
        let freed = u64::from(pinned) * self.layout.segment_bytes;
        freed > 4 * (checkpoint_bytes + self.layout.segment_bytes)
    }

    /// A checkpoint is due when replay would take long, or hold many segments.
    fn checkpoint_is_due(&self) -> bool {
        let most = self.state.borrow().index.len() * 3 / 4;
        let many = self.transitions_since.get() > most.max(self.options.checkpoint_transitions_min);
        let log_segments = self.log.position().1 - self.anchor.borrow().log_number;
        let checkpoint_bytes = self.checkpoint_bytes();
        let long = log_segments > u64::from(self.layout.segments / 4).max(4)
            && log_segments * self.layout.segment_bytes > 4 * checkpoint_bytes;
        many || long
    }
}
