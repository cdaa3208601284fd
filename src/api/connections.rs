//! Connections: who they are from, how many there may be, and how they end.

use std::collections::HashMap;
use std::os::unix::net::UnixListener as StdListener;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Extension;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{UnixListener, UnixStream};

use crate::engine::Engine;

use super::{Limits, Peer, router};

/// Bytes of a connection's buffers; a request's head must fit.
const BUFFER: usize = 64 * 1024;
/// How long to wait after the system refused a connection, before trying again.
const RETRY: Duration = Duration::from_millis(100);

/// The uid that stands for every user whom this user namespace doesn't know. They can't be told apart.
fn overflow_uid() -> u32 {
    let text = std::fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default();
    text.trim().parse().unwrap_or(65534)
}

/// Serves connections until it is told to stop.
pub struct Connections {
    listener: UnixListener,
    engine: Engine,
    limits: Arc<Limits>,
    open: Arc<Mutex<HashMap<u32, usize>>>,
    overflow: u32,
    end: GracefulShutdown,
}

impl Connections {
    /// Of a socket that listens. To be called within a runtime.
    ///
    /// # Errors
    /// If the system refuses to watch the socket.
    pub fn new(listener: StdListener, engine: Engine, limits: Limits) -> std::io::Result<Connections> {
        listener.set_nonblocking(true)?;
        Ok(Connections {
            listener: UnixListener::from_std(listener)?,
            engine,
            limits: Arc::new(limits),
            open: Arc::default(),
            overflow: overflow_uid(),
            end: GracefulShutdown::new(),
        })
    }

    /// Accepts connections, for ever.
    pub async fn accept(&self) {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => self.serve(stream),
                Err(e) => {
                    // Without a free descriptor, say: those who wait stay in the socket's queue.
                    log::warn!("can't accept a connection: {e}");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    /// Accepts no more, and returns when the answers under way have been sent.
    pub async fn stop(self) {
        drop(self.listener);
        self.end.shutdown().await;
    }

    fn serve(&self, stream: UnixStream) {
        let uid = match stream.peer_cred() {
            Ok(peer) if peer.uid() != self.overflow => peer.uid(),
            Ok(_) => return log::warn!("a connection of an unknown user was refused: is PrivateUsers= set?"),
            Err(e) => return log::warn!("a connection was refused: {e}"),
        };
        let Some(place) = Place::take(&self.open, uid, self.limits.connections) else {
            return log::warn!("user {uid} has {} connections, and gets no more", self.limits.connections);
        };
        let router = router(self.engine.clone(), self.limits.clone()).layer(Extension(Peer { uid }));
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(self.limits.arrival).max_buf_size(BUFFER);
        let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
        let connection = self.end.watch(connection);
        tokio::spawn(async move {
            let _place = place;
            if let Err(e) = connection.await {
                log::debug!("a connection of user {uid} ended: {e}"); // the client's doing
            }
        });
    }
}

/// One of the connections that a user may have.
struct Place {
    open: Arc<Mutex<HashMap<u32, usize>>>,
    uid: u32,
}

impl Place {
    fn take(open: &Arc<Mutex<HashMap<u32, usize>>>, uid: u32, most: usize) -> Option<Place> {
        let mut users = open.lock().unwrap_or_else(PoisonError::into_inner);
        let own = users.entry(uid).or_default();
        (*own < most).then(|| {
            *own += 1;
            Place { open: open.clone(), uid }
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut users = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = users.get_mut(&self.uid) {
            *own -= 1;
            if *own == 0 {
                users.remove(&self.uid);
            }
        }
    }
}
