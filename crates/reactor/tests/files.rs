//! Files on a real kernel: whole transfers, locks, errors in words, abandoned operations.

mod common;

use common::{block_on, fresh_path, join, options};
use plimsoll_reactor::{Buf, DriverChoice, FileOptions, Work, start};
use std::future::Future;
use std::io::ErrorKind;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Waker};

const MIB: u64 = 1 << 20;

fn created(bytes: u64) -> FileOptions {
    FileOptions { create_bytes: Some(bytes), read_only: false }
}

fn pattern(len: usize, seed: u64) -> Rc<Buf> {
    let mut buf = Buf::zeroed(len);
    for (index, byte) in buf.iter_mut().enumerate() {
        *byte = (index as u64 / 512).wrapping_mul(31).wrapping_add(seed) as u8;
    }
    Rc::new(buf)
}

fn what_was_written_is_read_back(driver: DriverChoice) {
    let path = fresh_path("round-trip");
    let kept = path.clone();
    block_on(driver, move |reactor| {
        let path = path.clone();
        async move {
            let file = reactor.open_file(&path, &created(16 * MIB)).unwrap();
            assert!(file.created() && file.size_bytes() == 16 * MIB);
            let block = file.block_bytes() as usize;
            let mut offset = 0;
            // Pooled and unpooled, registered and not, one block and the largest.
            for (index, len) in [block, 4096, 8192, 65_536, 131_072, 8 << 20].into_iter().enumerate() {
                let wanted = pattern(len, index as u64);
                file.write(offset, wanted.clone(), index % 2 == 0).await.unwrap();
                file.flush().await.unwrap();
                let found = file.read(offset, len).await.unwrap();
                assert!(found[..] == wanted[..], "{len} bytes at {offset}");
                offset += len as u64;
            }
            let stats = file.stats();
            assert_eq!((stats.reads, stats.writes, stats.flushes), (6, 6, 9));
            assert_eq!(file.answered(), 18);
            assert_eq!(stats.read_bytes, offset);
        }
    });
    // Another process's view: the size is there, and opening again makes nothing.
    assert_eq!(std::fs::metadata(&kept).unwrap().len(), 16 * MIB);
    let again = kept.clone();
    block_on(driver, move |reactor| {
        let again = again.clone();
        async move {
            let file = reactor.open_file(&again, &created(MIB)).unwrap();
            assert!(!file.created() && file.size_bytes() == 16 * MIB);
        }
    });
    std::fs::remove_file(kept).unwrap();
}

fn more_operations_than_the_submission_queue_holds_all_complete(driver: DriverChoice) {
    const OPERATIONS: usize = 5_000;
    let path = fresh_path("burst");
    let kept = path.clone();
    block_on(driver, move |reactor| {
        let path = path.clone();
        async move {
            let file = reactor.open_file(&path, &created(4 * MIB)).unwrap();
            for block in 0..1024_u64 {
                let buf = pattern(4096, block);
                file.write(block * 4096, buf, false).await.unwrap();
            }
            let done = Rc::new(std::cell::Cell::new(0));
            for index in 0..OPERATIONS {
                let (file, done) = (file.clone(), done.clone());
                reactor.spawn(Work::Device, async move {
                    let block = index as u64 * 7 % 1024;
                    let found = file.read(block * 4096, 4096).await.unwrap();
                    assert!(found[..] == pattern(4096, block)[..]);
                    done.set(done.get() + 1);
                });
            }
            while done.get() < OPERATIONS {
                reactor.sleep_ns(100_000).await;
            }
        }
    });
    std::fs::remove_file(kept).unwrap();
}

fn a_device_in_use_is_refused(driver: DriverChoice) {
    let path = fresh_path("lock");
    std::fs::write(&path, vec![0; MIB as usize]).unwrap();
    let other = std::fs::File::open(&path).unwrap();
    other.lock().unwrap();
    let (locked, kept) = (path.clone(), path.clone());
    block_on(driver, move |reactor| {
        let path = locked.clone();
        async move {
            let error = reactor.open_file(&path, &FileOptions::default()).err().expect("locked");
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            assert!(error.to_string().contains(&path) && error.to_string().contains("in use"), "{error}");
            // Reading alone needs no lock.
            let options = FileOptions { create_bytes: None, read_only: true };
            assert!(reactor.open_file(&path, &options).is_ok());
        }
    });
    drop(other);
    block_on(driver, move |reactor| {
        let path = path.clone();
        async move {
            let file = reactor.open_file(&path, &FileOptions::default()).unwrap();
            let other = std::fs::File::open(&path).unwrap();
            assert!(other.try_lock().is_err(), "the lock stands while the file is open");
            drop(file);
            assert!(other.try_lock().is_ok(), "and ends with it");
        }
    });
    std::fs::remove_file(kept).unwrap();
}

fn the_cores_of_a_process_share_a_file(driver: DriverChoice) {
    let path = fresh_path("shared");
    let kept = path.clone();
    let (both_open, makers) = (Arc::new(Barrier::new(2)), Arc::new(AtomicUsize::new(0)));
    let seen = makers.clone();
    let running = start(&options(driver, 2), move |reactor| {
        let file = reactor.open_file(&path, &created(MIB)).unwrap();
        makers.fetch_add(usize::from(file.created()), Ordering::Relaxed);
        both_open.wait();
        let (core, own) = (reactor.core().0, reactor.clone());
        reactor.spawn(Work::Device, async move {
            let offset = u64::from(core) * 65_536;
            for round in 0..100 {
                let wanted = pattern(4096, u64::from(core) * 1000 + round);
                file.write(offset, wanted.clone(), false).await.unwrap();
                assert!(file.read(offset, 4096).await.unwrap()[..] == wanted[..]);
            }
            own.stop();
        });
    });
    join(running.unwrap());
    assert_eq!(seen.load(Ordering::Relaxed), 1, "one core made it");
    std::fs::remove_file(kept).unwrap();
}

