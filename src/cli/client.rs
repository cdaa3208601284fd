//! HTTP over the daemon's socket, for a program that does one thing at a time.

use std::convert::Infallible;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::client::conn::http1;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;

use super::Failure;
use super::terminal::Progress;

/// Who waits for longer than this is told what for, and again each time as long.
const PATIENCE: Duration = Duration::from_secs(1);

/// Why there is no answer.
#[derive(Debug)]
pub enum Trouble {
    /// Nobody listens.
    Nobody(String),
    /// The connection broke off before all was said.
    Broken,
    /// Ctrl-C.
    Interrupted,
    /// The daemon says why not.
    Refused {
        /// Its word for the reason.
        code: String,
        /// What, and what to do.
        message: String,
    },
    /// On this side: what was heard can't be passed on, or what is to be sent can't be had.
    Here(std::io::Error),
}

impl Trouble {
    /// Whether the daemon has refused with this code.
    pub fn is(&self, code: &str) -> bool {
        matches!(self, Trouble::Refused { code: c, .. } if c == code)
    }
}

impl From<Trouble> for Failure {
    fn from(trouble: Trouble) -> Failure {
        match trouble {
            Trouble::Nobody(why) => Failure::new(why),
            Trouble::Broken => {
                Failure::new("kadenced went away before it had said all: ask again, the session is intact")
            }
            Trouble::Interrupted => Failure { why: "interrupted".into(), code: Failure::INTERRUPTED },
            Trouble::Refused { code, message } => {
                let later = matches!(code.as_str(), "busy" | "stopping" | "session_busy");
                Failure { why: message, code: if later { Failure::LATER } else { Failure::FAILED } }
            }
            Trouble::Here(why) => why.into(),
        }
    }
}

/// Who hears an answer as it comes.
pub trait Listener {
    /// The next event. An error ends the answer.
    fn hear(&mut self, event: &Value) -> std::io::Result<()>;
}

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

fn body(bytes: Vec<u8>) -> Body {
    Full::new(Bytes::from(bytes)).map_err(|never: Infallible| match never {}).boxed_unsync()
}

/// The daemon at a socket. Each request has a connection of its own: it is closed to end an answer.
pub struct Client {
    runtime: Runtime,
    socket: PathBuf,
}

