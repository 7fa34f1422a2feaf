//! The blocks below the flash engine: a file or block device, perhaps behind a gate, perhaps
//! wrapped by a device that delays, limits or fails.

use crate::request::{Class, Tenant};
use plimsoll_reactor::{Buf, File};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;

/// On whose behalf an I/O happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Who is charged.
    pub tenant: Tenant,
    /// Whether somebody waits.
    pub class: Class,
}

impl Origin {
    /// The engine's own background work.
    pub const BACKGROUND: Origin = Origin { tenant: Tenant(0), class: Class::Background };
    /// The engine's own work that a client waits for.
    pub const FOREGROUND: Origin = Origin { tenant: Tenant(0), class: Class::Foreground };
}

/// A future of an I/O, on this thread.
pub type IoFuture<T> = Pin<Box<dyn Future<Output = io::Result<T>>>>;

/// A device of blocks: aligned reads and writes, whole or failed, and flushes. Nothing is begun before its
/// future is polled.
pub trait Block {
    /// The size in bytes.
    fn size_bytes(&self) -> u64;
    /// The unit of offset and length in bytes.
    fn block_bytes(&self) -> u32;
    /// Reads `len` bytes.
    fn read(&self, origin: Origin, offset: u64, len: usize) -> IoFuture<Buf>;
    /// Writes a buffer; with `durable` it is on stable media at completion.
    fn write(&self, origin: Origin, offset: u64, buf: Rc<Buf>, durable: bool) -> IoFuture<()>;
    /// Makes every completed write durable.
    fn flush(&self, origin: Origin) -> IoFuture<()>;
}

impl Block for File {
    fn size_bytes(&self) -> u64 {
        File::size_bytes(self)
    }
    fn block_bytes(&self) -> u32 {
        File::block_bytes(self)
    }
    fn read(&self, _origin: Origin, offset: u64, len: usize) -> IoFuture<Buf> {
        let file = self.clone();
        Box::pin(async move { File::read(&file, offset, len).await })
    }
    fn write(&self, _origin: Origin, offset: u64, buf: Rc<Buf>, durable: bool) -> IoFuture<()> {
        let file = self.clone();
        Box::pin(async move { File::write(&file, offset, buf, durable).await })
    }
    fn flush(&self, _origin: Origin) -> IoFuture<()> {
        let file = self.clone();
        Box::pin(async move { File::flush(&file).await })
    }
}
