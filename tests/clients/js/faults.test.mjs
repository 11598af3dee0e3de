// What a user of the client does wrong, and long texts: against a socket that only answers.

import assert from "node:assert/strict";
import { mock, test } from "node:test";

import { connect } from "../../../clients/js/talkwire.js";
import { FakeSocket } from "./fake_browser.mjs";

async function open(options = {}) {
  const connecting = connect("ws://server/", { WebSocket: FakeSocket, ...options });
  const socket = FakeSocket.made.at(-1);
  socket.greet();
  return { client: await connecting, socket };
}

/** Runs `act`; returns what was thrown where nobody catches it. */
async function uncaught(act) {
  const later = mock.method(globalThis, "queueMicrotask", () => {});
  try {
    await act();
    return later.mock.calls.map(({ arguments: [thrower] }) => {
      try {
        thrower();
      } catch (error) {
        return error;
      }
    });
  } finally {
    later.mock.restore();
  }
}

test("what a callback throws is reported, and the connection goes on", async () => {
  const going = new SyntaxError("of onGoingAway");
  const fail = (error) => () => {
    throw error;
  };
  const { client, socket } = await open({ onGoingAway: fail(going) });
  const over = await client.createContext();
  socket.say({ type: "context.done", context_id: over.id, reason: "complete" });
  const named = new RangeError("of onError");
  const bystander = await client.createContext();
  const context = await client.createContext({
    onWords: () => over.append("It is over."), // throws a TalkwireError
    onError: fail(named),
    onCancelled: fail(named),
  });
  const thrown = await uncaught(() => {
    const { id } = context;
    socket.say({ type: "going_away", deadline_ms: 1 });
    socket.say({ type: "timestamps", context_id: id, words: [] });
    socket.say({ type: "error", context_id: id, code: "text_too_long", message: "Too long." });
    socket.say({ type: "context.cancelled", context_id: id });
    socket.say({ type: "metrics", context_id: id });
  });
  assert.deepEqual([thrown[0], ...thrown.slice(2)], [going, named, named]);
  assert.equal(thrown[1].code, "context_closed");
  assert.equal(await context.finished, context);
  assert.ok(client.isOpen);
  bystander.append("Still here.");
  const lost = await open({ onClose: fail(named) });
  assert.deepEqual(await uncaught(() => lost.client.close()), [named]);
});

test("a message that cannot be read ends the connection", async () => {
  for (const data of ["{", "null", '{"type":"context.created"}x']) {
    const { client, socket } = await open();
    socket.dispatchEvent(Object.assign(new Event("message"), { data }));
    assert.throws(() => client._send("ping", {}), { code: "protocol_error" });
  }
});

test("any address of a server leads to its WebSocket", async () => {
  for (const [url, asked] of [
    ["http://host:8000", "ws://host:8000/v1/tts/stream"],
    ["https://host/", "wss://host/v1/tts/stream"],
    ["127.0.0.1:8000", "ws://127.0.0.1:8000/v1/tts/stream"],
    ["localhost:8000", "ws://localhost:8000/v1/tts/stream"],
    ["wss://host", "wss://host/v1/tts/stream"],
    ["http://host/behind/a/proxy?x=1", "ws://host/behind/a/proxy?x=1"],
  ]) {
    let told = null;
    class Asked extends FakeSocket {
      constructor(address) {
        super(address);
        told = address;
        throw new Error("enough");
      }
    }
    await assert.rejects(connect(url, { WebSocket: Asked }), { code: "unreachable" });
    assert.equal(told, asked);
  }
});

test("a bad address is told as one, with a key or without", async () => {
  class Strict extends FakeSocket {
    constructor(url) {
      super(new URL(url));
    }
  }
  for (const apiKey of [undefined, "the-key"])
    await assert.rejects(connect("no address", { WebSocket: Strict, apiKey }), {
      code: "unreachable",
      message: "Not a WebSocket address: no address",
    });
  await assert.rejects(connect("ws://server/", { WebSocket: Strict, apiKey: "no token" }), {
    code: "unauthorized",
  });
});

test("what answers in the server's place is told as such", async () => {
  class Refused extends FakeSocket {
    constructor(url) {
      super(url);
      queueMicrotask(() => this.refuse());
    }
  }
  const answers = [
    [502, "<html><h1>502 Bad Gateway</h1></html>", true],
    [504, "", true],
    [404, '{"detail":"Not Found"}', false],
    [403, "null", false],
    [503, '{"phase":7}', true],
    [200, "<html>Sign in</html>", false],
  ];
  for (const [status, body, retryable] of answers) {
    const fetching = mock.method(globalThis, "fetch", async () => new Response(body, { status }));
    const message = `Something else answers in the server's place (HTTP ${status}).`;
    const told = { code: "unreachable", message, retryable };
    await assert.rejects(connect("ws://server/", { WebSocket: Refused }), told);
    fetching.mock.restore();
  }
});

