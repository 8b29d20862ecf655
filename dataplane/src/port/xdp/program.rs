//! The redirect program: sends each frame of a device to the socket of its receive queue, and drops what has none.
//!
//! What: six instructions over an XSKMAP, loaded through bpf(2) and attached by a BPF link. Why a link: the kernel takes the
//! program off when the descriptor is closed, also after kill -9, so nothing of ours is ever left on a device. Native
//! mode first; generic only where the driver refuses, and then with the reason. Owner thread: the control thread; the
//! [`Redirect`] lives as long as the port.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use thiserror::Error;

use super::bpf::{self, AttachFlag, Instruction};
use super::device::{self, AttachedMode, Device};

/// Name of our program and map, by which a leftover is recognised (at most 15 characters).
pub const PROGRAM_NAME: &str = "ferrule_xsk";
/// How long a device may stay busy after another owner left it, before attaching gives up.
const BUSY_PATIENCE: Duration = Duration::from_secs(1);
const BUSY_PAUSE: Duration = Duration::from_millis(5);

/// What becomes of frames whose queue has no socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unclaimed {
    /// Dropped (XDP_DROP): closed when in doubt.
    #[default]
    Drop,
    /// Left to the kernel (XDP_PASS).
    Pass,
}

/// Where the program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver, before the kernel makes an skb.
    Native,
    /// In the stack, after the skb was made: works with every driver, slower, and the device's offloads (merged frames)
    /// stay on.
    Generic,
}

impl fmt::Display for XdpMode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            XdpMode::Native => "native",
            XdpMode::Generic => "generic",
        })
    }
}

/// Which mode to attach in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ModeChoice {
    /// Native, and generic where the driver refuses.
    #[default]
    Auto,
    /// Native or an error.
    Native,
    /// Generic.
    Generic,
}

/// Why the program could not be put on a device.
#[derive(Debug, Error)]
pub enum AttachError {
    /// Another program is there.
    #[error(
        "{device}: XDP program {id} ({name:?}, {mode:?}) is already attached{holder}; {remedy}",
        holder = link.map_or(String::new(), |link| format!(", held by BPF link {link} of a running process")),
        remedy = match link {
            Some(_) => "stop that process (its program goes with it), or use driver \"packet\" here".to_string(),
            None => format!("take it off with `ip link set dev {device} xdp off`, or use driver \"packet\" here"),
        }
    )]
    Occupied {
        /// Device name.
        device: String,
        /// The program's number.
        id: u32,
        /// The program's name.
        name: String,
        /// Where it runs.
        mode: AttachedMode,
        /// The BPF link that holds it, if one does.
        link: Option<u32>,
    },
    /// A call failed.
    #[error("{device}: cannot {doing}: {source}{hint}", hint = hint(source))]
    System {
        /// Device name.
        device: String,
        /// What was being done.
        doing: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The driver refused native mode, and the configuration asked for it.
    #[error("{device}: the driver refused a native XDP program: {source}; use mode \"generic\" or driver \"packet\"")]
    NoNative {
        /// Device name.
        device: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// Both modes were refused.
    #[error(
        "{device}: refused an XDP program in native mode ({native}) and in generic mode ({generic}); use driver \"packet\""
    )]
    NoMode {
        /// Device name.
        device: String,
        /// Why not native.
        native: io::Error,
        /// Why not generic.
        generic: io::Error,
    },
}

fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM) => " (needs CAP_NET_ADMIN and CAP_BPF: run as root or grant them)",
        Some(libc::ENOSYS) => " (the kernel is built without bpf(2): use driver \"packet\")",
        Some(libc::EINVAL) => " (needs Linux 5.9 or later)",
        _ => "",
    }
}

/// A redirect program on a device, with its map. Dropping it takes the program off.
#[derive(Debug)]
pub struct Redirect {
    pub(super) map: OwnedFd,
    pub(super) link: OwnedFd,
    pub(super) mode: XdpMode,
    pub(super) fallback: Option<String>,
    pub(super) fragments: bool,
    pub(super) replaced: Option<u32>,
}

