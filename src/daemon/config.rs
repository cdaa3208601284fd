//! What can be configured, and what it comes to.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use crate::api;
use crate::compute::Pool;
use crate::engine::{self, BOXED_MODEL, ModelFile, Sessions, boxed_model};
use crate::session::{Codec, Limits, RealDisk, Settings, Store, Unsaved};
use crate::text::Effort;

use super::layers::{self, is_file};
use super::tcp::Tcp;

/// The keys of a configuration file, all of which may be left out.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where to listen, unless systemd hands over a socket.
    pub socket: Option<PathBuf>,
    /// The default model: one of `models`, or a file. Without it the only one of `models`, or the one in the box.
    pub model: Option<String>,
    /// Threads that compute; as many as the process may use.
    pub threads: Option<usize>,
    /// What to log: `error`, `warn`, `info` or `debug`.
    pub log: Option<String>,
    /// How much models think where a request doesn't say: `none`, `low`, `medium`, `high` or `max`.
    pub reasoning_effort: Option<String>,
    /// A model that nobody has asked for so many seconds is closed; 0 for never.
    pub idle_s: Option<u64>,
    /// Seconds that answers under way get to end when the service stops.
    pub grace_s: Option<u64>,
    /// Models, by the names that requests use.
    pub models: BTreeMap<String, ModelEntry>,
    /// Whether to be on the bus: `auto` (on the system's, or with `--user` on the user's, if there is one) or `none`.
    pub bus: Option<String>,
    /// A service that nobody has used for so many seconds ends; 0 for never. For one that is started again on demand.
    pub exit_idle_s: Option<u64>,
    /// Listen on this loopback address (`127.0.0.1:PORT`) too. Whoever has the token is the user who runs this service.
    pub tcp: Option<String>,
    /// The file with the token that requests over TCP have to bring.
    pub tcp_token_file: Option<PathBuf>,
    /// Where sessions are kept: systemd's state directory or `/var/lib/kadence`; a user's in
    /// `~/.local/state/kadence`, where `kadence chat` has them too.
    pub state_dir: Option<PathBuf>,
    /// How conversations are remembered.
    pub sessions: SessionsEntry,
    /// How much at once.
    pub limits: LimitsEntry,
}

/// A model.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelEntry {
    /// Any of its files.
    pub path: PathBuf,
}

/// How conversations are remembered.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SessionsEntry {
    /// How the states of named sessions are stored: `exact`, `f16`, `q8` or `q4`.
    pub codec: Option<String>,
    /// How many conversations of each user are remembered that name no session; 0 for none.
    pub automatic: Option<usize>,
    /// How their states are stored. Only `exact` repeats an answer to the letter.
    pub automatic_codec: Option<String>,
    /// Sessions that one user may have.
    pub per_user: Option<usize>,
    /// What the sessions of one user may take of the disk, in MiB.
    pub mib_per_user: Option<u64>,
}

/// How much at once.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsEntry {
    /// Requests that are answered at the same time.
    pub parallel: Option<usize>,
    /// Requests that may wait beyond those.
    pub queue: Option<usize>,
    /// Requests that one user may have running or waiting.
    pub per_user: Option<usize>,
    /// Connections of one user.
    pub connections: Option<usize>,
    /// Largest body of a request, in MiB.
    pub body_mib: Option<usize>,
    /// Seconds that the head and the body of a request may take to arrive.
    pub arrival_s: Option<u64>,
    /// Seconds after which a client that doesn't read its answer is taken for gone.
    pub patience_s: Option<u64>,
}

/// A configuration in which nothing is left open.
#[derive(Clone, Debug)]
pub struct Settled {
    /// Whether it is one user's service.
    pub user: bool,
    /// Where to listen.
    pub socket: PathBuf,
    /// What to log.
    pub log: log::LevelFilter,
    /// Time for answers to end when the service stops.
    pub grace: Duration,
    /// Whether to be on the bus.
    pub bus: bool,
    /// When to end because nobody asks.
    pub exit_idle: Option<Duration>,
    /// A TCP port.
    pub tcp: Option<Tcp>,
    /// Where sessions are kept.
    pub state_dir: PathBuf,
    /// For the engine.
    pub engine: engine::Settings,
    /// For the interface.
    pub api: api::Limits,
}

/// The system's socket.
pub const SYSTEM_SOCKET: &str = "/run/kadence/kadence.sock";

