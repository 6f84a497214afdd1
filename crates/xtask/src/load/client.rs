//! An HTTP/1.1 client on a blocking socket that stamps each server-sent event with the time of its arrival.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Time after which a silent server counts as hanging. Prompts of slow builds take minutes.
const SILENCE: Duration = Duration::from_secs(600);

/// Lines that the head of a response may have.
const HEAD_LINES: usize = 200;

/// Status and headers of a response.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Head {
    pub status: u16,
    /// Names in lower case.
    headers: Vec<(String, String)>,
}

impl Head {
    /// Reads the status line and the headers.
    fn read(reader: &mut impl BufRead) -> Result<Head> {
        let mut head = Head::default();
        for number in 0..HEAD_LINES {
            let line = line(reader)?;
            if number == 0 {
                let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
                head.status = status.with_context(|| format!("no status line: `{line}`"))?;
            } else if line.is_empty() {
                return Ok(head);
            } else if let Some((name, value)) = line.split_once(':') {
                head.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
            }
        }
        bail!("the head of the response has more than {HEAD_LINES} lines")
    }

    /// The value of a header, whose name is given in lower case.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// How the body ends.
    fn length(&self) -> Result<Length> {
        if self
            .get("transfer-encoding")
            .is_some_and(|coding| coding.eq_ignore_ascii_case("chunked"))
        {
            return Ok(Length::Chunks);
        }
        match self.get("content-length") {
            Some(bytes) => Ok(Length::Bytes(bytes.parse().context("content-length")?)),
            None => Ok(Length::ToTheEnd),
        }
    }
}

/// How the rest of a body ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Length {
    Chunks,
    Bytes(usize),
    ToTheEnd,
    /// All of it was read.
    Done,
}

impl Length {
    /// The next part of the body as it arrives; `None` at the end.
    fn part(&mut self, reader: &mut impl BufRead) -> Result<Option<Vec<u8>>> {
        let mut part = Vec::new();
        match *self {
            Length::Done => return Ok(None),
            Length::Chunks => {
                let size = line(reader)?;
                let digits = size.split(';').next().unwrap_or_default().trim();
                let size = usize::from_str_radix(digits, 16)
                    .with_context(|| format!("no chunk size: `{size}`"))?;
                part.resize(size, 0);
                reader.read_exact(&mut part).context("the chunk is cut off")?;
                let end = line(reader)?;
                if !end.is_empty() {
                    bail!("no end of line after a chunk");
                }
            }
            Length::Bytes(bytes) => {
                part.resize(bytes, 0);
                reader.read_exact(&mut part).context("the body is cut off")?;
                *self = Length::Done;
            }
            Length::ToTheEnd => {
                part.extend_from_slice(reader.fill_buf()?);
                reader.consume(part.len());
            }
        }
        if part.is_empty() {
            *self = Length::Done;
            return Ok(None);
        }
        Ok(Some(part))
    }
}

/// A line without its end.
fn line(reader: &mut impl BufRead) -> Result<String> {
    let mut line = Vec::new();
    reader.take(64 << 10).read_until(b'\n', &mut line)?;
    if line.pop() != Some(b'\n') {
        bail!("the connection was closed");
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    Ok(String::from_utf8(line)?)
}

/// A complete response.
#[derive(Debug)]
pub struct Answer {
    pub head: Head,
    pub body: Vec<u8>,
    /// From before connecting and sending until the last byte.
    pub took: Duration,
}

/// A server-sent event.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// When its last byte was read.
    pub at: Instant,
    pub data: String,
}

/// Splits a stream into events.
#[derive(Default)]
struct Splitter {
    rest: Vec<u8>,
}

impl Splitter {
    /// The events that end within `part`, which arrived at `at`.
    fn push(&mut self, part: &[u8], at: Instant) -> Result<Vec<Event>> {
        self.rest.extend_from_slice(part);
        let mut events = Vec::new();
        while let Some(end) = self.rest.windows(2).position(|pair| pair == b"\n\n") {
            let frame: Vec<u8> = self.rest.drain(..end + 2).collect();
            let frame = String::from_utf8(frame)?;
            let lines = frame.lines().filter_map(|line| line.strip_prefix("data:"));
            let data: Vec<&str> =
                lines.map(|data| data.strip_prefix(' ').unwrap_or(data)).collect();
            // A frame without data is a comment that keeps the connection alive.
            if !data.is_empty() {
                events.push(Event { at, data: data.join("\n") });
            }
        }
        Ok(events)
    }
}

/// Opens a connection.
pub fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    Ok(stream)
}

/// The head of a POST request with a body of JSON.
pub fn post_head(path: &str, body_bytes: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {body_bytes}\r\n\r\n"
    )
}

/// Reads a response from a connection that a request was written to by hand.
pub fn answer(stream: TcpStream) -> Result<Head> {
    Head::read(&mut BufReader::new(stream))
}

/// A client with one connection, kept between requests.
pub struct Client {
    address: SocketAddr,
    connection: Option<BufReader<TcpStream>>,
}

impl Client {
    pub fn new(address: SocketAddr) -> Client {
        Client { address, connection: None }
    }

    /// Opens the connection before it is needed.
    pub fn connect(&mut self) -> Result<()> {
        if self.connection.is_none() {
            self.connection = Some(BufReader::new(connect(self.address)?));
        }
        Ok(())
    }

    /// Closes the connection.
    pub fn close(&mut self) {
        self.connection = None;
    }

