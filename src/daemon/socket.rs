//! The socket: from systemd, or the daemon's own.

use std::fs::{DirBuilder, File, Permissions};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use listenfd::ListenFd;
use rustix::fs::{FlockOperation, flock};

/// A socket that listens. The daemon's own is removed with it.
pub(super) struct Socket {
    listener: Option<UnixListener>,
    own: Option<Own>,
}

struct Own {
    path: PathBuf,
    /// Locked for as long as this is the daemon of the socket.
    _lock: File,
}

impl Socket {
    /// The socket that systemd has handed over, or else one at `path`.
    ///
    /// A socket of which nobody answers any more is replaced.
    pub(super) fn open(mut handed: ListenFd, path: &Path, user: bool) -> Result<Socket, String> {
        if handed.len() > 1 {
            return Err("systemd hands over several sockets: one ListenStream= is enough".into());
        }
        let taken = handed.take_unix_listener(0);
        let taken = taken.map_err(|e| format!("systemd hands over no listening Unix socket: {e}"))?;
        if let Some(listener) = taken {
            log::info!("listening on systemd's socket");
            return Ok(Socket { listener: Some(listener), own: None });
        }
        let (listener, own) = own(path, user).map_err(|why| format!("{}: {why}", path.display()))?;
        log::info!("listening on {}", path.display());
        Ok(Socket { listener: Some(listener), own: Some(own) })
    }

    /// The listener, once.
    pub(super) fn take(&mut self) -> Option<UnixListener> {
        self.listener.take()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(own) = &self.own {
            let _ = std::fs::remove_file(&own.path); // a socket that is left is replaced at the next start
        }
    }
}

fn own(path: &Path, user: bool) -> Result<(UnixListener, Own), String> {
    let said = |e: std::io::Error| e.to_string();
    let folder = path.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        let mode = if user { 0o700 } else { 0o755 };
        DirBuilder::new().recursive(true).mode(mode).create(folder).map_err(said)?;
    }
    let mut lock = path.as_os_str().to_owned();
    lock.push(".lock");
    let lock = File::options().create(true).truncate(false).write(true).open(lock).map_err(said)?;
    let running = "another kadenced listens here: stop it, or choose another place with --socket PATH";
    flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| running)?;
    if let Ok(found) = path.symlink_metadata() {
        if !found.file_type().is_socket() {
            return Err("there is something that isn't a socket: remove it, or choose another place".into());
        }
        if UnixStream::connect(path).is_ok() {
            return Err(running.into());
        }
        std::fs::remove_file(path).map_err(said)?;
    }
    let listener = UnixListener::bind(path).map_err(said)?;
    // Everybody may ask the system's daemon: it knows who asks. A user's is the user's alone.
    let mode = if user { 0o600 } else { 0o666 };
    std::fs::set_permissions(path, Permissions::from_mode(mode)).map_err(said)?;
    Ok((listener, Own { path: path.to_owned(), _lock: lock }))
}