impl Client {
    /// Asks at this socket. Whether anybody answers there is seen at the first request.
    ///
    /// # Errors
    /// If the system gives no means to wait for connections.
    pub fn new(socket: PathBuf) -> Result<Client, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Client { runtime, socket })
    }

    /// Where it asks.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// What there is at a path.
    pub fn get(&self, path: &str) -> Result<Value, Trouble> {
        self.request("GET", path, body(Vec::new()))
    }

    /// The answer to a question.
    pub fn post(&self, path: &str, question: &Value) -> Result<Value, Trouble> {
        self.request("POST", path, body(question.to_string().into()))
    }

    /// Deletes what is at a path.
    pub fn delete(&self, path: &str) -> Result<Value, Trouble> {
        self.request("DELETE", path, body(Vec::new()))
    }

    /// Sends a file.
    pub fn upload(&self, path: &str, file: File) -> Result<Value, Trouble> {
        let pieces = stream::unfold(Some(file), |file| async move {
            let mut file = file?;
            let mut piece = vec![0; 256 << 10];
            match file.read(&mut piece) {
                Ok(0) => None,
                Ok(n) => {
                    piece.truncate(n);
                    Some((Ok(Frame::data(Bytes::from(piece))), Some(file)))
                }
                Err(e) => Some((Err(e), None)),
            }
        });
        self.request("POST", path, StreamBody::new(pieces).boxed_unsync())
    }

    /// Writes what is at a path to a file.
    pub fn download(&self, path: &str, file: &mut File) -> Result<(), Trouble> {
        self.wait(async {
            let mut answer = Reply::open(&self.socket, "GET", path, body(Vec::new())).await?;
            while let Some(piece) = answer.next().await? {
                file.write_all(&piece).map_err(Trouble::Here)?;
            }
            Ok(())
        })
    }

    fn request(&self, method: &str, path: &str, body: Body) -> Result<Value, Trouble> {
        self.wait(async {
            let mut answer = Reply::open(&self.socket, method, path, body).await?;
            let mut bytes = Vec::new();
            while let Some(piece) = answer.next().await? {
                bytes.extend_from_slice(&piece);
            }
            serde_json::from_slice(&bytes).map_err(|_| Trouble::Broken)
        })
    }

    /// Waits for something, until Ctrl-C, and tells who waits for long.
    fn wait<T>(&self, work: impl Future<Output = Result<T, Trouble>>) -> Result<T, Trouble> {
        self.runtime.block_on(async {
            let mut interrupt = signal(SignalKind::interrupt()).map_err(Trouble::Here)?;
            let mut progress = Progress::default();
            let start = Instant::now();
            tokio::pin!(work);
            loop {
                tokio::select! {
                    done = &mut work => return done,
                    _ = interrupt.recv() => return Err(Trouble::Interrupted),
                    () = tokio::time::sleep(PATIENCE) => progress.show("waiting for kadenced", start.elapsed()),
                }
            }
        })
    }

    /// Has a question answered bit by bit. Ctrl-C ends the answer, which is then [`Trouble::Interrupted`].
    pub fn stream(&self, path: &str, question: &Value, listener: &mut dyn Listener) -> Result<(), Trouble> {
        self.runtime.block_on(async {
            let mut interrupt = signal(SignalKind::interrupt()).map_err(Trouble::Here)?;
            let mut progress = Progress::default();
            let start = Instant::now();
            let open = Reply::open(&self.socket, "POST", path, body(question.to_string().into()));
            tokio::pin!(open);
            let mut answer = loop {
                tokio::select! {
                    answer = &mut open => break answer?,
                    _ = interrupt.recv() => return Err(Trouble::Interrupted),
                    () = tokio::time::sleep(PATIENCE) => progress.show(&self.delay().await, start.elapsed()),
                }
            };
            let mut events = Events::default();
            let ended = loop {
                let piece = tokio::select! {
                    piece = answer.next() => piece,
                    _ = interrupt.recv() => break Err(Trouble::Interrupted),
                    () = tokio::time::sleep(PATIENCE), if !events.said => {
                        progress.show("reading", start.elapsed());
                        continue;
                    }
                };
                let Some(piece) = piece? else { break Err(Trouble::Broken) };
                match events.push(&piece, &mut progress, listener) {
                    Ok(true) => break Ok(()),
                    Ok(false) => {}
                    Err(why) => break Err(why),
                }
            };
            answer.close().await;
            ended
        })
    }

    /// What keeps an answer from beginning.
    async fn delay(&self) -> String {
        let status = async {
            let mut answer = Reply::open(&self.socket, "GET", "/v1/status", body(Vec::new())).await.ok()?;
            let mut bytes = Vec::new();
            while let Some(piece) = answer.next().await.ok()? {
                bytes.extend_from_slice(&piece);
            }
            serde_json::from_slice::<Value>(&bytes).ok()
        };
        let status = tokio::time::timeout(PATIENCE, status).await.ok().flatten().unwrap_or_default();
        let others = status["requests"]["running"].as_u64().unwrap_or(0);
        match (status["model"]["state"].as_str(), status["model"]["id"].as_str()) {
            (Some("opening"), Some(name)) => format!("opening {name}"),
            _ if others > 0 => format!("waiting; {others} others are being answered"),
            _ => "waiting for kadenced".into(),
        }
    }
}

/// An answer that has begun well.
struct Reply {
    body: Incoming,
    connection: JoinHandle<()>,
}

impl Reply {
    async fn open(socket: &Path, method: &str, path: &str, body: Body) -> Result<Reply, Trouble> {
        let nobody = |e: std::io::Error| {
            let at = socket.display();
            Trouble::Nobody(format!("kadenced doesn't answer at {at} ({e}): is it running there?"))
        };
        let stream = UnixStream::connect(socket).await.map_err(nobody)?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|_| Trouble::Broken)?;
        let connection = tokio::spawn(async move { drop(connection.await) }); // its end is seen by the answer's
        let request = Request::builder().method(method).uri(path).header("host", "kadence").body(body);
        let request = request.map_err(|e| Trouble::Here(std::io::Error::other(e)))?;
        let response = sender.send_request(request).await.map_err(|_| Trouble::Broken)?;
        if response.status().is_success() {
            return Ok(Reply { body: response.into_body(), connection });
        }
        Err(refusal(response).await)
    }

    /// The next bytes; nothing at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, Trouble> {
        loop {
            let Some(frame) = self.body.frame().await else { return Ok(None) };
            if let Ok(bytes) = frame.map_err(|_| Trouble::Broken)?.into_data() {
                return Ok(Some(bytes));
            }
        }
    }

    /// Closes the connection now, so that the daemon sees it.
    async fn close(self) {
        drop(self.body);
        self.connection.abort();
        let _ = self.connection.await; // which says that it was aborted
    }
}

