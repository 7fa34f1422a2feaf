//! The engine over the simulated reactor.

mod background_reads;
mod bad_sectors;
mod crash;
mod direct;
mod edits;
mod evict;
mod full;
mod images;
mod known;
mod list;
mod list_model;
mod list_pages;
mod list_support;
mod memory;
mod one_bad_sector;
mod opening;
mod order;
mod parts;
mod pieces;
mod recent;
mod reopening;
mod retained;
mod rules;
mod seeds;
mod transactions;
mod waiting;
