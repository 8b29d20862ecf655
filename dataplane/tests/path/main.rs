//! The whole path over memory ports, seen from outside: frames go in at one port and what comes out is compared byte for byte. Every
//! test ends in `check`, which asserts the exact balance of packets and buffers.

mod common;
mod differential;
mod forwarding;
mod host;
mod hostile;
mod length;
mod links;
mod neighbors;
mod reasons;
mod stages;
mod standalone;
mod trouble;
mod workers;
