/**
 * A client of Talkwire's native protocol, `talkwire.tts.v1` (docs/reference/protocol.md), in one file
 * without dependencies, for browsers and for Node.js 22 (20: `--experimental-websocket`).
 *
 *     import { connect } from "./talkwire.js";
 *
 *     const client = await connect("http://127.0.0.1:8000");
 *     for await (const chunk of await client.speak("Hello there.")) play(chunk.samples);
 *
 * or, as an LLM writes:
 *
 *     const context = await client.createContext({ voice: client.session.voices[0] });
 *     for await (const word of words) context.append(word);
 *     context.end();
 *
 * What goes wrong is a TalkwireError; its `code` is the server's (docs/reference/protocol.md), or one of
 * `unreachable`, `refused`, `connection_lost`, `protocol_error` and `slow_reader` of this file.
 */

export const SUBPROTOCOL = "talkwire.tts.v1";
export const PATH = "/v1/tts/stream";
/** A browser lets pages set no headers of a WebSocket: the key is offered as a subprotocol. */
export const KEY_SUBPROTOCOL = "talkwire.key.";
/** What a subprotocol may hold. */
const TOKEN = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/;
export const HEADER_BYTES = 12;
const VERSION_AND_TYPE = (1 << 4) | 1;
const WRAP = 2 ** 32;
const SAMPLE_BYTES = { pcm_s16le: 2, pcm_f32le: 4, pcm_mulaw: 1, pcm_alaw: 1 }; // Opus has no fixed size
/** What these come at unless another rate is asked for. */
const TELEPHONE_RATES = { pcm_mulaw: 8000, pcm_alaw: 8000 };
/** The longest that a UTF-16 unit gets in JSON (`\u0000`), and room for the rest of a message. */
const UNIT_BYTES = 6;
const ENVELOPE_BYTES = 1024;
/** What answers messages for an earlier context of an id, and so does not refuse this one. */
const LATE_CODES = new Set(["unknown_context", "context_closed"]);
/** What servers take in one message unless they say otherwise. */
const MESSAGE_BYTES = 65_536;
const ID = /^\P{Surrogate}{1,128}$/u; // the server's errors name no other
/** Unread audio that an iterated context holds before it gives up: a socket cannot be paused. */
const MAX_UNREAD_BYTES = 16 << 20;

/** An error with a code for programs and a sentence for people. */
export class TalkwireError extends Error {
  constructor(code, message, fields = {}) {
    super(message);
    this.name = "TalkwireError";
    this.code = code;
    this.retryable = fields.retryable ?? false;
    this.retryAfterMs = fields.retry_after_ms ?? null;
    this.param = fields.param ?? null;
    this.contextId = fields.context_id ?? null;
    this.requestId = fields.request_id ?? null;
  }
}

/** Reads the 12 bytes before the samples. Throws `protocol_error` if they are not ours. */
export function parseHeader(buffer) {
  const view = new DataView(buffer);
  if (buffer.byteLength < HEADER_BYTES || view.getUint8(0) !== VERSION_AND_TYPE) {
    throw new TalkwireError("protocol_error", "A binary message of another version or type.");
  }
  const flags = view.getUint8(1);
  return {
    handle: view.getUint16(2, true),
    sequence: view.getUint32(4, true),
    sampleOffset: view.getUint32(8, true),
    first: (flags & 1) !== 0,
    last: (flags & 2) !== 0,
    discontinuity: (flags & 4) !== 0,
  };
}

/** The linear PCM behind the header as a Float32Array in [-1, 1]; null for other encodings. */
export function readSamples(buffer, encoding) {
  const bytes = buffer.byteLength - HEADER_BYTES;
  if (bytes % (SAMPLE_BYTES[encoding] ?? 1)) {
    throw new TalkwireError("protocol_error", "A binary message ends inside a sample.");
  }
  if (encoding !== "pcm_s16le" && encoding !== "pcm_f32le") return null;
  const view = new DataView(buffer, HEADER_BYTES);
  const samples = new Float32Array(bytes / SAMPLE_BYTES[encoding]);
  for (let i = 0; i < samples.length; i++) {
    samples[i] =
      encoding === "pcm_s16le" ? view.getInt16(2 * i, true) / 32768 : view.getFloat32(4 * i, true);
  }
  return samples;
}

