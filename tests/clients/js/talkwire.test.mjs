// Run by tests/clients/test_js.py, which starts the servers named in the environment.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import {
  connect,
  parseHeader,
  readSamples,
  speechUrl,
  TalkwireError,
} from "../../../clients/js/talkwire.js";

const { LIVE, BUSY, LOADING, CROWDED, HOLE, GONE, LOCKED, LOCKED_LOADING, WHOLE } = process.env;
const TEXT = "A sentence to say. And a second one, which is longer than the first.";
const LONG = "This sentence is one of very many sentences that follow each other. ".repeat(40);
const EXACT = { chunking: { lookahead_frames: 3 }, sampling: { seed: 5 } };

const withCode = (code) => (error) => error instanceof TalkwireError && error.code === code;

async function using(url, act, options) {
  const client = await connect(url, options);
  try {
    return await act(client);
  } finally {
    client.close();
  }
}

function joined(chunks) {
  const all = new Float32Array(chunks.reduce((sum, chunk) => sum + chunk.samples.length, 0));
  for (const chunk of chunks) all.set(chunk.samples, chunk.sampleOffset);
  return all;
}

function frame(bytes, payload = []) {
  return new Uint8Array([...bytes, ...payload]).buffer;
}

test("words come after their audio", () =>
  using(LIVE, async (client) => {
    assert.equal(client.session.word_timings, true);
    const [told, heardMs] = [[], []];
    let samples = 0;
    const context = await client.createContext({
      onAudio: (chunk) => (samples += chunk.samples.length),
      onWords: (words) => {
        told.push(...words);
        heardMs.push([words.at(-1).end_ms, (1000 * samples) / client.session.sample_rate]);
      },
    });
    context.feed(TEXT);
    await context.finished;
    assert.deepEqual(told.map((word) => word.text), TEXT.split(" "));
    assert.deepEqual(context.words, told);
    for (const [end, heard] of heardMs) assert.ok(end <= heard + 0.1);
  }));

test("the header is read field by field", () => {
  const buffer = frame([0x11, 5, 0x34, 0x12, 1, 0, 0, 0x80, 0xff, 0xff, 0xff, 0xff]);
  assert.deepEqual(parseHeader(buffer), {
    handle: 0x1234,
    sequence: 0x80000001,
    sampleOffset: 0xffffffff,
    first: true,
    last: false,
    discontinuity: true,
  });
});

test("what is no header of ours is refused", () => {
  for (const bytes of [[], [0x11], [0x21, ...new Array(11).fill(0)]]) {
    assert.throws(() => parseHeader(frame(bytes)), (error) => error instanceof Error);
  }
  const header = [0x11, ...new Array(11).fill(0)];
  assert.throws(() => readSamples(frame(header, [1]), "pcm_s16le"), withCode("protocol_error"));
});

test("s16 and f32 samples are little-endian", () => {
  const header = new Array(12).fill(0);
  const s16 = readSamples(frame(header, [0, 0x80, 1, 0, 0xff, 0x7f]), "pcm_s16le");
  assert.deepEqual([...s16], [-1, 1 / 32768, 32767 / 32768]);
  assert.deepEqual([...readSamples(frame(header, [0, 0, 0, 0x3f]), "pcm_f32le")], [0.5]);
});

test("a text is spoken, sample by sample", () =>
  using(LIVE, async (client) => {
    assert.equal(client.session.protocol, "talkwire.tts.v1");
    const audio = { encoding: "pcm_f32le" };
    const context = await client.speak(TEXT, { audio, ...EXACT });
    const chunks = [];
    for await (const chunk of context) chunks.push(chunk);
    await context.finished;
    const file = readFileSync(WHOLE);
    const whole = new Float32Array(file.buffer, file.byteOffset, file.length / 4);
    assert.deepEqual(joined(chunks), whole);
    assert.ok(chunks.length > 2 && chunks[0].first && chunks.at(-1).last);
    assert.equal(context.reason, "complete");
    assert.ok(context.metrics.ttfa_ms > 0);
    assert.equal(context.metrics.audio_ms, (1000 * whole.length) / 24000);
  }));