async fn refusal(response: Response<Incoming>) -> Trouble {
    let status = response.status();
    let Ok(bytes) = response.into_body().collect().await else { return Trouble::Broken };
    let answer: Value = serde_json::from_slice(&bytes.to_bytes()).unwrap_or_else(|_| json!({}));
    refused(&answer["error"]).unwrap_or_else(|| Trouble::Refused {
        code: status.as_u16().to_string(),
        message: format!("kadenced answers {status}: is another program listening at its socket?"),
    })
}

fn refused(error: &Value) -> Option<Trouble> {
    let message = error["message"].as_str()?.to_owned();
    Some(Trouble::Refused { code: error["code"].as_str().unwrap_or_default().into(), message })
}

/// Server-sent events, as their bytes come.
#[derive(Default)]
struct Events {
    bytes: Vec<u8>,
    /// Something of the answer has come.
    said: bool,
}

impl Events {
    /// Passes on the events that are complete. True after the last one.
    fn push(
        &mut self,
        piece: &[u8],
        progress: &mut Progress,
        listener: &mut dyn Listener,
    ) -> Result<bool, Trouble> {
        self.bytes.extend_from_slice(piece);
        while let Some(end) = self.bytes.windows(2).position(|w| w == b"\n\n") {
            let event: Vec<u8> = self.bytes.drain(..end + 2).collect();
            let Some(data) = event.strip_prefix(b"data: ") else { continue }; // a comment
            if data.trim_ascii_end() == b"[DONE]" {
                progress.clear();
                return Ok(true);
            }
            let event: Value = serde_json::from_slice(data).map_err(|_| Trouble::Broken)?;
            if let Some(why) = refused(&event["error"]) {
                return Err(why);
            }
            if says(&event) {
                self.said = true;
                progress.clear();
            }
            listener.hear(&event).map_err(Trouble::Here)?;
        }
        Ok(false)
    }
}

/// Whether an event is more than the announcement of an answer.
fn says(event: &Value) -> bool {
    let delta = &event["choices"][0]["delta"];
    ["content", "reasoning_content"].iter().any(|key| delta[key].as_str().is_some_and(|s| !s.is_empty()))
}

/// The path of a session, or of something about it.
pub fn session_path(name: &str, rest: &str) -> String {
    let mut path = String::from("/v1/sessions/");
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            path.push(char::from(byte));
        } else {
            path += &format!("%{byte:02X}");
        }
    }
    path + rest
}

#[cfg(test)]
mod tests {
    use super::{Events, Listener, Progress, Trouble, Value, session_path};

    struct Heard(Vec<Value>);

    impl Listener for Heard {
        fn hear(&mut self, event: &Value) -> std::io::Result<()> {
            self.0.push(event.clone());
            Ok(())
        }
    }

    #[test]
    fn events_may_be_cut_anywhere() {
        let text = "data: {\"a\":\"\u{e4}\"}\n\n: silence\n\ndata: {\"b\":2}\n\ndata: [DONE]\n\n".as_bytes();
        for cut in 0..=text.len() {
            let (mut events, mut heard) = (Events::default(), Heard(Vec::new()));
            let parts = [&text[..cut], &text[cut..]];
            let done = parts.map(|p| events.push(p, &mut Progress::default(), &mut heard).unwrap());
            assert_eq!((heard.0.len(), done[1] || done[0]), (2, true));
            assert_eq!(heard.0[0]["a"], "\u{e4}");
        }
    }

    #[test]
    fn an_error_in_a_stream_is_a_refusal() {
        let text = b"data: {\"error\":{\"message\":\"no\",\"code\":\"model_failed\"}}\n\n";
        let error = Events::default().push(text, &mut Progress::default(), &mut Heard(Vec::new()));
        assert!(matches!(error, Err(Trouble::Refused { code, .. }) if code == "model_failed"));
    }

    #[test]
    fn a_name_stays_one_part_of_a_path() {
        assert_eq!(session_path("a/b ?", "/fork"), "/v1/sessions/a%2Fb%20%3F/fork");
    }
}
