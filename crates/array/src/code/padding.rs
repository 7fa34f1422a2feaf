//! Shards of different lengths as if all were as long as the longest, without copying them: what is coded is
//! cut where a shard ends, and from there on zeros stand in for it.
//!
//! Never: it cuts where all shards go on; those of equal length are coded in one piece.

use std::mem;

/// What stands in for a shard that has ended. Small, so that it stays in the nearest cache.
static ZEROS: [u8; 4096] = [0; 4096];

/// Calls `code` with the sources and the outputs, piece by piece. No source is longer than the outputs, which
/// are of one length.
pub(super) fn in_pieces<'a>(
    sources: &[&'a [u8]],
    outputs: &mut [&mut [u8]],
    mut code: impl FnMut(&[&'a [u8]], &mut [&mut [u8]]),
) {
    let bytes = outputs.first().map_or(0, |output| output.len());
    let mut rest: Vec<&mut [u8]> = outputs.iter_mut().map(|output| &mut **output).collect();
    let mut from = 0;
    while from < bytes {
        let to = end_of_piece(sources, from, bytes);
        let padded = |source: &&'a [u8]| source.get(from..to).unwrap_or_else(|| &ZEROS[..to - from]);
        let ins: Vec<&[u8]> = sources.iter().map(padded).collect();
        let mut outs: Vec<&mut [u8]> = rest.iter_mut().map(|output| take(output, to - from)).collect();
        code(&ins, &mut outs);
        from = to;
    }
}

/// Where the piece ends that begins at `from`: where the next source does, or where the zeros do.
fn end_of_piece(sources: &[&[u8]], from: usize, bytes: usize) -> usize {
    let lengths = || sources.iter().map(|source| source.len());
    let next = lengths().filter(|length| *length > from).min().unwrap_or(bytes);
    if lengths().any(|length| length <= from) { next.min(from + ZEROS.len()) } else { next }
}

fn take<'a>(rest: &mut &'a mut [u8], bytes: usize) -> &'a mut [u8] {
    let (head, tail) = mem::take(rest).split_at_mut(bytes);
    *rest = tail;
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pieces of outputs so long, as the lengths of each and the sources that go on in it.
    fn pieces(lengths: &[usize], bytes: usize) -> Vec<(usize, Vec<bool>)> {
        let sources: Vec<Vec<u8>> = lengths.iter().map(|length| vec![1; *length]).collect();
        let sources: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
        let mut output = vec![0; bytes];
        let mut pieces = Vec::new();
        in_pieces(&sources, &mut [&mut output], |sources, outputs| {
            let goes_on = sources.iter().map(|source| source.iter().all(|byte| *byte == 1)).collect();
            assert!(sources.iter().all(|source| source.len() == outputs[0].len()));
            outputs[0].fill(2);
            pieces.push((outputs[0].len(), goes_on));
        });
        assert_eq!(output, vec![2; bytes], "each byte is coded");
        pieces
    }

    #[test]
    fn what_is_equally_long_is_one_piece() {
        assert_eq!(pieces(&[100_000, 100_000], 100_000), [(100_000, vec![true, true])]);
        assert_eq!(pieces(&[0, 0], 0), []);
    }

    #[test]
    fn a_piece_ends_where_a_source_does() {
        let expected =
            [(3, vec![true, true, true]), (2, vec![true, false, true]), (5, vec![true, false, false])];
        assert_eq!(pieces(&[10, 3, 5], 10), expected);
        assert_eq!(pieces(&[0, 1], 1), [(1, vec![false, true])]);
    }

    #[test]
    fn a_piece_is_not_longer_than_the_zeros() {
        let lengths: Vec<usize> = pieces(&[9000, 10], 9000).iter().map(|(bytes, _)| *bytes).collect();
        assert_eq!(lengths, [10, 4096, 4096, 798]);
    }
}
