use super::*;

fn coded(transitions: &[Transition]) -> Vec<u8> {
    let (mut chain, mut bytes) = (Chain::default(), Vec::new());
    transitions.iter().for_each(|transition| chain.encode(transition, &mut bytes));
    bytes
}

fn decoded(mut bytes: &[u8]) -> Result<Vec<Transition>, DecodeError> {
    let (mut chain, mut transitions) = (Chain::default(), Vec::new());
    while !bytes.is_empty() {
        transitions.push(chain.decode(&mut bytes)?);
    }
    Ok(transitions)
}

fn relocation(number: u64) -> Transition {
    Transition {
        slot: 7 * number as u16,
        container: 4096,
        fingerprint: (number * 0x12_3456_789a) & 0xff_ffff_ffff,
        location: 1_000_000 + 70 * number,
        length: 70,
        previous: 5_000_000 + 70 * number * 10 / 7,
        previous_length: 70,
        ..Transition::new(TransitionKind::Relocate)
    }
}

#[test]
fn moves_in_a_row_take_11_bytes_each() {
    let moves: Vec<Transition> = (0..256).map(relocation).collect();
    let bytes = coded(&moves);
    assert!(bytes.len() <= 256 * 11 + 8, "{} bytes", bytes.len());
    assert_eq!(decoded(&bytes), Ok(moves));
}

#[test]
fn every_field_survives_in_every_company() {
    let widest = Transition {
        kind: TransitionKind::RelocatePart,
        flags: 0xff,
        slot: 0xffff,
        container: u32::MAX,
        fingerprint: (1 << 40) - 1,
        location: 1 << 63,
        previous: u64::MAX / 2 + 1,
        argument: u64::MAX,
        length: u32::MAX,
        previous_length: u32::MAX - 1,
    };
    let nothing = Transition::new(TransitionKind::Clear);
    let store = Transition { previous: 0, previous_length: 0, ..relocation(3) };
    let odd = Transition { previous: 0, previous_length: 9, length: 9, ..relocation(4) };
    let each = [widest, nothing, store, odd, relocation(5), relocation(6)];
    for first in each {
        for second in each {
            for third in each {
                let row = [first, second, third];
                assert_eq!(decoded(&coded(&row)), Ok(row.to_vec()));
            }
        }
    }
    let mut wide = Vec::new();
    Chain::default().encode(&widest, &mut wide);
    assert!(wide.len() > TRANSITION_BYTES_MAX - 3 && wide.len() <= TRANSITION_BYTES_MAX);
}

#[test]
fn what_is_cut_short_or_unknown_is_refused() {
    let bytes = coded(&[relocation(1)]);
    for length in 1..bytes.len() {
        assert_eq!(decoded(&bytes[..length]), Err(DecodeError::Short(NAME)), "{length} bytes");
    }
    assert_eq!(decoded(&[0, 0]), Err(field(NAME, "kind")));
    assert_eq!(decoded(&[23, 0]), Err(field(NAME, "kind")));
    let too_wide = [1, CONTAINER, 0x80, 0x80, 0x80, 0x80, 0x10];
    assert_eq!(decoded(&too_wide), Err(field(NAME, "number")));
}
