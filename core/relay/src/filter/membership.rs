//! Socket filters of the proxy's queriers, which accept IGMP and MLD messages. Packets begin with the IP header.
//!
//! The device delivers frames to all groups, and a forged frame may have a destination that does not belong to its IP
//! destination. A query is accepted only in a frame that the hosts to which its IP destination belongs receive, too: a host
//! that wins the election of the querier, or ends a membership, by a query that no other host receives would interrupt
//! memberships in use.
//!
//! On Ethernet, the destination of the frame has to be that of the query's group (RFC 1112 section 6.4, RFC 2464
//! section 7). On an interface whose link layer has no addresses, such as a tun or a tunnel, the kernel delivers all
//! packets as `PACKET_HOST`; there is no link-layer header to read, and each packet reaches the only other end of the
//! link. Other interfaces, such as `InfiniBand`, derive the addresses of groups differently; there, the frame has to be
//! addressed to any group.

use super::*;

#[cfg(test)]
mod tests;

/// Returns the filter that accepts IGMP: IP protocol 2.
#[must_use]
pub fn igmp() -> Vec<Instruction> {
    let mut program = vec![
        op(LOAD_BYTE, 9),
        jump_equal(IGMP, 0, TO_DROP),
        op(LOAD_X_HEADER_LENGTH, 0),
        op(LOAD_BYTE_AT_X, 0),
        jump_equal(IGMP_QUERY, 0, TO_ACCEPT),
    ];
    // 01:00:5e, and the low 23 bits of the group.
    let address = [
        op(LOAD_WORD, 16),
        op(AND, 0x007f_ffff),
        op(OR, 0x5e00_0000),
        op(COPY_TO_X, 0),
    ];
    program.extend(frame_to_group(0x0100, &address));
    resolve(program)
}

/// Returns the filter that accepts MLD: hop-by-hop options, followed by ICMPv6.
#[must_use]
pub fn mld() -> Vec<Instruction> {
    let mut program = vec![
        op(LOAD_BYTE, 6),
        jump_equal(HOP_BY_HOP, 0, TO_DROP),
        op(LOAD_BYTE, 40),
        jump_equal(ICMPV6, 0, TO_DROP),
        // X is the length of the options in bytes, without their first 8.
        op(LOAD_BYTE, 41),
        op(SHIFT_LEFT, 3),
        op(COPY_TO_X, 0),
        op(LOAD_BYTE_AT_X, 48),
        jump_equal(MLD_QUERY, 0, TO_ACCEPT),
    ];
    // 33:33, and the low 32 bits of the group.
    program.extend(frame_to_group(0x3333, &[op(LOAD_WORD, 36), op(COPY_TO_X, 0)]));
    resolve(program)
}

/// Returns instructions that accept a packet in a frame to its group: `first` are the first two bytes of the group's
/// Ethernet address, and `others` sets X to the other four.
fn frame_to_group(first: u32, others: &[Instruction]) -> Vec<Instruction> {
    let mut ethernet = vec![
        op(LOAD_BYTE, PACKET_TYPE),
        jump_equal(PACKET_MULTICAST, 0, TO_DROP),
        op(LOAD_HALF, LINK_LAYER),
        jump_equal(first, 0, TO_DROP),
    ];
    ethernet.extend(others);
    ethernet.push(op(LOAD_WORD, LINK_LAYER + 2));
    ethernet.push(Instruction {
        code: JUMP_EQUAL_X,
        ..jump_equal(0, TO_ACCEPT, TO_DROP)
    });
    let mut program = vec![
        op(LOAD_HALF, HARDWARE_TYPE),
        jump_equal(ARPHRD_ETHER, 0, jump(ethernet.len())),
    ];
    program.append(&mut ethernet);
    program.extend(WITHOUT_ADDRESSES.map(|hardware| jump_equal(hardware, TO_ACCEPT, 0)));
    program.push(op(LOAD_BYTE, PACKET_TYPE));
    program.push(jump_equal(PACKET_MULTICAST, TO_ACCEPT, TO_DROP));
    program
}

/// Appends the instructions that accept and drop the packet, and replaces the placeholders of jumps to them.
fn resolve(mut program: Vec<Instruction>) -> Vec<Instruction> {
    let accept = program.len();
    for (index, instruction) in program.iter_mut().enumerate() {
        for target in [&mut instruction.jt, &mut instruction.jf] {
            *target = match *target {
                TO_ACCEPT => jump(accept - index - 1),
                TO_DROP => jump(accept - index),
                skipped => skipped,
            };
        }
    }
    program.extend([op(RETURN, WHOLE_PACKET), op(RETURN, 0)]);
    program
}

/// Returns the number of instructions to skip as a value of `jt` or `jf`.
fn jump(count: usize) -> u8 {
    u8::try_from(count).expect("a program has less than 50 instructions")
}

/// Placeholders in `jt` and `jf` for jumps to the instructions that accept and drop the packet.
const TO_ACCEPT: u8 = 254;
const TO_DROP: u8 = 255;

/// Offset from which a filter loads the hardware type of the interface (`SKF_AD_OFF + SKF_AD_HATYPE`): `ARPHRD_*` of
/// linux/if_arp.h.
const HARDWARE_TYPE: u32 = SKF_AD_OFF + 28;

/// Offset from which a filter loads bytes of the link-layer header (`SKF_LL_OFF`), which begins with the frame's destination
/// on Ethernet.
const LINK_LAYER: u32 = (-0x20_0000_i32).cast_unsigned();

const ARPHRD_ETHER: u32 = 1;

/// Hardware types of links without addresses: PPP, RAWIP, TUNNEL, TUNNEL6, SIT, IPGRE, IP6GRE, NONE (tun, `WireGuard`).
const WITHOUT_ADDRESSES: [u32; 8] = [512, 519, 768, 769, 776, 778, 823, 0xfffe];

const IGMP: u32 = 2;
const ICMPV6: u32 = 58;
const HOP_BY_HOP: u32 = 0;
const IGMP_QUERY: u32 = 0x11;
const MLD_QUERY: u32 = 130;
