//! BLAKE3 once more, written from its paper: no tree of threads, no SIMD, nothing shared with the crate.

const IV: [u32; 8] = [
    0x6A09_E667,
    0xBB67_AE85,
    0x3C6E_F372,
    0xA54F_F53A,
    0x510E_527F,
    0x9B05_688C,
    0x1F83_D9AB,
    0x5BE0_CD19,
];
const ORDER: [usize; 16] = [2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8];
const BLOCK: usize = 64;
const CHUNK: usize = 1024;
const CHUNK_START: u32 = 1;
const CHUNK_END: u32 = 2;
const PARENT: u32 = 4;
const ROOT: u32 = 8;

/// What is left to do for a node: compress it once more, as an inner one or as the root.
struct Node {
    chaining: [u32; 8],
    block: [u32; 16],
    counter: u64,
    len: u32,
    flags: u32,
}

impl Node {
    fn compress(&self, flags: u32) -> [u32; 8] {
        let mut state = [0; 16];
        state[..8].copy_from_slice(&self.chaining);
        state[8..12].copy_from_slice(&IV[..4]);
        state[12..].copy_from_slice(&[self.counter as u32, (self.counter >> 32) as u32, self.len, flags]);
        let mut message = self.block;
        for round in 0..7 {
            for (index, [a, b, c, d]) in [
                [0, 4, 8, 12],
                [1, 5, 9, 13],
                [2, 6, 10, 14],
                [3, 7, 11, 15],
                [0, 5, 10, 15],
                [1, 6, 11, 12],
                [2, 7, 8, 13],
                [3, 4, 9, 14],
            ]
            .into_iter()
            .enumerate()
            {
                for (word, turns) in [(2 * index, (16, 12)), (2 * index + 1, (8, 7))] {
                    state[a] = state[a].wrapping_add(state[b]).wrapping_add(message[word]);
                    state[d] = (state[d] ^ state[a]).rotate_right(turns.0);
                    state[c] = state[c].wrapping_add(state[d]);
                    state[b] = (state[b] ^ state[c]).rotate_right(turns.1);
                }
            }
            if round < 6 {
                message = ORDER.map(|place| message[place]);
            }
        }
        std::array::from_fn(|index| state[index] ^ state[index + 8])
    }

    fn chain(&self) -> [u32; 8] {
        self.compress(self.flags)
    }
}

fn words(bytes: &[u8]) -> [u32; 16] {
    let mut padded = [0; BLOCK];
    padded[..bytes.len()].copy_from_slice(bytes);
    std::array::from_fn(|index| u32::from_le_bytes(padded[4 * index..4 * index + 4].try_into().unwrap()))
}

fn chunk(bytes: &[u8], counter: u64) -> Node {
    let mut chaining = IV;
    let blocks: Vec<&[u8]> = if bytes.is_empty() {
        vec![bytes]
    } else {
        bytes.chunks(BLOCK).collect()
    };
    for (index, block) in blocks.iter().enumerate() {
        let start = if index == 0 { CHUNK_START } else { 0 };
        let node = Node {
            chaining,
            block: words(block),
            counter,
            len: block.len() as u32,
            flags: start,
        };
        if index + 1 == blocks.len() {
            return Node {
                flags: start | CHUNK_END,
                ..node
            };
        }
        chaining = node.chain();
    }
    unreachable!("there is a last block")
}

/// The left part of a tree holds the largest power of two of chunks that leaves something for the right.
fn tree(bytes: &[u8], counter: u64) -> Node {
    if bytes.len() <= CHUNK {
        return chunk(bytes, counter);
    }
    let chunks = bytes.len().div_ceil(CHUNK);
    let left = chunks.next_power_of_two() / 2;
    let (first, second) = bytes.split_at(left * CHUNK);
    let mut block = [0; 16];
    block[..8].copy_from_slice(&tree(first, counter).chain());
    block[8..].copy_from_slice(&tree(second, counter + left as u64).chain());
    Node {
        chaining: IV,
        block,
        counter: 0,
        len: BLOCK as u32,
        flags: PARENT,
    }
}

/// The 32-byte hash.
pub(crate) fn hash(bytes: &[u8]) -> [u8; 32] {
    let root = tree(bytes, 0);
    let out = Node { counter: 0, ..root };
    let mut hash = [0; 32];
    for (bytes, word) in hash.chunks_exact_mut(4).zip(out.compress(out.flags | ROOT)) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    hash
}

/// The paper's first test vector, and agreement with the crate around every border.
#[test]
fn two_implementations_agree() {
    assert_eq!(
        drover_vectors::hex::encode(&hash(b"")),
        "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
    );
    let bytes: Vec<u8> = (0..10_000u32).map(|n| (n % 251) as u8).collect();
    for len in [
        1, 63, 64, 65, 1023, 1024, 1025, 2048, 2049, 3072, 3073, 4096, 5121, 8192, 8193, 10_000,
    ] {
        assert_eq!(
            hash(&bytes[..len]),
            drover_vectors::run::blake3(&[&bytes[..len]]),
            "{len}"
        );
    }
}
