//! A Hugging Face hub on this machine: repositories of files, with a storage at another address that it redirects to.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bilayer_files::hash::{self, hex};
use serde_json::json;

/// The commit that every repository is at.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// What goes wrong.
#[derive(Default)]
pub struct Faults {
    /// Bytes after which the storage's next connections break; they are used up one by one.
    pub cut_after: Vec<usize>,
    /// Whether the storage sends whole files where a part is asked for.
    pub no_ranges: bool,
    /// The status with which the storage answers a request for a part.
    pub refuses_ranges: Option<u16>,
    /// Whether the storage answers with a page, as a network that wants a login does.
    pub has_login: bool,
    /// Whether the storage's whole answers come in chunks, without their length.
    pub is_chunked: bool,
    /// Whether one byte of every file is another.
    pub is_damaged: bool,
    /// The status that everything is refused with.
    pub refuses: Option<u16>,
    /// The wait before the storage sends anything.
    pub pause: Duration,
}

#[derive(Default)]
struct State {
    /// By `org/repo`, then by path.
    repos: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
    /// Without it the hub answers 401.
    token: Option<String>,
    faults: Faults,
    seen: Vec<Request>,
    storage: String,
}

/// A request that arrived.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub range: Option<String>,
    pub token: Option<String>,
}

/// Two servers on loopback addresses.
pub struct TestHub {
    pub endpoint: String,
    state: Arc<Mutex<State>>,
}

impl TestHub {
    pub fn new() -> TestHub {
        let state = Arc::new(Mutex::new(State::default()));
        let storage = listen(&state);
        state.lock().unwrap().storage = storage;
        TestHub { endpoint: listen(&state), state }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Adds a file, and returns its SHA-256.
    pub fn file(&self, repo: &str, path: &str, bytes: impl AsRef<[u8]>) -> String {
        let bytes = bytes.as_ref().to_vec();
        let etag = sha256(&bytes);
        self.state().repos.entry(repo.to_owned()).or_default().insert(path.to_owned(), bytes);
        etag
    }

    pub fn needs_token(&self, token: &str) {
        self.state().token = Some(token.to_owned());
    }

    pub fn faults(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// The requests since the last call.
    pub fn seen(&self) -> Vec<Request> {
        std::mem::take(&mut self.state().seen)
    }
}

pub fn sha256(bytes: &[u8]) -> String {
    hex(hash::sha256(bytes))
}

/// Answers on a port of its own until the process ends.
fn listen(state: &Arc<Mutex<State>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let state = state.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let state = state.clone();
            // A client that goes away ends its connection only.
            std::thread::spawn(move || answer(&stream, &state));
        }
    });
    address
}

fn answer(stream: &TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    let mut words = first.split(' ').map(str::to_owned);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    if path.is_empty() {
        // The client ended before it asked for something.
        return Ok(());
    }
    let mut request = Request { method, path, range: None, token: None };
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "range" => request.range = Some(value.to_owned()),
            "authorization" => request.token = Some(value.to_owned()),
            _ => {}
        }
    }
    let mut state = state.lock().unwrap();
    state.seen.push(request.clone());
    if let Some(etag) = request.path.strip_prefix("/storage/") {
        let etag = etag.to_owned();
        return stored(stream, request, &etag, state);
    }
    let refused = state.faults.refuses.or_else(|| {
        let token = state.token.as_ref().map(|token| format!("Bearer {token}"));
        (token.is_some() && token != request.token).then_some(401)
    });
    if let Some(status) = refused {
        return status_only(stream, status);
    }
    if let Some(repo) = request.path.strip_prefix("/api/models/") {
        let files = state.repos.get(repo.trim_end_matches("/revision/main"));
        let Some(files) = files else { return status_only(stream, 404) };
        let siblings: Vec<_> = files.keys().map(|path| json!({"rfilename": path})).collect();
        let text = json!({"sha": COMMIT, "siblings": siblings}).to_string();
        return write!(
            &mut &*stream,
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{text}",
            text.len()
        );
    }
    let resolved = request.path[1..].split_once(&format!("/resolve/{COMMIT}/"));
    let file = resolved.and_then(|(repo, path)| state.repos.get(repo)?.get(path));
    let Some(bytes) = file else { return status_only(stream, 404) };
    let (etag, storage, len) = (sha256(bytes), &state.storage, bytes.len());
    write!(
        &mut &*stream,
        "HTTP/1.1 302 Found\r\nlocation: {storage}/storage/{etag}\r\nx-repo-commit: {COMMIT}\r\n\
         x-linked-etag: \"{etag}\"\r\nx-linked-size: {len}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    )
}

/// Answers a request for a file by the hash of its bytes.
fn stored(
    stream: &TcpStream,
    mut request: Request,
    etag: &str,
    mut state: MutexGuard<'_, State>,
) -> std::io::Result<()> {
    let mut files = state.repos.values().flat_map(BTreeMap::values);
    let mut bytes = files.find(|bytes| sha256(bytes) == *etag).unwrap().clone();
    if state.faults.is_damaged {
        bytes[10] ^= 1;
    }
    let cut = if state.faults.cut_after.is_empty() {
        usize::MAX
    } else {
        state.faults.cut_after.remove(0)
    };
    if let Some(status) = state.faults.refuses_ranges.filter(|_| request.range.is_some()) {
        return status_only(stream, status);
    }
    if state.faults.no_ranges || state.faults.has_login {
        request.range = None;
    }
    if state.faults.has_login {
        bytes = b"<html>".to_vec();
    }
    if state.faults.is_chunked && request.range.is_none() {
        return send_chunk(stream, &bytes);
    }
    let pause = state.faults.pause;
    drop(state);
    std::thread::sleep(pause);
    send(stream, &request, &bytes, cut)
}

fn status_only(mut stream: &TcpStream, status: u16) -> std::io::Result<()> {
    write!(stream, "HTTP/1.1 {status} No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
}

/// Sends bytes in one chunk.
fn send_chunk(mut stream: &TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    let len = bytes.len();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n{len:x}\r\n"
    )?;
    stream.write_all(bytes)?;
    stream.write_all(b"\r\n0\r\n\r\n")
}

/// Sends a file or the part that is asked for, and breaks off after `cut` bytes.
fn send(
    mut stream: &TcpStream,
    request: &Request,
    bytes: &[u8],
    cut: usize,
) -> std::io::Result<()> {
    let range = request.range.as_ref();
    let first = range.map(|range| range.trim_start_matches("bytes=").trim_end_matches('-'));
    let first: usize = first.map_or(0, |first| first.parse().unwrap());
    let (status, rest) = if range.is_some() { (206, &bytes[first..]) } else { (200, bytes) };
    let range = format!("content-range: bytes {first}-{}/{}\r\n", bytes.len() - 1, bytes.len());
    write!(
        stream,
        "HTTP/1.1 {status} OK\r\ncontent-length: {}\r\n{}connection: close\r\n\r\n",
        rest.len(),
        if status == 206 { &range } else { "" }
    )?;
    if request.method == "GET" {
        stream.write_all(&rest[..cut.min(rest.len())])?;
    }
    Ok(())
}
