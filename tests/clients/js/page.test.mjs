// The page's modules in a browser that does only what it is told; tests/page has a real one.

import assert from "node:assert/strict";
import { afterEach, beforeEach, mock, test } from "node:test";

import {
  FakeAudioContext, FakeNode, FakeSocket, FakeTrack, newBrowser, settled,
} from "./fake_browser.mjs";

const { Player } = await import("../../../service/page/player.js");
const { CloneForm } = await import("../../../service/page/clone.js");

const IDLE_MS = 30_000;
const unheard = { began() {}, audible() {}, gap() {}, ended() {} };
let page;
let pages = 0;

beforeEach(() => {
  page = newBrowser();
  mock.timers.enable({ apis: ["setTimeout"] });
});

afterEach(() => {
  mock.timers.reset();
  mock.restoreAll();
});

async function openPage() {
  await import(`../../../service/page/page.js?${++pages}`);
  page.getElementById("text").value = "Hello there.";
}

const at = (id) => page.getElementById(id);
const press = () => at("form").dispatchEvent(new Event("submit", { cancelable: true }));
const pressStop = () => at("stop").dispatchEvent(new Event("click"));

/** Opens the page and speaks; `answerStop` is the server's answer to Stop. */
async function speak() {
  await openPage();
  press();
  const [socket] = FakeSocket.made;
  socket.greet();
  await settled();
  const { context_id } = socket.sent.find((message) => message.type === "context.create");
  const answerStop = async () => {
    const answer = { text_spoken: "", text_remaining: "Hello there.", played_ms: 50 };
    socket.say({ type: "context.cancelled", context_id, ...answer });
    socket.say({ type: "context.done", context_id, reason: "cancelled" });
    await settled();
  };
  return { socket, node: FakeNode.made[0], context_id, answerStop };
}

test("the sound rests when nothing has played for a while, and not under a speech", async () => {
  const player = new Player();
  await player.prepare(24_000);
  const [context] = FakeAudioContext.made;
  player.start(unheard).stop();
  await player.prepare(24_000);
  player.start(unheard);
  const [first, second] = FakeNode.made;
  first.say({ type: "stopped", played: 10, frame: 128 }); // after the second has begun
  mock.timers.tick(2 * IDLE_MS);
  assert.equal(context.state, "running");
  second.say({ type: "drained", played: 10, frame: 128 });
  mock.timers.tick(IDLE_MS - 1);
  assert.equal(context.state, "running");
  mock.timers.tick(1);
  assert.equal(context.state, "suspended");
  mock.timers.tick(2 * IDLE_MS);
  assert.equal(context.suspended, 1);
});

test("while the browser holds the sound, nothing more is heard", async () => {
  let nowMs = 1000;
  mock.method(performance, "now", () => nowMs);
  const player = new Player();
  await player.prepare(24_000);
  const [context] = FakeAudioContext.made;
  const playback = player.start(unheard);
  playback.push(new Float32Array(240_000));
  const [node] = FakeNode.made;
  node.say({ type: "began", id: 0, frame: 0, at: Date.now() });
  node.say({ type: "status", played: 0, frame: 0, ranDry: false });
  const begun = playback.heardSamples;
  nowMs += 500;
  assert.equal(playback.heardSamples - begun, 12_000);
  context.become("interrupted");
  nowMs += 5000;
  assert.equal(playback.heardSamples - begun, 12_000);
  context.become("running");
  nowMs += 500;
  assert.equal(playback.heardSamples - begun, 24_000);
  node.say({ type: "status", played: 24_000, frame: 24_000, ranDry: false });
  assert.equal(playback.heardSamples - begun, 24_000);
});

test("the sound is opened anew for a server of another rate", async () => {
  const player = new Player();
  await player.prepare(24_000);
  await player.prepare(24_000);
  player.start(unheard);
  await player.prepare(48_000);
  assert.deepEqual(FakeAudioContext.made.map((context) => context.sampleRate), [24_000, 48_000]);
  player.start(unheard);
  assert.deepEqual(FakeNode.made.map((node) => node.context.state), ["closed", "running"]);
});

test("the latest press of Speak is the one that is heard", async () => {
  await openPage();
  press();
  press(); // the link is not open yet
  const [socket] = FakeSocket.made;
  socket.greet();
  await settled();
  assert.equal(socket.count("context.create"), 1);
  assert.equal(FakeNode.made.length, 1);
  pressStop();
  assert.deepEqual(FakeNode.made[0].told, ["stop"]);
});

