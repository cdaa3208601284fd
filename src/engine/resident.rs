//! What the process takes of the machine's memory.

/// Bytes of the process that are in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// What it holds itself.
    pub own: u64,
    /// Of the files that it has mapped: the weights. The system takes these back when it needs room.
    pub mapped: u64,
}

impl Resident {
    /// As it is now; nothing where the system doesn't say.
    pub fn now() -> Option<Resident> {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let bytes = |name: &str| {
            let line = status.lines().find_map(|l| l.strip_prefix(name))?;
            let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
            Some(kilobytes * 1024)
        };
        Some(Resident { own: bytes("RssAnon:")?, mapped: bytes("RssFile:")? })
    }
}

#[cfg(test)]
mod tests {
    use super::Resident;

    #[test]
    fn the_process_has_some_memory() {
        let now = Resident::now().unwrap();
        assert!(now.own > 100_000 && now.mapped > 100_000, "{now:?}");
    }
}
