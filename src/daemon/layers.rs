//! Where the configuration comes from: a file, its drop-ins, the environment.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::config::Config;

/// The system's configuration.
const SYSTEM: &str = "/etc/kadence/kadence.toml";
/// The user's, below `$XDG_CONFIG_HOME` or `~/.config`.
const USER: &str = "kadence/kadence.toml";

/// Whether a variable is a number.
const NUMBER: bool = true;
const TEXT: bool = false;

/// Variables of the environment, and the keys they set.
const VARIABLES: [(&str, &[&str], bool); 25] = [
    ("KADENCE_SOCKET", &["socket"], TEXT),
    ("KADENCE_STATE_DIR", &["state_dir"], TEXT),
    ("KADENCE_MODEL", &["model"], TEXT),
    ("KADENCE_THREADS", &["threads"], NUMBER),
    ("KADENCE_LOG", &["log"], TEXT),
    ("KADENCE_REASONING_EFFORT", &["reasoning_effort"], TEXT),
    ("KADENCE_IDLE_S", &["idle_s"], NUMBER),
    ("KADENCE_GRACE_S", &["grace_s"], NUMBER),
    ("KADENCE_BUS", &["bus"], TEXT),
    ("KADENCE_EXIT_IDLE_S", &["exit_idle_s"], NUMBER),
    ("KADENCE_TCP", &["tcp"], TEXT),
    ("KADENCE_TCP_TOKEN_FILE", &["tcp_token_file"], TEXT),
    ("KADENCE_SESSIONS_CODEC", &["sessions", "codec"], TEXT),
    ("KADENCE_SESSIONS_AUTOMATIC", &["sessions", "automatic"], NUMBER),
    ("KADENCE_SESSIONS_AUTOMATIC_CODEC", &["sessions", "automatic_codec"], TEXT),
    ("KADENCE_SESSIONS_PER_USER", &["sessions", "per_user"], NUMBER),
    ("KADENCE_SESSIONS_MIB_PER_USER", &["sessions", "mib_per_user"], NUMBER),
    ("KADENCE_LIMITS_PARALLEL", &["limits", "parallel"], NUMBER),
    ("KADENCE_LIMITS_QUEUE", &["limits", "queue"], NUMBER),
    ("KADENCE_LIMITS_PER_USER", &["limits", "per_user"], NUMBER),
    ("KADENCE_LIMITS_CONNECTIONS", &["limits", "connections"], NUMBER),
    ("KADENCE_LIMITS_BODY_MIB", &["limits", "body_mib"], NUMBER),
    ("KADENCE_LIMITS_ARRIVAL_S", &["limits", "arrival_s"], NUMBER),
    ("KADENCE_LIMITS_PATIENCE_S", &["limits", "patience_s"], NUMBER),
    ("KADENCE_CONFIG", &[], TEXT),
];

/// Reads and joins all layers.
pub(super) fn read(named: Option<&Path>, user: bool) -> Result<Config, String> {
    let named = named.map(Path::to_owned).or_else(|| std::env::var_os("KADENCE_CONFIG").map(PathBuf::from));
    let (base, needed) = match named {
        Some(path) => (path, true),
        None if user => (user_file(std::env::var_os("XDG_CONFIG_HOME"), std::env::var_os("HOME"))?, false),
        None => (PathBuf::from(SYSTEM), false),
    };
    let mut all = Table::new();
    if needed || base.exists() {
        join(&mut all, file(&base)?);
    }
    for path in drop_ins(&base)? {
        join(&mut all, file(&path)?);
    }
    join(&mut all, environment()?);
    all.try_into().map_err(|e: toml::de::Error| format!("configuration: {}", e.message()))
}

fn user_file(config: Option<OsString>, home: Option<OsString>) -> Result<PathBuf, String> {
    let set = |folder: Option<OsString>| folder.filter(|f| !f.is_empty()).map(PathBuf::from);
    let folder = set(config).or_else(|| set(home).map(|h| h.join(".config")));
    let why = "neither XDG_CONFIG_HOME nor HOME is set: name the configuration with --config FILE";
    Ok(folder.ok_or(why)?.join(USER))
}

