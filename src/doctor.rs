//! `ferrule doctor`: facts of the host as findings.

#![forbid(unsafe_code)]

use crate::kernel::doctor;
use crate::snapshot::{Finding, Severity};

/// Examines devices and the host for workers on these cores.
pub fn host(devices: &[String], cores: &[usize]) -> Vec<Finding> {
    let report = match doctor::examine(devices, cores) {
        Ok(report) => report,
        Err(error) => {
            return vec![Finding {
                severity: Severity::Error,
                subject: "host".to_owned(),
                text: error.to_string(),
                mend: None,
            }];
        }
    };
    let facts = report.lines().into_iter().map(|text| Finding {
        severity: Severity::Ok,
        subject: "facts".to_owned(),
        text,
        mend: None,
    });
    let problems = report.problems.iter().map(|p| Finding {
        severity: Severity::Warning,
        subject: p.subject.clone(),
        text: p.what.clone(),
        mend: Some(p.mend.clone()),
    });
    facts.chain(problems).collect()
}
