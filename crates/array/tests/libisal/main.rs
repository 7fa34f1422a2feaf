//! Our parities are those of Debian's libisal, byte for byte.

use plimsoll_array::{Code, SET_MEMBERS_MAX};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

/// Bytes of a shard: around the widths of vector registers, and around what is coded at once.
const LENGTHS: [usize; 18] = [1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 129, 255, 1000, 4095, 4097];

/// The program with libisal in it.
struct Libisal {
    program: Child,
    input: ChildStdin,
    output: ChildStdout,
}

/// The program, compiled once: one that runs cannot be written to.
fn binary() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/libisal/parities.c");
        let binary = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libisal-parities");
        let mut compile = Command::new("cc");
        compile.args(["-O1", "-Wall", "-Werror", "-o"]).arg(&binary).arg(source).arg("-lisal");
        let compiled = compile.output().expect("make prepare installs a C compiler");
        let words = String::from_utf8_lossy(&compiled.stderr);
        assert!(compiled.status.success(), "make prepare installs libisal-dev\n{words}");
        binary
    })
}

impl Libisal {
    fn start() -> Libisal {
        let mut run = Command::new(binary());
        let mut program = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (program.stdin.take().unwrap(), program.stdout.take().unwrap());
        Libisal { program, input, output }
    }

    /// The parities of shards of equal length.
    fn parities(&mut self, data: &[Vec<u8>], parities: u32) -> Vec<Vec<u8>> {
        let bytes = data[0].len();
        let words = [data.len() as u32, parities, bytes as u32];
        let mut set: Vec<u8> = words.into_iter().flat_map(u32::to_ne_bytes).collect();
        data.iter().for_each(|shard| set.extend_from_slice(shard));
        self.input.write_all(&set).unwrap();
        let mut found = vec![vec![0; bytes]; parities as usize];
        found.iter_mut().for_each(|parity| self.output.read_exact(parity).unwrap());
        found
    }

    fn end(mut self) {
        drop(self.input);
        assert!(self.program.wait().unwrap().success());
    }
}

/// Bytes without a pattern.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn bytes(&mut self, bytes: usize) -> Vec<u8> {
        (0..bytes).map(|_| self.next() as u8).collect()
    }
}

/// Every set that there may be.
fn sets() -> impl Iterator<Item = (u32, u32)> {
    (1..SET_MEMBERS_MAX).flat_map(|data| (1..=SET_MEMBERS_MAX - data).map(move |parities| (data, parities)))
}

fn slices(shards: &[Vec<u8>]) -> Vec<&[u8]> {
    shards.iter().map(Vec::as_slice).collect()
}

#[test]
fn parities_of_every_set_are_those_of_libisal() {
    let (mut libisal, mut noise) = (Libisal::start(), Noise(1));
    for (data, parities) in sets() {
        let coder = Code::ReedSolomon.coder(data, parities).unwrap();
        for bytes in LENGTHS {
            let shards: Vec<Vec<u8>> = (0..data).map(|_| noise.bytes(bytes)).collect();
            let found = coder.encode(&slices(&shards)).unwrap();
            assert!(found == libisal.parities(&shards, parities), "{data}+{parities}, {bytes} bytes");
        }
    }
    libisal.end();
}

#[test]
fn parities_of_long_shards_are_those_of_libisal() {
    let (mut libisal, mut noise) = (Libisal::start(), Noise(2));
    for (data, parities) in [(1, 1), (4, 2), (6, 3), (10, 4), (17, 3), (20, 12), (28, 4)] {
        let coder = Code::ReedSolomon.coder(data, parities).unwrap();
        for bytes in [16 << 10, (64 << 10) - 1, (512 << 10) + 77] {
            let shards: Vec<Vec<u8>> = (0..data).map(|_| noise.bytes(bytes)).collect();
            let found = coder.encode(&slices(&shards)).unwrap();
            assert!(found == libisal.parities(&shards, parities), "{data}+{parities}, {bytes} bytes");
        }
    }
    libisal.end();
}

#[test]
fn short_shards_count_as_padded_with_zeros() {
    let (mut libisal, mut noise) = (Libisal::start(), Noise(3));
    for (data, parities) in sets() {
        let coder = Code::ReedSolomon.coder(data, parities).unwrap();
        let mut shards: Vec<Vec<u8>> = Vec::new();
        for _ in 0..data {
            let bytes = noise.next() as usize % 6000;
            shards.push(noise.bytes(bytes));
        }
        let found = coder.encode(&slices(&shards)).unwrap();
        let lengths: Vec<usize> = shards.iter().map(Vec::len).collect();
        let longest = *lengths.iter().max().unwrap();
        shards.iter_mut().for_each(|shard| shard.resize(longest, 0));
        assert!(found == libisal.parities(&shards, parities), "{data}+{parities}, {lengths:?}");
    }
    libisal.end();
}
