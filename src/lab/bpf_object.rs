//! Small BPF programs as ELF objects for `tc` and `ip` to load: VLAN tagging where the kernel has neither 802.1Q
//! devices nor act_vlan, and a sink that costs the receiving host next to nothing.
//!
//! An object needs a section with the instructions, a symbol for it and a licence (Linux Documentation/bpf/libbpf);
//! there are no maps and so no relocations. Instruction encoding: RFC 9669.
#![forbid(unsafe_code)]

use super::topology::{TagProtocol, Vlan};

/// Helper numbers of include/uapi/linux/bpf.h.
const SKB_VLAN_PUSH: i32 = 18;
const SKB_VLAN_POP: i32 = 19;
/// Offsets in struct __sk_buff.
const VLAN_PRESENT: i16 = 20;
const VLAN_TCI: i16 = 24;
const VLAN_PROTO: i16 = 28;
/// Verdicts of include/uapi/linux/pkt_cls.h and of enum xdp_action.
const TC_ACT_OK: i32 = 0;
const TC_ACT_SHOT: i32 = 2;
const XDP_DROP: i32 = 1;
const XDP_PASS: i32 = 2;
/// Offsets in struct xdp_md.
const XDP_DATA: i16 = 0;
const XDP_DATA_END: i16 = 4;

/// One instruction, as it lies in the section.
type Instruction = [u8; 8];

fn instruction(opcode: u8, destination: u8, source: u8, offset: i16, immediate: i32) -> Instruction {
    let [o0, o1] = offset.to_le_bytes();
    let [i0, i1, i2, i3] = immediate.to_le_bytes();
    [opcode, source << 4 | destination, o0, o1, i0, i1, i2, i3]
}

/// dst = immediate.
fn set(destination: u8, immediate: i32) -> Instruction {
    instruction(0xb7, destination, 0, 0, immediate)
}

/// dst = src.
fn copy(destination: u8, source: u8) -> Instruction {
    instruction(0xbf, destination, source, 0, 0)
}

/// dst = *(u32 *)(src + offset).
fn load_word(destination: u8, source: u8, offset: i16) -> Instruction {
    instruction(0x61, destination, source, offset, 0)
}

/// dst = *(u16 *)(src + offset).
fn load_half(destination: u8, source: u8, offset: i16) -> Instruction {
    instruction(0x69, destination, source, offset, 0)
}

/// dst = *(u8 *)(src + offset).
fn load_byte(destination: u8, source: u8, offset: i16) -> Instruction {
    instruction(0x71, destination, source, offset, 0)
}

/// dst += immediate.
fn add(destination: u8, immediate: i32) -> Instruction {
    instruction(0x07, destination, 0, 0, immediate)
}

/// Skip `ahead` instructions if dst > src.
fn jump_greater(destination: u8, source: u8, ahead: i16) -> Instruction {
    instruction(0x2d, destination, source, ahead, 0)
}

/// dst &= immediate.
fn and(destination: u8, immediate: i32) -> Instruction {
    instruction(0x57, destination, 0, 0, immediate)
}

/// Skip `ahead` instructions if dst == immediate.
fn jump_equal(destination: u8, immediate: i32, ahead: i16) -> Instruction {
    instruction(0x15, destination, 0, ahead, immediate)
}

/// Skip `ahead` instructions if dst != immediate.
fn jump_not_equal(destination: u8, immediate: i32, ahead: i16) -> Instruction {
    instruction(0x55, destination, 0, ahead, immediate)
}

fn call(helper: i32) -> Instruction {
    instruction(0x85, 0, 0, 0, helper)
}

fn exit() -> Instruction {
    instruction(0x95, 0, 0, 0, 0)
}

/// The tag protocol as the kernel keeps it in an integer: network byte order.
fn protocol_number(vlan: Vlan) -> i32 {
    let number: u16 = match vlan.protocol {
        TagProtocol::Dot1q => 0x8100,
        TagProtocol::Dot1ad => 0x88a8,
    };
    number.to_be().into()
}

/// Object for `tc`: tags every frame.
pub fn vlan_push(vlan: Vlan) -> Vec<u8> {
    let program = [
        set(2, protocol_number(vlan)),
        set(3, vlan.id.into()),
        call(SKB_VLAN_PUSH),
        jump_not_equal(0, 0, 2),
        set(0, TC_ACT_OK),
        exit(),
        set(0, TC_ACT_SHOT),
        exit(),
    ];
    object("tc", &program)
}

/// Object for `tc`: untags frames of the VLAN and drops all others.
pub fn vlan_pop(vlan: Vlan) -> Vec<u8> {
    let program = [
        copy(6, 1),
        load_word(2, 6, VLAN_PRESENT),
        jump_equal(2, 0, 10),
        load_word(2, 6, VLAN_PROTO),
        jump_not_equal(2, protocol_number(vlan), 8),
        load_word(2, 6, VLAN_TCI),
        and(2, 0x0fff),
        jump_not_equal(2, vlan.id.into(), 5),
        copy(1, 6),
        call(SKB_VLAN_POP),
        jump_not_equal(0, 0, 2),
        set(0, TC_ACT_OK),
        exit(),
        set(0, TC_ACT_SHOT),
        exit(),
    ];
    object("tc", &program)
}