/**
 * Connects to any address of a server (`http` means `ws`, a bare `host:port` means `ws://`, and the
 * path may be left out), and waits for the greeting. Options: `apiKey`, `WebSocket` (an
 * implementation of it), `openTimeoutMs`, and the callbacks `onClose(TalkwireError)` and `onGoingAway(deadlineMs)`.
 * What a callback throws, here and below, is reported as uncaught; the connection goes on.
 * A browser does not tell why a handshake failed, so the service is asked over HTTP then.
 */
export async function connect(url, options = {}) {
  const Socket = options.WebSocket ?? globalThis.WebSocket;
  if (!Socket) throw new TalkwireError("unreachable", "There is no WebSocket here.");
  const client = new Client(openSocket(Socket, url, options.apiKey), options);
  const timer = setTimeout(
    () => client._lose(new TalkwireError("unreachable", "The server did not answer in time.")),
    options.openTimeoutMs ?? 10_000,
  );
  try {
    return await client._greeted.promise;
  } catch (error) {
    throw error.code === "unreachable" ? await whyNot(url, options.apiKey) : error;
  } finally {
    clearTimeout(timer);
  }
}

/**
 * The address at which a text's speech is to be had, for `<audio src>` and whatever else takes no
 * more than an address. `url` is any of the server's; `fields` are those of `POST /v1/audio/speech`,
 * and `apiKey`, for which a page is better given a token: addresses end in other people's logs.
 */
export function speechUrl(url, input, { apiKey, ...fields } = {}) {
  const address = httpUrl("/v1/audio/speech", url);
  for (const [name, value] of Object.entries({ input, ...fields, api_key: apiKey })) {
    if (value !== undefined && value !== null) address.searchParams.set(name, String(value));
  }
  return address.href;
}

/** The HTTP address of a path on the server that has `url`. */
function httpUrl(path, url) {
  const address = new URL(path, webSocketUrl(url));
  address.protocol = address.protocol.replace("ws", "http");
  return address;
}

/** The address of the protocol's WebSocket for any address of a server; on a page also a path. */
function webSocketUrl(url) {
  const full = /^\/|:\/\//.test(url) ? url : `ws://${url}`;
  const address = new URL(full, globalThis.location?.href);
  address.protocol = address.protocol.replace("http", "ws");
  if (address.pathname === "/") address.pathname = PATH;
  return address;
}

function openSocket(Socket, url, apiKey) {
  if (apiKey && !TOKEN.test(apiKey)) {
    throw new TalkwireError("unauthorized", "The API key holds what no key holds.");
  }
  try {
    const protocols = apiKey ? [SUBPROTOCOL, KEY_SUBPROTOCOL + apiKey] : [SUBPROTOCOL];
    return new Socket(webSocketUrl(url).href, protocols);
  } catch {
    throw new TalkwireError("unreachable", `Not a WebSocket address: ${url}`);
  }
}

/** Why a handshake failed, as far as it can be found out: a TalkwireError. */
async function whyNot(url, apiKey) {
  try {
    const health = httpUrl("/health/ready", url);
    const answer = await fetch(health, { cache: "no-store", signal: AbortSignal.timeout(3000) });
    const phase = (await answer.json().catch(() => null))?.phase;
    if (typeof phase !== "string") {
      const why = `Something else answers in the server's place (HTTP ${answer.status}).`;
      return new TalkwireError("unreachable", why, { retryable: answer.status >= 500 });
    }
    const locked = await whyLocked(url, apiKey); // in every phase: no wait would help
    if (locked) return locked;
    const [code, why] = answer.ok
      ? ["refused", "The server is up but took no connection: it is full, or does not know this page."]
      : phase === "draining"
        ? ["draining", "The server is shutting down."]
        : ["not_ready", "The server is not ready yet."];
    return new TalkwireError(code, why, { retryable: true });
  } catch {
    return new TalkwireError("unreachable", noAnswer(url), { retryable: true });
  }
}