test("words from an async iterable, and s16, give the same speech", () =>
  using(LIVE, async (client) => {
    async function* words() {
      for (const word of TEXT.match(/\S+\s*/g)) {
        yield word;
        await new Promise(setImmediate);
      }
    }
    const chunks = [];
    const context = await client.speak(words(), { ...EXACT, onAudio: (c) => chunks.push(c) });
    await context.finished;
    const file = readFileSync(WHOLE);
    const whole = new Float32Array(file.buffer, file.byteOffset, file.length / 4);
    const heard = joined(chunks);
    assert.equal(heard.length, whole.length);
    for (let i = 0; i < whole.length; i++) {
      assert.equal(Math.round(heard[i] * 32768), Math.round(heard[i] * 32768) | 0);
      assert.ok(Math.abs(heard[i] - whole[i]) <= 1.6 / 32768, `sample ${i}`);
    }
  }));

test("a text that fails is the context's failure, and the socket goes on", () =>
  using(LIVE, async (client) => {
    async function* broken() {
      yield "Hello there.";
      throw new RangeError("no more words");
    }
    const context = await client.speak(broken(), { onAudio() {} });
    await assert.rejects(context.finished, RangeError);
    const next = await client.speak("Still here.", { onAudio() {} });
    assert.equal((await next.finished).reason, "complete");
  }));

test("contexts share a socket and do not mix", () =>
  using(LIVE, async (client) => {
    const speak = async (text) => {
      const chunks = [];
      const context = await client.speak(text, { ...EXACT, onAudio: (c) => chunks.push(c) });
      await context.finished;
      return joined(chunks);
    };
    const texts = ["One.", "A second text.", "And the third one of them."];
    const alone = [];
    for (const text of texts) alone.push(await speak(text));
    assert.deepEqual(await Promise.all(texts.map(speak)), alone);
  }));

test("other encodings come as bytes", () =>
  using(LIVE, async (client) => {
    for (const encoding of client.session.encodings.filter((name) => !/16|32/.test(name))) {
      const chunks = [];
      const context = await client.speak(TEXT, { audio: { encoding }, onAudio: (c) => chunks.push(c) });
      await context.finished;
      assert.equal(context.reason, "complete");
      assert.ok(chunks.every((chunk) => chunk.samples === null && chunk.bytes.length > 0));
      assert.equal(context.sampleRate, encoding === "opus" ? 24_000 : 8000);
      if (encoding !== "opus") {
        const bytes = chunks.reduce((sum, chunk) => sum + chunk.bytes.length, 0);
        assert.ok(Math.abs(bytes / 8 - context.metrics.audio_ms) <= 1);
      }
    }
  }));

test("flush speaks half a sentence and resolves after its last sample", () =>
  using(LIVE, async (client) => {
    let samples = 0;
    const context = await client.createContext({ onAudio: (c) => (samples += c.samples.length) });
    context.append("Half a sentence without");
    await context.flush();
    const flushed = samples;
    assert.ok(flushed > 0);
    context.append(" an end");
    context.end();
    await context.finished;
    assert.equal(context.metrics.audio_ms, (1000 * samples) / 24000);
    assert.ok(samples > flushed);
    await assert.rejects(context.flush(), withCode("context_closed"));
    assert.throws(() => context.append("x"), withCode("context_closed"));
  }));

test("cancel stops at once and tells what was heard", () =>
  using(LIVE, async (client) => {
    let chunks = 0;
    let begun;
    const first = new Promise((resolve) => (begun = resolve));
    const context = await client.createContext({ onAudio: () => (chunks++, begun()) });
    context.append(LONG);
    context.end();
    await first;
    context.reportPlayed(100);
    const stopping = context.cancel(10);
    const before = chunks;
    const cancelled = await stopping;
    await context.finished;
    assert.equal(chunks, before);
    assert.equal(cancelled.text_spoken + cancelled.text_remaining, LONG);
    assert.ok(cancelled.text_remaining.length > 0);
    assert.equal(context.metrics.context_id, context.id);
    assert.equal((await context.cancel()).type, "context.cancelled");
    assert.ok((await client.ping()) >= 0);
  }));

