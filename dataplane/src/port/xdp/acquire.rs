//! What of opening a port needs privilege: the program on the device, and the sockets. The rest does not, so that a small
//! privileged helper can do this and pass the descriptors (SCM_RIGHTS) to a daemon that has dropped its own.
//!
//! Needed here: CAP_NET_RAW (sockets), CAP_NET_ADMIN and CAP_BPF (program). Owner thread: the control thread, or the helper.

#![forbid(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::device::Device;
use super::port::{XdpConfig, XdpError};
use super::program::{Redirect, XdpMode};
use super::sys::XskSocket;

/// Attempts in other modes that may use up a socket each: without zero-copy, and without fragments.
const SPARE_SOCKETS: u32 = 2;
/// First field of the message: its layout.
const MESSAGE_VERSION: &str = "ferrule-xdp-1";

/// A device with the redirect program on it (its map still empty), and unbound sockets for its queues.
#[derive(Debug)]
pub struct Acquired {
    pub(super) device: Device,
    pub(super) redirect: Redirect,
    pub(super) sockets: Vec<XskSocket>,
}

impl Acquired {
    /// Attaches the program and opens the sockets, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// [`XdpError`]; nothing is left behind.
    pub fn acquire(config: &XdpConfig) -> Result<Self, XdpError> {
        let device = Device::by_name(&config.device)
            .map_err(|source| XdpError::Device { device: config.device.clone(), source })?;
        let (receive, transmit) = (device.receive_queues, device.transmit_queues);
        if receive > transmit {
            return Err(XdpError::UnequalQueues { device: device.name, receive, transmit });
        }
        let redirect = Redirect::attach(&device, receive, config.mode, config.unclaimed, config.fragments)?;
        let sockets = (0..receive + SPARE_SOCKETS)
            .map(|queue| {
                let failed = |source| {
                    let device = device.name.clone();
                    XdpError::Queue { device, queue, doing: "open an AF_XDP socket", source }
                };
                XskSocket::open().map_err(failed)
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { device, redirect, sockets })
    }

    /// Text and descriptors to send to the daemon, in this order.
    pub fn to_message(&self) -> (String, Vec<BorrowedFd<'_>>) {
        let Redirect { map, link, mode, fallback, fragments, replaced } = &self.redirect;
        let fallback = fallback.as_deref().unwrap_or_default().replace('\n', " ");
        let text = format!(
            "{MESSAGE_VERSION}\n{}\n{mode}\n{fragments}\n{}\n{fallback}\n",
            self.device.ifindex,
            replaced.map_or(String::new(), |id| id.to_string()),
        );
        let mut descriptors = vec![map.as_fd(), link.as_fd()];
        descriptors.extend(self.sockets.iter().map(AsFd::as_fd));
        (text, descriptors)
    }

    /// [`Acquired::to_message`] with descriptors of the message's own, so that nothing of the port stays here.
    ///
    /// # Errors
    /// When descriptors run out.
    pub fn into_message(self) -> io::Result<(String, Vec<OwnedFd>)> {
        let (text, descriptors) = self.to_message();
        let descriptors = descriptors.iter().map(BorrowedFd::try_clone_to_owned).collect::<io::Result<_>>()?;
        Ok((text, descriptors))
    }

    /// The other end of [`Acquired::to_message`]: the daemon trusts its helper for the descriptors' kinds.
    ///
    /// # Errors
    /// When the text is not of this version or descriptors are missing, or when the device has gone meanwhile.
    pub fn from_message(text: &str, descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let malformed =
            || io::Error::new(io::ErrorKind::InvalidData, "the helper's message about an XDP port is malformed");
        let fields: Vec<_> = text.split_terminator('\n').collect();
        let [MESSAGE_VERSION, ifindex, mode, fragments, replaced, fallback] = fields[..] else {
            return Err(malformed());
        };
        let mode = match mode {
            "native" => XdpMode::Native,
            "generic" => XdpMode::Generic,
            _ => return Err(malformed()),
        };
        let replaced = match replaced {
            "" => None,
            id => Some(id.parse().map_err(|_| malformed())?),
        };
        let mut descriptors = descriptors.into_iter();
        let (Some(map), Some(link)) = (descriptors.next(), descriptors.next()) else { return Err(malformed()) };
        let redirect = Redirect {
            map,
            link,
            mode,
            fallback: (!fallback.is_empty()).then(|| fallback.to_string()),
            fragments: fragments.parse().map_err(|_| malformed())?,
            replaced,
        };
        let device = Device::by_index(ifindex.parse().map_err(|_| malformed())?)?;
        Ok(Self { device, redirect, sockets: descriptors.map(XskSocket::from_fd).collect() })
    }
}
