//! What the process takes of the machine's memory.

/// Bytes of anonymous memory: what the process itself holds, without the files that it has mapped.
pub fn anonymous() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_process_has_some_memory() {
        assert!(super::anonymous().unwrap() > 100_000);
    }
}
