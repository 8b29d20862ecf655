//! The machine that is measured on: its core to run on, and what a reader of the figures must know of it.

#![forbid(unsafe_code)]

use std::fs;

use core_affinity::CoreId;

use crate::failure::Failure;
use crate::log;

/// Cores that the calling thread may run on, in their order.
pub fn cores() -> Vec<usize> {
    let mut cores: Vec<usize> = core_affinity::get_core_ids().unwrap_or_default().iter().map(|core| core.id).collect();
    cores.sort_unstable();
    cores
}

/// Pins the calling thread to a core; what was its own before does not matter, since a thread inherits that from the one that made it.
///
/// # Errors
/// [`Failure::Input`] when the core is not there, or the machine's administrator keeps it from us.
pub fn pin_to(id: usize) -> Result<(), Failure> {
    // A number past the kernel's set would panic in it. Of those within, the kernel silently leaves out cores that do not
    // exist, so that only looking tells.
    let in_set = id < libc::CPU_SETSIZE as usize;
    if in_set && core_affinity::set_for_current(CoreId { id }) && cores() == [id] {
        return Ok(());
    }
    Err(Failure::input(format!("core {id} is not there or not ours")))
}

/// Pins the calling thread to `core`, or to the last core there is: interrupts and everything else crowd on the first. None where
/// none was asked for and the machine refuses.
///
/// # Errors
/// [`Failure::Input`] when the core asked for is not there or not ours; it names those that are.
pub fn pin(core: Option<usize>) -> Result<Option<usize>, Failure> {
    let cores = cores();
    let Some(id) = core.or_else(|| cores.last().copied()) else {
        log::warning("cannot tell which cores there are: not pinned, the figures scatter");
        return Ok(None);
    };
    match pin_to(id) {
        Ok(()) => Ok(Some(id)),
        Err(failure) if core.is_none() => {
            log::warning(format!("{failure}: not pinned, the figures scatter"));
            Ok(None)
        }
        Err(failure) => {
            let list: Vec<String> = cores.iter().map(usize::to_string).collect();
            Err(Failure::input(format!("--core: {failure}; this process may run on: {}", list.join(", "))))
        }
    }
}

/// The processor's name, as the kernel tells it.
pub fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name =
        text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':').map(|(_, name)| name.trim()));
    name.unwrap_or(std::env::consts::ARCH).to_owned()
}

/// Kernel release.
pub fn kernel() -> String {
    read("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown kernel".to_owned())
}

/// Frequency governor of a core; None where the machine (a virtual one, mostly) does not show it.
pub fn governor(core: usize) -> Option<String> {
    read(&format!("/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor"))
}

/// Caches of a core as the kernel lists them, such as `L1d 32K, L2 1024K, L3 32768K`.
pub fn caches(core: usize) -> String {
    let level = |index: usize| {
        let of = |what: &str| read(&format!("/sys/devices/system/cpu/cpu{core}/cache/index{index}/{what}"));
        let kind = match of("type")?.as_str() {
            "Data" => "d",
            "Unified" => "",
            _ => return None,
        };
        Some(format!("L{}{kind} {}", of("level")?, of("size")?))
    };
    let levels: Vec<String> = (0..5).filter_map(level).collect();
    if levels.is_empty() { "not told".to_owned() } else { levels.join(", ") }
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_that_is_not_there_is_refused_with_those_that_are() {
        let error = pin(Some(99_999)).unwrap_err();
        assert!(matches!(error, Failure::Input(_)) && error.to_string().contains("may run on: "), "{error}");
    }

    #[test]
    fn a_pinned_thread_stays_on_its_core() {
        std::thread::spawn(|| {
            let core = pin(None).unwrap().expect("this machine tells its cores");
            assert_eq!(cores(), [core]);
        })
        .join()
        .unwrap();
    }
}
