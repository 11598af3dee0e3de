// A clip from the microphone, as a WAV file: mono, 16 bits, at the microphone's own rate.

/** As much as is recorded: a little less than the server takes. */
export const LONGEST_S = 29.5;

/**
 * Records until `stop`, and LONGEST_S at most. `onTime(seconds)` is told how much there is, and
 * `onEnd()` that the microphone has gone: unplugged, say, or no longer allowed.
 */
export class Recording {
  static async start(onTime, onEnd) {
    const audio = { channelCount: 1, echoCancellation: false, autoGainControl: false };
    const made = new Recording();
    made.stream = await navigator.mediaDevices.getUserMedia({ audio });
    try {
      made.context = new AudioContext();
      await made.context.audioWorklet.addModule("/static/clip-worklet.js");
      const node = new AudioWorkletNode(made.context, "clip", { numberOfOutputs: 0 });
      node.port.onmessage = ({ data }) => made.#take(data, onTime);
      made.context.createMediaStreamSource(made.stream).connect(node);
      await made.context.resume();
      const [track] = made.stream.getTracks();
      if (track.readyState === "ended") throw new Error("the microphone has gone");
      track.addEventListener("ended", onEnd); // not by our own stop()
    } catch (error) {
      await made.#close();
      throw error;
    }
    return made;
  }

  constructor() {
    this.pieces = [];
    this.samples = 0;
    this.over = false; // what the audio thread sends afterwards comes too late
  }

  get seconds() {
    return this.samples / this.context.sampleRate;
  }

  #take(piece, onTime) {
    if (this.over || this.seconds >= LONGEST_S) return;
    this.pieces.push(piece);
    this.samples += piece.length;
    onTime(this.seconds);
  }

  async #close() {
    for (const track of this.stream.getTracks()) track.stop();
    await this.context?.close();
  }

  /** Lets go of the microphone and returns the file. */
  async stop() {
    this.over = true;
    const rate = this.context.sampleRate;
    await this.#close();
    return wav(this.pieces, this.samples, rate);
  }
}

function wav(pieces, samples, rate) {
  const view = new DataView(new ArrayBuffer(44 + 2 * samples));
  const text = (at, letters) => [...letters].forEach((l, i) => view.setUint8(at + i, l.charCodeAt(0)));
  text(0, "RIFF");
  view.setUint32(4, 36 + 2 * samples, true);
  text(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true);
  view.setUint16(22, 1, true);
  view.setUint32(24, rate, true);
  view.setUint32(28, 2 * rate, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  text(36, "data");
  view.setUint32(40, 2 * samples, true);
  let at = 44;
  for (const piece of pieces) {
    for (const value of piece) {
      view.setInt16(at, Math.round(Math.max(-1, Math.min(1, value)) * 32767), true);
      at += 2;
    }
  }
  return new Blob([view], { type: "audio/wav" });
}