test("a page of another origin is told why nobody may answer", async () => {
  class Refused extends FakeSocket {
    constructor(url) {
      super(url);
      queueMicrotask(() => this.refuse());
    }
  }
  const fetching = mock.method(globalThis, "fetch", async () => {
    throw new TypeError("Failed to fetch");
  });
  const before = globalThis.location;
  for (const [page, message] of [
    [undefined, "No server answers."],
    ["http://server", "No server answers."],
    ["http://page", "No server answers, or its allowed_origins does not have http://page."],
  ]) {
    globalThis.location = page && new URL(page);
    await assert.rejects(connect("ws://server/", { WebSocket: Refused }), { message });
  }
  globalThis.location = before;
  fetching.mock.restore();
});

test("a text that no message can hold goes in several, and no character is cut", async () => {
  const { client, socket } = await open();
  client.session.limits.max_text_chars = 70_000;
  const context = await client.createContext();
  const bytes = (text) => new TextEncoder().encode(JSON.stringify(text)).length;
  for (const text of ["a".repeat(70_000), "\u0001".repeat(30_000), "a" + "\u{1F642}".repeat(40_000)]) {
    socket.sent.length = 0;
    context.append(text);
    assert.equal(socket.sent.map((message) => message.text).join(""), text);
    assert.ok(socket.sent.length > 1);
    for (const message of socket.sent) {
      assert.ok(bytes(message) <= client.session.limits.max_message_bytes);
      assert.ok(message.text.isWellFormed?.() ?? true);
    }
  }
  socket.sent.length = 0;
  assert.throws(() => context.append("a".repeat(70_001)), { code: "text_too_long" });
  assert.equal(socket.sent.length, 0);
  for (const text of ["", "Hello.", "a".repeat(60_000)]) {
    socket.sent.length = 0;
    context.append(text);
    assert.deepEqual(socket.sent.map((message) => message.text), [text]);
  }
});

test("a text that is no string is refused by name, and not sent", async () => {
  const { client, socket } = await open();
  const context = await client.createContext();
  for (const [text, name] of [[null, "null"], [undefined, "undefined"], [5, "number"], [{}, "object"]]) {
    socket.sent.length = 0;
    const told = { code: "invalid_message", param: "text", message: `A text is a string, and not ${name}.` };
    assert.throws(() => context.append(text), told);
    assert.equal(socket.sent.length, 0);
  }
  await assert.rejects(context.feed(["Hello ", null]), { code: "invalid_message" });
  assert.deepEqual(socket.sent.map((message) => message.text), ["Hello "]);
  socket.sent.length = 0;
  for (const [text, name] of [[null, "null"], [undefined, "undefined"], [5, "number"], [{}, "object"]]) {
    const told = { code: "invalid_message", param: "text", message: `A text is a string, and not ${name}.` };
    await assert.rejects(context.feed(text), told);
    assert.equal(socket.sent.length, 0);
    const speech = await client.speak(text);
    await assert.rejects(speech.finished, told);
    assert.deepEqual(socket.sent.map(({ type }) => type), ["context.create", "context.cancel"]);
    socket.sent.length = 0;
  }
});

test("a character that comes in two halves is sent whole, and half of one is replaced", async () => {
  const { client, socket } = await open();
  const texts = () => socket.sent.splice(0).flatMap(({ type, text }) => (type === "text.append" ? text : []));
  const context = await client.createContext();
  for (const unit of "a\u{1F642}b".split("")) context.append(unit);
  assert.equal(texts().join(""), "a\u{1F642}b");
  await context.feed(["a\ud83d", "b\ude42", "c\ud83d"]);
  assert.equal(texts().join(""), "a\ufffdb\ufffdc");
  await client.createContext({ scene: "\ud83d" });
  assert.equal(socket.sent.at(-1).scene, "\ufffd");
});