test("a speech of which more comes than can be held has failed", async () => {
  await openPage();
  press();
  const [socket] = FakeSocket.made;
  socket.greet();
  await settled();
  const much = 160 * 24_000;
  socket.sayAudio(0, 0, 0, much);
  assert.equal(at("error").hidden, true);
  socket.sayAudio(0, 1, much, 1); // nothing has been played yet
  assert.equal(at("error-code").textContent, "no_sound");
  assert.equal(at("status").textContent, "It did not work.");
  assert.deepEqual(FakeNode.made[0].told, ["chunk", "stop"]);
  assert.equal(socket.count("context.cancel"), 1);
});

test("where the sound ran dry, its chunks are not said to have come in time", async () => {
  const { socket, node, answerStop } = await speak();
  const words = () => {
    node.say({ type: "audible", frame: 0 }); // the figures are shown
    return at("chunks-text").textContent;
  };
  socket.sayAudio(0, 0, 0, 2400);
  node.say({ type: "began", id: 0, frame: 0, at: Date.now() });
  assert.equal(words(), "1 chunk arrived.");
  assert.equal(at("f-audio-note").textContent, "in 1 chunk");
  socket.sayAudio(0, 1, 2400, 2400);
  node.say({ type: "began", id: 1, frame: 2400 });
  assert.match(words(), /^2 chunks arrived, each at least -?\d+ ms before it was needed\.$/);
  socket.sayAudio(0, 2, 4800, 2400);
  node.say({ type: "gap", id: 2, samples: 24_000 });
  node.say({ type: "began", id: 2, frame: 28_800 });
  assert.equal(words(), "3 chunks arrived, 1 of them too late.");
  pressStop();
  await answerStop();
});

test("Stop is shown before the server has answered it", async () => {
  const { socket, node, answerStop } = await speak();
  socket.sayAudio(0, 0, 0, 2400);
  node.say({ type: "began", id: 0, frame: 0, at: Date.now() });
  node.say({ type: "audible", frame: 0 });
  assert.equal(at("status").textContent, "Speaking…");
  pressStop();
  assert.equal(at("status").textContent, "Stopping…");
  node.say({ type: "audible", frame: 0 }); // it was under way
  assert.equal(at("status").textContent, "Stopping…");
  await answerStop();
  assert.equal(at("status").textContent, "Stopped. 0.05 s were heard.");
});

test("why a speech failed is told when the connection is back, until the next speech", async () => {
  const { socket } = await speak();
  socket.refuse();
  await settled();
  assert.equal(at("link").dataset.state, "waiting");
  assert.equal(at("status").textContent, "It did not work.");
  mock.timers.tick(500);
  FakeSocket.made[1].greet();
  await settled();
  assert.equal(at("link").dataset.state, "open");
  assert.deepEqual([at("error").hidden, at("error-code").textContent], [false, "connection_lost"]);
  press();
  assert.equal(at("error").hidden, true);
  await settled();
  pressStop();
});

for (const llm of [false, true])
  test(`what arrived before the connection broke is heard (as an LLM: ${llm})`, async () => {
    Object.assign(at("llm"), { checked: llm });
    Object.assign(at("pace"), { value: "1" }); // the second word is not sent any more
    const { socket, node } = await speak();
    socket.sayAudio(0, 0, 0, 2400);
    socket.refuse();
    await settled();
    assert.equal(at("stop").attributes["aria-disabled"], "false");
    mock.timers.tick(1000);
    await settled();
    assert.deepEqual(node.told, ["chunk", "end"]);
    node.say({ type: "drained", played: 2400, frame: 2560 });
    await settled();
    assert.equal(at("status").textContent, "It did not work.");
    assert.equal(at("error-code").textContent, "connection_lost");
  });

test("Stop ends what is still heard after the connection broke", async () => {
  const { socket, node } = await speak();
  socket.sayAudio(0, 0, 0, 2400);
  socket.refuse();
  await settled();
  mock.timers.tick(500); // the link tries again
  pressStop();
  node.say({ type: "stopped", played: 128, frame: 256 });
  await settled();
  assert.deepEqual(node.told.slice(0, 3), ["chunk", "end", "stop"]);
  assert.equal(at("status").textContent, "It did not work.");
  assert.equal(at("error-code").textContent, "connection_lost");
});

test("Stop undoes a press of Speak that has not come to anything yet", async () => {
  await openPage();
  press();
  pressStop();
  FakeSocket.made[0].greet();
  await settled();
  assert.equal(FakeSocket.made[0].count("context.create"), 0);
  assert.equal(FakeNode.made.length, 0);
});

test("Stop after the last sample leaves the speech complete", async () => {
  const { socket, node, context_id } = await speak();
  socket.say({ type: "flush.done", context_id, flush_id: "all" });
  await settled();
  node.say({ type: "drained", played: 0, frame: 128 });
  await settled();
  assert.equal(socket.count("context.end"), 1);
  pressStop();
  socket.say({ type: "context.done", context_id, reason: "complete" });
  await settled();
  assert.equal(at("status").textContent, "Done.");
  assert.equal(at("spoken").textContent, "Hello there.");
});

