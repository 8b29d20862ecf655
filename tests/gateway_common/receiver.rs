//! Datagrams counted by the socket that they are for.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use ferrule::lab::{Host, LabError};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;

/// A UDP socket of a host that counts datagrams by source port.
pub struct Receiver {
    thread: JoinHandle<Result<BTreeMap<u16, u32>, LabError>>,
    stop: Arc<AtomicBool>,
}

impl Receiver {
    /// Opens the socket and starts counting.
    pub fn start(host: &Host, address: IpAddr, port: u16) -> Receiver {
        let socket = host.enter(|| UdpSocket::bind((address, port))).unwrap().unwrap();
        // Room for all of them, however long this thread does not get a core: about 1 KiB each with the kernel's own.
        set_socket_recv_buffer_size_force(&socket, 64 << 20).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let end = stop.clone();
        let receive = move || {
            let (mut flows, mut buffer) = (BTreeMap::new(), [0; 2048]);
            loop {
                match socket.recv_from(&mut buffer) {
                    Ok((_, from)) => *flows.entry(from.port()).or_default() += 1,
                    // What was on its way when the sender ended is there by now.
                    Err(_) if end.load(Ordering::Acquire) => return flows,
                    Err(_) => {}
                }
            }
        };
        Receiver { thread: host.thread(receive).unwrap(), stop }
    }

    /// Datagrams by source port, once none comes any more.
    pub fn stop(self) -> BTreeMap<u16, u32> {
        self.stop.store(true, Ordering::Release);
        self.thread.join().unwrap().unwrap()
    }
}
