// As much of a browser as the page's modules use. Nothing here moves by itself: a test says what the
// server, the audio thread and the microphone do.

import { register } from "node:module";

// The page asks for the client at the address that the service serves it at.
const client = new URL("../../../clients/js/talkwire.js", import.meta.url).href;
register(
  "data:text/javascript," +
    encodeURIComponent(`export const resolve = (name, context, next) =>
      next(name === "/static/talkwire.js" ? ${JSON.stringify(client)} : name, context);`),
);

export class FakeAudioContext extends EventTarget {
  static made = [];
  audioWorklet = { addModule: async () => {} };
  baseLatency = 0;
  suspended = 0;

  constructor({ sampleRate } = {}) {
    super();
    this.sampleRate = sampleRate ?? 48_000;
    this.state = "running";
    FakeAudioContext.made.push(this);
  }

  become(state) {
    this.state = state;
    this.dispatchEvent(new Event("statechange"));
  }

  async suspend() {
    this.suspended++;
    this.become("suspended");
  }

  async resume() {
    this.become("running");
  }

  async close() {
    this.become("closed");
  }

  createMediaStreamSource() {
    return { connect() {} };
  }
}

/** `told`: the types of what the page said to the audio thread; `say` is the audio thread's answer. */
export class FakeNode {
  static made = [];
  told = [];

  constructor(context) {
    this.context = context;
    this.port = { postMessage: (data) => this.told.push(data.type), close() {} };
    FakeNode.made.push(this);
  }

  say(data) {
    this.port.onmessage({ data });
  }

  connect() {}
  disconnect() {}
}

/** The track of an open microphone. */
export class FakeTrack extends EventTarget {
  live = true;

  get readyState() {
    return this.live ? "live" : "ended";
  }

  stop() {
    this.live = false;
  }
}

/** A socket to a server that opens every context and says nothing more by itself. */
export class FakeSocket extends EventTarget {
  static made = [];
  sent = [];

  constructor() {
    super();
    FakeSocket.made.push(this);
  }

  greet() {
    const limits = { max_text_chars: 20_000, max_message_bytes: 65_536 };
    const session = { model: "fake", voices: ["narrator"], sample_rate: 24_000, limits };
    this.say({ type: "session.created", ...session });
  }

  say(message) {
    this.dispatchEvent(Object.assign(new Event("message"), { data: JSON.stringify(message) }));
  }

  /** A context's next audio: so many samples of silence. */
  sayAudio(handle, sequence, offset, samples) {
    const view = new DataView(new ArrayBuffer(12 + 2 * samples));
    view.setUint8(0, 0x11);
    view.setUint16(2, handle, true);
    view.setUint32(4, sequence, true);
    view.setUint32(8, offset, true);
    this.dispatchEvent(Object.assign(new Event("message"), { data: view.buffer }));
  }

  send(text) {
    const message = JSON.parse(text);
    this.sent.push(message);
    const { type, context_id } = message;
    if (type !== "context.create") return;
    const handle = this.count(type) - 1;
    Promise.resolve().then(() => this.say({ type: "context.created", context_id, handle }));
  }

  refuse() {
    this.dispatchEvent(Object.assign(new Event("close"), { code: 1006, reason: "" }));
  }

  close() {}

  /** How many messages of a type the page has sent. */
  count(type) {
    return this.sent.filter((message) => message.type === type).length;
  }
}

class FakeElement extends EventTarget {
  constructor() {
    super();
    const pen = new Proxy({}, { get: () => () => {}, set: () => true });
    const classList = { toggle() {} };
    Object.assign(this, { value: "", textContent: "", hidden: false, dataset: {}, options: [] });
    Object.assign(this, { attributes: {}, files: [], classList, getContext: () => pen });
    Object.assign(this, { clientWidth: 600, clientHeight: 100 });
  }

  setAttribute(name, value) {
    this.attributes[name] = value;
  }

  replaceChildren() {}
  append() {}
}

class FakeDocument extends EventTarget {
  elements = {};

  getElementById(id) {
    return (this.elements[id] ??= new FakeElement());
  }

  createElementNS() {
    return new FakeElement();
  }
}

/** Puts them where the page looks for them, all new; returns the document. */
export function newBrowser() {
  for (const made of [FakeAudioContext.made, FakeNode.made, FakeSocket.made]) made.length = 0;
  const page = new FakeDocument();
  const globals = {
    document: page,
    location: new URL("http://localhost:8000/"),
    isSecureContext: true,
    AudioContext: FakeAudioContext,
    AudioWorkletNode: FakeNode,
    WebSocket: FakeSocket,
    sessionStorage: { getItem: () => null, setItem() {} },
    matchMedia: () => new EventTarget(),
    addEventListener() {},
    requestAnimationFrame() {},
    getComputedStyle: () => ({ getPropertyValue: () => "" }),
    Option: class {},
  };
  for (const [name, value] of Object.entries(globals)) {
    Object.defineProperty(globalThis, name, { value, configurable: true, writable: true });
  }
  return page;
}

/** What has been begun goes on as far as it can without a further word from outside. */
export async function settled() {
  for (let i = 0; i < 20; i++) await new Promise(setImmediate);
}