/** A browser does not tell a page of another origin whether there is a server at all. */
function noAnswer(url) {
  const own = globalThis.location?.origin;
  if (!own || own === httpUrl("/", url).origin) return "No server answers.";
  return `No server answers, or its allowed_origins does not have ${own}.`;
}

/** What the service has against the key; null: nothing. A page of another origin is not told. */
async function whyLocked(url, apiKey) {
  const headers = apiKey ? { Authorization: `Bearer ${apiKey}` } : {};
  try {
    const models = httpUrl("/v1/models", url);
    const answer = await fetch(models, { headers, signal: AbortSignal.timeout(3000) });
    if (answer.status === 401) {
      const why = apiKey ? "This API key is not valid." : "An API key is needed.";
      return new TalkwireError("unauthorized", why);
    }
    if (answer.status !== 403) return null;
    const told = (await answer.json().catch(() => null))?.error; // a key that may not speak, say
    return new TalkwireError(told?.code ?? "forbidden", told?.message ?? "The server forbids it.");
  } catch {
    return null;
  }
}

/** One socket and its contexts. `session` is what the server said of itself. */
export class Client {
  constructor(socket, options = {}) {
    this.session = null;
    this._socket = socket;
    this._options = options;
    this._contexts = new Map();
    this._handles = new Map();
    this._pings = new Map();
    this._ids = 0;
    this._lost = this._refusal = null;
    this._greeted = deferred();
    socket.binaryType = "arraybuffer";
    socket.addEventListener("message", (event) => this._onData(event.data));
    socket.addEventListener("close", (event) => this._onClose(event));
    // A close event follows and tells more; before the greeting not every Node.js sends one.
    socket.addEventListener("error", () => this.session || this._onClose({ code: 1006, reason: "" }));
  }

  get isOpen() {
    return this._lost === null;
  }

  /**
   * Opens a context. `options` are the fields of `context.create`, and the callbacks
   * `onAudio(chunk)` (then the context is not to be iterated), `onError(error)` for what did not
   * end the context, `onWarning(message)` for what of the text is not spoken as it is written,
   * `onCancelled(message)`, and `onWords(words)`, which asks for `timestamps`: each word is `{ text, start, end, start_ms, end_ms }` and comes after its audio.
   */
  async createContext({ onAudio, onError, onWarning, onCancelled, onWords, ...options } = {}) {
    if (onWords) options = { timestamps: true, ...options };
    const create = { ...options, context_id: options.context_id ?? `c${++this._ids}` };
    const earlier = this._contexts.get(create.context_id);
    if (earlier?.cancelled) await earlier._forgotten.promise; // only its metrics are missing
    if (this._contexts.has(create.context_id)) throw new Error("context id in use");
    const callbacks = { onAudio, onError, onWarning, onCancelled, onWords };
    const context = new Context(this, create, callbacks);
    this._contexts.set(context.id, context);
    try {
      this._send("context.create", create);
      await context._opened.promise;
    } catch (error) {
      this._contexts.delete(context.id);
      throw error;
    }
    return context;
  }

  /**
   * Speaks a text, or what an (async) iterable yields while it yields it; returns the context. Text
   * that the server refuses is the context's failure, once what it took has been spoken.
   */
  async speak(text, options = {}) {
    const context = await this.createContext(options);
    context._wasGivenText = true;
    context.feed(text).catch((error) => {
      if (context._over || context._discarding) return; // often: the text was stopped as well
      context._settle(error);
      if (this.isOpen) this._send("context.cancel", { context_id: context.id });
    });
    return context;
  }

  /** Milliseconds to the server's dialect and back. Need not be awaited. */
  ping() {
    const [id, began] = [`p${++this._ids}`, performance.now()];
    const pong = deferred((answer) => {
      this._send("ping", { id });
      this._pings.set(id, answer);
    });
    const measured = pong.promise.then(() => performance.now() - began);
    measured.catch(() => {}); // it is another promise than the pong's, and nobody may await it
    return measured;
  }

  /** Cancels every context and closes the socket. */
  close() {
    if (this.isOpen) this._send("session.close", {});
    this._lose(new TalkwireError("connection_lost", "The client was closed."));
  }

