// The audio thread's half of recording: hands on what the microphone gives. clip.js is the other.

class ClipProcessor extends AudioWorkletProcessor {
  process([[samples]]) {
    if (samples) this.port.postMessage(samples.slice());
    return true;
  }
}
registerProcessor("clip", ClipProcessor);
