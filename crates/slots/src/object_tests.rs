//! Objects: what is encoded is decoded, and any bytes are survived.

use super::*;
use proptest::prelude::*;

fn version() -> impl Strategy<Value = Version> {
    (any::<u32>(), any::<u64>()).prop_map(|(epoch, clock)| Version { epoch, clock })
}

fn record() -> impl Strategy<Value = Record> {
    let kind = (1_u8..=11).prop_map(|byte| Kind::decode(byte).expect("a kind"));
    let expires =
        prop_oneof![Just(Expires::Never), any::<u64>().prop_map(Expires::At), Just(Expires::AsBefore)];
    let key = proptest::collection::vec(any::<u8>(), 0..40);
    let place = (any::<u32>(), any::<u32>());
    (kind, place, key, (version(), version(), version()), expires).prop_map(
        |(kind, (container, generation), key, (sequence, version, below), expires)| Record {
            kind,
            container: ContainerId(container),
            generation,
            key,
            sequence,
            version,
            below,
            expires,
        },
    )
}

fn rider() -> impl Strategy<Value = Rider> {
    let value = proptest::collection::vec(any::<u8>(), 0..100);
    (record(), value).prop_map(|(record, value)| Rider { record, value })
}

fn object() -> impl Strategy<Value = (Rider, Vec<Rider>)> {
    (rider(), proptest::collection::vec(rider(), 0..4))
}

fn bytes_of((own, riders): &(Rider, Vec<Rider>)) -> Vec<u8> {
    let riders: Vec<Vec<u8>> = riders.iter().map(|rider| encode_rider(&rider.record, &rider.value)).collect();
    encode(&own.record, &own.value, &riders)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn what_is_encoded_is_decoded(object in object()) {
        let bytes = bytes_of(&object);
        let head = Head::decode(&bytes).unwrap();
        prop_assert_eq!(&head.record, &object.0.record);
        prop_assert_eq!(&head.riders, &object.1);
        prop_assert_eq!(head.value(&bytes).unwrap(), &object.0.value);
        prop_assert_eq!(decode_tail(&bytes).unwrap(), object.1);
        prop_assert_eq!(head.object_bytes(), bytes.len());
        prop_assert_eq!(Head::decode(&bytes[..head.head_bytes - 1]), Err(Damage::Short(head.head_bytes)));
    }

    /// Wherever a byte rots, neither the record nor the value nor the riders are told wrongly, and one of the
    /// two places tells the riders.
    #[test]
    fn a_byte_that_rots_is_noticed_and_loses_no_riders(
        object in object(),
        at in any::<prop::sample::Index>(),
        bit in 0_u8..8,
    ) {
        let mut bytes = bytes_of(&object);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        match Head::decode(&bytes) {
            Ok(head) => {
                prop_assert_eq!(&head.record, &object.0.record);
                prop_assert_eq!(&head.riders, &object.1);
                if let Ok(value) = head.value(&bytes) {
                    prop_assert_eq!(value, &object.0.value);
                }
            }
            Err(_) => prop_assert_eq!(decode_tail(&bytes).unwrap(), object.1),
        }
    }

    #[test]
    fn any_bytes_are_survived(data in proptest::collection::vec(any::<u8>(), 0..300)) {
        crate::fuzz::object(&data);
    }

    #[test]
    fn any_values_are_survived(data in proptest::collection::vec(any::<u8>(), 0..300)) {
        crate::fuzz::value(&data);
    }

    #[test]
    fn bytes_that_were_once_right_are_survived(
        object in object(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = bytes_of(&object);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(cut.index(bytes.len() + 1));
        crate::fuzz::object(&bytes);
    }
}

#[test]
fn what_is_not_ours_is_told_from_what_is_too_new() {
    let mut bytes = encode(&Record::named(Kind::Part, vec![1]), b"value", &[[0_u8; 0]; 0]);
    assert_eq!(bytes.len(), 16 + 64 + 1 + 4 + 5 + 16, "an object of one byte of key and five of value");
    bytes[4] = 9;
    assert_eq!(Head::decode(&bytes), Err(Damage::Format(9)));
    assert_eq!(Head::decode(b"somebody else's bytes"), Err(Damage::Foreign));
    assert_eq!(decode_tail(b"short"), Err(Damage::Corrupt("neither head nor tail")));
}
