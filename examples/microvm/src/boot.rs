//! Initial state of the CPU: 64-bit mode, with the first 4 GiB identity-mapped.

use anyhow::Result;
use kvm_bindings::{kvm_regs, kvm_segment};
use kvm_ioctls::VcpuFd;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use pontoon_microvm_abi::{IMAGE, STACK};

const GDT: u64 = 0x1000;
const PML4: u64 = 0x2000;
const PDPT: u64 = 0x3000;
/// Address of four page directories, of one page each.
const DIRECTORIES: u64 = 0x4000;

/// Bits of page table entries: present, writable, and a page of 2 MiB (Intel SDM volume 3, section 4.5).
const TABLE: u64 = 0x3;
const PAGE: u64 = 0x83;

/// Segment descriptors: null, 64-bit code, data; the segments are flat.
const SEGMENTS: [u64; 3] = [0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff];

/// Value of CR0: protection, extension type, numeric errors, write protection, paging.
const CR0: u64 = 1 | 1 << 4 | 1 << 5 | 1 << 16 | 1 << 31;

/// Value of CR4: physical address extension.
const CR4: u64 = 1 << 5;

/// Value of the register EFER: long mode enabled and active.
const EFER: u64 = 1 << 8 | 1 << 10;

/// Writes segment descriptors and page tables to memory, and sets the CPU's registers for the image's entry point.
pub(crate) fn prepare(memory: &GuestMemoryMmap, vcpu: &VcpuFd) -> Result<()> {
    write(memory, GDT, &SEGMENTS)?;
    write(memory, PML4, &[PDPT | TABLE])?;
    let directories = [0, 1, 2, 3].map(|number| (DIRECTORIES + number * 0x1000) | TABLE);
    write(memory, PDPT, &directories)?;
    let pages: Vec<u64> = (0..4 * 512).map(|number| number << 21 | PAGE).collect();
    write(memory, DIRECTORIES, &pages)?;

    let mut special = vcpu.get_sregs()?;
    special.gdt.base = GDT;
    special.gdt.limit = (size_of_val(&SEGMENTS) - 1) as u16;
    special.cs = segment(1, 0xb, true);
    let data = segment(2, 0x3, false);
    (special.ds, special.es, special.fs, special.gs, special.ss) = (data, data, data, data, data);
    special.cr0 = CR0;
    special.cr3 = PML4;
    special.cr4 = CR4;
    special.efer = EFER;
    vcpu.set_sregs(&special)?;
    vcpu.set_regs(&kvm_regs {
        rip: IMAGE,
        // The stack pointer is aligned as after a call.
        rsp: STACK - 8,
        rflags: 2,
        ..kvm_regs::default()
    })?;
    Ok(())
}

fn write(memory: &GuestMemoryMmap, address: u64, words: &[u64]) -> Result<()> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    Ok(memory.write_slice(&bytes, GuestAddress(address))?)
}

fn segment(number: u16, kind: u8, code: bool) -> kvm_segment {
    kvm_segment {
        base: 0,
        limit: u32::MAX,
        selector: number * 8,
        type_: kind,
        present: 1,
        s: 1,
        g: 1,
        l: code.into(),
        db: (!code).into(),
        ..kvm_segment::default()
    }
}
