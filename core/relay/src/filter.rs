//! Generates socket filters from rules: classic BPF programs (Linux `Documentation/networking/filter.rst`).
//!
//! A filter accepts every packet that a rule matches, and few others; the worker's [`RuleTable`](crate::RuleTable)
//! makes the final decision. The kernel compares every packet with every rule in the filter, so for many rules the
//! filter has one comparison with a range that contains all groups.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::rule::Input;

pub mod membership;
#[cfg(test)]
mod tests;

/// A classic BPF instruction (`struct sock_filter`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Operation code (`BPF_LD`, `BPF_JMP`, ...).
    pub code: u16,
    /// Number of instructions to skip if a comparison is true.
    pub jt: u8,
    /// Number of instructions to skip if a comparison is false.
    pub jf: u8,
    /// Operand: a constant, an offset in the packet, or the return value.
    pub k: u32,
}

/// A BPF program that drops every packet.
pub const DROP_ALL: [Instruction; 1] = [op(RETURN, 0)];

/// Maximum number of instructions of a filter; with more, comparing every packet with each rule costs more than
/// receiving packets that no rule matches. The kernel's limit is 4096 (`BPF_MAXINSNS`).
const MAX_INSTRUCTIONS: usize = 512;

/// Returns the filter for IPv4 packets whose IP header begins at byte `base` of the frame. All `inputs` must be IPv4.
#[must_use]
pub fn v4<'a>(base: u32, inputs: impl IntoIterator<Item = &'a Input>) -> Vec<Instruction> {
    let inputs: Vec<_> = inputs.into_iter().collect();
    let mut program = vec![op(LOAD_BYTE, base + 9), jump_equal(UDP, 1, 0), op(RETURN, 0)];
    for input in &inputs {
        let mut block = Vec::new();
        compare(&mut block, base + 16, input.to);
        if let Some(from) = input.from {
            compare(&mut block, base + 12, from);
        }
        if let Some(port) = input.port {
            block.extend([
                op(LOAD_X_HEADER_LENGTH, base),
                op(LOAD_HALF_AT_X, base + 2),
                jump_equal(port.get().into(), 0, NEXT_BLOCK),
            ]);
        }
        append_block(&mut program, block);
    }
    program.push(op(RETURN, 0));
    match aggregate(&program, &inputs) {
        None => program,
        Some(all) => v4(base, [&all]),
    }
}

/// Returns the filter for IPv6 packets whose IP header begins at byte `base` of the frame. All `inputs` must be IPv6.
#[must_use]
pub fn v6<'a>(base: u32, inputs: impl IntoIterator<Item = &'a Input>) -> Vec<Instruction> {
    let inputs: Vec<_> = inputs.into_iter().collect();
    // The next header is UDP, or an extension header before it: hop-by-hop, routing, fragment, destination options.
    let mut program = vec![
        op(LOAD_BYTE, base + 6),
        jump_equal(UDP, 5, 0),
        jump_equal(0, 4, 0),
        jump_equal(43, 3, 0),
        jump_equal(44, 2, 0),
        jump_equal(60, 1, 0),
        op(RETURN, 0),
    ];
    for input in &inputs {
        let mut block = Vec::new();
        compare(&mut block, base + 24, input.to);
        if let Some(from) = input.from {
            compare(&mut block, base + 8, from);
        }
        if let Some(port) = input.port {
            block.extend([
                op(LOAD_BYTE, base + 6),
                // Behind an extension header the port is not compared, because its offset is not known.
                jump_equal(UDP, 0, 2),
                op(LOAD_HALF, base + 42),
                jump_equal(port.get().into(), 0, NEXT_BLOCK),
            ]);
        }
        append_block(&mut program, block);
    }
    program.push(op(RETURN, 0));
    match aggregate(&program, &inputs) {
        None => program,
        Some(all) => v6(base, [&all]),
    }
}

/// Prepends instructions to a filter that drop packets not addressed to the interface: a packet socket also receives
/// packets that arrived through its interface for another one, such as a VLAN interface, and those for another host or
/// for a VLAN that does not exist on this host (`__netif_receive_skb_core`, Linux net/core/dev.c).
#[must_use]
pub fn only_own(interface: u32, program: Vec<Instruction>) -> Vec<Instruction> {
    let mut own = vec![
        op(LOAD_WORD, INTERFACE_INDEX),
        jump_equal(interface, 1, 0),
        op(RETURN, 0),
        op(LOAD_WORD, PACKET_TYPE),
        jump_equal(PACKET_OTHERHOST, 0, 1),
        op(RETURN, 0),
    ];
    own.extend(program);
    own
}

