//! "Desktop programs reach it over D-Bus": a real bus, the real daemon, real clients; what is shipped as XML is what is
//! there; and nobody sees what isn't theirs.

mod daemon;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use daemon::{Daemon, Scratch, model, wait};
use futures_util::StreamExt;
use serde_json::{Value, json};
use zbus::fdo::{IntrospectableProxy, PropertiesProxy};
use zbus::{Connection, MessageStream, OwnedObjectPath, Variant};

const NAME: &str = "org.kadence.Kadence1";
const ROOT: &str = "/org/kadence/Kadence1";
const MANAGER: &str = "org.kadence.Kadence1.Manager";
const SESSION: &str = "org.kadence.Kadence1.Session";
/// Another user, known to every Debian system as `daemon`: the bus refuses those without a name.
const OTHER: u32 = 1;

/// A bus of its own, on which everybody may be, as on a system's bus.
struct PrivateBus {
    child: Child,
    address: String,
    _scratch: Scratch,
}

impl PrivateBus {
    fn start() -> PrivateBus {
        let scratch = Scratch::new();
        let socket = scratch.path("bus");
        let config = scratch.path("bus.conf");
        let text = format!(
            "<busconfig><listen>unix:path={}</listen><auth>EXTERNAL</auth><policy context=\"default\">\
             <allow user=\"*\"/><allow own=\"*\"/><allow send_destination=\"*\"/><allow receive_sender=\"*\"/>\
             </policy></busconfig>",
            socket.display()
        );
        std::fs::write(&config, text).unwrap();
        let child = Command::new("dbus-daemon")
            .arg(format!("--config-file={}", config.display()))
            .args(["--nofork", "--nopidfile", "--print-address"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("dbus-daemon is needed: tests/run installs it");
        let mut bus = PrivateBus { child, address: String::new(), _scratch: scratch };
        BufReader::new(bus.child.stdout.as_mut().unwrap()).read_line(&mut bus.address).unwrap();
        bus.address = bus.address.trim().to_owned();
        bus
    }

    async fn connect(&self) -> Connection {
        zbus::connection::Builder::address(self.address.as_str()).build().await.unwrap()
    }

    /// A daemon on it, and a client that finds it there.
    async fn daemon(&self, config: &str) -> (Daemon, Connection) {
        let daemon = Daemon::start_with(config, |command| {
            command.env("KADENCE_BUS", "auto").env("DBUS_SYSTEM_BUS_ADDRESS", &self.address)
        })
        .await;
        let client = self.connect().await;
        wait(|| async { there(&client).await }).await;
        (daemon, client)
    }

    /// A program with this bus as its system's and its session's.
    fn run(&self, program: &str, arguments: &[&str], user: Option<u32>) -> Option<(bool, String)> {
        let mut command = Command::new(program);
        command.args(arguments).env("DBUS_SYSTEM_BUS_ADDRESS", &self.address);
        command.env("DBUS_SESSION_BUS_ADDRESS", &self.address).stdin(Stdio::null());
        if let Some(user) = user {
            command.uid(user).gid(user).env("HOME", "/");
        }
        let output = match command.output() {
            Ok(output) => output,
            Err(e) => {
                eprintln!("daemon_bus: SKIPPED: {program}: {e}");
                return None;
            }
        };
        let said = [output.stdout, output.stderr].concat();
        Some((output.status.success(), String::from_utf8(said).unwrap()))
    }
}

impl Drop for PrivateBus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn there(client: &Connection) -> bool {
    let bus = zbus::fdo::DBusProxy::new(client).await.unwrap();
    bus.name_has_owner(NAME.try_into().unwrap()).await.unwrap()
}

type Options<'a> = HashMap<&'a str, Variant<'a>>;

fn options<const N: usize>(all: [(&'static str, Variant<'static>); N]) -> Options<'static> {
    all.into()
}

async fn call<B, R>(
    client: &Connection,
    path: &str,
    interface: &str,
    method: &str,
    body: &B,
) -> Result<R, String>
where
    B: serde::Serialize + zbus::Type,
    R: for<'d> serde::Deserialize<'d> + zbus::Type,
{
    match client.call_method(Some(NAME), path, Some(interface), method, body).await {
        Ok(reply) => Ok(reply.body().deserialize().unwrap()),
        Err(zbus::Error::MethodError(name, ..)) => Err(name.to_string()),
        Err(e) => Err(e.to_string()),
    }
}

async fn create(client: &Connection, name: &'static str) -> OwnedObjectPath {
    let body = ("", options([("name", name.into())]));
    call(client, ROOT, MANAGER, "CreateSession", &body).await.unwrap()
}

/// Asks, and gives the request's number and the pipe.
async fn prompt(client: &Connection, session: &str, text: &str, more: Options<'_>) -> (u32, std::fs::File) {
    let mut all = options([("temperature", 0.0.into()), ("max_tokens", 12u32.into())]);
    all.extend(more);
    let (number, pipe): (u32, zbus::OwnedFd) =
        call(client, session, SESSION, "Prompt", &(text, all)).await.unwrap();
    (number, OwnedFd::from(pipe).into())
}

/// The service's signals of this name.
async fn signals(client: &Connection, name: &str) -> MessageStream {
    let rule = format!("type='signal',sender='{NAME}',member='{name}'");
    MessageStream::for_match_rule(rule.as_str(), client, None).await.unwrap()
}

/// A pipe, when the first text has come out of it.
async fn speaking(pipe: std::fs::File) -> BufReader<std::fs::File> {
    let speaking = tokio::task::spawn_blocking(move || {
        let mut reader = BufReader::new(pipe);
        let mut line = String::new();
        while !line.contains("\"text\"") {
            line.clear();
            assert!(reader.read_line(&mut line).unwrap() > 0, "it ended by itself");
        }
        reader
    });
    speaking.await.unwrap()
}

/// What a pipe says until its end.
async fn lines(pipe: std::fs::File) -> Vec<Value> {
    let text = tokio::task::spawn_blocking(move || {
        let mut text = String::new();
        (&pipe).read_to_string(&mut text).map(|_| text)
    });
    let text = text.await.unwrap().unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn said(lines: &[Value]) -> String {
    lines.iter().filter_map(|l| l["text"].as_str()).collect()
}

async fn info(client: &Connection, session: &str) -> HashMap<String, zbus::OwnedVariant> {
    call(client, session, SESSION, "GetInfo", &()).await.unwrap()
}

fn number(info: &HashMap<String, zbus::OwnedVariant>, key: &str) -> u64 {
    u64::try_from(&info[key]).unwrap()
}

#[tokio::test]
async fn a_session_is_held_over_the_bus_and_over_http_alike() {
    let bus = PrivateBus::start();
    let (daemon, client) = bus.daemon("[sessions]\ncodec = \"exact\"\n").await;
    let session = create(&client, "diary").await;
    let (_, pipe) = prompt(&client, &session, "Once upon a time", options([])).await;
    let answer = lines(pipe).await;
    assert_eq!(answer[0]["begin"]["session"]["name"], "diary", "{answer:?}");
    let last = answer.last().unwrap();
    assert_eq!((&last["finish_reason"], &last["saved"]), (&json!("length"), &json!(true)), "{last}");
    // The same conversation over HTTP says the same.
    let ask = |text: &str| {
        let messages = json!([{"role": "user", "content": text}]);
        json!({"messages": messages, "session": "other", "temperature": 0, "max_tokens": 12})
    };
    let first = daemon.answer("/v1/chat/completions", &ask("Once upon a time")).await;
    assert_eq!(first["choices"][0]["message"]["content"], said(&answer));
    let fed: u64 = call(&client, &session, SESSION, "Feed", &("A note.", options([]))).await.unwrap();
    assert_eq!(fed, number(&info(&client, &session).await, "tokens"));
    let text: String = call(&client, &session, SESSION, "GetMessages", &()).await.unwrap();
    let messages: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(messages[1]["content"], said(&answer));
    assert_eq!(messages[2], json!({"role": "user", "content": "A note."}));
    // Branches and steps back.
    let branch: OwnedObjectPath =
        call(&client, &session, SESSION, "Fork", &(options([("name", "branch".into())]),)).await.unwrap();
    let () = call(&client, &branch, SESSION, "Rewind", &(4u64,)).await.unwrap();
    assert_eq!(number(&info(&client, &branch).await, "tokens"), 4);
    assert_eq!(number(&info(&client, &session).await, "tokens"), fed);
    // Out to a file, and in again.
    let file = tempfile::tempfile().unwrap();
    let handed = zbus::Fd::from(file.as_fd());
    let () = call(&client, &session, SESSION, "Export", &(handed, options([]))).await.unwrap();
    let handed = zbus::Fd::from(file.as_fd());
    let body = (handed, options([("name", "copy".into())]));
    let copy: OwnedObjectPath = call(&client, ROOT, MANAGER, "ImportSession", &body).await.unwrap();
    let copied: String = call(&client, &copy, SESSION, "GetMessages", &()).await.unwrap();
    assert_eq!(copied, text);
    let bytes: u64 = call(&client, &copy, SESSION, "Save", &(options([]),)).await.unwrap();
    assert!(bytes > 1000);
    type Listed = Vec<(OwnedObjectPath, String, u64, HashMap<String, zbus::OwnedVariant>)>;
    let listed: Listed = call(&client, ROOT, MANAGER, "ListSessions", &(options([]),)).await.unwrap();
    let mut names: Vec<&str> = listed.iter().map(|s| s.1.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["branch", "copy", "diary", "other"]);
    let () = call(&client, &copy, SESSION, "Delete", &()).await.unwrap();
    wait(|| async {
        call::<_, HashMap<String, zbus::OwnedVariant>>(&client, &copy, SESSION, "GetInfo", &()).await.is_err()
    })
    .await;
    assert_eq!(daemon.get("/v1/sessions/copy").await.0, 404);
    let again =
        call::<_, OwnedObjectPath>(&client, ROOT, MANAGER, "OpenSession", &("copy", options([]))).await;
    assert_eq!(again.unwrap_err(), format!("{NAME}.Error.SessionNotFound"));
}

#[tokio::test]
async fn closing_the_pipe_or_cancelling_ends_the_answer_and_what_was_said_is_kept() {
    let bus = PrivateBus::start();
    let (daemon, client) = bus.daemon("").await;
    let session = create(&client, "s").await;
    let mut signals = signals(&client, "Finished").await;
    let long = || options([("ignore_eos", true.into()), ("max_tokens", 100_000u32.into())]);
    let (first, pipe) = prompt(&client, &session, "go on", long()).await;
    let busy =
        call::<_, (u32, zbus::OwnedFd)>(&client, &session, SESSION, "Prompt", &("x", options([]))).await;
    assert_eq!(busy.unwrap_err(), format!("{NAME}.Error.SessionBusy"));
    drop(speaking(pipe).await);
    daemon.until(|s| s["requests"]["running"] == 0 && s["totals"]["cancelled"] == 1).await;
    let (second, pipe) = prompt(&client, &session, "and on", long()).await;
    assert!(second > first);
    let mut pipe = speaking(pipe).await;
    let () = call(&client, &session, SESSION, "Cancel", &(second,)).await.unwrap();
    let rest = tokio::task::spawn_blocking(move || {
        let mut rest = String::new();
        pipe.read_to_string(&mut rest).map(|_| rest)
    });
    assert!(rest.await.unwrap().unwrap().ends_with("{\"finish_reason\":\"cancelled\"}\n"));
    let () = call(&client, &session, SESSION, "Suspend", &()).await.unwrap();
    let all = info(&client, &session).await;
    assert_eq!((number(&all, "turns"), bool::try_from(&all["busy"]).unwrap()), (2, false));
    // One who never reads: the answer ends, and others aren't held up.
    let unread = prompt(&client, &session, "unread", long()).await;
    let other = create(&client, "t").await;
    let (_, pipe) = prompt(&client, &other, "hello", options([])).await;
    assert_eq!(lines(pipe).await.last().unwrap()["finish_reason"], "length");
    drop(unread);
    // Each was told of, to whoever had asked.
    let mut finished = Vec::new();
    while finished.len() < 3 {
        let message = tokio::time::timeout(daemon::PATIENCE, signals.next()).await.unwrap().unwrap().unwrap();
        let (number, reason, _): (u32, String, HashMap<String, zbus::OwnedVariant>) =
            message.body().deserialize().unwrap();
        assert!(message.header().destination().is_some(), "it was for everybody");
        finished.push((number, reason));
    }
    assert_eq!(finished[..2], [(first, "cancelled".to_owned()), (second, "cancelled".to_owned())]);
}

#[tokio::test]
async fn mistakes_have_names() {
    let bus = PrivateBus::start();
    let (_daemon, client) = bus.daemon("[limits]\nparallel = 1\nqueue = 0\n").await;
    let session = create(&client, "s").await;
    let error = |name: &str| format!("{NAME}.Error.{name}");
    let bad = [
        ("max_tokens", Variant::from("many"), "InvalidOption"),
        ("max_tokenz", 3u32.into(), "InvalidOption"),
        ("temperature", (-1.0).into(), "InvalidOption"),
        ("model", "none".into(), "ModelNotFound"),
    ];
    for (key, value, want) in bad {
        let got = call::<_, (u32, zbus::OwnedFd)>(
            &client,
            &session,
            SESSION,
            "Prompt",
            &("x", options([(key, value)])),
        )
        .await;
        assert_eq!(got.unwrap_err(), error(want), "{key}");
    }
    let twice = ("", options([("name", "s".into())]));
    let got = call::<_, OwnedObjectPath>(&client, ROOT, MANAGER, "CreateSession", &twice).await;
    assert_eq!(got.unwrap_err(), error("SessionExists"));
    let broken = ("{", options([]));
    let got = call::<_, (u32, zbus::OwnedFd)>(&client, &session, SESSION, "PromptMessages", &broken).await;
    assert_eq!(got.unwrap_err(), error("InvalidOption"));
    let junk = tempfile::tempfile().unwrap();
    let body = (zbus::Fd::from(junk.as_fd()), options([]));
    let got = call::<_, OwnedObjectPath>(&client, ROOT, MANAGER, "ImportSession", &body).await;
    assert_eq!(got.unwrap_err(), error("StateIncompatible"));
    // The engine is full.
    let other = create(&client, "t").await;
    let (_, _pipe) = prompt(
        &client,
        &session,
        "x",
        options([("ignore_eos", true.into()), ("max_tokens", 100_000u32.into())]),
    )
    .await;
    let got = call::<_, (u32, zbus::OwnedFd)>(&client, &other, SESSION, "Prompt", &("x", options([]))).await;
    assert_eq!(got.unwrap_err(), error("Busy"));
}

#[tokio::test]
async fn a_model_is_handed_over_as_a_file() {
    let bus = PrivateBus::start();
    let (daemon, client) = bus.daemon("").await;
    let mut signals = signals(&client, "ModelStateChanged").await;
    let load = |name: &'static str, path: String| {
        let client = client.clone();
        async move {
            let file = std::fs::File::open(path).unwrap();
            let body = (name, options([("file", Variant::from(zbus::Fd::from(OwnedFd::from(file))))]));
            let pipe: Result<zbus::OwnedFd, String> = call(&client, ROOT, MANAGER, "LoadModel", &body).await;
            match pipe {
                Ok(pipe) => Ok(lines(OwnedFd::from(pipe).into()).await),
                Err(e) => Err(e),
            }
        }
    };
    let told = load("mine", model("k3-s-f16")).await.unwrap();
    assert_eq!(told, [json!({"state": "opening"}), json!({"state": "open"})]);
    let told = load("junk", format!("{}/Cargo.toml", env!("CARGO_MANIFEST_DIR"))).await.unwrap();
    assert_eq!(told[1]["error"]["name"], format!("{NAME}.Error.ModelUnusable"), "{told:?}");
    assert_eq!(load("k3-s-f16", model("k3-s-f16")).await.unwrap_err(), format!("{NAME}.Error.ModelExists"));
    let session: OwnedObjectPath =
        call(&client, ROOT, MANAGER, "CreateSession", &("mine", options([]))).await.unwrap();
    let (_, pipe) = prompt(&client, &session, "hello", options([])).await;
    assert_eq!(lines(pipe).await[0]["begin"]["model"], "mine");
    // The service's own model is loaded and unloaded by who runs it, and everybody is told.
    let pipe: zbus::OwnedFd =
        call(&client, ROOT, MANAGER, "LoadModel", &("k3-s-f16", options([]))).await.unwrap();
    assert_eq!(lines(OwnedFd::from(pipe).into()).await[1], json!({"state": "open"}));
    let () = call(&client, ROOT, MANAGER, "UnloadModel", &("k3-s-f16", options([]))).await.unwrap();
    daemon.until(|s| s["model"]["state"] == "closed").await;
    let mut states = Vec::new();
    while states.last().is_none_or(|s| s != "closed") {
        let message = tokio::time::timeout(daemon::PATIENCE, signals.next()).await.unwrap().unwrap().unwrap();
        let (name, state): (String, String) = message.body().deserialize().unwrap();
        assert_eq!(name, "k3-s-f16", "the names of users' own models are theirs");
        states.push(state);
    }
    type Listed = Vec<(String, String, u64, HashMap<String, zbus::OwnedVariant>)>;
    let models: Listed = call(&client, ROOT, MANAGER, "ListModels", &()).await.unwrap();
    let names: Vec<&str> = models.iter().map(|m| m.0.as_str()).collect();
    assert_eq!(names, ["k3-s-f16", "mine", "junk"]);
    let path = format!("{ROOT}/model/k3_2ds_2df16");
    let properties = PropertiesProxy::builder(&client).destination(NAME).path(path).build().await.unwrap();
    let all = properties.get_all("org.kadence.Kadence1.Model".try_into().unwrap()).await.unwrap();
    assert_eq!(all["Architecture"].to_string(), "\"kimi-k3\"");
    assert!(u64::try_from(&all["Bytes"]).unwrap() > 1000);
}

/// The interfaces of an object that are ours.
async fn interface(client: &Connection, path: &str, name: &str) -> String {
    let object = IntrospectableProxy::builder(client).destination(NAME).path(path).build().await.unwrap();
    let xml = object.introspect().await.unwrap();
    let start =
        xml.find(&format!("  <interface name=\"{name}\">")).unwrap_or_else(|| panic!("{name}: {xml}"));
    let end = xml[start..].find("</interface>\n").unwrap();
    format!("{}</interface>\n", &xml[start..start + end])
}

#[tokio::test]
async fn the_interfaces_that_are_shipped_are_those_that_are_there() {
    let bus = PrivateBus::start();
    let (_daemon, client) = bus.daemon("").await;
    let session = create(&client, "s").await;
    let model = format!("{ROOT}/model/k3_2ds_2df16");
    for (path, name) in [(ROOT, "Manager"), (model.as_str(), "Model"), (session.as_str(), "Session")] {
        let live = interface(&client, path, &format!("{NAME}.{name}")).await;
        let file = format!("{}/packaging/dbus/{NAME}.{name}.xml", env!("CARGO_MANIFEST_DIR"));
        let head = "<!DOCTYPE node PUBLIC \"-//freedesktop//DTD D-BUS Object Introspection 1.0//EN\"\n \
                    \"http://www.freedesktop.org/standards/dbus/1.0/introspect.dtd\">\n<node>\n";
        let live = format!("{head}{live}</node>\n");
        if std::env::var_os("KADENCE_WRITE_XML").is_some() {
            std::fs::write(&file, &live).unwrap();
        }
        let shipped = std::fs::read_to_string(&file).unwrap_or_default();
        assert_eq!(shipped, live, "KADENCE_WRITE_XML=1 cargo test --test daemon_bus writes {file}");
    }
    // Session objects tell nothing by their paths.
    assert!(!session.as_str().ends_with("/s"), "{session}");
}

#[tokio::test]
async fn real_clients_talk_to_it() {
    let bus = Arc::new(PrivateBus::start());
    let (_daemon, client) = bus.daemon("").await;
    let session = create(&client, "s").await;
    let check = |program: &'static str, arguments: Vec<String>, want: &'static [&'static str]| {
        let bus = bus.clone();
        async move {
            let run = tokio::task::spawn_blocking(move || {
                let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
                bus.run(program, &arguments, None)
            });
            let Some((success, said)) = run.await.unwrap() else { return };
            assert!(success && want.iter().all(|w| said.contains(w)), "{program}: {said}");
        }
    };
    let owned = |all: &[&str]| all.iter().map(|&s| s.to_owned()).collect::<Vec<_>>();
    check(
        "busctl",
        owned(&["--system", "call", NAME, ROOT, MANAGER, "ListModels"]),
        &["a(ssta{sv})", "k3-s-f16"],
    )
    .await;
    check("busctl", owned(&["--system", "get-property", NAME, ROOT, MANAGER, "Version"]), &["u 1"]).await;
    check(
        "busctl",
        owned(&[
            "--system",
            "call",
            NAME,
            &session,
            SESSION,
            "Prompt",
            "sa{sv}",
            "Hello",
            "1",
            "max_tokens",
            "u",
            "3",
        ]),
        &["uh 1 "],
    )
    .await;
    wait(|| async { !bool::try_from(&info(&client, &session).await["busy"]).unwrap() }).await;
    check(
        "gdbus",
        owned(&[
            "call",
            "--system",
            "--dest",
            NAME,
            "--object-path",
            &session,
            "--method",
            "org.kadence.Kadence1.Session.GetInfo",
        ]),
        &["'tokens': <uint64"],
    )
    .await;
    let script = |name: &str| format!("{}/tests/daemon/{name}", env!("CARGO_MANIFEST_DIR"));
    for name in ["client_gi.py", "client_dasbus.py"] {
        check("/usr/bin/python3", vec![script(name)], &["said something", "SessionNotFound"]).await;
    }
}

#[tokio::test]
async fn nobody_sees_what_isnt_theirs() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("daemon_bus: SKIPPED: two users need root");
    }
    let bus = Arc::new(PrivateBus::start());
    let (_daemon, client) = bus.daemon("").await;
    let secret = create(&client, "my-secret-diary").await;
    let other = |arguments: Vec<String>| {
        let bus = bus.clone();
        async move {
            let run = tokio::task::spawn_blocking(move || {
                let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
                bus.run("busctl", &[&["--system"], &arguments[..]].concat(), Some(OTHER))
            });
            run.await.unwrap()
        }
    };
    let owned = |all: &[&str]| all.iter().map(|&s| s.to_owned()).collect::<Vec<_>>();
    let Some((success, said)) =
        other(owned(&["call", NAME, ROOT, MANAGER, "ListSessions", "a{sv}", "0"])).await
    else {
        return;
    };
    assert!(success && said.trim() == "a(osta{sv}) 0", "{said}");
    for method in ["GetInfo", "GetMessages", "Delete", "Suspend", "Close"] {
        let (success, said) = other(owned(&["call", NAME, &secret, SESSION, method])).await.unwrap();
        assert!(!success && said.contains("another user's session"), "{method}: {said}");
    }
    let (success, said) =
        other(owned(&["call", NAME, &secret, SESSION, "Prompt", "sa{sv}", "x", "0"])).await.unwrap();
    assert!(!success && said.contains("another user's session"), "{said}");
    let open = ["call", NAME, ROOT, MANAGER, "OpenSession", "sa{sv}", "my-secret-diary", "0"];
    assert!(other(owned(&open)).await.unwrap().1.contains("no session"));
    let tree = other(owned(&["tree", NAME])).await.unwrap().1;
    assert!(!tree.contains("diary"), "{tree}");
    let unload = ["call", NAME, ROOT, MANAGER, "UnloadModel", "sa{sv}", "k3-s-f16", "0"];
    let (success, said) = other(owned(&unload)).await.unwrap();
    assert!(!success && said.contains("only root may"), "{said}");
    // Whoever listens to everything hears nothing of it.
    let address = bus.address.clone();
    let mut monitor = Command::new("gdbus")
        .args(["monitor", "--system", "--dest", NAME])
        .env("DBUS_SYSTEM_BUS_ADDRESS", &address)
        .uid(OTHER)
        .gid(OTHER)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut heard = BufReader::new(monitor.stdout.take().unwrap());
    let mut first = String::new();
    let mut heard = tokio::task::spawn_blocking(move || {
        while !first.contains("is owned by") {
            first.clear();
            assert!(heard.read_line(&mut first).unwrap() > 0);
        }
        heard
    })
    .await
    .unwrap();
    let (_, pipe) = prompt(&client, &secret, "Hello", options([])).await;
    lines(pipe).await;
    let () = call(&client, &secret, SESSION, "Delete", &()).await.unwrap();
    // The models' states are for everybody: they come last, and then it has heard all there is to hear.
    let () = call(&client, ROOT, MANAGER, "UnloadModel", &("k3-s-f16", options([]))).await.unwrap();
    let all = tokio::task::spawn_blocking(move || {
        let mut all = String::new();
        while !all.contains("'closed'") {
            assert!(heard.read_line(&mut all).unwrap() > 0, "{all}");
        }
        all
    });
    let all = tokio::time::timeout(daemon::PATIENCE, all).await.unwrap().unwrap();
    let _ = monitor.kill();
    let _ = monitor.wait();
    assert!(all.lines().all(|line| line.contains("ModelStateChanged")), "{all}");
}
