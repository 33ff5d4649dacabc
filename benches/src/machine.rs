//! The machine the load came from, as figures have to be read with it.

use crate::process::parse_kib;
use serde::{Deserialize, Serialize};
use std::fs;

/// A machine and the program that measured on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Machine {
    /// Model of the processor.
    pub(crate) cpu: String,
    /// Cores this process may use.
    pub(crate) cores: usize,
    pub(crate) memory_bytes: u64,
    /// Kernel and its release.
    pub(crate) kernel: String,
    /// This program, its version, and how it was compiled.
    pub(crate) build: String,
}

impl Machine {
    /// This one.
    pub(crate) fn this() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let kernel = format!(
            "{} {}",
            read("/proc/sys/kernel/ostype").trim(),
            read("/proc/sys/kernel/osrelease").trim()
        );
        Self {
            cpu: cpu_model(&read("/proc/cpuinfo")).unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_bytes: parse_kib(&read("/proc/meminfo"), "MemTotal:").unwrap_or(0),
            kernel,
            build: format!(
                "drover {}, {} build",
                env!("CARGO_PKG_VERSION"),
                if cfg!(debug_assertions) {
                    "debug"
                } else {
                    "release"
                }
            ),
        }
    }

    /// In one line.
    pub(crate) fn line(&self) -> String {
        format!(
            "{} cores of {}, {:.0} GiB, {}, {}",
            self.cores,
            self.cpu,
            self.memory_bytes as f64 / (1u64 << 30) as f64,
            self.kernel,
            self.build
        )
    }
}

/// ARM kernels name no model.
fn cpu_model(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    let model = line.split_once(':')?.1;
    Some(model.split_whitespace().collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_what_the_kernel_writes() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Intel(R)  Xeon(R) Processor\nstepping\t: 8\n";
        assert_eq!(cpu_model(cpuinfo).as_deref(), Some("Intel(R) Xeon(R) Processor"));
        assert_eq!(cpu_model("processor\t: 0\n"), None);
        assert_eq!(
            parse_kib("MemTotal:       24609224 kB\nMemFree: 1 kB\n", "MemTotal:"),
            Some(24_609_224 << 10)
        );
        let this = Machine::this();
        assert!(this.cores > 0 && this.memory_bytes > 1 << 20 && this.kernel.starts_with("Linux"));
        assert!(this.line().contains(env!("CARGO_PKG_VERSION")));
    }
}
