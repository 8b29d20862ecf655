//! Which programs the lab calls, where they come from, and what to do when one is missing.
#![forbid(unsafe_code)]

use super::error::LabError;
use std::path::PathBuf;

/// Program and Debian package, for the messages.
const PACKAGES: &[(&str, &str)] = &[
    ("ip", "iproute2"),
    ("tc", "iproute2"),
    ("ss", "iproute2"),
    ("nstat", "iproute2"),
    ("ping", "iputils-ping"),
    ("traceroute", "traceroute"),
    ("iperf3", "iperf3"),
    ("nginx", "nginx-light"),
    ("curl", "curl"),
    ("bird", "bird2"),
    ("birdc", "bird2"),
    ("tcpdump", "tcpdump"),
    ("tshark", "tshark"),
    ("nft", "nftables"),
    ("socat", "socat"),
    ("arping", "arping"),
    ("conntrack", "conntrack"),
    ("nc", "netcat-openbsd"),
    ("ncat", "ncat"),
    ("dpdk-testpmd", "dpdk-dev"),
    ("ethtool", "ethtool"),
    ("sha256sum", "coreutils"),
];

/// The error for a program that is not there.
pub fn missing(tool: &str) -> LabError {
    let package = PACKAGES.iter().find(|(name, _)| *name == tool).map_or(tool, |(_, package)| package);
    LabError::MissingTool { tool: tool.to_string(), package: package.to_string() }
}

/// Where the program is: on the PATH, or in the system directories that a user's PATH often lacks.
///
/// # Errors
/// [`LabError::MissingTool`].
pub fn find(tool: &str) -> Result<PathBuf, LabError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let extra = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    let candidates = std::env::split_paths(&path).chain(extra).map(|directory| directory.join(tool));
    candidates.into_iter().find(|file| file.is_file()).ok_or_else(|| missing(tool))
}

/// The reason why a lab with these programs cannot run here (not root, or a program is missing); `None` if it can.
pub fn obstacle(tools: &[&str]) -> Option<LabError> {
    if !rustix::process::geteuid().is_root() {
        return Some(LabError::NotRoot);
    }
    ["ip"].iter().chain(tools).find_map(|tool| find(tool).err())
}

/// Whether a test may run: `true` to go on. Otherwise prints `skipped: why`; with `CI=true` it panics, because there a
/// skipped test would pass for a good one.
pub fn can_test(tools: &[&str]) -> bool {
    let Some(obstacle) = obstacle(tools) else { return true };
    assert!(std::env::var("CI").as_deref() != Ok("true"), "CI=true, and no test may be skipped: {obstacle}");
    println!("skipped: {obstacle}");
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_that_is_not_there_names_its_package() {
        assert_eq!(
            missing("ping").to_string(),
            "ping is not installed: install the package iputils-ping (apt install iputils-ping)"
        );
        assert!(find("no-such-tool-at-all").is_err());
        assert!(find("sh").unwrap().is_absolute());
    }
}
