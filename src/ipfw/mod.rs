//! The ipfw stage as the program sees it: the user's script, run with every firewall command gathered into one rule set.
//!
//! - [`script`] runs the script with a private directory first in its PATH; the programs in it are this one under other names.
//! - [`shim`] is such a program: it hands its arguments to the runner over a socket and prints the answer ([`call`]).
//! - [`session`] is what the runner answers from.
//! - [`firewall`] is the rule set in force; [`command`] is `ferrule ipfw`, which asks the daemon that has it.
//! - [`logging`] writes what `log` rules met.
//! - [`locate`] finds the line of the script that a command came from.

pub mod call;
pub mod command;
pub mod firewall;
pub mod locate;
pub mod logging;
pub mod script;
pub mod session;
pub mod shim;
pub mod sysctl;