    /// `GET`.
    pub fn get(&mut self, path: &str) -> Result<Answer> {
        let began = Instant::now();
        let head = self.send(&format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n"), "")?;
        self.answer(head, began)
    }

    /// `POST` of a document.
    pub fn post(&mut self, path: &str, body: &str) -> Result<Answer> {
        let began = Instant::now();
        let head = self.send(&post_head(path, body.len()), body)?;
        self.answer(head, began)
    }

    /// `POST` of a document that is answered by a stream; shows each event to `see`. Returns the time of sending.
    pub fn stream(
        &mut self,
        path: &str,
        body: &str,
        mut see: impl FnMut(Event) -> Result<()>,
    ) -> Result<Instant> {
        let sent = Instant::now();
        let head = self.send(&post_head(path, body.len()), body)?;
        let is_stream = head.get("content-type").is_some_and(|ty| ty.contains("event-stream"));
        if head.status != 200 || !is_stream {
            let status = head.status;
            let answer = self.answer(head, sent)?;
            bail!("no stream but status {status}: {}", String::from_utf8_lossy(&answer.body));
        }
        let mut splitter = Splitter::default();
        self.body(&head, |part| {
            splitter.push(part, Instant::now())?.into_iter().try_for_each(&mut see)
        })?;
        Ok(sent)
    }

    /// Sends a request and reads the head of the response. A kept connection that the server has closed meanwhile is
    /// opened again.
    fn send(&mut self, head: &str, body: &str) -> Result<Head> {
        let is_kept = self.connection.is_some();
        let sent = self.send_once(head, body);
        if sent.is_err() && is_kept {
            self.connection = None;
            return self.send_once(head, body);
        }
        sent
    }

    fn send_once(&mut self, head: &str, body: &str) -> Result<Head> {
        self.connect()?;
        let connection = self.connection.as_mut().context("no connection")?;
        // One write, so that head and body leave together.
        connection.get_mut().write_all(format!("{head}{body}").as_bytes())?;
        Head::read(connection)
    }

    fn answer(&mut self, head: Head, began: Instant) -> Result<Answer> {
        let mut body = Vec::new();
        self.body(&head, |part| {
            body.extend_from_slice(part);
            Ok(())
        })?;
        Ok(Answer { head, body, took: began.elapsed() })
    }

    /// Reads the body in parts as they arrive; the connection stays open if it may be used again.
    fn body(&mut self, head: &Head, mut see: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut connection = self.connection.take().context("no connection")?;
        let mut length = head.length()?;
        let is_last = length == Length::ToTheEnd
            || head.get("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        while let Some(part) = length.part(&mut connection)? {
            see(&part)?;
        }
        if !is_last {
            self.connection = Some(connection);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    fn body(response: &str) -> Result<(Head, Vec<Vec<u8>>)> {
        let mut reader = Cursor::new(response.as_bytes());
        let head = Head::read(&mut reader)?;
        let mut length = head.length()?;
        let mut parts = Vec::new();
        while let Some(part) = length.part(&mut reader)? {
            parts.push(part);
        }
        Ok((head, parts))
    }

    #[test]
    fn bodies_end_as_their_head_says() {
        let (head, parts) =
            body("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nX-A: b: c\r\n\r\nabcdef").unwrap();
        assert_eq!((head.status, head.get("x-a")), (200, Some("b: c")));
        assert_eq!(parts, [b"abc"]);
        let chunks = "HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1;x=y\r\nc\r\n0\r\n\r\n";
        let (head, parts) = body(chunks).unwrap();
        assert_eq!(head.status, 503);
        assert_eq!(parts, [b"ab".to_vec(), b"c".to_vec()]);
        assert_eq!(body("HTTP/1.1 200 OK\r\n\r\nabc").unwrap().1, [b"abc"]);
        assert_eq!(body("HTTP/1.1 204 OK\r\nContent-Length: 0\r\n\r\n").unwrap().1.len(), 0);
    }

    #[test]
    fn broken_responses_are_errors() {
        for (response, part) in [
            ("", "closed"),
            ("HTTP/1.1 200 OK\r\n", "closed"),
            ("garbage\r\n\r\n", "status line"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", "cut off"),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc", "cut off"),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "chunk size"),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n", "closed"),
        ] {
            let error = format!("{:#}", body(response).unwrap_err());
            assert!(error.contains(part), "{response:?}: {error}");
        }
    }

    #[test]
    fn events_are_split_wherever_parts_end() {
        let text = "data: {\"a\": 1}\n\n:\n\nevent: b\ndata: two\ndata: lines\n\ndata: [DONE]\n\n";
        let at = Instant::now();
        for size in 1..text.len() {
            let mut splitter = Splitter::default();
            let mut found = Vec::new();
            for part in text.as_bytes().chunks(size) {
                found.extend(splitter.push(part, at).unwrap().into_iter().map(|event| event.data));
            }
            assert_eq!(found, ["{\"a\": 1}", "two\nlines", "[DONE]"], "{size}");
        }
    }

    #[test]
    fn a_connection_is_kept_and_opened_again_once_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // Two answers on the first connection, then one on the next.
        let server = thread::spawn(move || {
            for answers in [2, 1] {
                let mut stream = BufReader::new(listener.accept().unwrap().0);
                for _ in 0..answers {
                    while !line(&mut stream).unwrap().is_empty() {}
                    let mut body = [0; 2];
                    stream.read_exact(&mut body).unwrap();
                    assert_eq!(&body, b"{}");
                    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                    stream.get_mut().write_all(answer).unwrap();
                }
            }
        });
        let mut client = Client::new(address);
        for _ in 0..3 {
            let answer = client.post("/", "{}").unwrap();
            assert_eq!((answer.head.status, answer.body), (200, b"ok".to_vec()));
        }
        server.join().unwrap();
    }
}