  _send(type, fields) {
    if (this._lost) throw this._lost;
    for (const param of ["context_id", "flush_id"]) {
      if (!(param in fields) || (typeof fields[param] === "string" && ID.test(fields[param]))) continue;
      throw new TalkwireError("invalid_message", `${param} is a string of 1 to 128 characters.`, { param });
    }
    const message = JSON.stringify({ type, ...fields }, wellFormed);
    const most = this.session?.limits.max_message_bytes;
    if (new TextEncoder().encode(message).length > most) // the server would close the socket
      throw new TalkwireError("invalid_message", `A message has ${most} bytes at most.`);
    this._socket.send(message);
  }

  _onData(data) {
    if (this._lost) return;
    try {
      if (typeof data === "string") this._onMessage(JSON.parse(data));
      else this._onAudio(data);
    } catch (error) {
      const isOurs = error instanceof TalkwireError;
      this._lose(isOurs ? error : new TalkwireError("protocol_error", "A message that cannot be read."));
    }
  }

  _onAudio(buffer) {
    const arrivedMs = performance.now();
    const header = parseHeader(buffer);
    const context = this._handles.get(header.handle);
    if (!context) throw new TalkwireError("protocol_error", "Audio for an unknown handle.");
    context._onAudio(buffer, header, arrivedMs);
  }

  _onMessage(message) {
    const context = this._contexts.get(message.context_id);
    switch (message.type) {
      case "session.created":
        this.session = message;
        return this._greeted.resolve(this);
      case "going_away":
        return tell(this._options.onGoingAway, message.deadline_ms);
      case "pong":
        this._pings.get(message.id)?.resolve();
        return this._pings.delete(message.id);
      case "error": {
        const error = new TalkwireError(message.code, message.message, message);
        if (context) context._onError(error);
        else if (error.contextId === null) this._refusal = error; // told, should the socket close now
        return;
      }
      case "context.created":
        this._handles.set(message.handle, context);
    }
    context?._onMessage(message);
  }

  _onClose(event) {
    const words = `The connection was closed (${event.code}${event.reason && `, ${event.reason}`}).`;
    const code = this.session ? "connection_lost" : "unreachable";
    this._lose(this._refusal ?? new TalkwireError(code, words, { retryable: true }));
  }

  _lose(error) {
    if (this._lost) return;
    this._lost = error;
    this._greeted.reject(error);
    for (const pong of this._pings.values()) pong.reject(error);
    for (const context of this._contexts.values()) context._finish(error);
    this._socket.close(error.code === "protocol_error" ? 4002 : 1000);
    if (this.session) tell(this._options.onClose, error);
  }

  _forget(context) {
    this._contexts.delete(context.id);
    context._forgotten.resolve();
    if (this._handles.get(context.handle) === context) this._handles.delete(context.handle);
  }
}

/**
 * One stream of text in and one stream of audio out. Iterate over it once for its chunks:
 * `{samples, bytes, sequence, sampleOffset, first, last, discontinuity, arrivedMs}`, where `bytes`
 * is the audio in its `encoding` at `sampleRate`; leaving the loop cancels. `finished` settles when
 * all is over; `metrics`, `reason`, `cancelled` and `errors` are what the server said until then.
 */
export class Context {
  constructor(client, create, callbacks) {
    this.id = create.context_id;
    this.encoding = create.audio?.encoding ?? "pcm_s16le";
    const rate = TELEPHONE_RATES[this.encoding] ?? client.session.sample_rate;
    this.sampleRate = create.audio?.sample_rate ?? rate; // until the server tells
    this.delaySamples = 0; // what an Opus decoder gives before the first sample of audio
    this.handle = this.metrics = this.reason = this.cancelled = null;
    this.errors = [];
    this.words = [];
    this._client = client;
    this._callbacks = callbacks;
    this._flushes = []; // in the order of the server's answers
    this._chunks = [];
    this._unread = 0;
    this._half = ""; // of a character, whose other half comes with the next text
    this._wake = null;
    this._sequence = this._offset = 0;
    this._over = null; // {error} once nothing more will come
    this._discarding = false;
    this._wasGivenText = false; // by `speak`: its user counts on all of it being spoken
    this._opened = deferred();
    this._stopped = deferred();
    this._finished = deferred();
    this._forgotten = deferred(); // the server is done with it: its id is free
    /** Resolves to the context, also when it was cancelled; rejects with what ended it. */
    this.finished = this._finished.promise;
  }

