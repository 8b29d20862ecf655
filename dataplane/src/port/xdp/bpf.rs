//! bpf(2) as far as the redirect program needs it: one map, one program, one link; and a run of a program on frames of ours.
//!
//! What: the commands of `linux/bpf.h` by hand, each with the front part of `union bpf_attr` that it reads (the kernel
//! takes a shorter attribute and reads the rest as zero). Why: the appliance builds without LLVM, and six instructions
//! need no loader. Owner thread: the control thread.

use std::ffi::CString;
use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_MAP_UPDATE_ELEM: libc::c_long = 2;
const BPF_MAP_DELETE_ELEM: libc::c_long = 3;
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_PROG_RUN: libc::c_long = 10;
const BPF_PROG_GET_FD_BY_ID: libc::c_long = 13;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_LINK_GET_FD_BY_ID: libc::c_long = 30;
const BPF_LINK_GET_NEXT_ID: libc::c_long = 31;

const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_MAP_TYPE_XSKMAP: u32 = 17;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_ATTACH_TYPE_XDP: u32 = 37;
const BPF_LINK_TYPE_XDP: u32 = 6;
/// The program copes with frames in several fragments (kernel 5.18).
const BPF_F_XDP_HAS_FRAGS: u32 = 1 << 5;
/// BPF_PROG_RUN makes real frames, which go where the program says (kernel 5.18).
const BPF_F_TEST_XDP_LIVE_FRAMES: u32 = 1 << 1;
/// Length of a name with its closing zero (`BPF_OBJ_NAME_LEN`).
const NAME_BYTES: usize = 16;
/// Room for what the verifier says about a refused program, in bytes.
const LOG_BYTES: usize = 16 * 1024;

#[repr(C)]
#[derive(Default)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    inner_map_fd: u32,
    numa_node: u32,
    map_name: [u8; NAME_BYTES],
}

#[repr(C)]
#[derive(Default)]
struct MapElement {
    map_fd: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
#[derive(Default)]
struct ProgramLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; NAME_BYTES],
    prog_ifindex: u32,
    expected_attach_type: u32,
}

#[repr(C)]
#[derive(Default)]
struct LinkCreate {
    prog_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct ProgramRun {
    prog_fd: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    ctx_size_in: u32,
    ctx_size_out: u32,
    ctx_in: u64,
    ctx_out: u64,
    flags: u32,
    cpu: u32,
    batch_size: u32,
    padding: u32,
}

#[repr(C)]
#[derive(Default)]
struct ObjectId {
    id: u32,
    next_id: u32,
    open_flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct ObjectInfo {
    bpf_fd: u32,
    info_len: u32,
    info: u64,
}

/// The front of `struct bpf_prog_info`, up to the name.
#[repr(C)]
#[derive(Default)]
struct RawProgramInfo {
    prog_type: u32,
    id: u32,
    tag: [u8; 8],
    lengths: [u32; 2],
    pointers: [u64; 2],
    load_time: u64,
    created_by_uid: u32,
    nr_map_ids: u32,
    map_ids: u64,
    name: [u8; NAME_BYTES],
}

/// The front of `struct bpf_link_info` for an XDP link.
#[repr(C)]
#[derive(Default)]
struct RawLinkInfo {
    link_type: u32,
    id: u32,
    prog_id: u32,
    padding: u32,
    xdp_ifindex: u32,
    tail: u32,
}

// union bpf_attr and the info structures are kernel ABI.
const _: () = {
    assert!(offset_of!(MapCreate, map_name) == 28);
    assert!(offset_of!(MapElement, key) == 8 && offset_of!(MapElement, flags) == 24);
    assert!(offset_of!(ProgramLoad, log_buf) == 32 && offset_of!(ProgramLoad, prog_flags) == 44);
    assert!(offset_of!(ProgramLoad, prog_name) == 48 && offset_of!(ProgramLoad, expected_attach_type) == 68);
    assert!(offset_of!(ProgramRun, data_in) == 16 && offset_of!(ProgramRun, batch_size) == 72);
    assert!(size_of::<LinkCreate>() == 16 && size_of::<ObjectInfo>() == 16);
    assert!(offset_of!(RawProgramInfo, name) == 64 && offset_of!(RawLinkInfo, xdp_ifindex) == 16);
    assert!(size_of::<Instruction>() == 8);
};

/// One instruction (`struct bpf_insn`; kernel Documentation/bpf/standardization/instruction-set.rst).
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Instruction {
    pub code: u8,
    /// Destination register in the low four bits, source register above.
    pub registers: u8,
    pub offset: i16,
    pub immediate: i32,
}

/// What the kernel tells about a loaded program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProgramInfo {
    pub name: String,
}

/// An XDP link found on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct XdpLink {
    pub id: u32,
    pub program_id: u32,
}