impl Config {
    /// Fills in what was left out.
    pub(super) fn settle(self, user: bool) -> Result<Settled, String> {
        let limits = &self.limits;
        let at_least_one = [
            ("threads", self.threads),
            ("limits.parallel", limits.parallel),
            ("limits.per_user", limits.per_user),
            ("limits.connections", limits.connections),
            ("limits.body_mib", limits.body_mib),
            ("sessions.per_user", self.sessions.per_user),
            ("sessions.mib_per_user", self.sessions.mib_per_user.map(|n| n as usize)),
            ("limits.arrival_s", limits.arrival_s.map(|s| s as usize)),
        ];
        if let Some((key, _)) = at_least_one.into_iter().find(|(_, v)| *v == Some(0)) {
            return Err(format!("configuration: {key} can't be 0: give at least 1, or leave it out"));
        }
        let most = [("threads", self.threads, 1024), ("limits.body_mib", limits.body_mib, 4096)];
        if let Some((key, _, most)) = most.into_iter().find(|(_, v, most)| v.is_some_and(|v| v > *most)) {
            return Err(format!("configuration: {key} is too large: give at most {most}"));
        }
        let state_dir = self.state_dir.clone().map_or_else(|| usual_state_dir(user), Ok)?;
        let seconds = |value: Option<u64>, usual| Duration::from_secs(value.unwrap_or(usual));
        Ok(Settled {
            user,
            socket: self.socket.clone().unwrap_or_else(|| usual_socket(user, &state_dir)),
            log: level(self.log.as_deref())?,
            grace: seconds(self.grace_s, 5),
            bus: on_bus(self.bus.as_deref())?,
            exit_idle: self.exit_idle_s.map(Duration::from_secs).filter(|t| !t.is_zero()),
            tcp: Tcp::settle(self.tcp.as_deref(), self.tcp_token_file.as_deref())?,
            engine: engine::Settings {
                models: self.models()?,
                paths: user,
                threads: self.threads.unwrap_or_else(Pool::default_threads),
                parallel: limits.parallel.unwrap_or(4),
                queue: limits.queue.unwrap_or(64),
                per_user: limits.per_user.unwrap_or(16),
                idle: Some(seconds(self.idle_s, 900)).filter(|t| !t.is_zero()),
                sessions: Some(self.sessions.settle(&state_dir)?),
                patience: seconds(limits.patience_s, 30),
            },
            state_dir,
            api: api::Limits {
                body: limits.body_mib.unwrap_or(16) << 20,
                arrival: seconds(limits.arrival_s, 30),
                connections: limits.connections.unwrap_or(256),
                effort: effort(self.reasoning_effort.as_deref())?,
            },
        })
    }

    /// All models, the default first.
    fn models(&self) -> Result<Vec<ModelFile>, String> {
        let mut models: Vec<ModelFile> =
            self.models.iter().map(|(name, entry)| ModelFile::new(name, &entry.path)).collect();
        let default = match &self.model {
            Some(name) if self.models.contains_key(name) => name.clone(),
            Some(path) if is_file(path) => {
                let name = stem(Path::new(path));
                models.retain(|m| m.name != name);
                models.push(ModelFile::new(name.clone(), path));
                name
            }
            Some(name) => {
                let known = self.models.keys().cloned().collect::<Vec<_>>().join(", ");
                return Err(format!(
                    "configuration: model {name:?} isn't one of models ({known}) and isn't a file (PATH.gguf)"
                ));
            }
            None if models.len() > 1 => {
                let known = self.models.keys().cloned().collect::<Vec<_>>().join(", ");
                return Err(format!(
                    "configuration: several models ({known}): say which is the default with model = NAME"
                ));
            }
            None if models.len() == 1 => models[0].name.clone(),
            None => {
                let boxed = boxed_model().map_err(|e| format!("can't find the program's folder: {e}"))?;
                let why = || {
                    format!(
                        "no model is configured and there is no {BOXED_MODEL}: give one with --model FILE.gguf"
                    )
                };
                let path = boxed.ok_or_else(why)?;
                models.push(ModelFile::new(stem(&path), path.canonicalize().unwrap_or(path)));
                models[0].name.clone()
            }
        };
        models.sort_by_key(|m| m.name != default);
        Ok(models)
    }
}

/// Where the system's sessions are, unless systemd says otherwise.
const SYSTEM_STATE: &str = "/var/lib/kadence";
/// How many conversations without a name are remembered.
const USUAL_SLOTS: usize = 8;

impl SessionsEntry {
    fn settle(&self, folder: &Path) -> Result<Sessions, String> {
        let codec = |key: &str, word: &Option<String>, usual: Codec| match word {
            None => Ok(usual),
            Some(word) => word.parse().map_err(|_| {
                format!("configuration: sessions.{key} can't be {word:?}: exact, f16, q8 or q4")
            }),
        };
        let usual = Limits::default();
        let limits = Limits {
            sessions: self.per_user.unwrap_or(usual.sessions),
            bytes: self.mib_per_user.map_or(usual.bytes, |mib| mib.saturating_mul(1 << 20)),
            ..usual
        };
        let store =
            |codec| Store::new(folder, Settings { codec, limits, ..Settings::default() }, Arc::new(RealDisk));
        Ok(Sessions {
            named: store(codec("codec", &self.codec, Settings::default().codec)?),
            automatic: store(codec("automatic_codec", &self.automatic_codec, Codec::Exact)?),
            slots: self.automatic.unwrap_or(USUAL_SLOTS),
            unsaved: Unsaved::default(),
        })
    }
}