  /**
   * More text, as it comes; nothing need be whole. What one message cannot hold goes in several;
   * `text_too_long` is thrown if that is more than a context takes, and `invalid_message` if it is
   * not a string.
   */
  append(text) {
    if (typeof text !== "string" && !(text instanceof String)) {
      const why = `A text is a string, and not ${text === null ? "null" : typeof text}.`;
      throw new TalkwireError("invalid_message", why, { param: "text" });
    }
    const { limits } = this._client.session;
    text = this._half + text;
    const end = text.length - Number(/[\ud800-\udbff]$/.test(text));
    for (const piece of pieces(text.slice(0, end), limits)) this._send("text.append", { text: piece });
    this._half = text.slice(end);
  }

  /** Has what is there spoken now; resolves when the last sample of it has come. Need not be awaited. */
  flush(flushId = `f${++this._client._ids}`) {
    const flush = deferred((done) => {
      this._send("context.flush", { flush_id: flushId });
      this._flushes.push(Object.assign(done, { id: flushId }));
    });
    return flush.promise; // not of an async function: that is another, whose rejection would be uncaught
  }

  /** No more text will come. */
  end() {
    this._send("context.end", {});
  }

  /** Appends a text, or all that an (async) iterable yields as it yields it; then ends. */
  async feed(text) {
    const isIterable = text?.[Symbol.asyncIterator] || text?.[Symbol.iterator];
    for await (const piece of typeof text !== "string" && isIterable ? text : [text]) {
      if (this._over || this._discarding) return;
      if (this.errors.some(({ code }) => code === "text_too_long")) break; // all more is refused
      this.append(piece);
    }
    if (!this._over && !this._discarding) this.end();
  }

  /** Tells the server how many samples of this context the listener has heard in all. */
  reportPlayed(samples) {
    if (this._over || this._discarding) return; // after a cancel it would be refused
    this._send("playback", { played_samples: Math.max(0, Math.floor(samples)) });
  }

  /** Stops now; no audio is delivered from here on. Null: it was over already. `playedMs` below 0 is 0. */
  async cancel(playedMs) {
    const isFirst = !this._discarding;
    if (isFirst) this._discard();
    if (isFirst && !this._over) {
      this._send("context.cancel", { played_ms: Number.isFinite(playedMs) ? Math.max(0, playedMs) : null });
    }
    if (!this._over) await this._stopped.promise;
    return this.cancelled;
  }

  async *[Symbol.asyncIterator]() {
    try {
      for (;;) {
        while (this._chunks.length) {
          const chunk = this._chunks.shift();
          this._unread -= chunk.bytes.length;
          yield chunk;
        }
        if (this._over?.error) throw this._over.error;
        if (this._over || this._discarding) return;
        await new Promise((resolve) => (this._wake = resolve));
      }
    } finally {
      if (!this._over && this._client.isOpen) this.cancel().catch(() => {});
    }
  }

  _send(type, fields) {
    if (this._over) throw this._over.error ?? closed();
    this._client._send(type, { context_id: this.id, ...fields });
  }

  _discard() {
    this._discarding = true;
    this._chunks = [];
    this._unread = 0;
    this._wake?.();
  }

  _onAudio(buffer, header, arrivedMs) {
    if (this._over || this._discarding) return; // the server may have taken frames back
    const samples = readSamples(buffer, this.encoding);
    const bytes = new Uint8Array(buffer, HEADER_BYTES);
    const size = SAMPLE_BYTES[this.encoding];
    if (header.sequence !== this._sequence || (size && header.sampleOffset !== this._offset)) {
      throw new TalkwireError("protocol_error", "Audio is missing, or came twice.");
    }
    this._sequence = (this._sequence + 1) % WRAP;
    if (size) this._offset = (this._offset + bytes.length / size) % WRAP;
    const chunk = { ...header, samples, bytes, arrivedMs };
    if (this._callbacks.onAudio) return tell(this._callbacks.onAudio, chunk);
    this._chunks.push(chunk);
    this._unread += bytes.length;
    this._wake?.();
    if (this._unread <= MAX_UNREAD_BYTES) return;
    this.cancel().catch(() => {});
    this._settle(new TalkwireError("slow_reader", "The audio was not read; the context was cancelled."));
  }

