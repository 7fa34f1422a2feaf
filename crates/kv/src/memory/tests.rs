//! The meaning of every operation, on a simulated core; and what the memory device does besides.

use super::*;
use crate::request::ContainerId;
use crate::semantics::Leaks;
use crate::testing::{DB, execute, get, run, store_op};

fn make(reactor: Reactor, options: MemoryOptions) -> LocalFuture<(Rc<dyn Device>, Leaks)> {
    Box::pin(async move {
        let memory = Memory::new(&reactor, options);
        let same = memory.clone();
        let leaks: Leaks = Box::new(move || (same.pinned(), same.uploading()));
        (memory as Rc<dyn Device>, leaks)
    })
}

crate::device_semantics!(make);

#[test]
fn clear_empties_one_container_and_full_is_not_broken() {
    run(|reactor, _| async move {
        let options = MemoryOptions { capacity_bytes: 100_000, ..MemoryOptions::default() };
        let m = Memory::new(&reactor, options);
        let mut stored = 0;
        while execute(&m, store_op(format!("k{stored:05}").as_bytes(), &[0; 10])).await.is_ok() {
            stored += 1;
        }
        assert!((6_000..6_300).contains(&stored), "{stored} stored");
        assert_eq!(execute(&m, store_op(b"k", &[0; 100])).await, Err(Error::NoSpace));
        assert!(get(&m, b"k00000").await.is_ok());
        execute(&m, Op::Clear { container: ContainerId(1) }).await.unwrap();
        assert!(get(&m, b"k00000").await.is_ok());
        execute(&m, Op::Clear { container: DB }).await.unwrap();
        assert_eq!(get(&m, b"k00000").await, Err(Error::NotFound));
        execute(&m, store_op(b"k", &[0; 100])).await.unwrap();
        reactor.sleep_ns(1_000_000_000).await;
        assert_eq!(reactor.tasks_live(), 1, "the emptied container is freed");
    });
}

#[test]
fn an_upload_that_is_given_up_gives_its_room_back() {
    run(|reactor, _| async move {
        let m = Memory::new(&reactor, MemoryOptions { part_bytes: 16, ..MemoryOptions::default() });
        let key = || b"k".to_vec();
        let begin = Op::UploadBegin { container: DB, key: key(), length: 16, shared_bytes: 0, form: None };
        let Ok(Output::Upload(upload)) = execute(&m, begin).await else { panic!("an upload") };
        execute(&m, Op::UploadPart { upload, key: key(), bytes: vec![0; 16] }).await.unwrap();
        execute(&m, Op::UploadAbort { upload, key: key() }).await.unwrap();
        assert_eq!((m.uploading(), m.state.borrow().used_bytes), (0, 0));
    });
}