fn errors_say_what_where_and_why(driver: DriverChoice) {
    let path = fresh_path("missing");
    let shrunk = fresh_path("shrunk");
    std::fs::write(&shrunk, vec![7; 65_536]).unwrap();
    let kept = shrunk.clone();
    block_on(driver, move |reactor| {
        let (path, shrunk) = (path.clone(), shrunk.clone());
        async move {
            let open = |path: &str, options: &FileOptions| reactor.open_file(path, options).err().unwrap();
            let error = open(&path, &FileOptions::default());
            assert_eq!(error.kind(), ErrorKind::NotFound);
            assert!(error.to_string().contains(&path), "{error}");
            let error = open("/dev/null", &FileOptions::default());
            assert!(error.to_string().contains("neither a file nor a block device"), "{error}");
            let error = open(&path, &created(1000));
            assert!(error.to_string().contains("multiple of 4096"), "{error}");
            let error = open(&path, &created(1 << 60));
            assert!(error.to_string().contains("cannot reserve"), "{error}");
            assert!(!std::path::Path::new(&path).exists(), "a file that could not be made is gone");
            // A file that got shorter behind our back: an error, not a short read.
            let file = reactor.open_file(&shrunk, &FileOptions::default()).unwrap();
            std::fs::OpenOptions::new().write(true).open(&shrunk).unwrap().set_len(8192 + 100).unwrap();
            assert_eq!(file.read(0, 8192).await.unwrap()[..], [7; 8192]);
            assert_eq!(file.read(4096, 8192).await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
            assert_eq!(file.read(32_768, 4096).await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        }
    });
    std::fs::remove_file(kept).unwrap();
}

/// Polls a future once, so that its operation starts, and drops it.
fn start_and_drop(future: impl Future) {
    let mut future = Box::pin(future);
    let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(polled, Poll::Pending), "operations never complete at once");
}

fn abandoned_operations_harm_nobody(driver: DriverChoice) {
    let path = fresh_path("abandoned");
    let kept = path.clone();
    block_on(driver, move |reactor| {
        let path = path.clone();
        async move {
            for round in 0..200_u64 {
                let file = reactor.open_file(&path, &created(MIB)).unwrap();
                let wanted = pattern(16_384, round);
                file.write(0, wanted.clone(), false).await.unwrap();
                for _ in 0..8 {
                    start_and_drop(file.read(0, 16_384));
                    start_and_drop(file.write(65_536, pattern(4096, round), round % 8 == 0));
                    start_and_drop(file.flush());
                    // Memory of the kind the reads above use, while the kernel may still write there.
                    assert!(file.read(0, 16_384).await.unwrap()[..] == wanted[..]);
                }
                start_and_drop(file.read(0, 4096));
                // The file is dropped here with operations in flight.
            }
            // The reactor stops with operations in flight.
            let file = reactor.open_file(&path, &created(MIB)).unwrap();
            for _ in 0..32 {
                start_and_drop(file.read(0, 65_536));
            }
        }
    });
    std::fs::remove_file(kept).unwrap();
}

fn of_a_retired_file_nothing_more_is_asked(driver: DriverChoice) {
    let path = fresh_path("retired");
    let kept = path.clone();
    block_on(driver, move |reactor| {
        let path = path.clone();
        async move {
            let file = reactor.open_file(&path, &created(MIB)).unwrap();
            file.write(0, pattern(4096, 1), true).await.unwrap();
            // Nobody waits for this one any more; it may still be with the device.
            start_and_drop(file.write(4096, pattern(4096, 2), false));
            let clone = file.clone();
            file.retire();
            while file.in_flight() > 0 {
                reactor.sleep_ns(100_000).await;
            }
            assert_eq!(clone.read(0, 4096).await.unwrap_err().kind(), ErrorKind::BrokenPipe);
            assert_eq!(
                clone.write(0, pattern(4096, 3), true).await.unwrap_err().kind(),
                ErrorKind::BrokenPipe
            );
            assert_eq!(clone.flush().await.unwrap_err().kind(), ErrorKind::BrokenPipe);
            // What nobody waited for was answered; what was refused here was not asked.
            assert_eq!((clone.in_flight(), clone.answered()), (0, 2));
            // Opened anew it is asked again, beside the one before and after that is closed.
            let again = reactor.open_file(&path, &FileOptions::default()).unwrap();
            assert!(again.read(0, 4096).await.unwrap()[..] == pattern(4096, 1)[..]);
            drop((file, clone));
            assert!(again.read(0, 4096).await.unwrap()[..] == pattern(4096, 1)[..]);
            let third = reactor.open_file(&path, &FileOptions::default()).unwrap();
            third.write(0, pattern(4096, 4), true).await.unwrap();
        }
    });
    std::fs::remove_file(kept).unwrap();
}

on_every_driver! {
    what_was_written_is_read_back,
    more_operations_than_the_submission_queue_holds_all_complete,
    a_device_in_use_is_refused,
    the_cores_of_a_process_share_a_file,
    errors_say_what_where_and_why,
    abandoned_operations_harm_nobody,
    of_a_retired_file_nothing_more_is_asked,
}