impl Redirect {
    /// Puts the program on `device`, with a map of `queues` entries, all empty: until [`claim_in`] every frame gets
    /// `unclaimed`. `fragments` declares that frames may come in several buffers (needed above an MTU of about 3500).
    ///
    /// # Errors
    /// [`AttachError`]; nothing is left on the device then.
    pub fn attach(
        device: &Device,
        queues: u32,
        choice: ModeChoice,
        unclaimed: Unclaimed,
        fragments: Fragments,
    ) -> Result<Self, AttachError> {
        let failed = |doing| {
            let device = device.name.clone();
            move |source| AttachError::System { device, doing, source }
        };
        let replaced = clear_leftover(device)?;
        let map = bpf::create_xskmap(PROGRAM_NAME, queues.max(1)).map_err(failed("make the map of queue sockets"))?;
        let fragments = fragments == Fragments::Yes;
        let program = bpf::load_program(PROGRAM_NAME, &instructions(map.as_fd(), unclaimed), fragments)
            .map_err(failed("load the redirect program"))?;
        let native = match choice {
            ModeChoice::Generic => None,
            ModeChoice::Auto | ModeChoice::Native => Some(link(&program, device.ifindex, AttachFlag::Native)),
        };
        let (link, mode, fallback) = match (native, choice) {
            (Some(Ok(link)), _) => (link, XdpMode::Native, None),
            (Some(Err(source)), _) if is_occupied(&source) => return Err(occupied(device, source)),
            (Some(Err(source)), ModeChoice::Native) => {
                return Err(AttachError::NoNative { device: device.name.clone(), source });
            }
            (native, _) => {
                let native = native.and_then(Result::err);
                match (link_or_occupied(&program, device, AttachFlag::Generic)?, native) {
                    (Ok(link), native) => (link, XdpMode::Generic, native.map(|error| error.to_string())),
                    (Err(generic), Some(native)) => {
                        return Err(AttachError::NoMode { device: device.name.clone(), native, generic });
                    }
                    (Err(source), None) => return Err(failed("attach the redirect program")(source)),
                }
            }
        };
        // The link keeps the program, and the program its map.
        Ok(Self { map, link, mode, fallback, fragments, replaced })
    }

    /// The map of queue sockets, for [`claim_in`] by somebody else.
    pub fn map(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }

    /// Frames of `queue` get the `unclaimed` action again.
    ///
    /// # Errors
    /// `ENOENT` when no socket had it.
    pub fn release(&self, queue: u32) -> io::Result<()> {
        bpf::clear_map_socket(self.map.as_fd(), queue)
    }

    /// Where the program runs.
    pub fn mode(&self) -> XdpMode {
        self.mode
    }

    /// Why it is not native, when native was tried.
    pub fn fallback(&self) -> Option<&str> {
        self.fallback.as_deref()
    }

    /// Whether frames in several buffers are accepted.
    pub fn fragments(&self) -> bool {
        self.fragments
    }

    /// Number of a leftover program of ours that was taken off first.
    pub fn replaced(&self) -> Option<u32> {
        self.replaced
    }
}

/// Whether the program accepts frames in several buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fragments {
    /// It does (`xdp.frags`).
    Yes,
    /// One buffer holds the whole frame; drivers then refuse larger MTUs.
    No,
}

/// Makes the frames of `queue` go to `socket`. Whoever has the map's descriptor may do it from kernel 5.19 on; before, bpf(2) may
/// want CAP_BPF for it (`kernel.unprivileged_bpf_disabled`).
///
/// # Errors
/// `E2BIG` for a queue past the map, `EOPNOTSUPP` for a socket without receive ring, others for descriptors of something else.
pub fn claim_in(map: BorrowedFd<'_>, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
    bpf::set_map_socket(map, queue, socket)
}