/// Object for `ip link set DEV xdp`: drops untagged UDP without IPv4 options or IPv6 extension headers, which the device
/// still counts; all else passes, since without ARP and ND the router would soon lose its neighbour.
pub fn sink() -> Vec<u8> {
    let program = [
        load_word(2, 1, XDP_DATA),
        load_word(3, 1, XDP_DATA_END),
        copy(4, 2),
        add(4, 34),
        jump_greater(4, 3, 8),
        load_half(4, 2, 12),
        load_byte(5, 2, 14 + 9),
        jump_equal(4, i32::from(0x0800_u16.to_be()), 2),
        load_byte(5, 2, 14 + 6),
        jump_not_equal(4, i32::from(0x86dd_u16.to_be()), 3),
        jump_not_equal(5, 17, 2),
        set(0, XDP_DROP),
        exit(),
        set(0, XDP_PASS),
        exit(),
    ];
    object("xdp", &program)
}

/// Writes a relocatable ELF64 file (System V gABI, chapter 4) with one BPF program in the section `section`.
fn object(section: &str, program: &[Instruction]) -> Vec<u8> {
    const HEADER: usize = 64;
    const SECTION_HEADER: usize = 64;
    let code = program.concat();
    let license = b"GPL\0".to_vec();
    // Names of sections and symbols share one string table; each offset is where the name begins.
    let mut strings = vec![0_u8];
    let mut name = |text: &str| {
        let at = strings.len() as u32;
        strings.extend(text.as_bytes());
        strings.push(0);
        at
    };
    let (code_name, license_name, symbols_name, strings_name) =
        (name(section), name("license"), name(".symtab"), name(".strtab"));
    let (program_symbol, license_symbol) = (name("program"), name("_license"));
    // Symbol: name, type and binding (global function 0x12, global object 0x11), visibility, section, value, size.
    let symbol = |name: u32, info: u8, section: u16, size: usize| {
        let mut bytes = name.to_le_bytes().to_vec();
        bytes.extend([info, 0]);
        bytes.extend(section.to_le_bytes());
        bytes.extend(0_u64.to_le_bytes());
        bytes.extend((size as u64).to_le_bytes());
        bytes
    };
    let symbols = [
        symbol(0, 0, 0, 0),
        symbol(program_symbol, 0x12, 1, code.len()),
        symbol(license_symbol, 0x11, 2, license.len()),
    ]
    .concat();

    let mut body = Vec::new();
    let mut headers = vec![0_u8; SECTION_HEADER];
    // Section type: 1 program data, 2 symbols, 3 strings. Flags: 2 allocated, 4 executable, 1 writable.
    let mut section_of = |name: u32, kind: u32, flags: u64, content: &[u8], link: u32, info: u32, entry: u64| {
        body.resize(body.len().next_multiple_of(8), 0);
        headers.extend(name.to_le_bytes());
        headers.extend(kind.to_le_bytes());
        headers.extend(flags.to_le_bytes());
        headers.extend(0_u64.to_le_bytes());
        headers.extend(((HEADER + body.len()) as u64).to_le_bytes());
        headers.extend((content.len() as u64).to_le_bytes());
        headers.extend(link.to_le_bytes());
        headers.extend(info.to_le_bytes());
        headers.extend(8_u64.to_le_bytes());
        headers.extend(entry.to_le_bytes());
        body.extend(content);
    };
    section_of(code_name, 1, 2 | 4, &code, 0, 0, 0);
    section_of(license_name, 1, 2 | 1, &license, 0, 0, 0);
    section_of(symbols_name, 2, 0, &symbols, 4, 1, 24);
    section_of(strings_name, 3, 0, &strings, 0, 0, 0);
    body.resize(body.len().next_multiple_of(8), 0);

    // ELF64, little endian; type 1 relocatable; machine 247 BPF; 5 section headers, names in section 4.
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    file.extend([1_u16, 247].map(u16::to_le_bytes).concat());
    file.extend(1_u32.to_le_bytes());
    file.extend([0_u64, 0, (HEADER + body.len()) as u64].map(u64::to_le_bytes).concat());
    file.extend(0_u32.to_le_bytes());
    file.extend([HEADER as u16, 0, 0, SECTION_HEADER as u16, 5, 4].map(u16::to_le_bytes).concat());
    file.extend(body);
    file.extend(headers);
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_holds_the_program_where_its_headers_say() {
        let file = sink();
        let word = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap()) as usize;
        let table = word(40);
        assert_eq!(table + 5 * 64, file.len(), "the section headers end the file");
        let (offset, size) = (word(table + 64 + 24), word(table + 64 + 32));
        assert_eq!((size, file[offset]), (15 * 8, 0x61));
        assert_eq!(file[offset + size - 16..offset + size], [0xb7, 0, 0, 0, 2, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn every_jump_of_the_pop_program_lands_on_the_drop() {
        let file = vlan_pop(Vlan { id: 5, protocol: TagProtocol::Dot1q });
        let program: Vec<&[u8]> = file[64..64 + 15 * 8].chunks(8).collect();
        for (index, code) in program.iter().enumerate() {
            if code[0] == 0x15 || code[0] == 0x55 {
                let target = index + 1 + usize::from(code[2]);
                assert_eq!((program[target][0], program[target][4]), (0xb7, 2), "jump at {index}");
            }
        }
    }
}
