// Runs the script of examples/browser.html: clicks "speak", and tells how many samples were played.
// With STOP, clicks "stop" twice once a chunk plays, and tells what the page says then. A chunk that
// the page has read already, which happens when several arrive at once, comes to it after the clicks.

const elements = {};
globalThis.document = {
  getElementById: (id) => (elements[id] ??= { value: process.env.TEXT, textContent: "" }),
};

let played = 0;
let clock = 0;
const { STOP } = process.env;
let tellPlaying;
const playing = new Promise((resolve) => (tellPlaying = resolve));

class Source {
  connect() {}
  stop() {}

  /** Time does not pass by itself here: a source has been played when it was started. */
  start(at) {
    if (at < clock) throw new Error("a chunk was started before the one ahead of it had ended");
    clock = at + this.buffer.duration;
    tellPlaying();
    if (STOP) return; // it plays on, until its context is closed, and does not tell of that
    played += this.buffer.length;
    queueMicrotask(() => this.onended());
  }
}

globalThis.AudioContext = class {
  state = "running";
  currentTime = 0;

  constructor({ sampleRate }) {
    this.sampleRate = sampleRate;
  }

  createBuffer(channels, length, rate) {
    return { length, duration: length / rate, copyToChannel() {} };
  }

  createBufferSource() {
    return new Source();
  }

  /** As in a browser, the state follows later, and a second call is an error. */
  async close() {
    if (this.isClosing) throw new DOMException("It is closed.", "InvalidStateError");
    this.isClosing = true;
    await new Promise(setImmediate);
    this.state = "closed";
  }
};

if (STOP) {
  const { Context } = await import(process.argv[3]);
  const chunks = Context.prototype[Symbol.asyncIterator];
  Context.prototype[Symbol.asyncIterator] = async function* () {
    let last;
    for await (const chunk of chunks.call(this)) yield (last = chunk);
    yield last;
  };
}

await import(process.argv[2]);
const speaking = elements.speak.onclick();
if (STOP) {
  await playing;
  for (let click = 0; click < 2; click++) elements.stop.onclick();
}
await speaking;
if (elements.speak.disabled || !elements.stop.disabled) throw new Error("the buttons are stuck");
console.log(`${played} samples; ${elements.status.textContent}`);
