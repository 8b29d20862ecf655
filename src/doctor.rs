//! `ferrule doctor`: the host and its devices as findings, for the running gateway or before a start.

#![forbid(unsafe_code)]

use ferrule_config::gateway::{Driver, Gateway};

use crate::failure::Failure;
use crate::kernel::doctor::{Problem, Report, examine};
use crate::snapshot::{Finding, Severity};

/// Looks at the host and at every device that the configuration names.
///
/// # Errors
/// [`Failure::Input`] for a device that does not exist, [`Failure::Runtime`] when the kernel does not answer.
pub fn before_start(gateway: &Gateway) -> Result<Vec<Finding>, Failure> {
    // A TAP is made when there is none, so it need not exist.
    let named = gateway.ports.iter().filter(|p| !matches!(p.driver.value, Driver::Tap { .. }));
    let devices = named.filter_map(|p| p.driver.value.device()).map(|d| d.value.as_str());
    let there = crate::daemon::supervise::interfaces();
    let names: Vec<String> = devices.map(|device| nic_of(device, gateway.is_standalone(), &there)).collect();
    let cores: Vec<usize> = gateway.engine.cores.iter().map(|c| usize::from(c.value)).collect();
    let report = examine(&names, &cores).map_err(|e| Failure::input(e.to_string()))?;
    Ok(findings(&report))
}

/// The NIC behind a device of the file: while a gateway runs, and after a closed end, it has another name.
fn nic_of(device: &str, standalone: bool, there: &[String]) -> String {
    let renamed = crate::kernel::nic_name(device);
    if !standalone && there.contains(&renamed) { renamed } else { device.to_owned() }
}

/// Looks at devices and the host for workers on these cores; what keeps it from looking is a finding itself.
pub fn host(devices: &[String], cores: &[usize]) -> Vec<Finding> {
    match examine(devices, cores) {
        Ok(report) => findings(&report),
        Err(error) => {
            let (severity, subject) = (Severity::Error, "host".to_owned());
            vec![Finding { severity, subject, text: error.to_string(), mend: None }]
        }
    }
}

/// A report as findings: the facts, then what is to be mended.
pub fn findings(report: &Report) -> Vec<Finding> {
    let fact = |text: String| Finding { severity: Severity::Ok, subject: "facts".to_owned(), text, mend: None };
    let mut all: Vec<Finding> = report.facts().into_iter().map(fact).collect();
    all.extend(report.problems.iter().map(problem));
    all
}

/// Without these the gateway does not start; the rest costs speed or surprises.
fn problem(p: &Problem) -> Finding {
    let fatal = ["cap_net_admin", "cap_net_raw", "/dev/net/tun"].iter().any(|needed| p.what.contains(needed));
    Finding {
        severity: if fatal { Severity::Error } else { Severity::Warning },
        subject: p.subject.clone(),
        text: p.what.clone(),
        mend: Some(p.mend.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_device_is_named_with_those_there_are() {
        let gateway = ferrule_config::gateway::parse("[[port]]\nname = \"wan\"\ndevice = \"nosuch0\"\n").unwrap();
        let Err(Failure::Input(text)) = before_start(&gateway) else { panic!("found it") };
        assert!(text.contains("nosuch0") && text.contains("lo"), "{text}");
    }

    #[test]
    fn on_a_box_where_it_runs_the_nic_is_looked_at_and_not_the_tap() {
        let there = ["lo", "eth0", "eth0.phy", "eth1"].map(str::to_owned);
        let nics = ["eth0", "eth1"].map(|device| nic_of(device, false, &there));
        assert_eq!(nics, ["eth0.phy", "eth1"]);
        assert_eq!(nic_of("eth0", true, &there), "eth0");
    }

    #[test]
    fn problems_come_with_what_to_type() {
        let p =
            |what: &str| Problem { subject: "eth0".into(), what: what.into(), mend: "ethtool -K eth0 gro off".into() };
        let f = problem(&p("generic-receive-offload is on"));
        assert_eq!((f.severity, f.mend.as_deref()), (Severity::Warning, Some("ethtool -K eth0 gro off")));
        assert_eq!(problem(&p("the capability cap_net_raw is missing")).severity, Severity::Error);
    }
}
