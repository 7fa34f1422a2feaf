//! Describing: what a value was made into, where each of its pieces stands, and what is read of it there.
//!
//! Role: answers whoever asks about one key. Place on the path: none; it reads every piece, whole.
//!
//! Invariants: the key is held meanwhile, so pieces differ in version only where they were not made whole
//! yet, and are stubs beside copies only where packing broke off; of a value in parts no more is in memory
//! than a part of each piece.
//!
//! Never: it mends. A piece that cannot be read is told as it is found.

use crate::array::{Array, Place};
use crate::code::Code;
use crate::header::{HEADER_BYTES, Header};
use crate::manner::Manner;
use crate::read::WRONG_OUTPUT;
use crate::reconcile::SOON_MS;
use crate::set::Stub;
use crc_fast::{CrcAlgorithm, Digest};
use futures_util::future::join_all;
use plimsoll_kv::{
    Description, Device, Error, Form, Holds, Op, Output, PackedIn, Piece, PieceRead, Result, UploadId,
};
use std::rc::Rc;

/// A piece that was read whole.
struct Proved {
    header: Header,
    read: PieceRead,
    /// What stands there in its place.
    stub: Option<Stub>,
}

impl Array {
    pub(crate) async fn describe(self: &Rc<Self>, place: &Place, manner: &Manner) -> Result<Output> {
        let _guard = self.hold_full(place).await?;
        let (item, form) = self.read(place, Some((0, 0)), manner).await?;
        let proved = join_all((0..form.roles()).map(|role| self.prove(place, role, manner))).await;
        // It expired while its pieces were read: one of them before, perhaps, and another after.
        let expires_soon = item.expiry_ms.is_some_and(|at_ms| at_ms <= self.now_ms() + SOON_MS);
        if expires_soon && proved.iter().any(|proved| matches!(proved, Err(Error::NotFound))) {
            return Err(Error::NotFound);
        }
        let found = proved.iter().flatten().map(|proved| proved.header);
        let newest = found.max_by_key(|header| header.version).ok_or_else(|| self.unreadable(place, &[]))?;
        let of_newest = proved.iter().flatten().filter(|proved| proved.header.version == newest.version);
        let stub = of_newest.filter_map(|proved| proved.stub.clone()).max_by_key(|stub| stub.set);
        let pieces = proved.into_iter().enumerate().map(|(role, proved)| {
            let member = self.member_of(place, role);
            let read = proved.and_then(|proved| match proved.header.version == newest.version {
                true => Ok((proved.read, proved.stub.is_some())),
                false => Err(Error::Unreadable("it is of an older version".to_owned())),
            });
            let is_stub = read.as_ref().map_or(stub.is_some(), |(_, is_stub)| *is_stub);
            let holds = match form {
                Form::Packed { .. } if role == 0 && stub.is_some() => Holds::Value,
                Form::Packed { .. } if role > 0 && is_stub => Holds::Stub,
                Form::Copies(_) | Form::Packed { .. } => Holds::Copy,
                Form::Shards { .. } if role < form.needed() => Holds::Data,
                Form::Shards { .. } => Holds::Parity,
            };
            let read = read.map(|(read, _)| read);
            Piece { holds, device: self.name(member), state: self.state(member).name(), read }
        });
        let code = if form.is_copies() && stub.is_none() { Code::None } else { Code::ReedSolomon };
        Ok(Output::Described(Description {
            version: newest.version,
            length: newest.value_bytes,
            form,
            code: code.name(),
            pieces: pieces.collect(),
            set: stub.map(|stub| self.packed_in(&stub)),
        }))
    }

    fn packed_in(&self, stub: &Stub) -> PackedIn {
        let (_, parities) = stub.holders.split_last().expect("one holder more than parities");
        let members = parities.iter().map(|member| usize::from(*member)).filter(|it| *it < self.count());
        PackedIn { name: stub.set, parities: members.map(|member| self.name(member)).collect() }
    }

    /// Reads the piece in a role from its first byte to its last.
    async fn prove(self: &Rc<Self>, place: &Place, role: usize, manner: &Manner) -> Result<Proved> {
        let device = self.readable(self.member_of(place, role));
        let device = device.ok_or_else(|| Error::Unreadable("its device is not in".to_owned()))?;
        let piece = self.read_in_time(self.read_piece(&device, place, role, None, manner)).await?;
        if piece.item.upload.is_none() {
            let (header, stub) = (piece.header.ok_or(WRONG_OUTPUT)?, piece.stub);
            let mut digest = digest();
            stub.iter().for_each(|stub| digest.update(&stub.encode()));
            digest.update(&piece.item.bytes);
            return Ok(Proved { header, read: told(&digest), stub });
        }
        let (header, read) = self.prove_in_parts(&device, place, role, manner).await?;
        Ok(Proved { header, read, stub: None })
    }

    /// Reads every part of the piece in a role, which stands in parts.
    pub(crate) async fn prove_in_parts(
        &self,
        device: &Rc<dyn Device>,
        place: &Place,
        role: usize,
        manner: &Manner,
    ) -> Result<(Header, PieceRead)> {
        let (item, upload) = self.pin_piece(device, place, role, manner).await?;
        let parts = item.length.div_ceil(self.member_part_bytes() as u64) as u32;
        let proved = self.prove_parts(device, place, (upload, parts), manner).await;
        self.unpin_piece(device, place, upload).await;
        proved
    }

    async fn prove_parts(
        &self,
        device: &Rc<dyn Device>,
        place: &Place,
        (upload, parts): (UploadId, u32),
        manner: &Manner,
    ) -> Result<(Header, PieceRead)> {
        let (mut digest, mut first) = (digest(), None);
        for part in 0..parts {
            let op = Op::RetrievePart { upload, key: place.key.clone(), part, range: None };
            let read = self.read_in_time(device.clone().execute(manner.request(op)));
            let Output::Found(item) = read.await?.output else {
                return Err(WRONG_OUTPUT);
            };
            let header = Header::decode(&item.bytes).map_err(|what| Error::Unreadable(what.to_owned()))?;
            if *first.get_or_insert(header) != header {
                return Err(Error::Unreadable("parts of different versions".to_owned()));
            }
            // Behind a part that is not the last one stand zeros.
            let full = header.form.needed() * self.full_piece_bytes(header.form) as usize;
            digest.update(item.bytes[HEADER_BYTES..].chunks(full).next().unwrap_or_default());
        }
        Ok((first.ok_or(WRONG_OUTPUT)?, told(&digest)))
    }
}

fn digest() -> Digest {
    Digest::new(CrcAlgorithm::Crc32Iscsi)
}

fn told(digest: &Digest) -> PieceRead {
    PieceRead { bytes: digest.get_amount(), checksum: digest.finalize() as u32 }
}