fn usual_state_dir(user: bool) -> Result<PathBuf, String> {
    let folder = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|f| f.is_absolute());
    if !user {
        return Ok(folder("STATE_DIRECTORY").unwrap_or_else(|| SYSTEM_STATE.into()));
    }
    let state = folder("XDG_STATE_HOME").or_else(|| Some(folder("HOME")?.join(".local/state")));
    let why = "neither XDG_STATE_HOME nor HOME is set: say where sessions are kept with state_dir";
    Ok(state.ok_or(why)?.join("kadence"))
}

/// What a model is called whose file alone is known.
fn stem(path: &Path) -> String {
    path.file_stem().map_or_else(|| "model".into(), |s| s.to_string_lossy().into_owned())
}

fn usual_socket(user: bool, state_dir: &Path) -> PathBuf {
    if !user {
        return SYSTEM_SOCKET.into();
    }
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|f| !f.is_empty()) {
        Some(folder) => Path::new(&folder).join("kadence/kadence.sock"),
        // Without a login by logind, as in containers.
        None => state_dir.join("kadence.sock"),
    }
}

/// Where the user's own daemon listens and keeps its files.
#[derive(Clone, Debug)]
pub struct OwnPlaces {
    /// Its socket.
    pub socket: PathBuf,
    /// Its sessions, and its log where it has no journal.
    pub state_dir: PathBuf,
}

impl OwnPlaces {
    /// The places that `kadenced --user` would take.
    ///
    /// # Errors
    /// One line, if the configuration can't be used.
    pub fn find() -> Result<OwnPlaces, String> {
        let config = layers::read(None, true)?;
        let state_dir = config.state_dir.map_or_else(|| usual_state_dir(true), Ok)?;
        Ok(OwnPlaces { socket: config.socket.unwrap_or_else(|| usual_socket(true, &state_dir)), state_dir })
    }
}

fn level(word: Option<&str>) -> Result<log::LevelFilter, String> {
    let word = word.unwrap_or("info");
    word.parse().map_err(|_| format!("configuration: log can't be {word:?}: error, warn, info or debug"))
}

fn on_bus(word: Option<&str>) -> Result<bool, String> {
    match word.unwrap_or("auto") {
        "auto" => Ok(true),
        "none" => Ok(false),
        other => Err(format!("configuration: bus can't be {other:?}: auto or none")),
    }
}

fn effort(word: Option<&str>) -> Result<Option<Effort>, String> {
    Ok(match word.unwrap_or("none") {
        "none" => None,
        "low" => Some(Effort::Low),
        "medium" => Some(Effort::Medium),
        "high" => Some(Effort::High),
        "max" => Some(Effort::Max),
        other => {
            return Err(format!(
                "configuration: reasoning_effort can't be {other:?}: none, low, medium, high or max"
            ));
        }
    })
}

impl fmt::Display for Settled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settled { socket, state_dir, log, grace, engine, api, bus, exit_idle, tcp, .. } = self;
        writeln!(f, "socket = {:?}", socket.display().to_string())?;
        writeln!(f, "state_dir = {:?}", state_dir.display().to_string())?;
        writeln!(f, "model = {:?}", engine.models[0].name)?;
        writeln!(f, "threads = {}", engine.threads)?;
        writeln!(f, "log = {:?}", log.as_str().to_lowercase())?;
        let effort = api.effort.map_or("none".into(), |e| e.to_string());
        writeln!(f, "reasoning_effort = {effort:?}")?;
        writeln!(f, "idle_s = {}", engine.idle.map_or(0, |t| t.as_secs()))?;
        writeln!(f, "grace_s = {}", grace.as_secs())?;
        writeln!(f, "bus = {:?}", if *bus { "auto" } else { "none" })?;
        writeln!(f, "exit_idle_s = {}", exit_idle.map_or(0, |t| t.as_secs()))?;
        if let Some(tcp) = tcp {
            writeln!(f, "tcp = {:?}", tcp.address.to_string())?;
            writeln!(f, "tcp_token_file = {:?}", tcp.token_file.display().to_string())?;
        }
        if let Some(sessions) = &engine.sessions {
            writeln!(f, "\n[sessions]")?;
            writeln!(f, "codec = {:?}", sessions.named.settings().codec.to_string())?;
            writeln!(f, "automatic = {}", sessions.slots)?;
            writeln!(f, "automatic_codec = {:?}", sessions.automatic.settings().codec.to_string())?;
            let limits = sessions.named.settings().limits;
            writeln!(f, "per_user = {}", limits.sessions)?;
            writeln!(f, "mib_per_user = {}", limits.bytes >> 20)?;
        }
        writeln!(f, "\n[limits]")?;
        writeln!(f, "parallel = {}", engine.parallel)?;
        writeln!(f, "queue = {}", engine.queue)?;
        writeln!(f, "per_user = {}", engine.per_user)?;
        writeln!(f, "connections = {}", api.connections)?;
        writeln!(f, "body_mib = {}", api.body >> 20)?;
        writeln!(f, "arrival_s = {}", api.arrival.as_secs())?;
        write!(f, "patience_s = {}", engine.patience.as_secs())?;
        for model in &engine.models {
            let (name, path) = (&model.name, model.path.display().to_string());
            write!(f, "\n\n[models.{name:?}]\npath = {path:?}")?;
        }
        Ok(())
    }
}