test("a key that may not speak asks for another one", async () => {
  const error = { code: "forbidden", message: "This API key has not the scope speak." };
  const health = { status: "ok", phase: "ready" };
  mock.method(globalThis, "fetch", async (url) =>
    String(url).endsWith("/v1/models") ? Response.json({ error }, { status: 403 }) : Response.json(health),
  );
  await openPage();
  at("key-form").hidden = true;
  FakeSocket.made[0].refuse();
  await settled();
  assert.equal(at("link").dataset.state, "locked");
  assert.equal(at("key-form").hidden, false);
  assert.equal(at("error-code").textContent, "forbidden");
});

/** A browser whose microphone is asked for; returns who asked, to be answered. */
function withMicrophone() {
  const answers = [];
  const getUserMedia = () => new Promise((resolve) => answers.push(resolve));
  const devices = { mediaDevices: { getUserMedia } };
  Object.defineProperty(globalThis, "navigator", { value: devices, configurable: true });
  return answers;
}

/** A form whose Record was pressed and whose microphone is open; returns the microphone's track. */
async function record() {
  const answers = withMicrophone();
  new CloneForm(page, () => {});
  at("clone-record").dispatchEvent(new Event("click"));
  const track = new FakeTrack();
  answers[0]({ getTracks: () => [track] });
  await settled();
  return track;
}

test("two clicks on Record open one microphone, which the next click closes", async () => {
  const tracks = [];
  const answers = withMicrophone();
  new CloneForm(page, () => {});
  const click = () => at("clone-record").dispatchEvent(new Event("click"));
  click();
  click(); // the browser is still asking
  for (const answer of answers) {
    const track = new FakeTrack();
    tracks.push(track);
    answer({ getTracks: () => [track] });
  }
  await settled();
  click();
  await settled();
  assert.deepEqual(tracks.map((track) => track.live), [false]);
  assert.equal(at("clone-record").textContent, "Record");
});

test("a recording that is as long as may be closes the microphone", async () => {
  const track = await record();
  const second = new Float32Array(FakeAudioContext.made[0].sampleRate);
  for (let s = 0; s < 29; s++) FakeNode.made[0].say(second);
  await settled();
  assert.equal(track.live, true);
  FakeNode.made[0].say(second);
  await settled();
  assert.equal(track.live, false);
  assert.equal(at("clone-record").textContent, "Record");
  assert.equal(at("clone-status").textContent, "Recorded 30.0 seconds.");
});

test("a microphone that goes while it records ends the recording", async () => {
  const track = await record();
  FakeNode.made[0].say(new Float32Array(FakeAudioContext.made[0].sampleRate));
  track.live = false;
  track.dispatchEvent(new Event("ended"));
  await settled();
  assert.equal(at("clone-record").textContent, "Record");
  assert.equal(at("clone-status").textContent, "Recorded 1.0 seconds.");
});

for (const [status, type, body, told] of [
  [413, "text/html", "<html><h1>413 Request Entity Too Large</h1></html>", /too large.*HTTP 413/],
  [502, "text/html", "<html><h1>502 Bad Gateway</h1></html>", /in the server's place \(HTTP 502\)/],
  [400, "application/json", '{"error":{"code":"invalid_audio","message":"No clip."}}',
    /^No clip. \(invalid_audio\)$/],
]) {
  test(`the answer ${status} to a clip is told (${type})`, async () => {
    await record();
    FakeNode.made[0].say(new Float32Array(FakeAudioContext.made[0].sampleRate));
    at("clone-record").dispatchEvent(new Event("click"));
    await settled();
    mock.method(globalThis, "fetch", async () =>
      new Response(body, { status, headers: { "Content-Type": type } }));
    at("clone-form").dispatchEvent(new Event("submit", { cancelable: true }));
    await settled();
    assert.match(at("clone-status").textContent, told);
  });
}

test("a file that is chosen while the microphone records takes its place", async () => {
  const track = await record();
  FakeNode.made[0].say(new Float32Array(4800));
  const file = new Blob(["a clip"]);
  Object.assign(at("clone-file"), { files: [file], value: "clip.wav" });
  at("clone-file").dispatchEvent(new Event("change"));
  await settled();
  assert.equal(track.live, false);
  assert.equal(at("clone-record").textContent, "Record");
  const bodies = [];
  mock.method(globalThis, "fetch", async (_, { body }) => bodies.push(body));
  at("clone-form").dispatchEvent(new Event("submit"));
  await settled();
  assert.equal(await bodies[0].get("audio_sample").text(), "a clip");
  assert.equal(at("clone-file").value, "clip.wav");
});
