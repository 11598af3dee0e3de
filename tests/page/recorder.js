// A recorder between the page's player and the loudspeaker, for the tests alone: it keeps every
// sample that passes, and hands them out when asked.
class Recorder extends AudioWorkletProcessor {
  constructor() {
    super();
    this.kept = [];
    this.port.onmessage = () => this.port.postMessage(this.kept);
  }

  process([[heard]], [[out]]) {
    const samples = heard ?? new Float32Array(out.length);
    this.kept.push(samples.slice());
    out.set(samples);
    return true;
  }
}
registerProcessor("recorder", Recorder);
