//! A server under test, and a small HTTP client that sees bytes as they arrive.

#![allow(dead_code, reason = "each test file uses its part")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::program::Place;

/// A running `bilayer serve`.
pub struct Server {
    child: Child,
    pub address: String,
    _place: Place,
}

impl Server {
    /// Starts one on a port of its own and waits until it is ready.
    pub fn start(arguments: &str) -> Server {
        Server::start_in(Place::new(), arguments)
    }

    pub fn start_in(place: Place, arguments: &str) -> Server {
        let mut command = place.command(&format!("serve --port 0 -ngl 0 {arguments}"));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on http").expect(&line);
        let address = address.trim_start_matches('s').trim_start_matches("://").to_owned();
        Server { child, address, _place: place }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the process to end and returns its exit code.
    pub fn wait(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }

    /// Opens a connection.
    pub fn connect(&self) -> TcpStream {
        connect(&self.address)
    }

    pub fn get(&self, path: &str) -> Reply {
        self.send("GET", path, &[], "")
    }

    pub fn post(&self, path: &str, body: &Value) -> Reply {
        self.send("POST", path, &[], &body.to_string())
    }

    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        send(&self.address, (method, path), headers, body)
    }

    /// Starts a request and returns its response while it arrives.
    pub fn stream(&self, path: &str, body: &Value) -> Stream {
        stream(&self.address, path, body)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Opens a connection to a server, be it one of [`Server`] or what stands before it.
pub fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

/// The response of a server to a request.
pub fn send(
    address: &str,
    (method, path): (&str, &str),
    headers: &[(&str, &str)],
    body: &str,
) -> Reply {
    let mut stream = connect(address);
    request(&mut stream, method, path, headers, body);
    Reply::read(stream)
}

/// The response of a server while it arrives.
pub fn stream(address: &str, path: &str, body: &Value) -> Stream {
    let mut stream = connect(address);
    request(&mut stream, "POST", path, &[], &body.to_string());
    Stream { lines: BufReader::new(stream) }
}

fn request(stream: &mut TcpStream, method: &str, path: &str, headers: &[(&str, &str)], body: &str) {
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    if method == "POST" {
        head += &format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
    }
    // A server that refuses early may close before it has read all.
    let _ = stream.write_all(format!("{head}\r\n{body}").as_bytes());
}

/// A whole response.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Reply {
    /// Reads a response until the server closes the connection.
    pub fn read(mut stream: TcpStream) -> Reply {
        let mut bytes = Vec::new();
        // A reset after the response leaves what came before.
        let _ = stream.read_to_end(&mut bytes);
        let text = String::from_utf8_lossy(&bytes);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
        let headers = lines.filter_map(|line| line.split_once(": "));
        let headers: Vec<(String, String)> =
            headers.map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect();
        let is_chunked =
            headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
        let body = if is_chunked { unchunked(body) } else { body.to_owned() };
        Reply { status: status.unwrap_or(0), headers, body }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The body of a response that must have succeeded.
    pub fn good(self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        self.json()
    }

    /// The data of server-sent events, without `[DONE]`.
    pub fn events(&self) -> Vec<Value> {
        let data = self.body.lines().filter_map(|line| line.strip_prefix("data: "));
        data.filter(|data| *data != "[DONE]")
            .map(|data| serde_json::from_str(data).unwrap())
            .collect()
    }
}

fn unchunked(body: &str) -> String {
    let (mut text, mut rest) = (String::new(), body);
    while let Some((size, after)) = rest.split_once("\r\n") {
        let Ok(size) = usize::from_str_radix(size.trim(), 16) else { break };
        if size == 0 || after.len() < size {
            break;
        }
        text += &after[..size];
        rest = after[size..].trim_start_matches("\r\n");
    }
    text
}

/// A response while it arrives.
pub struct Stream {
    lines: BufReader<TcpStream>,
}

impl Stream {
    /// The next event.
    pub fn event(&mut self) -> Option<Value> {
        let mut line = String::new();
        loop {
            line.clear();
            if self.lines.read_line(&mut line).unwrap_or(0) == 0 {
                return None;
            }
            match line.trim_end().strip_prefix("data: ") {
                Some("[DONE]") => return None,
                Some(data) => return serde_json::from_str(data).ok(),
                None => {}
            }
        }
    }
}