test("cancel drops what was not read, also when the server has finished", () =>
  using(LIVE, async (client) => {
    const context = await client.speak(TEXT, EXACT);
    await context.finished;
    let chunks = 0;
    for await (const chunk of context) {
      assert.ok(chunk.samples.length);
      chunks++;
      assert.equal(await context.cancel(), null);
    }
    assert.equal(chunks, 1);
    assert.equal(context.reason, "complete");
  }));

test("leaving the loop cancels", () =>
  using(LIVE, async (client) => {
    const context = await client.speak(LONG);
    for await (const chunk of context) {
      assert.ok(chunk.samples.length);
      break;
    }
    await context.finished;
    assert.equal(context.cancelled.type, "context.cancelled");
  }));

test("refusals carry the server's code", () =>
  using(LIVE, async (client) => {
    await assert.rejects(client.createContext({ voice: "nobody" }), withCode("unknown_voice"));
    const silent = await client.speak("", { onAudio() {} });
    await assert.rejects(silent.finished, withCode("invalid_text"));
    const told = [];
    const context = await client.createContext({ onAudio() {}, onError: (e) => told.push(e.code) });
    context.append("x".repeat(client.session.limits.max_text_chars + 1));
    context.append("Short.");
    context.end();
    assert.equal((await context.finished).reason, "complete");
    assert.deepEqual(told, ["text_too_long"]);
  }));

test("a full server says overloaded, with a retry hint", () =>
  using(BUSY, async (client) => {
    await client.createContext();
    await assert.rejects(client.createContext(), (error) => {
      assert.equal(error.code, "overloaded");
      assert.ok(error.retryable && error.retryAfterMs > 0);
      return true;
    });
  }));

test("why a handshake failed is found out", async () => {
  await assert.rejects(connect(LOADING), withCode("not_ready"));
  await assert.rejects(connect(GONE), withCode("unreachable"));
  await using(CROWDED, () => assert.rejects(connect(CROWDED), withCode("refused")));
});

test("a key opens what asks for one, and a wrong one is told", async () => {
  const client = await connect(LOCKED, { apiKey: "the-key" });
  const context = await client.speak("A sentence to say.");
  let samples = 0;
  for await (const chunk of context) samples += chunk.samples.length;
  assert.ok(samples > 0);
  client.close();
  for (const apiKey of [undefined, "another", "not a token"])
    for (const url of [LOCKED, LOCKED_LOADING])
      await assert.rejects(connect(url, { apiKey }), withCode("unauthorized"));
  await assert.rejects(connect(LOCKED_LOADING, { apiKey: "the-key" }), withCode("not_ready"));
  await assert.rejects(connect(LOCKED, { apiKey: "mute" }), (error) => {
    assert.deepEqual([error.code, error.retryable], ["forbidden", false]);
    return true;
  });
});

test("an address is all that an audio element needs", async () => {
  const text = "Fish & chips, 50 % off? Sí + no.";
  const fields = { response_format: "pcm", seed: 5, voice: undefined };
  const answer = await fetch(speechUrl(LIVE, text, fields));
  assert.equal(answer.headers.get("content-type"), "audio/pcm");
  const posted = await fetch(new URL("/v1/audio/speech", LIVE.replace("ws", "http")), {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ input: text, ...fields }),
  });
  assert.equal((await answer.arrayBuffer()).byteLength, (await posted.arrayBuffer()).byteLength);
  assert.equal((await fetch(speechUrl(LOCKED, text))).status, 401);
  const opened = await fetch(speechUrl(LOCKED, text, { apiKey: "the-key" }));
  assert.equal(opened.status, 200);
  assert.ok((await opened.arrayBuffer()).byteLength > 0);
});

test("missing audio is a protocol error and ends the connection", async () => {
  let lost;
  const client = await connect(HOLE, { onClose: (error) => (lost = error) });
  const context = await client.createContext({ onAudio() {} });
  await assert.rejects(context.finished, withCode("protocol_error"));
  assert.equal(lost.code, "protocol_error");
  assert.equal(client.isOpen, false);
});

test("a closed client is lost to its contexts", async () => {
  const client = await connect(LIVE);
  const context = await client.createContext();
  client.close();
  await assert.rejects(context.finished, withCode("connection_lost"));
  assert.throws(() => context.append("x"), withCode("connection_lost"));
});