/// `return bpf_redirect_map(&map, ctx->rx_queue_index, unclaimed)`: the low bits of the last argument are the action for a
/// key without a socket (kernel 5.3).
fn instructions(map: BorrowedFd<'_>, unclaimed: Unclaimed) -> [Instruction; 6] {
    use std::os::fd::AsRawFd;
    const LOAD_WORD: u8 = 0x61; // BPF_LDX | BPF_W | BPF_MEM
    const LOAD_64: u8 = 0x18; // BPF_LD | BPF_DW | BPF_IMM, two slots
    const MOVE: u8 = 0xb7; // BPF_ALU64 | BPF_MOV | BPF_K
    const CALL: u8 = 0x85; // BPF_JMP | BPF_CALL
    const EXIT: u8 = 0x95; // BPF_JMP | BPF_EXIT
    const PSEUDO_MAP_FD: u8 = 1;
    const REDIRECT_MAP: i32 = 51;
    const RX_QUEUE_INDEX: i16 = 16; // offset in struct xdp_md
    let registers = |destination: u8, source: u8| source << 4 | destination;
    let action = match unclaimed {
        Unclaimed::Drop => 1,
        Unclaimed::Pass => 2,
    };
    let plain = Instruction { code: 0, registers: 0, offset: 0, immediate: 0 };
    [
        Instruction { code: LOAD_WORD, registers: registers(2, 1), offset: RX_QUEUE_INDEX, ..plain },
        Instruction { code: LOAD_64, registers: registers(1, PSEUDO_MAP_FD), immediate: map.as_raw_fd(), ..plain },
        plain,
        Instruction { code: MOVE, registers: registers(3, 0), immediate: action, ..plain },
        Instruction { code: CALL, immediate: REDIRECT_MAP, ..plain },
        Instruction { code: EXIT, ..plain },
    ]
}

/// Takes a leftover of ours off the device. Ours is what bears our name and no link holds: a link's program is somebody's
/// who runs (our own links leave no leftovers).
fn clear_leftover(device: &Device) -> Result<Option<u32>, AttachError> {
    let failed = |source| AttachError::System { device: device.name.clone(), doing: "look at its XDP program", source };
    let started = Instant::now();
    loop {
        let now = match Device::by_index(device.ifindex) {
            Ok(now) => now,
            Err(source) => return Err(failed(source)),
        };
        let Some(program) = now.program else { return Ok(None) };
        let info = bpf::program_info(program.id);
        // Gone since the device was looked at: its process is just ending.
        let vanished = matches!(&info, Err(error) if error.raw_os_error() == Some(libc::ENOENT));
        let name = info.map(|info| info.name).unwrap_or_default();
        let link = bpf::find_xdp_link(device.ifindex, program.id).map(|link| link.id);
        if name == PROGRAM_NAME && link.is_none() {
            match device::detach_program(device.ifindex, program.mode) {
                Ok(()) => return Ok(Some(program.id)),
                Err(source) if source.raw_os_error() != Some(libc::EBUSY) => return Err(failed(source)),
                Err(_) => {}
            }
        }
        // A process that is just ending lets go within some milliseconds, so a program of ours is waited for.
        if !(vanished || name == PROGRAM_NAME) || started.elapsed() > BUSY_PATIENCE {
            return Err(AttachError::Occupied {
                device: device.name.clone(),
                id: program.id,
                name,
                mode: program.mode,
                link,
            });
        }
        std::thread::sleep(BUSY_PAUSE);
    }
}

fn link(program: &OwnedFd, ifindex: u32, flag: AttachFlag) -> io::Result<OwnedFd> {
    bpf::create_xdp_link(program.as_fd(), ifindex, flag)
}

fn link_or_occupied(program: &OwnedFd, device: &Device, flag: AttachFlag) -> Result<io::Result<OwnedFd>, AttachError> {
    match link(program, device.ifindex, flag) {
        Err(source) if is_occupied(&source) => Err(occupied(device, source)),
        other => Ok(other),
    }
}

/// Somebody attached a program between our look and our attempt.
fn is_occupied(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST))
}

fn occupied(device: &Device, source: io::Error) -> AttachError {
    let program = Device::by_index(device.ifindex).ok().and_then(|now| now.program);
    match program {
        Some(program) => AttachError::Occupied {
            device: device.name.clone(),
            id: program.id,
            name: bpf::program_info(program.id).map(|info| info.name).unwrap_or_default(),
            mode: program.mode,
            link: bpf::find_xdp_link(device.ifindex, program.id).map(|link| link.id),
        },
        None => AttachError::System { device: device.name.clone(), doing: "attach the redirect program", source },
    }
}
