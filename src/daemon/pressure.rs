//! Memory pressure, as systemd tells of it: `MEMORY_PRESSURE_WATCH` is a pressure file of the kernel (PSI), or a pipe or
//! socket, and `MEMORY_PRESSURE_WRITE` is what has to be written there first.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rustix::event::{PollFd, PollFlags, poll};
use tokio::sync::mpsc;

/// Tells whenever memory is short; nothing without what systemd names, or if it can't be watched. A thread waits for it:
/// the runtime can't wait for a pressure file without unsafe code.
pub(super) fn watch() -> Option<mpsc::Receiver<()>> {
    let path = std::env::var_os("MEMORY_PRESSURE_WATCH").filter(|p| p != "/dev/null")?;
    let first = std::env::var_os("MEMORY_PRESSURE_WRITE");
    let (tell, told) = mpsc::channel(1);
    let started = open(Path::new(&path), first).and_then(|(file, flags)| {
        std::thread::Builder::new().name("pressure".into()).spawn(move || follow(file, flags, &tell))
    });
    match started {
        Ok(_) => Some(told),
        Err(why) => {
            log::warn!("memory pressure can't be watched: {why}");
            None
        }
    }
}

/// The source, and what it signals with.
fn open(path: &Path, first: Option<OsString>) -> std::io::Result<(File, PollFlags)> {
    let kind = std::fs::metadata(path)?.file_type();
    let mut file = if kind.is_socket() {
        File::from(OwnedFd::from(UnixStream::connect(path)?))
    } else {
        File::options().read(true).write(true).open(path)?
    };
    if let Some(text) = first {
        let bytes = BASE64_STANDARD.decode(text.as_encoded_bytes()).map_err(std::io::Error::other)?;
        file.write_all(&bytes)?;
    }
    rustix::io::ioctl_fionbio(&file, true)?;
    Ok((file, if kind.is_file() { PollFlags::PRI } else { PollFlags::IN }))
}

fn follow(mut file: File, flags: PollFlags, tell: &mpsc::Sender<()>) {
    loop {
        let mut wanted = [PollFd::new(&file, flags)];
        match poll(&mut wanted, None) {
            Err(rustix::io::Errno::INTR) => continue,
            Err(why) => return log::warn!("memory pressure isn't watched any more: {why}"),
            Ok(_) if !wanted[0].revents().contains(flags) => return, // the source is gone
            Ok(_) => {}
        }
        if flags == PollFlags::IN && !matches!(file.read(&mut [0; 512]), Ok(1..)) {
            return; // whoever told has gone
        }
        if matches!(tell.try_send(()), Err(mpsc::error::TrySendError::Closed(()))) {
            return;
        }
    }
}
