// Speaks to the server: requests with the API key, errors as the API writes them, and server-sent events.

/** One event may have this many characters. */
const EVENT_MAX = 8 << 20;

/** An error as the API reports it; `status` is 0 when there was no HTTP answer. */
export class ApiError extends Error {
  constructor(message, { status = 0, type = "", code = "", retryAfter = null } = {}) {
    super(message);
    Object.assign(this, { name: "ApiError", status, type, code, retryAfter });
  }

  /** The `error` object of a body or an event. */
  static from(error, status = 0, retryAfter = null) {
    const message = typeof error === "string" ? error : error?.message;
    return new ApiError(String(message ?? "The server reported an error without a message."), {
      status: status || (Number(error?.code) || 0),
      type: String(error?.type ?? ""),
      code: String(error?.code ?? ""),
      retryAfter,
    });
  }
}

/** The API key of this tab. */
export const key = {
  get() {
    try {
      return sessionStorage.getItem("api-key");
    } catch {
      return this.held ?? null;
    }
  },
  set(value) {
    try {
      if (value) sessionStorage.setItem("api-key", value);
      else sessionStorage.removeItem("api-key");
    } catch {
      this.held = value;
    }
  },
};

/** A request relative to the page, so that it works below a proxy's path; throws `ApiError` unless it succeeds. */
export async function request(path, { body, signal } = {}) {
  const headers = {};
  if (key.get()) headers.authorization = `Bearer ${key.get()}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  let response;
  try {
    const method = body === undefined ? "GET" : "POST";
    response = await fetch(path, { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body), cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached.", { type: "connection" });
  }
  if (response.ok) return response;
  const text = await response.text().catch(() => "");
  const retryAfter = Number.parseFloat(response.headers.get("retry-after")) || null;
  let error = null;
  try {
    error = JSON.parse(text).error;
  } catch {
    // A proxy's page; the status tells more than its markup.
  }
  throw ApiError.from(error ?? `${response.status} ${response.statusText || "error"}`, response.status, retryAfter);
}

export async function json(path, options) {
  return (await request(path, options)).json();
}

/** The data of each server-sent event of a response. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      buffer += value;
      // A pair that two reads cut apart is replaced with the second.
      if (buffer.includes("\r\n")) buffer = buffer.replaceAll("\r\n", "\n");
      for (let end = buffer.indexOf("\n\n"); end >= 0; end = buffer.indexOf("\n\n")) {
        const data = dataOf(buffer.slice(0, end));
        buffer = buffer.slice(end + 2);
        if (data !== null) yield data;
      }
      if (buffer.length > EVENT_MAX) throw new ApiError("The server sent an event that is too long.");
    }
  } catch (error) {
    if (error instanceof TypeError) throw new ApiError("The connection to the server was lost.", { type: "connection" });
    throw error;
  } finally {
    reader.cancel().catch(() => {});
  }
}

function dataOf(event) {
  const lines = event.split("\n").filter((line) => line.startsWith("data:"));
  return lines.length === 0 ? null : lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
}
