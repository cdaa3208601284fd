//! Connections: who they are from, how many there may be, and how they end.
//!
//! Over the Unix socket the system says who it is. Over TCP everybody who has the token is the user who runs this.

use std::collections::HashMap;
use std::net::TcpListener as StdTcpListener;
use std::os::unix::net::UnixListener as StdListener;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Extension;
use axum::extract::Request;
use axum::http::header::AUTHORIZATION;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener, UnixStream};

use crate::engine::Engine;

use super::{ApiError, Limits, Peer, router};

/// Bytes of a connection's buffers; a request's head must fit.
const BUFFER: usize = 64 * 1024;
/// How long to wait after the system refused a connection, before trying again.
const RETRY: Duration = Duration::from_millis(100);

/// The uid that stands for every user whom this user namespace doesn't know. They can't be told apart.
pub(super) fn overflow_uid() -> u32 {
    let text = std::fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default();
    text.trim().parse().unwrap_or(65534)
}

/// Serves connections until it is told to stop.
pub struct Connections {
    listener: UnixListener,
    tcp: Option<(TcpListener, Arc<str>)>,
    engine: Engine,
    limits: Mutex<Arc<Limits>>,
    open: Arc<Mutex<HashMap<u32, usize>>>,
    overflow: u32,
    end: GracefulShutdown,
}

impl Connections {
    /// Of a socket that listens, and of a TCP port with the token that opens it. To be called within a runtime.
    ///
    /// # Errors
    /// If the system refuses to watch them.
    pub fn new(
        listener: StdListener,
        tcp: Option<(StdTcpListener, String)>,
        engine: Engine,
        limits: Limits,
    ) -> std::io::Result<Connections> {
        listener.set_nonblocking(true)?;
        let watched = |(listener, token): (StdTcpListener, String)| {
            listener.set_nonblocking(true)?;
            Ok::<_, std::io::Error>((TcpListener::from_std(listener)?, Arc::from(token)))
        };
        Ok(Connections {
            listener: UnixListener::from_std(listener)?,
            tcp: tcp.map(watched).transpose()?,
            engine,
            limits: Mutex::new(Arc::new(limits)),
            open: Arc::default(),
            overflow: overflow_uid(),
            end: GracefulShutdown::new(),
        })
    }

    /// Accepts connections, for ever.
    pub async fn accept(&self) {
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted.map(|(stream, _)| self.local(stream)),
                accepted = remote(self.tcp.as_ref()) => {
                    accepted.map(|(stream, token)| self.serve(stream, own_uid(), Some(token)))
                }
            };
            if let Err(e) = accepted {
                // Without a free descriptor, say: those who wait stay in the socket's queue.
                log::warn!("can't accept a connection: {e}");
                tokio::time::sleep(RETRY).await;
            }
        }
    }

    /// New connections go by these from now on.
    pub fn change(&self, limits: Limits) {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(limits);
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).values().sum()
    }

    /// Accepts no more, and returns when the answers under way have been sent.
    pub async fn stop(self) {
        drop((self.listener, self.tcp));
        self.end.shutdown().await;
    }

    fn local(&self, stream: UnixStream) {
        let uid = match stream.peer_cred() {
            Ok(peer) if peer.uid() != self.overflow => peer.uid(),
            Ok(_) => return log::warn!("a connection of an unknown user was refused: is PrivateUsers= set?"),
            Err(e) => return log::warn!("a connection was refused: {e}"),
        };
        self.serve(stream, uid, None);
    }

    fn serve<S>(&self, stream: S, uid: u32, token: Option<Arc<str>>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(place) = Place::take(&self.open, uid, limits.connections) else {
            return log::warn!("user {uid} has {} connections, and gets no more", limits.connections);
        };
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(limits.arrival).max_buf_size(BUFFER);
        let mut router = router(self.engine.clone(), limits).layer(Extension(Peer { uid }));
        if let Some(token) = token {
            router = router.layer(from_fn(move |request, next| with_token(token.clone(), request, next)));
        }
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

/// The next connection over TCP, and the token that it needs; never without a port.
async fn remote(tcp: Option<&(TcpListener, Arc<str>)>) -> std::io::Result<(tokio::net::TcpStream, Arc<str>)> {
    let Some((listener, token)) = tcp else { return std::future::pending().await };
    Ok((listener.accept().await?.0, token.clone()))
}

fn own_uid() -> u32 {
    rustix::process::getuid().as_raw()
}

/// Lets a request through that brings the token. Digests are compared, so that the time tells nothing of it.
async fn with_token(token: Arc<str>, request: Request, next: Next) -> Response {
    let given = request.headers().get(AUTHORIZATION).and_then(|h| h.to_str().ok()?.strip_prefix("Bearer "));
    match given {
        Some(given) if blake3::hash(given.as_bytes()) == blake3::hash(token.as_bytes()) => {
            next.run(request).await
        }
        _ => ApiError::token().into_response(),
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