  _onMessage(message) {
    switch (message.type) {
      case "context.created":
        this.handle = message.handle;
        return this._opened.resolve();
      case "audio.started":
        this.sampleRate = message.sample_rate;
        this.delaySamples = message.delay_samples ?? 0;
        return;
      case "timestamps":
        if (this._discarding) return;
        this.words.push(...message.words);
        return tell(this._callbacks.onWords, message.words);
      case "warning":
        return tell(this._callbacks.onWarning, message);
      case "flush.done": {
        const at = this._flushes.findIndex(({ id }) => id === message.flush_id);
        if (at >= 0) this._flushes.splice(at, 1)[0].resolve();
        return;
      }
      case "context.cancelled": // its metrics are still to come
        this.cancelled = message;
        this._discard();
        tell(this._callbacks.onCancelled, message);
        return this._stopped.resolve();
      case "metrics":
        this.metrics = message;
        return this.cancelled && this._finish(null);
      case "context.done":
        this.reason = message.reason;
        return this._finish(this._failure ?? null);
    }
  }

  /** The error that ended it, or else the first refusal of a text given to `speak`. */
  get _failure() {
    return this.reason === "error" ? this.errors.at(-1) : this._wasGivenText ? this.errors[0] : undefined;
  }

  _onError(error) {
    if (this.handle === null) {
      if (!LATE_CODES.has(error.code)) this._settle(error);
      return;
    }
    this.errors.push(error);
    tell(this._callbacks.onError, error);
  }

  _finish(error) {
    this._client._forget(this);
    this._settle(error);
  }

  /**
   * Nothing more is to be delivered; `error` is null where nothing failed. The handle stays known
   * until the server is done with the context, as audio may be under way.
   */
  _settle(error) {
    if (this._over) return;
    this._over = { error };
    if (error) this._finished.reject(error);
    else this._finished.resolve(this);
    this._opened.reject(error ?? closed());
    this._stopped.resolve();
    for (const flush of this._flushes) flush.reject(error ?? closed());
    this._wake?.();
  }
}

/** `text`, in pieces that each fit into a message; no character is cut. */
function pieces(text, { max_message_bytes: bytes = MESSAGE_BYTES, max_text_chars: chars }) {
  const units = Math.max(2, Math.floor((bytes - ENVELOPE_BYTES) / UNIT_BYTES));
  if (text.length <= units) return [text];
  const written = new TextEncoder().encode(JSON.stringify(text));
  if (written.length <= bytes - ENVELOPE_BYTES) return [text];
  if ([...text].length > chars) {
    const why = `A context takes ${chars} characters at most.`;
    throw new TalkwireError("text_too_long", why, { param: "text" }); // not the half of it
  }
  const made = [];
  for (let at = 0, end; at < text.length; at = end) {
    end = at + units;
    if (text.codePointAt(end - 1) > 0xffff) end--; // the first half of a pair
    made.push(text.slice(at, end));
  }
  return made;
}

/** For JSON.stringify: half a character, which the server cannot read, becomes U+FFFD. */
const wellFormed = (_, value) =>
  typeof value === "string" ? value.replace(/\p{Surrogate}/gu, "\ufffd") : value;

const closed = () => new TalkwireError("context_closed", "The context is closed.");

/** Calls a user's callback, if there is one. What it throws is not the connection's fault. */
function tell(callback, value) {
  try {
    callback?.(value);
  } catch (error) {
    queueMicrotask(() => {
      throw error;
    });
  }
}

/**
 * A promise with its ends outside; one that nobody awaits may be rejected in silence. `begin` is
 * given it, and what that throws rejects it.
 */
function deferred(begin) {
  const made = {};
  made.promise = new Promise((resolve, reject) => {
    Object.assign(made, { resolve, reject });
    begin?.(made);
  });
  made.promise.catch(() => {});
  return made;
}