/// The files of `FILE.d` that end in `.toml`, by name.
fn drop_ins(base: &Path) -> Result<Vec<PathBuf>, String> {
    let mut folder = base.as_os_str().to_owned();
    folder.push(".d");
    let folder = PathBuf::from(folder);
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(format!("{}: {e}", folder.display())),
    };
    let paths = entries.map(|e| e.map(|e| e.path())).collect::<Result<Vec<_>, _>>();
    let mut paths = paths.map_err(|e| format!("{}: {e}", folder.display()))?;
    paths.retain(|p| p.extension().is_some_and(|e| e == "toml"));
    paths.sort();
    Ok(paths)
}

/// One file, checked by itself so that a mistake has a place; its relative paths made absolute.
fn file(path: &Path) -> Result<Table, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let wrong = |e: toml::de::Error| {
        let at = e.span().map_or(0, |s| s.start.min(text.len()));
        let before = text.get(..at).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        let message = e.message().split_whitespace().collect::<Vec<_>>().join(" ");
        let message = ["usize", "u64"].iter().fold(message, |m, t| m.replace(t, "a whole number, 0 or more"));
        format!("{}:{line}:{column}: {message}", path.display())
    };
    toml::from_str::<Config>(&text).map_err(wrong)?;
    let mut table: Table = toml::from_str(&text).map_err(wrong)?;
    let folder = std::path::absolute(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let folder = folder.parent().unwrap_or(Path::new("/"));
    let absolute = |value: &mut Value| {
        if let Value::String(path) = value {
            *path = folder.join(&*path).to_string_lossy().into_owned();
        }
    };
    table.get_mut("socket").map(absolute);
    table.get_mut("state_dir").map(absolute);
    table.get_mut("tcp_token_file").map(absolute);
    if let Some(Value::String(model)) = table.get_mut("model").filter(|m| m.as_str().is_some_and(is_file)) {
        *model = folder.join(&*model).to_string_lossy().into_owned();
    }
    if let Some(Value::Table(models)) = table.get_mut("models") {
        models.iter_mut().filter_map(|(_, model)| model.get_mut("path")).for_each(absolute);
    }
    Ok(table)
}

/// Whether a model is named by its file.
pub(super) fn is_file(model: &str) -> bool {
    model.contains('/') || model.ends_with(".gguf")
}

/// What the environment sets.
fn environment() -> Result<Table, String> {
    let mut all = Table::new();
    for (name, keys, number) in VARIABLES {
        let Some((key, sections)) = keys.split_last() else { continue };
        let Some(value) = std::env::var_os(name) else { continue };
        let text = value.into_string().map_err(|_| format!("{name} isn't valid UTF-8: set it anew"))?;
        let value = match number {
            false => Value::String(text),
            true => {
                Value::Integer(text.parse().map_err(|_| format!("{name} is {text:?}: give a whole number"))?)
            }
        };
        let mut one = Table::from_iter([((*key).to_owned(), value)]);
        for section in sections.iter().rev() {
            one = Table::from_iter([((*section).to_owned(), Value::Table(one))]);
        }
        join(&mut all, one);
    }
    Ok(all)
}

/// Adds a later layer: its values count, tables are joined.
fn join(all: &mut Table, later: Table) {
    for (key, value) in later {
        match (all.get_mut(&key), value) {
            (Some(Value::Table(old)), Value::Table(new)) => join(old, new),
            (_, value) => drop(all.insert(key, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{PathBuf, user_file};

    #[test]
    fn the_users_file_is_where_users_look_for_it() {
        let file = |config: Option<&str>, home: Option<&str>| {
            user_file(config.map(Into::into), home.map(Into::into))
        };
        assert_eq!(file(Some("/c"), Some("/h")), Ok(PathBuf::from("/c/kadence/kadence.toml")));
        assert_eq!(file(None, Some("/h")), Ok(PathBuf::from("/h/.config/kadence/kadence.toml")));
        assert_eq!(file(Some(""), Some("/h")), Ok(PathBuf::from("/h/.config/kadence/kadence.toml")));
        assert!(file(None, None).is_err());
    }
}