/// How a link attaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AttachFlag {
    Generic = 1 << 1,
    Native = 1 << 2,
}

/// Runs one command. `attribute` must be the front of `union bpf_attr` that the command reads, and each address in it
/// must lead to live memory of the size that goes with it.
///
/// # Safety
/// As said: the kernel follows the addresses.
unsafe fn call<T>(command: libc::c_long, attribute: &mut T) -> io::Result<i32> {
    // SAFETY: attribute is a live T of the size given; the caller vouches for the addresses in it.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, (&raw mut *attribute).cast::<libc::c_void>(), size_of::<T>() as u32)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

/// # Safety
/// `descriptor` must be one that nothing else owns.
unsafe fn own(descriptor: i32) -> OwnedFd {
    // SAFETY: the caller has it from a command that makes a new descriptor (close-on-exec, as all of bpf(2)'s are).
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

fn name_bytes(name: &str) -> [u8; NAME_BYTES] {
    let mut bytes = [0; NAME_BYTES];
    for (to, from) in bytes[..NAME_BYTES - 1].iter_mut().zip(name.bytes()) {
        *to = from;
    }
    bytes
}

/// Makes an XSKMAP of `entries` queues.
pub(super) fn create_xskmap(name: &str, entries: u32) -> io::Result<OwnedFd> {
    create_map(name, BPF_MAP_TYPE_XSKMAP, 4, entries)
}

/// Makes an array of one element of so many bytes, all zero: memory of a program's own.
pub(super) fn create_memory(name: &str, bytes: u32) -> io::Result<OwnedFd> {
    create_map(name, BPF_MAP_TYPE_ARRAY, bytes, 1)
}

fn create_map(name: &str, map_type: u32, value_size: u32, entries: u32) -> io::Result<OwnedFd> {
    let mut attribute = MapCreate {
        map_type,
        key_size: 4,
        value_size,
        max_entries: entries,
        map_name: name_bytes(name),
        ..MapCreate::default()
    };
    // SAFETY: the attribute holds no addresses; a non-negative result is a new descriptor.
    unsafe { call(BPF_MAP_CREATE, &mut attribute).map(|fd| own(fd)) }
}

/// Sends the frames of `queue` to `socket`, which must be bound to it.
pub(super) fn set_map_socket(map: BorrowedFd<'_>, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
    let value = socket.as_raw_fd();
    let mut attribute = MapElement {
        map_fd: map.as_raw_fd() as u32,
        key: (&raw const queue) as u64,
        value: (&raw const value) as u64,
        ..MapElement::default()
    };
    // SAFETY: key and value lead to a live u32 and i32, the map's key and value sizes.
    unsafe { call(BPF_MAP_UPDATE_ELEM, &mut attribute) }.map(drop)
}

/// Takes the socket of `queue` out of the map; frames then get the program's default action.
pub(super) fn clear_map_socket(map: BorrowedFd<'_>, queue: u32) -> io::Result<()> {
    let mut attribute =
        MapElement { map_fd: map.as_raw_fd() as u32, key: (&raw const queue) as u64, ..MapElement::default() };
    // SAFETY: key leads to a live u32, the map's key size.
    unsafe { call(BPF_MAP_DELETE_ELEM, &mut attribute) }.map(drop)
}

/// Loads an XDP program. On refusal the error carries the verifier's last words.
pub(super) fn load_program(name: &str, instructions: &[Instruction], fragments: bool) -> io::Result<OwnedFd> {
    // The program calls no helper that is reserved to GPL programs, and this is our licence.
    let licence = CString::new("BSD-2-Clause").map_err(io::Error::other)?;
    let mut attribute = ProgramLoad {
        prog_type: BPF_PROG_TYPE_XDP,
        insn_cnt: instructions.len() as u32,
        insns: instructions.as_ptr() as u64,
        license: licence.as_ptr() as u64,
        prog_flags: if fragments { BPF_F_XDP_HAS_FRAGS } else { 0 },
        prog_name: name_bytes(name),
        expected_attach_type: BPF_ATTACH_TYPE_XDP,
        ..ProgramLoad::default()
    };
    // SAFETY: instructions and licence are live for the call, with their true lengths; a result >= 0 is a new descriptor.
    let first = match unsafe { call(BPF_PROG_LOAD, &mut attribute) } {
        // SAFETY: a new descriptor of BPF_PROG_LOAD.
        Ok(fd) => return Ok(unsafe { own(fd) }),
        Err(error) => error,
    };
    let mut log = vec![0_u8; LOG_BYTES];
    attribute.log_level = 1;
    attribute.log_size = LOG_BYTES as u32;
    attribute.log_buf = log.as_mut_ptr() as u64;
    // SAFETY: as above, and log is LOG_BYTES of live, writable memory.
    if let Ok(fd) = unsafe { call(BPF_PROG_LOAD, &mut attribute) } {
        // SAFETY: a new descriptor of BPF_PROG_LOAD.
        return Ok(unsafe { own(fd) });
    }
    let text = String::from_utf8_lossy(&log);
    let words = text.trim_end_matches('\0').trim();
    let last = words.lines().rev().take(3).collect::<Vec<_>>();
    if last.is_empty() {
        return Err(first);
    }
    let last = last.into_iter().rev().collect::<Vec<_>>().join("; ");
    Err(io::Error::new(first.kind(), format!("{first} (verifier: {last})")))
}

/// Runs a program on `count` live frames with the contents of `frame`, `batch` of them at a time; nanoseconds that it took.
pub(super) fn run_live(program: BorrowedFd<'_>, frame: &[u8], count: u32, batch: u32) -> io::Result<u64> {
    let mut attribute = ProgramRun {
        prog_fd: program.as_raw_fd() as u32,
        data_size_in: frame.len() as u32,
        data_in: frame.as_ptr() as u64,
        repeat: count,
        flags: BPF_F_TEST_XDP_LIVE_FRAMES,
        batch_size: batch,
        ..ProgramRun::default()
    };
    // SAFETY: data_in leads to data_size_in live bytes, which the kernel copies; no other address is given.
    unsafe { call(BPF_PROG_RUN, &mut attribute) }?;
    // The kernel tells the time of one frame, on average.
    Ok(u64::from(attribute.duration) * u64::from(count))
}

/// Attaches an XDP program to a device by a link: the program goes when the last descriptor of the link is closed, so
/// also when the process is killed.
pub(super) fn create_xdp_link(program: BorrowedFd<'_>, ifindex: u32, flag: AttachFlag) -> io::Result<OwnedFd> {
    let mut attribute = LinkCreate {
        prog_fd: program.as_raw_fd() as u32,
        target_ifindex: ifindex,
        attach_type: BPF_ATTACH_TYPE_XDP,
        flags: flag as u32,
    };
    // SAFETY: the attribute holds no addresses; a non-negative result is a new descriptor.
    unsafe { call(BPF_LINK_CREATE, &mut attribute).map(|fd| own(fd)) }
}

/// Name of the loaded program with this id.
pub(super) fn program_info(id: u32) -> io::Result<ProgramInfo> {
    let mut by_id = ObjectId { id, ..ObjectId::default() };
    // SAFETY: the attribute holds no addresses; a non-negative result is a new descriptor.
    let program = unsafe { call(BPF_PROG_GET_FD_BY_ID, &mut by_id).map(|fd| own(fd)) }?;
    let info: RawProgramInfo = object_info(&program)?;
    let length = info.name.iter().position(|&byte| byte == 0).unwrap_or(NAME_BYTES);
    Ok(ProgramInfo { name: String::from_utf8_lossy(&info.name[..length]).into_owned() })
}

/// The XDP link that some process holds on a device of this network namespace, if one does.
pub(super) fn find_xdp_link(ifindex: u32, program_id: u32) -> Option<XdpLink> {
    let mut id = 0;
    loop {
        let mut next = ObjectId { id, ..ObjectId::default() };
        // SAFETY: the attribute holds no addresses; the kernel writes next_id within it.
        unsafe { call(BPF_LINK_GET_NEXT_ID, &mut next) }.ok()?;
        id = next.next_id;
        let mut by_id = ObjectId { id, ..ObjectId::default() };
        // SAFETY: the attribute holds no addresses; a non-negative result is a new descriptor.
        let Ok(link) = (unsafe { call(BPF_LINK_GET_FD_BY_ID, &mut by_id).map(|fd| own(fd)) }) else { continue };
        let Ok(info) = object_info::<RawLinkInfo>(&link) else { continue };
        if info.link_type == BPF_LINK_TYPE_XDP && info.xdp_ifindex == ifindex && info.prog_id == program_id {
            return Some(XdpLink { id: info.id, program_id: info.prog_id });
        }
    }
}

/// `T` is the front of the object's info structure: plain integers, for which any bytes are a value.
fn object_info<T: Default>(object: &OwnedFd) -> io::Result<T> {
    let mut info = T::default();
    let mut attribute =
        ObjectInfo { bpf_fd: object.as_raw_fd() as u32, info_len: size_of::<T>() as u32, info: (&raw mut info) as u64 };
    // SAFETY: info is size_of::<T>() live, writable bytes, the length given.
    unsafe { call(BPF_OBJ_GET_INFO_BY_FD, &mut attribute) }?;
    Ok(info)
}