test("a context that is done before it was opened is refused", async () => {
  class Hasty extends FakeSocket {
    send(text) {
      const { context_id } = JSON.parse(text);
      this.say({ type: "context.done", context_id, reason: "complete" });
    }
  }
  const connecting = connect("ws://server/", { WebSocket: Hasty });
  Hasty.made.at(-1).greet();
  const client = await connecting;
  await assert.rejects(client.createContext(), { code: "context_closed" });
  await assert.rejects(client.speak("Hello."), { code: "context_closed" });
});

test("an id that no answer could name is refused, and not sent", async () => {
  const { client, socket } = await open();
  const told = (param) => ({ code: "invalid_message", param, message: `${param} is a string of 1 to 128 characters.` });
  const context = await client.createContext();
  socket.sent.length = 0;
  for (const id of ["", "x".repeat(129), "\ud83d", 7, {}]) {
    await assert.rejects(client.createContext({ context_id: id }), told("context_id"));
    await assert.rejects(context.flush(id), told("flush_id"));
  }
  assert.equal(socket.sent.length, 0);
  for (const context_id of ["x", "\u{1F642}".repeat(128)])
    assert.equal((await client.createContext({ context_id })).id, context_id);
  for (const context_id of [undefined, null])
    assert.match((await client.createContext({ context_id })).id, /^c\d+$/);
});

test("options over the server's limit are refused, and not sent", async () => {
  const { client, socket } = await open();
  const audio = "\u{1F642}".repeat(client.session.limits.max_message_bytes / 4);
  socket.sent.length = 0;
  await assert.rejects(client.createContext({ context_id: "a", reference: { audio } }), {
    code: "invalid_message", message: /^A message has .* bytes at most\.$/,
  });
  assert.equal(socket.sent.length, 0);
  assert.equal((await client.createContext({ context_id: "a" })).id, "a");
});

test("a late error of an ended context does not refuse the next one of its id", async () => {
  const { client, socket } = await open();
  const first = await client.createContext({ context_id: "a" });
  const cancelling = first.cancel();
  socket.say({ type: "context.done", context_id: "a", reason: "complete" });
  assert.equal(await cancelling, null);
  const opening = client.createContext({ context_id: "a" });
  socket.say({ type: "error", context_id: "a", code: "context_closed", message: "It is closed." });
  const second = await opening;
  assert.deepEqual([second.handle, second.errors], [1, []]);
  second.append("Hello.");
});

test("a text ends where the server takes no more of it", async () => {
  const { client, socket } = await open();
  async function* words() {
    yield "Hello ";
    const { context_id } = socket.sent[0];
    socket.say({ type: "error", context_id, code: "text_too_long", message: "Too long." });
    yield "there.";
    yield "Again.";
  }
  const context = await client.createContext();
  await context.feed(words());
  const types = socket.sent.map(({ type }) => type);
  assert.deepEqual(types, ["context.create", "text.append", "context.end"]);
  assert.equal(context.errors[0].code, "text_too_long");
});

test("a text of which the server refuses some fails when the rest has been spoken", async () => {
  const { client, socket } = await open();
  async function* words() {
    yield "Hello ";
    yield "there.";
  }
  for (const text of [words(), ["Hello ", "there."], "Hello there."]) {
    const context = await client.speak(text);
    await new Promise(setImmediate);
    const refused = { type: "error", context_id: context.id, code: "text_too_long", message: "Long." };
    socket.say(refused);
    socket.say({ ...refused, code: "invalid_message" });
    socket.sayAudio(context.handle, 0, 0, 10);
    socket.say({ type: "metrics", context_id: context.id, audio_ms: 1 });
    socket.say({ type: "context.done", context_id: context.id, reason: "complete" });
    let samples = 0;
    const read = async () => {
      for await (const chunk of context) samples += chunk.samples.length;
    };
    await assert.rejects(read(), { code: "text_too_long" });
    await assert.rejects(context.finished, { code: "text_too_long" });
    assert.deepEqual([samples, context.reason, context.metrics.audio_ms], [10, "complete", 1]);
  }
});

test("a text that fails once its speech was cancelled does not hide what was heard", async () => {
  const { client, socket } = await open();
  const stopped = {};
  stopped.promise = new Promise((_, reject) => (stopped.reject = reject));
  async function* words() {
    yield "Hello ";
    await stopped.promise;
  }
  const context = await client.speak(words());
  await new Promise(setImmediate);
  const cancelling = context.cancel(20);
  stopped.reject(new DOMException("The text was stopped.", "AbortError"));
  await new Promise(setImmediate);
  socket.say({ type: "context.cancelled", context_id: context.id, text_spoken: "Hel" });
  socket.say({ type: "metrics", context_id: context.id });
  assert.equal((await cancelling).text_spoken, "Hel");
  assert.equal(await context.finished, context);
  assert.equal(socket.count("context.cancel"), 1);
});

