//! A TCP port, for programs that know no Unix socket: only if it is configured, only on this machine, and only with a
//! token.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Fewer characters could be guessed.
const SHORTEST: usize = 16;

/// Where to listen, and where the token is.
#[derive(Clone, Debug)]
pub struct Tcp {
    /// A loopback address.
    pub address: SocketAddr,
    /// The file with the token.
    pub token_file: PathBuf,
}

impl Tcp {
    /// What the configuration says.
    pub(super) fn settle(address: Option<&str>, token_file: Option<&Path>) -> Result<Option<Tcp>, String> {
        let (address, token_file) = match (address, token_file) {
            (None, None) => return Ok(None),
            (Some(address), Some(file)) => (address, file),
            _ => {
                return Err(
                    "configuration: tcp and tcp_token_file need each other: give both, or none".into()
                );
            }
        };
        let parsed: SocketAddr = address.parse().map_err(|_| {
            format!("configuration: tcp can't be {address:?}: give ADDRESS:PORT, as 127.0.0.1:8127")
        })?;
        let here = match parsed.ip() {
            IpAddr::V4(ip) => ip.is_loopback(),
            IpAddr::V6(ip) => ip.is_loopback(),
        };
        if !here {
            return Err(format!(
                "configuration: tcp can't be {address:?}: only this machine's 127.0.0.1 or [::1]"
            ));
        }
        Ok(Some(Tcp { address: parsed, token_file: token_file.into() }))
    }

    /// Listens. Returns the listener and the token.
    pub(super) fn open(&self) -> Result<(TcpListener, String), String> {
        let said = |e: &dyn std::fmt::Display| format!("{}: {e}", self.token_file.display());
        let mode = std::fs::metadata(&self.token_file).map_err(|e| said(&e))?.mode();
        if mode & 0o077 != 0 {
            return Err(said(&"others can read the token: chmod 600"));
        }
        let token = std::fs::read_to_string(&self.token_file).map_err(|e| said(&e))?;
        let token = token.trim().to_owned();
        if token.len() < SHORTEST || !token.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(said(&format!("the token has to be {SHORTEST} or more letters, digits and signs")));
        }
        let listener = TcpListener::bind(self.address).map_err(|e| format!("{}: {e}", self.address))?;
        let address = listener.local_addr().map_err(|e| format!("{}: {e}", self.address))?;
        log::info!("listening on {address}, with a token");
        Ok((listener, token))
    }
}
