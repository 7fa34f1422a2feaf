//! Sets coded, lost and found again. That parities are ISA-L's is proved against libisal: `tests/libisal`.

use super::*;
use proptest::prelude::*;

/// Bytes without a pattern.
fn noise(seed: usize, bytes: usize) -> Vec<u8> {
    let mut state = seed as u64 + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

fn borrowed(shards: &[Vec<u8>]) -> Vec<&[u8]> {
    shards.iter().map(Vec::as_slice).collect()
}

fn hex(shards: &[Vec<u8>]) -> Vec<String> {
    shards.iter().map(|shard| shard.iter().map(|byte| format!("{byte:02x}")).collect()).collect()
}

/// True if these are the same but for zeros at the end of one.
fn same_padded(one: &[u8], other: &[u8]) -> bool {
    let (short, long) = if one.len() < other.len() { (one, other) } else { (other, one) };
    long.strip_prefix(short).is_some_and(|rest| rest.iter().all(|byte| *byte == 0))
}

/// A set as it was stored.
struct Set {
    coder: Coder,
    lengths: Vec<usize>,
    /// Data, then parities.
    shards: Vec<Vec<u8>>,
}

impl Set {
    fn new(lengths: &[usize], parities: u32) -> Set {
        let coder = Code::ReedSolomon.coder(lengths.len() as u32, parities).unwrap();
        let mut shards: Vec<Vec<u8>> =
            lengths.iter().enumerate().map(|(at, bytes)| noise(at, *bytes)).collect();
        shards.extend(coder.encode(&borrowed(&shards)).unwrap());
        Set { coder, lengths: lengths.to_vec(), shards }
    }

    fn without(&self, lost: &[usize]) -> Vec<Option<&[u8]>> {
        let is_left = |at: usize| !lost.contains(&at);
        self.shards.iter().enumerate().map(|(at, shard)| is_left(at).then_some(shard.as_slice())).collect()
    }

    fn recover(&self, lost: &[usize], wanted: &[usize]) -> Result<Vec<Vec<u8>>, CodeError> {
        self.coder.recover(&self.lengths, &self.without(lost), wanted)
    }

    /// All that is lost comes back, each shard of it alone, too; or it is said that it cannot.
    fn check(&self, lost: &[usize]) {
        let parities = self.shards.len() - self.lengths.len();
        if lost.len() > parities {
            let error = CodeError::Lost { lost: lost.to_vec(), more: lost.len() - parities };
            assert_eq!(self.recover(lost, &lost[..1]), Err(error));
            return;
        }
        let expected: Vec<Vec<u8>> = lost.iter().map(|at| self.shards[*at].clone()).collect();
        assert_eq!(self.recover(lost, lost).as_ref(), Ok(&expected), "{:?} without {lost:?}", self.lengths);
        for (at, shard) in lost.iter().zip(expected) {
            assert_eq!(self.recover(lost, &[*at]), Ok(vec![shard]), "{at} of {lost:?}");
        }
    }
}

/// Written by libisal 2.30 with `gf_gen_cauchy1_matrix`. If this fails, the code reads no set that was stored
/// before: mend it, or give the new one a number of its own.
#[test]
fn parities_are_as_they_ever_were() {
    let text = b"Plimsoll marks how much load she can take";
    let data: Vec<&[u8]> = text.chunks(11).collect();
    let parities = Code::from_byte(1).unwrap().coder(4, 2).unwrap().encode(&data).unwrap();
    assert_eq!(hex(&parities), ["456b8f47c71aee38548bbb", "da7b3a8f74fd7f48c3f643"]);
}

/// The matrix itself: what a 1 of each shard of data adds to each parity. By libisal, too.
#[test]
fn the_matrix_is_that_of_isa_l() {
    let coder = Code::ReedSolomon.coder(3, 5).unwrap();
    let rows = coder.encode(&[&[1, 0, 0], &[0, 1, 0], &[0, 0, 1]]).unwrap();
    assert_eq!(hex(&rows), ["f48e01", "47a77a", "a747ba", "7aba47", "ba7aa7"]);
}

#[test]
fn a_code_has_one_number() {
    assert_eq!((Code::None as u8, Code::ReedSolomon as u8), (0, 1));
    for byte in 0..=u8::MAX {
        match Code::from_byte(byte) {
            Ok(code) => assert_eq!(code as u8, byte),
            Err(error) => assert_eq!((error, byte > 1), (CodeError::Unknown(byte), true)),
        }
    }
}

/// Sets move between machines: what each kind of processor computes is the same.
#[test]
fn all_kernels_write_the_same() {
    let known = ["scalar", "ssse3", "avx2", "gfni", "neon"].map(rusty_erasure::kernels_named);
    for (data, parities) in [(1, 1), (4, 2), (5, 3), (8, 8), (17, 15)] {
        let coder = Code::ReedSolomon.coder(data as u32, parities as u32).unwrap();
        for bytes in (0..140).chain([1000, 4099]) {
            let shards: Vec<Vec<u8>> = (0..data).map(|at| noise(at, bytes)).collect();
            let expected = coder.encode(&borrowed(&shards)).unwrap();
            for kernels in known.into_iter().flatten() {
                let matrix = Matrix::cauchy(data, parities).unwrap();
                let mut found = vec![vec![0; bytes]; parities];
                let coder = rusty_erasure::Coder::with_kernels(matrix, kernels).unwrap();
                coder.encode(&borrowed(&shards), &mut slices(&mut found)).unwrap();
                assert!(found == expected, "{}: {data}+{parities}, {bytes} bytes", kernels.name);
            }
        }
    }
}

#[test]
fn every_loss_of_every_small_set_is_made_good_or_named() {
    for members in 2..=8 {
        for data in 1..members {
            let lengths: Vec<usize> = (0..data).map(|at| 40 - 7 * (at * at % 5)).collect();
            let set = Set::new(&lengths, (members - data) as u32);
            for bits in 1_u32..1 << members {
                let lost: Vec<usize> = (0..members).filter(|at| bits >> at & 1 == 1).collect();
                set.check(&lost);
            }
        }
    }
}

#[test]
fn shards_may_be_empty() {
    for lengths in [[0, 0, 0], [5, 0, 0], [0, 5, 0], [2, 2, 1]] {
        let set = Set::new(&lengths, 2);
        (0..5).for_each(|first| set.check(&[first]));
        [[0, 1], [0, 2], [1, 2], [0, 4], [3, 4]].iter().for_each(|lost| set.check(lost));
    }
}

#[test]
fn parities_overwrite_what_was_there() {
    let set = Set::new(&[100, 9000, 1], 2);
    let mut parities = vec![vec![0xff; 9000]; 2];
    set.coder.encode_into(&borrowed(&set.shards[..3]), &mut slices(&mut parities)).unwrap();
    assert_eq!(parities, set.shards[3..]);
}

#[test]
fn what_cannot_be_is_refused_in_words() {
    let words = |code: Code, data, parities| code.coder(data, parities).unwrap_err().to_string();
    assert_eq!(words(Code::None, 4, 2), "without an erasure code there are no parities");
    for (data, parities) in [(0, 2), (4, 0), (0, 0), (31, 2), (1, 32), (u32::MAX, u32::MAX)] {
        let expected =
            format!("no set is {data}+{parities}: one shard of each kind at least, 32 in all at most");
        assert_eq!(words(Code::ReedSolomon, data, parities), expected);
    }
    assert!(Code::ReedSolomon.coder(1, 31).is_ok() && Code::ReedSolomon.coder(31, 1).is_ok());
    assert_eq!(Code::from_byte(7).unwrap_err().to_string(), "no erasure code has the number 7");
}

#[test]
fn shards_that_do_not_fit_are_refused_in_words() {
    let set = Set::new(&[10, 10, 10, 4], 2);
    let data = borrowed(&set.shards[..4]);
    let words = |error: CodeError| error.to_string();
    assert_eq!(words(set.coder.encode(&data[..3]).unwrap_err()), "the set has 4 such shards, not 3");
    let into = |parities: &mut [&mut [u8]]| words(set.coder.encode_into(&data, parities).unwrap_err());
    assert_eq!(into(&mut [&mut [0; 10]]), "the set has 2 such shards, not 1");
    assert_eq!(into(&mut [&mut [0; 10], &mut [0; 11]]), "shard 5 has 11 bytes, not 10");

    let recover = |lengths: &[usize], shards: &[Option<&[u8]>], wanted: &[usize]| {
        words(set.coder.recover(lengths, shards, wanted).unwrap_err())
    };
    let shards = set.without(&[1, 2]);
    assert_eq!(recover(&[10, 10, 10], &shards, &[1]), "the set has 4 such shards, not 3");
    assert_eq!(recover(&set.lengths, &shards[1..], &[1]), "the set has 6 such shards, not 5");
    assert_eq!(recover(&[10, 10, 10, 5], &shards, &[1]), "shard 3 has 4 bytes, not 5");
    assert_eq!(
        recover(&[10, usize::MAX, 10, 4], &shards, &[1]),
        format!("shard 4 has 10 bytes, not {}", usize::MAX)
    );
    for (wanted, at) in [(&[0][..], 0), (&[6], 6), (&[usize::MAX], usize::MAX), (&[2, 1], 1), (&[1, 1], 1)] {
        let expected = format!(
            "shard {at} cannot be given back: it was given, is not of the set, or stands out of order"
        );
        assert_eq!(recover(&set.lengths, &shards, wanted), expected);
    }
    let shards = set.without(&[0, 2, 3, 5]);
    let expected = "shards 0, 2, 3, 5 are lost: 2 of them must be found";
    assert_eq!(recover(&set.lengths, &shards, &[2]), expected);
}

#[test]
fn shards_of_two_versions_are_found_out_by_their_ends() {
    let (one, other) = (Set::new(&[10, 10, 10, 4], 2), Set::new(&[10, 10, 9, 3], 2));
    let mut shards = one.without(&[3]);
    shards[4] = Some(&other.shards[4]);
    assert_eq!(one.coder.recover(&one.lengths, &shards, &[3]), Err(CodeError::Mixed(3)));
}

/// A set, and some of its shards.
fn set_and_losses() -> impl Strategy<Value = (Vec<usize>, u32, Vec<usize>)> {
    let shape = (2..=SET_MEMBERS_MAX).prop_flat_map(|members| (1..members, Just(members)));
    shape.prop_flat_map(|(data, members)| {
        let lengths = prop::collection::vec(0_usize..10_000, data as usize);
        let shards: Vec<usize> = (0..members as usize).collect();
        let parities = members - data;
        (lengths, Just(parities), prop::sample::subsequence(shards, 1..=parities as usize + 1))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn any_loss_is_made_good_or_named((lengths, parities, lost) in set_and_losses()) {
        Set::new(&lengths, parities).check(&lost);
    }

    /// Lengths and shards that were changed (to even and odd lengths, so that they never agree), shards asked
    /// for that may not be, or too few of anything: an error, or the bytes that were stored.
    #[test]
    fn nothing_wrong_is_given_back(
        (lengths, parities, lost) in set_and_losses(),
        told in prop::collection::vec((0_usize..40, 0_usize..5_000), 0..3),
        cut in prop::collection::vec((0_usize..40, 0_usize..5_000), 0..3),
        (choice, besides) in (any::<u32>(), prop::collection::vec(0_usize..40, 0..2)),
        (shards_left, lengths_left) in (28_usize..100, 28_usize..100),
    ) {
        let set = Set::new(&lengths, parities);
        let (mut lengths, mut shards) = (lengths, set.without(&lost));
        for (at, half) in told {
            lengths.get_mut(at).into_iter().for_each(|length| *length = 2 * half);
        }
        for (at, half) in cut {
            if let Some(Some(shard)) = shards.get_mut(at) {
                *shard = &shard[..shard.len().min(2 * half + 1)];
            }
        }
        shards.truncate(shards_left);
        lengths.truncate(lengths_left);
        let mut wanted: Vec<usize> = lost.into_iter().filter(|at| choice >> at & 1 == 1).collect();
        wanted.extend(besides);
        if let Ok(found) = set.coder.recover(&lengths, &shards, &wanted) {
            prop_assert_eq!(found.len(), wanted.len());
            for (at, bytes) in wanted.iter().zip(&found) {
                prop_assert!(same_padded(bytes, &set.shards[*at]), "shard {}", at);
            }
        }
    }
}