test("a flush that nobody awaits does not end the program when its speech is cancelled", async () => {
  const { client, socket } = await open();
  const context = await client.createContext();
  const awaited = context.flush();
  context.flush();
  context.cancel();
  socket.say({ type: "context.cancelled", context_id: context.id });
  socket.say({ type: "metrics", context_id: context.id });
  await assert.rejects(awaited, { code: "context_closed" });
  context.flush();
  await new Promise(setImmediate); // Node.js tells of uncaught rejections by then, and fails the test
});

test("a ping that nobody awaits does not end the program when the connection is lost", async () => {
  const { client, socket } = await open();
  const answered = client.ping();
  socket.say({ type: "pong", id: socket.sent[0].id });
  assert.ok((await answered) >= 0);
  const awaited = client.ping();
  client.ping(); // by a timer, say, that keeps an idle session
  client.close();
  client.ping();
  await assert.rejects(awaited, { code: "connection_lost" });
  await assert.rejects(client.ping(), { code: "connection_lost" });
  await new Promise(setImmediate); // Node.js tells of uncaught rejections by then, and fails the test
});

test("no playback is reported once a speech was cancelled", async () => {
  const { client, socket } = await open();
  const context = await client.createContext();
  context.reportPlayed(10);
  const cancelling = context.cancel();
  context.reportPlayed(20); // the server would refuse it
  socket.say({ type: "context.cancelled", context_id: context.id });
  await cancelling;
  context.reportPlayed(30);
  assert.deepEqual(socket.sent.map(({ type }) => type), ["context.create", "playback", "context.cancel"]);
});

test("a cancel before playback began says that nothing was heard", async () => {
  const { client, socket } = await open();
  for (const [given, played_ms] of [[-5, 0], [5.5, 5.5], [null, null], [undefined, null], [NaN, null]]) {
    const context = await client.createContext();
    context.cancel(given); // the server would refuse a negative number, and go on
    assert.equal(socket.sent.at(-1).played_ms, played_ms);
  }
});

test("a context knows the rate of its audio before any of it has come", async () => {
  const { client } = await open();
  const rate = async (audio) => (await client.createContext({ audio })).sampleRate;
  assert.equal(await rate(undefined), 24_000);
  assert.equal(await rate({ encoding: "pcm_f32le", sample_rate: 48_000 }), 48_000);
  for (const encoding of ["pcm_mulaw", "pcm_alaw"]) {
    assert.equal(await rate({ encoding }), 8000);
    assert.equal(await rate({ encoding, sample_rate: 16_000 }), 16_000);
  }
});

test("the id of a cancelled context is free as soon as the cancel was answered", async () => {
  const { client, socket } = await open();
  for (const end of [() => socket.say({ type: "metrics", context_id: "a" }), () => client.close()]) {
    const first = await client.createContext({ context_id: "a" });
    await assert.rejects(client.createContext({ context_id: "a" }), /in use/);
    const cancelling = first.cancel();
    socket.say({ type: "context.cancelled", context_id: "a" });
    await cancelling;
    const opening = client.createContext({ context_id: "a" });
    end();
    if (!client.isOpen) return assert.rejects(opening, { code: "connection_lost" });
    (await opening).end();
    socket.say({ type: "context.done", context_id: "a", reason: "complete" });
  }
});

test("flushes of one id are done in the order in which they were asked for", async () => {
  const { client, socket } = await open();
  const context = await client.createContext();
  const done = [];
  const flushes = [1, 2].map((number) => context.flush("f").then(() => done.push(number)));
  for (const number of [1, 2]) {
    socket.say({ type: "flush.done", context_id: context.id, flush_id: "f" });
    await flushes[number - 1];
    assert.deepEqual(done, [1, 2].slice(0, number));
  }
  socket.say({ type: "flush.done", context_id: context.id, flush_id: "f" }); // of none
  const last = context.flush("g");
  socket.say({ type: "flush.done", context_id: context.id, flush_id: "f" });
  client.close();
  await assert.rejects(last, { code: "connection_lost" });
});

test("playback is reported in whole samples", async () => {
  const { client, socket } = await open();
  const context = await client.createContext();
  for (const samples of [1.5 * 4801, -3]) context.reportPlayed(samples); // a clock's time, say
  assert.deepEqual(socket.sent.slice(1).map((message) => message.played_samples), [7201, 0]);
});