/// Appends comparisons of the address at offset `at` of the packet with an address range, in 32-bit words.
fn compare(block: &mut Vec<Instruction>, at: u32, range: IpNet) {
    let mut left = u32::from(range.prefix_len());
    let (words, count) = words(range.network());
    for (word, offset) in words.into_iter().take(count).zip((0..).step_by(4)) {
        let bits = left.min(32);
        left -= bits;
        if bits == 0 {
            return;
        }
        block.push(op(LOAD_WORD, at + offset));
        if bits < 32 {
            block.push(op(AND, !(u32::MAX >> bits)));
        }
        block.push(jump_equal(word, 0, NEXT_BLOCK));
    }
}

/// Returns an address as 32-bit words, and the number of words: 1 or 4.
fn words(address: IpAddr) -> ([u32; 4], usize) {
    match address {
        IpAddr::V4(v4) => ([v4.to_bits(), 0, 0, 0], 1),
        IpAddr::V6(v6) => {
            let bits = v6.to_bits();
            #[expect(clippy::cast_possible_truncation, reason = "one word after the other")]
            let word = |shift: u32| (bits >> shift) as u32;
            ([word(96), word(64), word(32), word(0)], 4)
        }
    }
}

/// Appends a block of comparisons that accepts the packet if all of them are true; otherwise the next block is
/// executed.
fn append_block(program: &mut Vec<Instruction>, mut block: Vec<Instruction>) {
    block.push(op(RETURN, WHOLE_PACKET));
    let length = block.len();
    for (index, instruction) in block.iter_mut().enumerate() {
        if instruction.jf == NEXT_BLOCK {
            instruction.jf = u8::try_from(length - index - 1).expect("a block has at most 24 instructions");
        }
    }
    program.append(&mut block);
}

/// Returns one input that contains all `inputs` if the program exceeds [`MAX_INSTRUCTIONS`].
fn aggregate(program: &[Instruction], inputs: &[&Input]) -> Option<Input> {
    let (first, others) = inputs
        .split_first()
        .filter(|_| program.len() > MAX_INSTRUCTIONS)?;
    let mut to = first.to;
    for other in others {
        while !to.contains(&other.to) {
            to = to.supernet()?;
        }
    }
    Some(Input {
        interface: first.interface.clone(),
        to,
        port: None,
        from: None,
    })
}

const fn op(code: u16, k: u32) -> Instruction {
    Instruction {
        code,
        jt: 0,
        jf: 0,
        k,
    }
}

/// Returns the instruction that compares the accumulator with `k`.
const fn jump_equal(k: u32, jt: u8, jf: u8) -> Instruction {
    Instruction {
        code: JUMP_EQUAL,
        jt,
        jf,
        k,
    }
}

/// Placeholder in `jf` for a jump to the end of the block, replaced when the block's length is known.
const NEXT_BLOCK: u8 = u8::MAX;

/// Return value of a filter that accepts the whole packet: more bytes than any packet has.
const WHOLE_PACKET: u32 = 0x0004_0000;

/// Offset from which a filter loads the interface index of a packet (`SKF_AD_OFF + SKF_AD_IFINDEX`).
const INTERFACE_INDEX: u32 = SKF_AD_OFF + 8;

/// Offset from which a filter loads the packet type (`SKF_AD_OFF + SKF_AD_PKTTYPE`), and the types of frames to a group
/// and to other hosts.
const PACKET_TYPE: u32 = SKF_AD_OFF + 4;
const PACKET_MULTICAST: u32 = 2;
const PACKET_OTHERHOST: u32 = 3;

/// Base of the offsets from which a filter loads the kernel's metadata of a packet, instead of bytes of the packet.
const SKF_AD_OFF: u32 = (-0x1000_i32).cast_unsigned();

const UDP: u32 = 17;

const LOAD_WORD: u16 = 0x20;
const LOAD_HALF: u16 = 0x28;
const LOAD_BYTE: u16 = 0x30;
const LOAD_HALF_AT_X: u16 = 0x48;
const LOAD_BYTE_AT_X: u16 = 0x50;
/// Instruction that sets X to the length of the IPv4 header in bytes: 4 * (byte & 0xf) (`BPF_LDX | BPF_B | BPF_MSH`).
const LOAD_X_HEADER_LENGTH: u16 = 0xb1;
const OR: u16 = 0x44;
const AND: u16 = 0x54;
const SHIFT_LEFT: u16 = 0x64;
const COPY_TO_X: u16 = 0x07;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_EQUAL_X: u16 = 0x1d;
const RETURN: u16 = 0x06;
